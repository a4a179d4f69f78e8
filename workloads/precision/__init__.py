"""`precision`: what each number format costs and what it loses.

This file declares it and imports nothing heavy; `experiments` holds the numerics; `run` puts
them together. Ranges: `products`, `accumulation`, `autocast`, `training`, each met once, with a
range for every row of products and training.
"""

from ..declaration import Figure, Parameter, Preset, Table, Workload
from ..parameters import DEVICE, DEVICE_NAME, EFFECTIVE_PRECISION, SEED, STATUS, repeats
from ..train.shapes import SHAPES

PRODUCTS = Table(
    name="precision_products",
    title="One matrix product in each precision",
    columns=(
        Figure(name="precision", help="the requested precision"),
        EFFECTIVE_PRECISION,
        Figure(name="size", help="rows and columns of all three matrices"),
        Figure(name="gpu_ms", unit="ms", help="between CUDA events, a product"),
        Figure(name="wall_ms", unit="ms", help="a product by the host's clock"),
        Figure(name="flops_per_s", unit="flops/s", help="2 n³ over the time"),
        Figure(name="peak_percent", unit="percent", help="of the data sheet's dense peak"),
        Figure(name="speedup", help="over fp32 (ieee)"),
        Figure(name="max_absolute_error", help="against fp64, over the first rows"),
        Figure(name="relative_error", help="norm of the error over the norm of the fp64 result"),
        STATUS,
    ),
)

TRAINING = Table(
    name="precision_training",
    title="One training step in each precision",
    columns=(
        Figure(name="precision", help="the requested precision"),
        EFFECTIVE_PRECISION,
        Figure(name="avg_ms", unit="ms", help="mean wall time of a step"),
        Figure(name="tokens_per_s", unit="tokens/s", help="batch × ctx over the mean step"),
        Figure(name="mfu_percent", unit="percent", help="of the dense peak of the precision"),
        Figure(name="peak_memory_allocated_bytes", unit="bytes", help="peak held by tensors"),
        Figure(name="peak_memory_reserved_bytes", unit="bytes", help="peak reserved by torch"),
        Figure(name="final_loss", help="after the same steps from the same weights"),
        STATUS,
    ),
)

ACCUMULATION = Table(
    name="accumulation",
    title="0.01 added a thousand times",
    columns=(
        Figure(name="addend", help="type of the addend"),
        Figure(name="accumulator", help="type of the sum"),
        Figure(name="sum", help="the result; 10 is exact"),
        Figure(name="error", help="sum minus 10"),
    ),
)

AUTOCAST = Table(
    name="autocast_types",
    title="Types of tensors under autocast",
    columns=(
        Figure(name="autocast", help="type of the context"),
        Figure(name="tensor", help="which one"),
        Figure(name="type", help="its dtype"),
    ),
)

PRECISION = Workload(
    name="precision",
    summary="number formats: speed, error, accumulation, autocast's choices",
    description=(
        "The same matrix product and the same training step in fp32, TF32, bf16, fp16 and fp8, "
        "as far as the device has them, with the error against fp64; a thousand additions of "
        "0.01 in each pair of types; and the type that autocast gives each tensor of a small "
        "network."
    ),
    parameters=(
        Parameter(
            name="size",
            kind="int",
            default=8192,
            cpu_default=256,
            minimum=16,
            maximum=65536,
            help="rows and columns of the product's matrices; a multiple of 16",
        ),
        repeats("products", 20, "products", cpu_default=3),
        Parameter(
            name="model",
            kind="choice",
            choices=tuple(SHAPES),
            default="small",
            cpu_default="tiny",
            help="shape of the model to train, one of the workload train",
        ),
        Parameter(
            name="ctx",
            kind="int",
            default=512,
            cpu_default=32,
            minimum=2,
            maximum=1024,
            unit="tokens",
            help="length of its four sequences",
        ),
        repeats("steps", 10, "steps", cpu_default=2),
        DEVICE,
        SEED,
    ),
    presets=(
        Preset(
            name="quick", help="small, in seconds", values={"size": 256, "model": "tiny", "ctx": 32}
        ),
        Preset(
            name="seed-004",
            help="the CS336 solution's table: medium at ctx 512",
            values={"model": "medium", "ctx": 512, "steps": 30},
        ),
    ),
    phases=("products", "accumulation", "autocast", "training", "step"),
    step_range="step",
    results=(
        DEVICE_NAME,
        Figure(name="fastest_product", help="precision of the fastest product"),
        Figure(name="fastest_flops_per_s", unit="flops/s", help="its rate"),
        Figure(name="bf16_speedup", help="of the product in bf16 over fp32 (ieee)"),
        Figure(name="fp16_sum", help="0.01 a thousand times in fp16; 10 is exact"),
        Figure(name="fastest_training", help="precision of the fastest training step"),
    ),
    tables=(PRODUCTS, ACCUMULATION, AUTOCAST, TRAINING),
    run=f"{__name__}.run:run",
    rank=4,
)
