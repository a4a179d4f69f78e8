"""`faults`: programs with one known fault each, and the same programs cured of it.

They bring no ranges: what is wrong has to be found from outside, as in most programs.
"""

from ..declaration import Figure, Parameter, Preset, Workload
from ..parameters import DEVICE, DEVICE_NAME, choice

FAULTS = (
    "launch", "input", "workers", "sync", "pageable", "overlap", "tensor_cores", "odd_shapes",
    "unfused", "attention", "allocator", "optimizer", "recompiling", "leak", "starved",
    "shared_gpu", "straggler", "logits", "no_cache", "healthy_training", "healthy_decode",
    "healthy_copy", "healthy_server",
)  # fmt: skip
"""Names of variants; the healthy ones have no fault."""

FAULTS_WORKLOAD = Workload(
    name="faults",
    summary="one known fault, or its cure: what does gputui say of it?",
    description=(
        "Each variant is a program as people write it, without ranges, with one fault: launches "
        "that are too small, input that is too slow, a sync in every layer, copies from pageable "
        "memory, FP32 matrix products, attention by hand and more. With cure=true the same program "
        "runs without it. Compare the two recordings. The healthy variants have nothing to find."
    ),
    parameters=(
        choice("fault", "launch", FAULTS, "what is wrong"),
        Parameter("cure", "bool", False, "run the same program without the fault"),
        Parameter(
            "seconds",
            "float",
            10.0,
            "how long to run",
            unit="s",
            minimum=0.1,
            maximum=86_400.0,
            cpu_default=2.0,
        ),
        DEVICE,
    ),
    presets=(
        Preset("launch-bound", "many small kernels", {"fault": "launch"}),
        Preset("graphs", "the same, replayed as a CUDA graph", {"fault": "launch", "cure": True}),
    ),
    phases=(),
    step_range=None,
    results=(
        DEVICE_NAME,
        Figure("steps", "steps that were made"),
        Figure("step_ms", "mean time of a step, the first one left out"),
        Figure("cause", "the leaf of the time tree that should lead; empty for the healthy"),
    ),
    tables=(),
    run=f"{__name__}.run:run",
    rank=12,
)
