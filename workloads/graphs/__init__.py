"""`graphs`: the same work launched kernel by kernel, and replayed as a CUDA graph.

A row is a range named after it, with a `step` for every timed pass; the graph is made inside
`capture`.
"""

from ..declaration import Figure, Parameter, Preset, Table, Workload
from ..inference.shapes import SHAPES
from ..parameters import DEVICE, DEVICE_NAME, SEED, STATUS, repeats, warmup

WORK = {
    "chain": "small additions one after another, a kernel each",
    "decode": "a decode step of the workload inference at batch 1, bf16",
}

GRAPHS = Workload(
    name="graphs",
    summary="eager launches against a captured CUDA graph",
    description=(
        "A chain of tiny kernels and a decode step of GPT-2, each launched from Python and "
        "replayed as one CUDA graph. Replayed kernels follow each other without the host, so "
        "the difference is what the host's launches cost: where the eager pass takes longer than "
        "the graph, the GPU was idle."
    ),
    parameters=(
        Parameter(
            name="kernels",
            kind="int",
            default=200,
            cpu_default=50,
            minimum=1,
            maximum=10_000,
            unit="kernels",
            help="length of the chain",
        ),
        Parameter(
            name="elements",
            kind="int",
            default=4096,
            minimum=1,
            maximum=2**28,
            help="elements each kernel of the chain adds to",
        ),
        Parameter(
            name="size",
            kind="choice",
            choices=tuple(SHAPES),
            default="small",
            cpu_default="tiny",
            help="shape of the decode step's model, one of the workload inference",
        ),
        warmup(3, "passes"),
        repeats("passes", 100, "passes", cpu_default=5),
        DEVICE,
        SEED,
    ),
    presets=(
        Preset(name="quick", help="a short chain", values={"kernels": 20, "size": "tiny"}),
        Preset(
            name="large-kernels",
            help="kernels long enough to hide their launches",
            values={"elements": 2**24, "kernels": 50},
        ),
    ),
    phases=("capture", "step"),
    step_range="step",
    results=(
        DEVICE_NAME,
        Figure(name="host_us_per_launch", unit="us", help="host time per kernel of the chain"),
        Figure(name="chain_speedup", help="of the graph over eager launches"),
        Figure(name="decode_speedup", help="of the graph over eager launches"),
        Figure(
            name="decode_gpu_idle_percent",
            unit="percent",
            help="GPU idle share of an eager decode step, which the graph avoids",
        ),
    ),
    tables=(
        Table(
            name="graphs",
            title="Eager launches against a CUDA graph",
            columns=(
                Figure(name="work", help="chain or decode"),
                Figure(name="mode", help="eager or graph"),
                Figure(name="wall_ms", unit="ms", help="a pass by the host's clock"),
                Figure(name="host_ms", unit="ms", help="host time to launch a pass"),
                Figure(name="gpu_ms", unit="ms", help="between CUDA events, including gaps"),
                Figure(name="p99_ms", unit="ms", help="99th percentile of the passes"),
                Figure(
                    name="kernels", help="launches of a pass; for decode, counted during capture"
                ),
                Figure(name="host_us_per_launch", unit="us", help="host time per kernel"),
                Figure(
                    name="gpu_idle_percent",
                    unit="percent",
                    help="share of the eager wall time that the graph saves",
                ),
                Figure(name="speedup", help="of the wall time over eager"),
                Figure(name="capture_ms", unit="ms", help="capturing the graph"),
                STATUS,
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=7,
)
