"""What to try where a GPU waits for launches: it depends on what launches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from gputui.model.events import KernelDefined
from gputui.state import Run

IN_USE = 0.5
"""Launches of a CUDA graph a step from which its program uses graphs."""

OPTIMIZER = 0.1
"""Share of all kernels from which an optimizer that updates tensor by tensor leads the advice: of
the seven or more kernels that Adam launches for a tensor, three can be recognised by name."""

GRAPHS_IN_USE = (
    "CUDA graphs are in use: replay several steps in one graph, take larger batches; node tracing "
    "makes their launches slower, --graph-trace graph does not"
)
ONE_BY_ONE = (
    "fused=True or foreach=True for the optimizer, which launches its kernels tensor by tensor; "
    'then CUDA graphs, torch.compile(mode="reduce-overhead")'
)

_OF_A_TENSOR = re.compile(r"lerp_scalar_kernel|addcdiv_cuda_kernel|addcmul_cuda_kernel")


def launch_advice(run: Run, names: Mapping[int, KernelDefined]) -> str | None:
    """Better than what is true of any program; None where nothing is known."""
    steps = sum(sums.steps for sums in run.loops.values())
    replays = sum(times.count for key, times in run.api.items() if "GraphLaunch" in key.name)
    if steps and replays >= IN_USE * steps:
        return GRAPHS_IN_USE
    whole = one_by_one = 0
    for key, times in run.kernels.items():
        whole += times.time.count
        known = names.get(key.kernel)
        if known is not None and _is_of_a_tensor(known.name):
            one_by_one += times.time.count
    return ONE_BY_ONE if whole and one_by_one >= OPTIMIZER * whole else None


@lru_cache(maxsize=4096)
def _is_of_a_tensor(name: str) -> bool:
    """An update of Adam's moments, of one tensor: PyTorch's `addcmul`, `addcdiv`, `lerp`."""
    return "multi_tensor" not in name and _OF_A_TENSOR.search(name) is not None
