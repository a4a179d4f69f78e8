"""What to try where the CPU may plan attention: cuDNN does so for each new length, tens of
milliseconds each (48 ms a token on an H100, torch 2.11, a cache that grows)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gputui.model.events import KernelDefined
from gputui.model.leaves import Leaf
from gputui.report.explain.causes import CAUSES
from gputui.state import Run

_OF_CUDNN = re.compile(r"cudnn.*sdpa", re.I)

WITH_CUDNN = (
    f"{CAUSES[Leaf.HOST].advice}; if that line is attention over a length that changes, cuDNN "
    "plans each anew: torch.backends.cuda.enable_cudnn_sdp(False)"
)


def host_advice(run: Run, names: Mapping[int, KernelDefined]) -> str | None:
    """Better than what is true of any program; None where cuDNN's attention does not run each
    step."""
    steps = sum(sums.steps for sums in run.loops.values())
    calls = sum(
        times.time.count
        for key, times in run.kernels.items()
        if (known := names.get(key.kernel)) is not None and _OF_CUDNN.search(known.name)
    )
    return WITH_CUDNN if calls and calls >= steps else None
