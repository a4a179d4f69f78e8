"""`quantized`: one linear layer with its weights in bf16, fp8, int8 and int4.

A row is a range named after it, with a `step` for every timed pass.
"""

from ..declaration import Figure, Preset, Table, Workload
from ..parameters import DEVICE, DEVICE_NAME, SEED, STATUS, STEP_MS, repeats, warmup, whole
from .formats import FORMATS, GROUP

QUANTIZED = Workload(
    name="quantized",
    summary="weights in fp8, int8 and int4: bytes, time, error",
    description=(
        "One linear layer of random weights over few tokens, as in decode, where reading the "
        "weights is the work: fewer bytes, less time, more error. Converted beforehand: fp8 with a "
        "scale for each output and token, which multiplies in fp8; int8 with a scale for each "
        f"output; int4 with a scale and a zero for every {GROUP} inputs; both multiplied in bf16. "
        "By torch's own kernels, by a conversion back to bf16 before each product, and by torchao "
        "where it is installed. The error is against the product in fp64."
    ),
    parameters=(
        whole("inputs", 4096, GROUP, 65536, f"inputs, a multiple of {GROUP}", cpu_default=2048),
        whole("outputs", 14336, 16, 262144, "outputs, a multiple of 16", cpu_default=4096),
        whole("tokens", 1, 1, 65536, "rows of the product", unit="tokens"),
        warmup(10, "passes", cpu_default=2),
        repeats("passes", 100, "passes", cpu_default=10),
        DEVICE,
        SEED,
    ),
    presets=(
        Preset("quick", "a small layer", {"inputs": 512, "outputs": 512, "passes": 10}),
        Preset("batch-16", "a layer of Llama 3 8B over 16 tokens", {"tokens": 16}),
        Preset("prefill", "over 2048 tokens, where the products are the work", {"tokens": 2048}),
    ),
    phases=("step", "graph"),
    step_range="step",
    results=(
        DEVICE_NAME,
        STEP_MS,
        Figure("bf16_ms", "a product with bf16 weights"),
        Figure("fp8_speedup", "of the fastest fp8 row over bf16"),
        Figure("int8_speedup", "of the fastest int8 row over bf16"),
        Figure("int4_speedup", "of the fastest int4 row over bf16"),
    ),
    tables=(
        Table(
            "quantized",
            "A layer by the type of its weights",
            (
                Figure("weights", f"one of {', '.join(FORMATS)}"),
                Figure("way", "which kernel multiplies"),
                Figure("weight_bytes", "of the weights with their scales and zeros"),
                Figure("wall_ms", "a pass by the host's clock"),
                Figure("gpu_ms", "a pass on the GPU, by the clock of timed_by"),
                Figure("timed_by", "graph: many passes in one CUDA graph; events: between events"),
                Figure("weight_bytes_per_s", "those bytes over the time"),
                Figure("mbu_percent", "of the data sheet's bandwidth"),
                Figure("speedup", "over bf16"),
                Figure("error_percent", "of the product, by norms"),
                STATUS,
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    forecast=f"{__name__}.forecast:forecast",
    rank=5,
)
