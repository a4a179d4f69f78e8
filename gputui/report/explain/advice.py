"""What to try for a leaf, where more is known than what is true of any program."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from gputui.model.events import KernelDefined
from gputui.model.leaves import Leaf
from gputui.report.explain.counted import all_steps, shares_with_itself
from gputui.report.explain.host_advice import host_advice, wait_advice
from gputui.report.explain.launches import BETWEEN_NODES, launch_advice, replays_graphs
from gputui.state import Run

_OF_TUNING = (Leaf.WAIT, Leaf.HOST, Leaf.SYNC, Leaf.ALLOCATION)
"""What a step idles in that compiles algorithms, finds them memory and waits for each."""

_CONVOLUTION = re.compile(r"cudnn|xmma_[a-z]*(fprop|dgrad|wgrad)|winograd|convolve", re.I)

TUNES = (
    "torch.backends.cudnn.benchmark = False, or few different shapes: it tries every algorithm for "
    "each new shape"
)
TRIES = 20
"""Waits a step, for events and for the device, from which each step tries algorithms: timing one
takes both, and a step has several convolutions."""

APART = "give each of the program's processes a GPU of its own, or run one after the other"


def _tuning_advice(run: Run, names: Mapping[int, KernelDefined]) -> str | None:
    """Where steps time the algorithms of convolutions; None elsewhere."""
    steps = all_steps(run)
    counts = Counter[str]()
    for key, times in run.api.items():
        counts[key.name] += times.count
    tries = min(counts["cudaEventSynchronize"], counts["cudaDeviceSynchronize"])
    if not steps or tries < TRIES * steps:
        return None
    return TUNES if any(_CONVOLUTION.search(known.name) for known in names.values()) else None


def better_advice(
    run: Run, leaves: Mapping[Leaf, int], names: Mapping[int, KernelDefined], leaf: Leaf
) -> str | None:
    """What the kernels, calls and lines of a run say of a leaf of its tree; None where nothing."""
    if leaf in _OF_TUNING and (tunes := _tuning_advice(run, names)) is not None:
        return tunes
    if leaf is Leaf.LAUNCH:
        return launch_advice(run, names)
    if leaf is Leaf.SHARED:
        return APART if shares_with_itself(run) else None
    if leaf is Leaf.DEPENDENCY and replays_graphs(run):
        return BETWEEN_NODES
    if leaf is Leaf.WAIT:
        return wait_advice(run, leaves)
    return host_advice(run, names) if leaf is Leaf.HOST else None
