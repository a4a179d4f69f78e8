"""`memory`: allocating and freeing memory, through torch's allocator and the driver.

Ranges: `lifecycle`, `fragmentation`, `allocators` and `out_of_memory`, once each, with a `step` for
every operation.
"""

from ..declaration import Figure, Preset, Table, Workload
from ..parameters import DEVICE, DEVICE_NAME, SNAPSHOT, STEP_MS, repeats, whole

MEMORY = Workload(
    name="memory",
    summary="allocate, free, fragment, run out: what each does to memory",
    description=(
        "Allocates and frees tensors step by step and records what tensors hold, what torch "
        "keeps and what the driver has handed out; leaves holes in memory until a request that "
        "would fit their sum does not fit any; times allocations from the driver against those "
        "from torch's cache; and asks for more than there is, on purpose, to explain the error."
    ),
    parameters=(
        whole("block", 256, 1, 16384, "size of a tensor", cpu_default=16, unit="MiB"),
        whole("blocks", 16, 2, 1024, "how many are allocated", cpu_default=4, unit="tensors"),
        repeats("passes", 20, "allocations", cpu_default=5),
        SNAPSHOT,
        DEVICE,
    ),
    presets=(Preset("quick", "a few small tensors", {"block": 4, "blocks": 4}),),
    phases=("lifecycle", "fragmentation", "allocators", "out_of_memory", "step",
            "allocation"),
    step_range="step",
    results=(
        DEVICE_NAME,
        STEP_MS,
        Figure("driver_allocation_us", "median cudaMalloc through torch"),
        Figure("cached_allocation_us", "median allocation from the cache"),
        Figure("fragmented_bytes", "free in holes and unusable"),
        Figure("alloc_retries", "times torch emptied its cache to allocate"),
        Figure("out_of_memory_explained", "the deliberate error, in one line"),
    ),
    tables=(
        Table(
            "memory_lifecycle",
            "Memory step by step",
            (
                Figure("step", "the operation"),
                Figure("allocated_bytes", "held by tensors"),
                Figure("active_bytes", "in blocks not yet reusable"),
                Figure("reserved_bytes", "reserved by torch"),
                Figure("inactive_split_bytes",
                       "free, but next to used memory, so it cannot be returned"),
                Figure("outside_bytes",
                       "used on the GPU and not reserved by torch: contexts, libraries, others"),
                Figure("fragmentation_percent", "share of reserved memory that no tensor holds"),
                Figure("process_bytes", "resident memory of the process"),
                Figure("alloc_retries", "so far"),
            ),
        ),
        Table(
            "memory_allocators",
            "Allocating from the driver and from the cache",
            (
                Figure("way", "the source of the memory"),
                Figure("bytes", "size of the allocation"),
                Figure("p50_us", "median time"),
                Figure("max_us", "longest time"),
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=9,
)  # fmt: skip
