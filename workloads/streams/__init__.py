"""`streams`: allocation, copy, conversion and product of many pieces, serial and overlapped.

Ranges: a row is a range named after it, with a `step` for every timed pass and inside it, for each
piece, `allocate`, `copy`, `convert` and `compute`.
"""

from ..declaration import Figure, Parameter, Preset, Table, Workload
from ..parameters import DEVICE, DEVICE_NAME, SEED, STATUS, repeats, warmup

STREAMS = Workload(
    name="streams",
    summary="copies, conversions and products: one stream against several",
    description=(
        "Pieces of fp32 weights lie on the host. Each is given memory on the GPU, copied there, "
        "converted to fp16 and multiplied. Serially, every piece waits for the one before, "
        "and the host for every stage; pinned and overlapped, one stream copies a piece while "
        "another computes on the previous one. How close the overlapped time comes to the longest "
        "stage is the overlap."
    ),
    parameters=(
        Parameter(
            name="pieces",
            kind="int",
            default=16,
            cpu_default=4,
            minimum=2,
            maximum=1024,
            unit="pieces",
            help="matrices to copy to the GPU",
        ),
        Parameter(
            name="size",
            kind="int",
            default=2048,
            cpu_default=128,
            minimum=16,
            maximum=16384,
            help="rows and columns of each",
        ),
        Parameter(
            name="products",
            kind="int",
            default=8,
            cpu_default=1,
            minimum=1,
            maximum=1000,
            unit="products",
            help="matrix products on each piece",
        ),
        Parameter(
            name="streams",
            kind="int",
            default=2,
            minimum=2,
            maximum=16,
            unit="streams",
            help="streams when overlapped",
        ),
        warmup(2, "passes", cpu_default=1),
        repeats("passes", 10, "passes", cpu_default=2),
        DEVICE,
        SEED,
    ),
    presets=(
        Preset(name="quick", help="a few small pieces", values={"pieces": 4, "size": 256}),
        Preset(
            name="copy-bound",
            help="hardly any products: bound by the link",
            values={"products": 1, "size": 4096},
        ),
    ),
    phases=("step", "allocate", "copy", "convert", "compute"),
    step_range="step",
    results=(
        DEVICE_NAME,
        Figure(name="serial_ms", unit="ms", help="a serial pass, the host waiting at every stage"),
        Figure(name="overlapped_ms", unit="ms", help="a pass on several streams, pinned"),
        Figure(name="longest_stage_ms", unit="ms", help="the lower bound of any overlap"),
        Figure(
            name="overlap_percent",
            unit="percent",
            help="share of the possible saving over one pinned stream that was achieved",
        ),
        Figure(name="speedup", help="of overlapped over serial"),
    ),
    tables=(
        Table(
            name="streams",
            title="One stream against several",
            columns=(
                Figure(name="way", help="how the pieces are copied and used"),
                Figure(name="streams", help="CUDA streams"),
                Figure(name="wall_ms", unit="ms", help="a pass by the host's clock"),
                Figure(name="host_ms", unit="ms", help="host time to launch a pass"),
                Figure(name="copied_bytes", unit="bytes", help="from host to device in a pass"),
                Figure(name="speedup", help="over serial"),
                STATUS,
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=6,
)
