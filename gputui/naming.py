"""What the names of CUDA calls and NVTX domains tell."""

from __future__ import annotations

import re

LIBRARY_DOMAINS = (
    "nccl", "cccl", "cub", "thrust", "cublas", "cudnn", "cusparse", "cusolver", "cufft",
    "curand", "cutensor", "nvshmem", "ucx", "tensorrt", "nvjpeg", "cudf",
)  # fmt: skip
"""First letters of the domains in which NVIDIA's libraries mark their own work."""

_KERNEL_LAUNCHES = re.compile(
    r"^(cudaLaunch(?!HostFunc)|cuLaunch(?!HostFunc)|cudaGraphLaunch|cuGraphLaunch)"
)


def is_library_domain(domain: str) -> bool:
    """Whether a domain belongs to a library rather than to the program."""
    return domain.lower().startswith(LIBRARY_DOMAINS)


def is_kernel_launch(call: str) -> bool:
    """Whether a CUDA call of this name puts kernels on a GPU.

    A graph launch is one call, however many nodes.
    """
    return _KERNEL_LAUNCHES.match(call) is not None
