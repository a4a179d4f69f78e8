"""`bandwidth`: copies, reads and writes of growing size: the ceiling of the card's memory.

A row is a range named after it, with a `step` for every timed pass.
"""

from ..declaration import Figure, Preset, Table, Workload
from ..parameters import DEVICE, DEVICE_NAME, STATUS, repeats, warmup, whole

OPERATIONS = ("copy", "read", "write", "add")

BANDWIDTH = Workload(
    name="bandwidth",
    summary="copies, reads and writes of memory: the card's bandwidth ceiling",
    description=(
        "Streams arrays through the GPU: a copy (reads and writes each byte), a sum (reads), a "
        "fill (writes) and an addition of two arrays into a third. Sizes below the L2 cache show "
        "the cache, the largest ones the memory. The best large copy is the measured ceiling of "
        "every memory-bound step, below the data sheet's; it is remembered, and shown by the other "
        "workloads."
    ),
    parameters=(
        whole("smallest", 1, 1, 65536,
              "size of the first array; each next one is four times as large", unit="MiB"),
        whole("largest", 4096, 1, 65536, "size of the last array, at most", cpu_default=16,
              unit="MiB"),
        warmup(3, "passes"),
        repeats("passes", 20, "passes", cpu_default=5),
        DEVICE,
    ),
    presets=(Preset("quick", "one small array", {"largest": 1}),),
    phases=("step",),
    step_range="step",
    results=(
        DEVICE_NAME,
        *(
            Figure(
                f"{operation}_bytes_per_s",
                f"of the largest {operation}, bytes read and written",
                unit="bytes/s",
            )
            for operation in OPERATIONS
        ),
        Figure("peak_bytes_per_s", "the data sheet's"),
        Figure("l2_cache_bytes", "of the GPU, as CUDA gives it: smaller arrays may stay in it"),
    ),
    tables=(
        Table(
            "bandwidth",
            "Memory bandwidth",
            (
                Figure("operation", "copy, read (sum), write (fill) or add"),
                Figure("array_bytes", "size of each array"),
                Figure("moved_bytes", "read and written in a pass"),
                Figure("wall_ms", "a pass by the host's clock"),
                Figure("host_ms", "host time to launch one"),
                Figure("gpu_ms", "between CUDA events, a pass"),
                Figure("bytes_per_s", "moved over the time", unit="bytes/s"),
                Figure("peak_percent", "of the data sheet's peak"),
                STATUS,
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    forecast=f"{__name__}.forecast:forecast",
    rank=11,
)  # fmt: skip
