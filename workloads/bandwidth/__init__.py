"""`bandwidth`: copies, reads and writes of growing size: the ceiling of the card's memory.

A row is a range named after it, with a `step` for every timed pass and, where passes are short, one
`graph` of many. `levels` has a range for every level of the memory hierarchy.
"""

from ..declaration import Figure, Preset, Table, Workload
from ..parameters import DEVICE, DEVICE_NAME, STATUS, STEP_MS, repeats, warmup, whole

OPERATIONS = ("copy", "read", "write", "add")

BANDWIDTH = Workload(
    name="bandwidth",
    summary="memory copies, reads and writes: the card's bandwidth ceiling",
    description=(
        "Streams arrays through the GPU: a copy (reads and writes each byte), a sum (reads), a "
        "fill (writes) and an addition of two arrays into a third. Small arrays show "
        "the L2 cache, the largest ones the memory, as the column level says. Then the hierarchy, "
        "a level at a time: shared memory, L2, HBM, NVLink, the host's DRAM and PCIe. The best "
        "large copy is the measured ceiling of every memory-bound step, below the data sheet's; it "
        "is remembered, and shown by the other workloads."
    ),
    parameters=(
        whole("smallest", 64, 1, 65536,
              "size of the first array; each next one is four times as large; a pass over 16 MiB "
              "takes 5 µs on a large card, which is known to 0.7", cpu_default=1, unit="MiB"),
        whole("largest", 4096, 1, 65536, "size of the last array, at most", cpu_default=256,
              unit="MiB"),
        warmup(3, "passes"),
        repeats("passes", 20, "passes", cpu_default=5),
        DEVICE,
    ),
    presets=(Preset("quick", "one small array", {"smallest": 1, "largest": 1}),),
    phases=("step", "graph", "levels"),
    step_range="step",
    results=(
        DEVICE_NAME,
        STEP_MS,
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
        Figure("shared_bytes_per_s", "of all SMs' shared memory, read"),
        Figure("l2_bytes_per_s", "of the L2 cache, read"),
        Figure("host_bytes_per_s", "of the host's DRAM, read by all threads"),
        Figure("link_bytes_per_s", "of PCIe, a pinned copy to the GPU"),
    ),
    tables=(
        Table(
            "bandwidth",
            "Memory bandwidth",
            (
                Figure("operation", "copy, read (sum), write (fill) or add"),
                Figure("level", "where arrays of this size are when a pass comes again"),
                Figure("array_bytes", "size of each array"),
                Figure("moved_bytes", "read and written in a pass"),
                Figure("wall_ms", "a pass by the host's clock"),
                Figure("host_ms", "host time to launch one"),
                Figure("gpu_ms", "a pass on the GPU, by the clock of timed_by"),
                Figure("timed_by",
                       "graph: many passes in one CUDA graph; events: between CUDA events around "
                       "each; host: the host's clock"),
                Figure("bytes_per_s", "moved over the time", unit="bytes/s"),
                Figure("peak_percent", "of the data sheet's peak"),
                STATUS,
            ),
        ),
        Table(
            "memory_levels",
            "The memory hierarchy",
            (
                Figure("level", "the memory that the bytes come from or go to"),
                Figure("array_bytes", "that each pass goes over; of shared memory, a block's"),
                Figure("pass_ms", "the median pass"),
                Figure("bytes_per_s", "of that level", unit="bytes/s"),
                Figure("of_hbm", "times the rate of HBM"),
                Figure("peak_bytes_per_s", "the data sheet's, or the link's"),
                Figure("peak_percent", "of it"),
                Figure("how", "what is timed"),
                STATUS,
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    forecast=f"{__name__}.forecast:forecast",
    rank=11,
)  # fmt: skip
