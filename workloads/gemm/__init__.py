"""`gemm`: square matrix products of growing size: the ceiling of a model's matrix products.

A row is a range named after it, with a `step` for every timed product.
"""

from ..declaration import Figure, Parameter, Preset, Table, Workload
from ..parameters import (
    DEVICE,
    DEVICE_NAME,
    EFFECTIVE_PRECISION,
    SEED,
    STATUS,
    repeats,
    warmup,
)

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")
SIZES = tuple(2**power for power in range(7, 16))

_CEILINGS = tuple(
    Figure(
        name=f"{precision}_flops_per_s",
        unit="flops/s",
        help=f"best {precision} product: the measured ceiling",
    )
    for precision in PRECISIONS
)

GEMM = Workload(
    name="gemm",
    summary="square matrix products: the card's compute ceiling, by precision",
    description=(
        "Multiplies two square matrices of normal random numbers again and again, in growing "
        "sizes and every precision. The best rate is the ceiling a model can reach on this card "
        "as it is now, with its power limit and clocks: a measured line below the data sheet's."
    ),
    parameters=(
        Parameter(
            name="precision",
            kind="choice",
            choices=("all", *PRECISIONS),
            default="all",
            cpu_default="fp32",
            help="of the products; all for every one the device has",
        ),
        Parameter(
            name="smallest",
            kind="choice",
            choices=tuple(map(str, SIZES)),
            default="1024",
            cpu_default="128",
            help="rows and columns of the first product; each next one doubles them",
        ),
        Parameter(
            name="largest",
            kind="choice",
            choices=tuple(map(str, SIZES)),
            default="16384",
            cpu_default="512",
            help="rows and columns of the last product",
        ),
        warmup(3, "products"),
        repeats("products", 20, "products", cpu_default=5),
        DEVICE,
        SEED,
    ),
    presets=(
        Preset(name="quick", help="one small size", values={"smallest": "256", "largest": "256"}),
        Preset(
            name="tensor-cores",
            help="bf16 at the sizes that fill a large card",
            values={"precision": "bf16", "smallest": "8192", "largest": "16384"},
        ),
    ),
    phases=("step",),
    step_range="step",
    results=(DEVICE_NAME, *_CEILINGS, Figure(name="peak_source", help="where the peaks are from")),
    tables=(
        Table(
            name="gemm",
            title="Matrix products",
            columns=(
                Figure(name="precision", help="the requested precision"),
                Figure(name="size", help="rows and columns of all three matrices"),
                EFFECTIVE_PRECISION,
                Figure(name="wall_ms", unit="ms", help="a product by the host's clock"),
                Figure(name="host_ms", unit="ms", help="host time to launch one"),
                Figure(name="gpu_ms", unit="ms", help="between CUDA events, a product"),
                Figure(name="p50_ms", unit="ms", help="median product"),
                Figure(name="flops_per_s", unit="flops/s", help="2 n³ over the time"),
                Figure(name="peak_percent", unit="percent", help="of the data sheet's dense peak"),
                Figure(name="intensity", help="operations per byte that must be moved"),
                STATUS,
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=10,
)
