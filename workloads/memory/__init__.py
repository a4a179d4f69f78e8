"""`memory`: allocating and freeing memory, through torch's allocator and the driver.

Ranges: `lifecycle`, `fragmentation`, `allocators` and `out_of_memory`, once each, with a `step` for
every operation.
"""

from ..declaration import Figure, Parameter, Preset, Table, Workload
from ..parameters import DEVICE, DEVICE_NAME, SNAPSHOT, repeats

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
        Parameter(
            name="block",
            kind="int",
            default=256,
            cpu_default=16,
            minimum=1,
            maximum=16384,
            unit="MiB",
            help="size of a tensor",
        ),
        Parameter(
            name="blocks",
            kind="int",
            default=16,
            cpu_default=4,
            minimum=2,
            maximum=1024,
            unit="tensors",
            help="how many are allocated",
        ),
        repeats("passes", 20, "allocations", cpu_default=5),
        SNAPSHOT,
        DEVICE,
    ),
    presets=(Preset(name="quick", help="a few small tensors", values={"block": 4, "blocks": 4}),),
    phases=("lifecycle", "fragmentation", "allocators", "out_of_memory", "step"),
    step_range="step",
    results=(
        DEVICE_NAME,
        Figure(name="driver_allocation_us", unit="us", help="median cudaMalloc through torch"),
        Figure(name="cached_allocation_us", unit="us", help="median allocation from the cache"),
        Figure(name="fragmented_bytes", unit="bytes", help="free in holes and unusable"),
        Figure(name="alloc_retries", help="times torch emptied its cache to allocate"),
        Figure(name="out_of_memory_explained", help="the deliberate error, in one line"),
    ),
    tables=(
        Table(
            name="memory_lifecycle",
            title="Memory step by step",
            columns=(
                Figure(name="step", help="the operation"),
                Figure(name="allocated_bytes", unit="bytes", help="held by tensors"),
                Figure(name="active_bytes", unit="bytes", help="in blocks not yet reusable"),
                Figure(name="reserved_bytes", unit="bytes", help="reserved by torch"),
                Figure(
                    name="inactive_split_bytes",
                    unit="bytes",
                    help="free, but next to used memory, so it cannot be returned",
                ),
                Figure(
                    name="outside_bytes",
                    unit="bytes",
                    help="used on the GPU and not reserved by torch: contexts, libraries, others",
                ),
                Figure(
                    name="fragmentation_percent",
                    unit="percent",
                    help="share of reserved memory that no tensor holds",
                ),
                Figure(name="process_bytes", unit="bytes", help="resident memory of the process"),
                Figure(name="alloc_retries", help="so far"),
            ),
        ),
        Table(
            name="memory_allocators",
            title="Allocating from the driver and from the cache",
            columns=(
                Figure(name="way", help="the source of the memory"),
                Figure(name="bytes", help="size of the allocation"),
                Figure(name="p50_us", unit="us", help="median time"),
                Figure(name="max_us", unit="us", help="longest time"),
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=9,
)
