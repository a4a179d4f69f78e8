"""`precision`: what each number format costs and what it loses.

This file declares it and imports nothing heavy; `experiments` holds the numerics; `run` puts
them together. Ranges: `products`, `accumulation`, `autocast`, `training`, each met once, with a
range for every row of products and training.
"""

from ..declaration import Figure, Preset, Table, Workload
from ..parameters import (
    DEVICE,
    DEVICE_NAME,
    EFFECTIVE_PRECISION,
    SEED,
    STATUS,
    STEP_MS,
    choice,
    repeats,
    whole,
)
from ..train import BOUND, GPU_BUSY
from ..train.shapes import OLD_NAMES, SHAPES

PRODUCTS = Table(
    "precision_products",
    "One matrix product in each precision",
    (
        Figure("precision", "the requested precision"),
        EFFECTIVE_PRECISION,
        Figure("size", "rows and columns of all three matrices"),
        Figure("gpu_ms", "a product on the GPU"),
        Figure("wall_ms", "a product by the host's clock"),
        Figure("flops_per_s", "2 n³ over the time", unit="flops/s"),
        Figure("peak_percent", "of the data sheet's dense peak"),
        Figure("ceiling_percent", "of the best product that gemm measured on this card"),
        Figure("speedup", "over fp32 (ieee)"),
        Figure("max_absolute_error", "against fp64, over the first rows"),
        Figure("relative_error", "norm of the error over the norm of the fp64 result"),
        STATUS,
    ),
)

TRAINING = Table(
    "precision_training",
    "One training step in each precision",
    (
        Figure("precision", "the requested precision"),
        EFFECTIVE_PRECISION,
        Figure("avg_ms", "mean wall time of a step"),
        GPU_BUSY,
        BOUND,
        Figure("tokens_per_s", "batch × ctx over the mean step", unit="tokens/s"),
        Figure("mfu_percent", "of the dense peak of the precision"),
        Figure("peak_memory_allocated_bytes", "peak held by tensors"),
        Figure("peak_memory_reserved_bytes", "peak reserved by torch"),
        Figure("final_loss", "after the same steps from the same weights"),
        STATUS,
    ),
)

ACCUMULATION = Table(
    "accumulation",
    "0.01 added a thousand times",
    (
        Figure("addend", "type of the addend"),
        Figure("accumulator", "type of the sum"),
        Figure("sum", "the result; 10 is exact"),
        Figure("error", "sum minus 10"),
    ),
)

AUTOCAST = Table(
    "autocast_types",
    "Types of tensors under autocast",
    (
        Figure("autocast", "type of the context"),
        Figure("tensor", "which one"),
        Figure("type", "its dtype here"),
        Figure("cuda_type", "its dtype on a GPU, whose autocast keeps norms and softmax in fp32"),
    ),
)

PRECISION = Workload(
    name="precision",
    summary="number formats: speed, error, accumulation, autocast's choices",
    description=(
        "The same matrix product and the same training step in fp32, TF32, bf16, fp16, fp8 and "
        "int8, as far as the device has them, with the error against fp64; a thousand additions of "
        "0.01 in each pair of types; and the type that autocast gives each tensor of a small "
        "network."
    ),
    parameters=(
        whole("size", 8192, 16, 65536,
              "rows and columns of the product's matrices; a multiple of 16", cpu_default=256),
        repeats("products", 20, "products", cpu_default=3),
        choice("model", "cs336-medium", SHAPES,
               "shape of the model to train, one of the workload train", cpu_default="cs336-tiny",
               aliases=OLD_NAMES),
        whole("ctx", 512, 2, 1024, "length of its four sequences", cpu_default=32, unit="tokens"),
        repeats("steps", 10, "steps", cpu_default=2),
        DEVICE,
        SEED,
    ),
    presets=(
        Preset("quick", "small, in seconds", {"size": 256, "model": "cs336-tiny", "ctx": 32}),
        Preset("seed-004", "the CS336 solution's table: medium at ctx 512",
               {"model": "cs336-medium", "ctx": 512, "steps": 30}),
    ),
    phases=("products", "accumulation", "autocast", "training", "warmup", "step", "graph"),
    step_range="step",
    results=(
        DEVICE_NAME,
        STEP_MS,
        Figure("fastest_product", "precision of the fastest product"),
        Figure("fastest_flops_per_s", "its rate"),
        Figure("bf16_training_speedup", "of a training step over fp32 (ieee), on the GPU"),
        Figure("bf16_product_speedup", "of the product in bf16 over fp32 (ieee)"),
        Figure("fp16_sum", "0.01 a thousand times in fp16; 10 is exact"),
        Figure("fastest_training",
               "precision whose step takes the GPU least, with those within 3 %"),
    ),
    tables=(PRODUCTS, ACCUMULATION, AUTOCAST, TRAINING),
    run=f"{__name__}.run:run",
    rank=4,
)  # fmt: skip
