"""`streams`: allocation, copy, conversion and product of many pieces, serial and overlapped.

Ranges: a row is a range named after it, with a `step` for every timed pass and inside it, for each
piece, `allocate`, `copy`, `convert` and `compute`.
"""

from ..declaration import Figure, Preset, Table, Workload
from ..parameters import DEVICE, DEVICE_NAME, SEED, STATUS, STEP_MS, repeats, warmup, whole

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
        whole("pieces", 16, 2, 1024, "matrices to copy to the GPU", cpu_default=4, unit="pieces"),
        whole("size", 2048, 16, 16384, "rows and columns of each", cpu_default=128),
        whole("products", 8, 1, 1000, "matrix products on each piece", cpu_default=1,
              unit="products"),
        whole("streams", 2, 2, 16, "streams when overlapped", unit="streams"),
        warmup(2, "passes", cpu_default=1),
        repeats("passes", 10, "passes", cpu_default=2),
        DEVICE,
        SEED,
    ),
    presets=(
        Preset("quick", "a few small pieces", {"pieces": 4, "size": 256}),
        Preset("copy-bound", "hardly any products: bound by the link",
               {"products": 1, "size": 4096}),
    ),
    phases=("step", "allocate", "copy", "convert", "compute"),
    step_range="step",
    results=(
        DEVICE_NAME,
        STEP_MS,
        Figure("serial_ms", "a serial pass, the host waiting at every stage"),
        Figure("overlapped_ms", "a pass on several streams, pinned"),
        Figure("longest_stage_ms", "the lower bound of any overlap"),
        Figure("overlap_percent",
               "share of the possible saving over one pinned stream that was achieved"),
        Figure("speedup", "of overlapped over serial"),
    ),
    tables=(
        Table(
            "streams",
            "One stream against several",
            (
                Figure("way", "how the pieces are copied and used"),
                Figure("streams", "CUDA streams"),
                Figure("wall_ms", "a pass by the host's clock"),
                Figure("host_ms", "host time to launch a pass"),
                Figure("copied_bytes", "from host to device in a pass"),
                Figure("speedup", "over serial"),
                STATUS,
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=6,
)  # fmt: skip
