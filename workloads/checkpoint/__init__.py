"""`checkpoint`: a safetensors file from disk to the GPU, in every way.

This file declares it and imports nothing heavy; `files` makes and reads the file; `run` measures.
Ranges: `write` (only if the file is made here) and `read` once, then a range for every row, with a
`step` for every timed pass.
"""

from ..declaration import Figure, Parameter, Preset, Table, Workload
from ..parameters import DEVICE, DEVICE_NAME, SEED, STATUS, STEP_MS, choice, repeats
from ..train.shapes import OLD_NAMES, SHAPES

CHECKPOINT = Workload(
    name="checkpoint",
    summary="a checkpoint from disk to GPU: pageable, pinned, overlapped",
    description=(
        "Reads a safetensors file and copies its tensors to the GPU, from pageable and from "
        "pinned memory, tensor by tensor and as one buffer, waiting and not, read and copied at "
        "once, converted on the way; then back, within the GPU, and a memset. Each row has "
        "its bytes, its rate in GiB/s and in GB/s, and its share of the link."
    ),
    parameters=(
        Parameter("file", "text", "",
                  "a .safetensors file; empty makes one of `size` with random weights"),
        choice("size", "gpt2", SHAPES,
               "shape whose fp32 weights are made, one of the workload train",
               cpu_default="cs336-tiny", aliases=OLD_NAMES),
        repeats("passes", 5, "passes", cpu_default=2),
        DEVICE,
        SEED,
    ),
    presets=(
        Preset("quick", "a small file", {"size": "cs336-tiny", "passes": 2}),
        Preset("seed-001", "GPT-2 in fp32, 497,903,616 bytes, as in the course project",
               {"size": "gpt2"}),
        Preset("gpt2-xl", "6.2 GB of weights", {"size": "gpt2-xl"}),
    ),
    phases=("write", "read", "step"),
    step_range="step",
    results=(
        DEVICE_NAME,
        STEP_MS,
        Figure("file_bytes", "of the tensors in the file"),
        Figure("tensors", "in the file"),
        Figure("read_bytes_per_s", "from disk or the page cache"),
        Figure("pageable_bytes_per_s", "host to device, pageable"),
        Figure("pinned_bytes_per_s", "host to device, pinned, one buffer"),
        Figure("load_ms", "file to GPU, reading and copying overlapped"),
        Figure("link_bytes_per_s", "the PCIe link's peak, one way"),
    ),
    tables=(
        Table(
            "checkpoint",
            "Ways to load a checkpoint onto the GPU",
            (
                Figure("way", "how the bytes travel"),
                Figure("kind", "disk, HtoD, DtoH, DtoD or memset"),
                Figure("source", "memory the bytes come from"),
                Figure("copies", "copies of a pass"),
                Figure("copied_bytes", "in a pass"),
                Figure("wall_ms", "a pass by the host's clock"),
                Figure("host_ms", "host time before it waits"),
                Figure("gpu_ms", "between CUDA events, including gaps"),
                Figure("gib_per_s", "2³⁰ bytes a second", unit="GiB/s"),
                Figure("gb_per_s", "10⁹ bytes a second", unit="GB/s"),
                Figure("link_percent", "of the PCIe link's peak"),
                STATUS,
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=5,
)  # fmt: skip
