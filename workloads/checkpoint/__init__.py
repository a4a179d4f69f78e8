"""`checkpoint`: a safetensors file from disk to the GPU, in every way.

This file declares it and imports nothing heavy; `files` makes and reads the file; `run` measures.
Ranges: `write` (only if the file is made here) and `read` once, then a range for every row, with a
`step` for every timed pass.
"""

from ..declaration import Figure, Parameter, Preset, Table, Workload
from ..parameters import DEVICE, DEVICE_NAME, SEED, STATUS, repeats
from ..train.shapes import SHAPES

CHECKPOINT = Workload(
    name="checkpoint",
    summary="a checkpoint from disk to the GPU: pageable, pinned, overlapped",
    description=(
        "Reads a safetensors file and copies its tensors to the GPU, from pageable and from "
        "pinned memory, tensor by tensor and as one buffer, waiting and not, read and copied at "
        "once, converted on the way; then back, within the GPU, and a memset. Each row has "
        "its bytes, its rate in GiB/s and in GB/s, and its share of the link."
    ),
    parameters=(
        Parameter(
            name="file",
            kind="text",
            default="",
            help="a .safetensors file; empty makes one of `size` with random weights",
        ),
        Parameter(
            name="size",
            kind="choice",
            choices=tuple(SHAPES),
            default="gpt2",
            cpu_default="tiny",
            help="shape whose fp32 weights are made, one of the workload train",
        ),
        repeats("passes", 5, "passes", cpu_default=2),
        DEVICE,
        SEED,
    ),
    presets=(
        Preset(name="quick", help="a small file", values={"size": "tiny", "passes": 2}),
        Preset(
            name="seed-001",
            help="GPT-2 in fp32, 497,903,616 bytes, as in the course project",
            values={"size": "gpt2"},
        ),
        Preset(name="gpt2-xl", help="6.2 GB of weights", values={"size": "gpt2-xl"}),
    ),
    phases=("write", "read", "step"),
    step_range="step",
    results=(
        DEVICE_NAME,
        Figure(name="file_bytes", unit="bytes", help="of the tensors in the file"),
        Figure(name="tensors", help="in the file"),
        Figure(name="read_bytes_per_s", unit="bytes/s", help="from disk or the page cache"),
        Figure(name="pageable_bytes_per_s", unit="bytes/s", help="host to device, pageable"),
        Figure(
            name="pinned_bytes_per_s", unit="bytes/s", help="host to device, pinned, one buffer"
        ),
        Figure(name="load_ms", unit="ms", help="file to GPU, reading and copying overlapped"),
        Figure(name="link_bytes_per_s", unit="bytes/s", help="the PCIe link's peak, one way"),
    ),
    tables=(
        Table(
            name="checkpoint",
            title="Ways to load a checkpoint onto the GPU",
            columns=(
                Figure(name="way", help="how the bytes travel"),
                Figure(name="kind", help="disk, HtoD, DtoH, DtoD or memset"),
                Figure(name="source", help="memory the bytes come from"),
                Figure(name="copies", help="copies of a pass"),
                Figure(name="copied_bytes", unit="bytes", help="in a pass"),
                Figure(name="wall_ms", unit="ms", help="a pass by the host's clock"),
                Figure(name="host_ms", unit="ms", help="host time before it waits"),
                Figure(name="gpu_ms", unit="ms", help="between CUDA events, including gaps"),
                Figure(name="gib_per_s", unit="GiB/s", help="2³⁰ bytes a second"),
                Figure(name="gb_per_s", unit="GB/s", help="10⁹ bytes a second"),
                Figure(name="link_percent", unit="percent", help="of the PCIe link's peak"),
                STATUS,
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=5,
)
