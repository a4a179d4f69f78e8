"""`graphs`: the same work launched kernel by kernel, and replayed as a CUDA graph.

A row is a range named after it, with a `step` for every timed pass; the graph is made inside
`capture`.
"""

from ..declaration import Figure, Preset, Table, Workload
from ..inference.shapes import OLD_NAMES, SHAPES
from ..parameters import DEVICE, DEVICE_NAME, SEED, STATUS, STEP_MS, choice, repeats, warmup, whole

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
        whole("kernels", 200, 1, 10_000, "length of the chain", cpu_default=50, unit="kernels"),
        whole("elements", 4096, 1, 2**28, "elements each kernel of the chain adds to"),
        choice("size", "gpt2", SHAPES,
               "shape of the decode step's model, one of the workload inference",
               cpu_default="gpt2-tiny", aliases=OLD_NAMES),
        warmup(3, "passes"),
        repeats("passes", 100, "passes", cpu_default=5),
        DEVICE,
        SEED,
    ),
    presets=(
        Preset("quick", "a short chain", {"kernels": 20, "size": "gpt2-tiny"}),
        Preset("large-kernels", "kernels long enough to hide their launches",
               {"elements": 2**24, "kernels": 50}),
    ),
    phases=("capture", "step"),
    step_range="step",
    results=(
        DEVICE_NAME,
        STEP_MS,
        Figure("host_us_per_launch", "host time a kernel of the chain: PyTorch's operation, of "
               "which the launch call is a part", unit="us"),
        Figure("chain_speedup", "of the graph over eager launches"),
        Figure("decode_speedup", "of the graph over eager launches"),
        Figure("decode_gpu_idle_percent",
               "GPU idle share of an eager decode step, which the graph avoids"),
    ),
    tables=(
        Table(
            "graphs",
            "Eager launches against a CUDA graph",
            (
                Figure("work", "chain or decode"),
                Figure("mode", "eager or graph"),
                Figure("wall_ms", "a pass by the host's clock"),
                Figure("host_ms", "host time to launch a pass"),
                Figure("gpu_ms", "between CUDA events, including gaps"),
                Figure("p99_ms", "99th percentile of the passes"),
                Figure("kernels", "launches of a pass; for decode, counted during capture"),
                Figure("host_us_per_launch", "host time a kernel, the operation around its launch "
                       "included", unit="us"),
                Figure("gpu_idle_percent", "share of the eager wall time that the graph saves"),
                Figure("speedup", "of the wall time over eager"),
                Figure("capture_ms", "capturing the graph"),
                STATUS,
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=7,
)  # fmt: skip
