"""`gemm`: square matrix products of growing size: the ceiling of a model's matrix products.

A row is a range named after it, with a `step` for every timed product and, where products are
short, one `graph` of many.
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
    warmup,
)
from ..peaks import PRECISIONS

SIZES = tuple(2**power for power in range(7, 16))
UNALIGNED = 4095
"""Measured beside 4096: no multiple of 8, which tensor cores take without padding."""

PRODUCTS = (*PRECISIONS, "int8")

_CEILINGS = tuple(
    Figure(
        f"{precision}_flops_per_s",
        f"best {precision} product: the measured ceiling",
        unit="flops/s",
    )
    for precision in PRODUCTS
)

GEMM = Workload(
    name="gemm",
    summary="square matrix products: the compute ceiling, by precision",
    description=(
        "Multiplies two square matrices of normal random numbers again and again, in growing "
        "sizes and every precision, and 4,095, which is no multiple of 8, beside 4,096. The best "
        "rate is the ceiling a model can reach on this card as it is now, with its power limit and "
        "clocks: a measured line below the data sheet's. It is remembered and shown by the other "
        "workloads."
    ),
    parameters=(
        choice("precision", "all", ("all", *PRODUCTS),
               "of the products; all for every one the device has", cpu_default="fp32"),
        choice("smallest", "4096", tuple(map(str, SIZES)),
               "rows and columns of the first product; each next one doubles them; one of 2048 "
               "takes 15 µs on a large card in fp8, which is known to 0.9",
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
    phases=("step", "graph"),
    step_range="step",
    results=(
        DEVICE_NAME,
        STEP_MS,
        *_CEILINGS,
        Figure("unaligned_percent",
               "rate at 4,095 in percent of the rate at 4,096, in bf16 or else fp16"),
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
                Figure("gpu_ms", "a product on the GPU, by the clock of timed_by"),
                Figure("timed_by",
                       "graph: many products in one CUDA graph; events: between CUDA events around "
                       "each; host: the host's clock"),
                Figure("p50_ms", "median product that the host launched, between events"),
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
