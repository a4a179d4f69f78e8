"""Whether what is copied comes back from the GPU: then it is worked on, or kept, on the CPU."""

from __future__ import annotations

from gputui.model.leaves import Leaf
from gputui.report.explain.time_tree import TimeTree
from gputui.state import Run

BACK = 0.8
"""Part of the pageable copies' time from which it is for what comes back."""

REDUCE_FIRST = (
    "do on the GPU what is done with it on the CPU (argmax, sampling, metrics), and copy back only "
    "the result, or less often"
)


def copies_back(run: Run, tree: TimeTree) -> bool:
    """Whether pageable copies are from the GPU: as long, over the run, as all are in its steps."""
    back_ns = sum(
        both.time.total
        for key, both in run.memory_operations.items()
        if "Device-to-Host" in key.operation and key.destination_kind == "pageable"
    )
    return 0 < BACK * tree.leaves.get(Leaf.COPY_PAGEABLE, 0) <= back_ns
