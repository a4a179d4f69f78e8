"""How long the GPU worked for each range, including the ranges inside it."""

from __future__ import annotations

import numpy as np

from gputui.attribute.arrays import Int64s
from gputui.attribute.intervals import Unions
from gputui.attribute.range_stacks import NO_NODE
from gputui.attribute.range_tree import Nodes
from gputui.attribute.records import Launched

SecondaryOperations = tuple[Int64s, Int64s, Int64s]
"""Node, start and end of operations in domains other than the one they count in."""


class GpuTime:
    """Remembers up to which time each range has been covered."""

    def __init__(self) -> None:
        self._ranges = Unions()
        self._secondary: list[SecondaryOperations] = []

    def add_secondary(self, nodes: Int64s, starts_ns: Int64s, ends_ns: Int64s) -> None:
        """Add operations in domains other than the one they count in, in any order."""
        self._secondary.append((nodes, starts_ns, ends_ns))

    def sum_by_node(self, nodes: Nodes, launched: Launched) -> tuple[Int64s, Int64s]:
        """Busy time and sum of durations by node, including operations of its children and those
        of threads without ranges (autograd's), which nsys's projections leave out.
        """
        busy_ns = np.zeros(len(nodes), np.int64)
        total_ns = np.zeros(len(nodes), np.int64)
        within = launched.nodes != NO_NODE
        at_nodes = launched.nodes[within]
        starts, ends = launched.starts_ns[within], launched.ends_ns[within]
        secondary, self._secondary = self._secondary, []
        if secondary:
            at_nodes = np.concatenate((at_nodes, *(part[0] for part in secondary)))
            starts = np.concatenate((starts, *(part[1] for part in secondary)))
            ends = np.concatenate((ends, *(part[2] for part in secondary)))
            order = np.argsort(starts, kind="stable")
            at_nodes, starts, ends = at_nodes[order], starts[order], ends[order]
        levels = nodes.level
        deepest = int(levels[at_nodes].max()) if len(at_nodes) else 0
        # From the innermost level outwards, so that all operations of a node are counted together.
        for level in range(deepest, 0, -1):
            here = levels[at_nodes] == level
            at = slice(None) if here.all() else here
            covered = self._ranges.add(at_nodes[at], starts[at], ends[at])
            busy_ns[covered.keys] = covered.busy_ns
            total_ns[covered.keys] = covered.total_ns
            at_nodes[at] = nodes.parent[at_nodes[at]]
        return busy_ns, total_ns
