"""`gemm`: square matrix products of growing size: the ceiling of a model's matrix products.

A row is a range named after it, with a `step` for every timed product.
"""

from ..declaration import Figure, Preset, Table, Workload
from ..parameters import (
    DEVICE,
    DEVICE_NAME,
    EFFECTIVE_PRECISION,
    SEED,
    STATUS,
    choice,
    repeats,
    warmup,
)
from ..peaks import PRECISIONS

SIZES = tuple(2**power for power in range(7, 16))

_CEILINGS = tuple(
    Figure(
        f"{precision}_flops_per_s",
        f"best {precision} product: the measured ceiling",
        unit="flops/s",
    )
    for precision in PRECISIONS
)

GEMM = Workload(
    name="gemm",
    summary="square matrix products: the card's compute ceiling, by precision",
    description=(
        "Multiplies two square matrices of normal random numbers again and again, in growing "
        "sizes and every precision. The best rate is the ceiling a model can reach on this card "
        "as it is now, with its power limit and clocks: a measured line below the data sheet's. It "
        "is remembered and shown by the other workloads."
    ),
    parameters=(
        choice("precision", "all", ("all", *PRECISIONS),
               "of the products; all for every one the device has", cpu_default="fp32"),
        choice("smallest", "1024", tuple(map(str, SIZES)),
               "rows and columns of the first product; each next one doubles them",
               cpu_default="128"),
        choice("largest", "16384", tuple(map(str, SIZES)), "rows and columns of the last product",
               cpu_default="512"),
        warmup(3, "products"),
        repeats("products", 20, "products", cpu_default=5),
        DEVICE,
        SEED,
    ),
    presets=(
        Preset("quick", "one small size", {"smallest": "256", "largest": "256"}),
        Preset("tensor-cores", "bf16 at the sizes that fill a large card",
               {"precision": "bf16", "smallest": "8192", "largest": "16384"}),
    ),
    phases=("step",),
    step_range="step",
    results=(
        DEVICE_NAME,
        *_CEILINGS,
        Figure("peak_source", "where the peaks are from"),
    ),
    tables=(
        Table(
            "gemm",
            "Matrix products",
            (
                Figure("precision", "the requested precision"),
                Figure("size", "rows and columns of all three matrices"),
                EFFECTIVE_PRECISION,
                Figure("wall_ms", "a product by the host's clock"),
                Figure("host_ms", "host time to launch one"),
                Figure("gpu_ms", "between CUDA events, a product"),
                Figure("p50_ms", "median product"),
                Figure("flops_per_s", "2 n³ over the time", unit="flops/s"),
                Figure("peak_percent", "of the data sheet's dense peak"),
                Figure("intensity", "operations per byte that must be moved"),
                STATUS,
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    forecast=f"{__name__}.forecast:forecast",
    rank=10,
)  # fmt: skip
