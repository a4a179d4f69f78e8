"""`bandwidth`: copies, reads and writes of growing size: the ceiling of the card's memory.

A row is a range named after it, with a `step` for every timed pass.
"""

from ..declaration import Figure, Parameter, Preset, Table, Workload
from ..parameters import DEVICE, DEVICE_NAME, STATUS, repeats, warmup

OPERATIONS = ("copy", "read", "write", "add")

BANDWIDTH = Workload(
    name="bandwidth",
    summary="copies, reads and writes of memory: the card's bandwidth ceiling",
    description=(
        "Streams arrays through the GPU: a copy (reads and writes each byte), a sum (reads), a "
        "fill (writes) and an addition of two arrays into a third. Sizes below the L2 cache show "
        "the cache, the largest ones the memory. The best large copy is the measured ceiling of "
        "every memory-bound step, below the data sheet's."
    ),
    parameters=(
        Parameter(
            name="smallest",
            kind="int",
            default=1,
            minimum=1,
            maximum=65536,
            unit="MiB",
            help="size of the first array; each next one is four times as large",
        ),
        Parameter(
            name="largest",
            kind="int",
            default=4096,
            cpu_default=16,
            minimum=1,
            maximum=65536,
            unit="MiB",
            help="size of the last array, at most",
        ),
        warmup(3, "passes"),
        repeats("passes", 20, "passes", cpu_default=5),
        DEVICE,
    ),
    presets=(Preset(name="quick", help="one small array", values={"largest": 1}),),
    phases=("step",),
    step_range="step",
    results=(
        DEVICE_NAME,
        *(
            Figure(
                name=f"{operation}_bytes_per_s",
                unit="bytes/s",
                help=f"of the largest {operation}, bytes read and written",
            )
            for operation in OPERATIONS
        ),
        Figure(name="peak_bytes_per_s", unit="bytes/s", help="the data sheet's"),
    ),
    tables=(
        Table(
            name="bandwidth",
            title="Memory bandwidth",
            columns=(
                Figure(name="operation", help="copy, read (sum), write (fill) or add"),
                Figure(name="array_bytes", unit="bytes", help="size of each array"),
                Figure(name="moved_bytes", unit="bytes", help="read and written in a pass"),
                Figure(name="wall_ms", unit="ms", help="a pass by the host's clock"),
                Figure(name="host_ms", unit="ms", help="host time to launch one"),
                Figure(name="gpu_ms", unit="ms", help="between CUDA events, a pass"),
                Figure(name="bytes_per_s", unit="bytes/s", help="moved over the time"),
                Figure(name="peak_percent", unit="percent", help="of the data sheet's peak"),
                STATUS,
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=11,
)
