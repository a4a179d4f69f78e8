"""What to try where a GPU waits for launches: it depends on what launches."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

from gputui.model.events import KernelDefined
from gputui.model.leaves import Leaf, leaf_of_kernel
from gputui.report.explain.causes import CAUSES
from gputui.report.explain.counted import all_steps, waits_among_launches
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
BETWEEN_NODES = (
    "fewer, larger kernels in the graph (torch.compile), larger batches; node tracing lengthens "
    "the gaps between them, --graph-trace graph does not"
)
"""Where the nodes of CUDA graphs wait for one another."""
ONE_BY_ONE = (
    "fused=True or foreach=True for the optimizer, which launches its kernels tensor by tensor; "
    'then CUDA graphs, torch.compile(mode="reduce-overhead")'
)
WITHOUT_OPTIMIZER = 'CUDA graphs, torch.compile(mode="reduce-overhead"), larger batches'
"""Where the optimizer is fused, or nothing is trained."""
COMPILE_WHOLE = (
    "jax.jit around the whole step; several steps in one call (jax.lax.scan, fori_loop), larger "
    "batches"
)
"""Where XLA made the kernels: of single operators, or of short functions."""
UNBLOCK = (
    "unset CUDA_LAUNCH_BLOCKING, by which each launch waits for its kernel; in PyTorch look for a "
    "line that sets it in os.environ"
)
FEWER_WAITS = "fewer waits (.item(), .cpu(), nonzero), which no CUDA graph can have; then "
"""What comes first where waits are among the launches: CUDA forbids them in a capture."""

_OF_XLA = re.compile(r"^(wrapped_|((gemm|input|loop)_\w*)?fusion(_|$))")
_BACKWARD = re.compile(r"backward|bwd|_grad", re.I)
_OF_A_TENSOR = re.compile(r"lerp_scalar_kernel|addcdiv_cuda_kernel|addcmul_cuda_kernel")


def launch_advice(run: Run, names: Mapping[int, KernelDefined]) -> str | None:
    """Better than what is true of any program; None where nothing is known."""
    if run.launches_block:
        return UNBLOCK
    counts = _counts(run, names)
    if counts and counts["xla"] >= counts.total() / 2:
        return COMPILE_WHOLE
    if replays_graphs(run):
        return GRAPHS_IN_USE
    advice = _of_kernels(counts)
    if waits_among_launches(run) is None:
        return advice
    return FEWER_WAITS + (advice or CAUSES[Leaf.LAUNCH].advice)


def _counts(run: Run, names: Mapping[int, KernelDefined]) -> Counter[_Kind]:
    """How many kernels of each kind ran."""
    counts = Counter[_Kind]()
    for key, times in run.kernels.items():
        if (known := names.get(key.kernel)) is not None:
            counts[_kind(known.name)] += times.time.count
    return counts


def _of_kernels(counts: Counter[_Kind]) -> str | None:
    if not counts:
        return None
    if counts["of a tensor"] >= OPTIMIZER * counts.total():
        return ONE_BY_ONE
    return WITHOUT_OPTIMIZER if counts["optimizer"] or not counts["backward"] else None


def replays_graphs(run: Run) -> bool:
    """Whether the steps replay CUDA graphs."""
    steps = all_steps(run)
    replays = sum(times.count for key, times in run.api.items() if "GraphLaunch" in key.name)
    return steps > 0 and replays >= IN_USE * steps


_Kind = Literal["xla", "of a tensor", "optimizer", "backward", "other"]


@lru_cache(maxsize=4096)
def _kind(name: str) -> _Kind:
    """That XLA made a kernel, or what it says of the optimizer: an update of Adam's moments, of one
    tensor (PyTorch's `addcmul`, `addcdiv`, `lerp`), of many; that there is one; nothing."""
    if _OF_XLA.search(name):
        return "xla"
    if leaf_of_kernel(name) is Leaf.OPTIMIZER:
        return "optimizer"
    if _OF_A_TENSOR.search(name):
        return "of a tensor"
    return "backward" if _BACKWARD.search(name) else "other"
