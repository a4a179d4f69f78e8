"""Parts of a process's delta that follow from what others hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from gputui.attribute.arrays import Int64s
from gputui.attribute.instances import Instances
from gputui.attribute.range_tree import Nodes
from gputui.model.events import CaptureDelta, OpenRange, RangeLeaf


class Counters(NamedTuple):
    """What the reader counted itself since the last time."""

    reader_cpu_ns: int = 0
    core_run_ns: int = 0
    core_wait_ns: int = 0
    core_watched_ns: int = 0


NOTHING_COUNTED = Counters()


def range_leaves(
    nodes: Nodes, phases: Iterable[tuple[int, Mapping[tuple[int, int], int]]]
) -> tuple[RangeLeaf, ...]:
    """By device: node and leaf → ns."""
    return tuple(
        RangeLeaf(device, int(nodes.number[node]), leaf, ns)
        for device, sums in phases
        for (node, leaf), ns in sums.items()
        if ns
    )


def open_ranges(nodes: Nodes, instances: Instances, opened: Int64s) -> tuple[OpenRange, ...]:
    """The ranges of these instances, and since when the oldest of each is open."""
    rows = instances.rows(opened)
    at, since_ns = instances.node[rows], instances.start_ns[rows]
    order = np.lexsort((since_ns, at))
    at, first = np.unique(at[order], return_index=True)
    return tuple(
        OpenRange(number, since)
        for number, since in zip(
            nodes.number[at].tolist(), since_ns[order][first].tolist(), strict=True
        )
    )


_RING_TIMES = ("callback_ns", "traced_ns", "paused_ns")
_SILENT = {"time_ns", "process", "open_ranges", "standing_ppm", *_RING_TIMES, *Counters._fields}
"""What a process has that does nothing."""
_TELLING = tuple(name for name in CaptureDelta.__struct_fields__ if name not in _SILENT)


def says_something(delta: CaptureDelta) -> bool:
    """Whether anything happened, or became known of what happened before."""
    return any(getattr(delta, name) for name in _TELLING)
