"""`comm`: collectives between GPUs, from small to large, as nccl-tests measures them.

Ranges of each rank: a row is a range named after its operation and size, with a `step` for every
timed pass. On the CPU, collectives are ranges of a domain `comm` with their bytes.
"""

from ..declaration import Figure, Preset, Table, Workload
from ..parameters import (
    DEVICE,
    DEVICE_NAME,
    SEED,
    STATUS,
    STEP_MS,
    TIMEOUT,
    choice,
    repeats,
    warmup,
    whole,
)

OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send_recv")

COMM = Workload(
    name="comm",
    summary="collectives between GPUs: bandwidth by size",
    description=(
        "Times all-reduce, broadcast, all-gather, reduce-scatter, all-to-all and send/receive "
        "around a ring, over growing sizes, with one process a GPU, which torchrun starts. "
        "Algorithm bandwidth is the size over the time; bus bandwidth is what each link carries "
        "(nccl-tests' factors), to hold against the link's peak."
    ),
    parameters=(
        choice("operation", "all", ("all", *OPERATIONS), "which operations"),
        whole("ranks", 0, 0, 1024, "processes, a GPU each; 0 takes all GPUs, 2 on the CPU"),
        whole("smallest", 1024, 4, 2**40, "bytes of the smallest", unit="bytes"),
        whole("largest", 2**30, 4, 2**40, "bytes of the largest", unit="bytes",
              cpu_default=2**18),
        whole("factor", 4, 2, 1024, "each size is so many times the one before", cpu_default=16),
        TIMEOUT,
        warmup(5, "passes", cpu_default=1),
        repeats("passes", 20, "passes", cpu_default=3),
        DEVICE,
        SEED,
    ),
    presets=(
        Preset("quick", "three sizes", {"smallest": 2**20, "factor": 16, "largest": 2**28}),
        Preset("large", "64 MiB and more", {"smallest": 2**26}),
    ),
    phases=("step",),
    step_range="step",
    results=(
        DEVICE_NAME,
        STEP_MS,
        Figure("ranks_used", "processes that worked together"),
        Figure("best_bus_bytes_per_s", "of all operations and sizes"),
        Figure("link_bytes_per_s", "of one GPU's links, one direction", unit="bytes/s"),
        Figure("least_us", "the shortest operation"),
    ),
    tables=(
        Table(
            "comm",
            "Collectives by size",
            (
                Figure("operation", "what the ranks did"),
                Figure("size_bytes", "the whole buffer, as nccl-tests counts it"),
                Figure("time_us", "a pass, the slowest rank's", unit="us"),
                Figure("algorithm_bytes_per_s", "size over time", unit="bytes/s"),
                Figure("bus_bytes_per_s", "that each rank's link carries", unit="bytes/s"),
                Figure("link_percent", "of the link's peak", unit="percent"),
                Figure("launch_us", "that the host takes to launch a pass", unit="us"),
                Figure("bound", "by launches: then the rate is the host's; or by the GPUs"),
                STATUS,
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=4,
)  # fmt: skip
