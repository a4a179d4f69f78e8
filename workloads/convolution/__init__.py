"""`convolution`: layers of ResNet-50 by cuDNN, with its search for fast algorithms and without.

A row is a range named after it: `first` is the first pass, which searches, and a `step` is a timed
pass; where passes are short, one `graph` holds many.
"""

from ..declaration import Figure, Preset, Table, Workload
from ..parameters import (
    DEVICE,
    DEVICE_NAME,
    SEED,
    STATUS,
    STEP_MS,
    precision,
    repeats,
    warmup,
    whole,
)

LAYERS = {
    "7×7 stride 2": (3, 64, 224, 7, 2),
    "3×3": (64, 64, 56, 3, 1),
    "1×1 widening": (64, 256, 56, 1, 1),
    "3×3 stride 2": (128, 128, 56, 3, 2),
    "3×3 deep": (512, 512, 7, 3, 1),
}
"""Channels in and out, rows and columns, kernel and stride (He et al., 2016, Deep Residual
Learning, table 1: conv1, conv2_x to conv5_x of the 50 layers)."""

CONVOLUTION = Workload(
    name="convolution",
    summary="cuDNN's convolutions: benchmark mode, deterministic or not",
    description=(
        "Forward and backward passes of layers of ResNet-50. With torch.backends.cudnn.benchmark "
        "cuDNN tries its algorithms in the first pass of each shape and keeps the fastest, which "
        "pays off where shapes stay; with torch.backends.cudnn.deterministic it takes only those "
        "that give the same bits each time. The first pass, the time of a pass, and whether two "
        "passes gave the same gradients are compared."
    ),
    parameters=(
        whole("batch", 64, 1, 4096, "images of a pass", cpu_default=1, unit="images"),
        precision("of images and weights; tf32 and fp32 store fp32"),
        warmup(3, "passes", cpu_default=1),
        repeats("passes", 20, "passes", cpu_default=1),
        DEVICE,
        SEED,
    ),
    presets=(Preset("quick", "four images", {"batch": 4, "passes": 5}),),
    phases=("first", "step", "graph"),
    step_range="step",
    results=(
        DEVICE_NAME,
        STEP_MS,
        Figure("benchmark_speedup", "of all layers with benchmark over those without"),
        Figure("deterministic_percent",
               "time of all layers with deterministic algorithms, of those without"),
    ),
    tables=(
        Table(
            "convolution",
            "Convolutions",
            (
                Figure("layer", "kernel, stride, and where in ResNet-50"),
                Figure("benchmark", "whether cuDNN searches for the fastest algorithm"),
                Figure("deterministic", "whether only deterministic algorithms are allowed"),
                Figure("first_ms", "the first forward and backward pass, with the search"),
                Figure("wall_ms", "a pass by the host's clock"),
                Figure("gpu_ms", "a pass on the GPU"),
                Figure("flops_per_s", "of forward and both gradients", unit="flops/s"),
                Figure("peak_percent", "of the data sheet's dense peak"),
                Figure("same_bits", "whether two passes gave the same gradient of the weights"),
                Figure("algorithm", "what cuDNN took, with the kernels of a pass, by their names"),
                STATUS,
            ),
        ),
        Table(
            "convolution_kernels",
            "Kernels that cuDNN took",
            (
                Figure("layer", "kernel, stride, and where in ResNet-50"),
                Figure("benchmark", "whether cuDNN searches for the fastest algorithm"),
                Figure("deterministic", "whether only deterministic algorithms are allowed"),
                Figure("kernel", "its linkage name"),
                Figure("calls", "in a forward and backward pass"),
            ),
        ),
    ),
    run=f"{__name__}.run:run",
    rank=8,
)  # fmt: skip
