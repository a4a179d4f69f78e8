"""Windows of tracing: what was seen in each, where kernels are traced part of the time.

Figures are estimated by occurrences, which ranges count always (model.events.windows): a range's
GPU time in windows by its occurrences there, times all of its occurrences. An instance that a
window's edge cuts counts by the part of its time that was traced.
"""

from __future__ import annotations

import numpy as np

from gputui.attribute.arrays import LATEST_NS, Bools, Int64s, Slots, durations_ns, times_ns
from gputui.attribute.collection import Collection, DeltaParts
from gputui.attribute.instances import Finalised
from gputui.attribute.intervals import Holes
from gputui.attribute.range_stacks import NO_NODE
from gputui.attribute.range_tree import Nodes
from gputui.attribute.records import Launched
from gputui.attribute.window_costs import WindowCosts, WindowTimes
from gputui.model.events import WINDOW_GROUPS, WindowWork
from gputui.ring.layout import WindowEdge

MOST_WINDOWS = 4096
"""Windows remembered: ranges that began before the oldest are not estimated by occurrences."""

MOST_NODES = 2000
"""Ranges that are estimated by occurrences, the first ones; others as time was traced."""

_PPM = 1_000_000


class Windows:
    """Windows of one process. Without any, kernels are traced all the time."""

    def __init__(self, nodes: Nodes, holes: Holes) -> None:
        """Time between windows is added to `holes`."""
        self._holes = holes
        self._ons = np.empty(0, np.int64)
        self._offs = np.empty(0, np.int64)
        self._forgotten = 0
        self._opening_ns = 0
        self._sums: dict[tuple[int, int], tuple[int, int]] = {}
        self.costs = WindowCosts(nodes)
        self._closed = 0
        self._known_until_ns: int | None = None

    def feed(self, records: Slots) -> None:
        """Add WINDOW records, in ring order."""
        moments = times_ns(records["start"]).tolist()
        for edge, moment in zip(records["sub"].tolist(), moments, strict=True):
            if edge == WindowEdge.OPENING:
                self._opening_ns = moment
            elif edge == WindowEdge.ON:
                self._open(moment)
            elif edge == WindowEdge.OFF:
                self._close(moment)
            elif edge == WindowEdge.CLOSED and len(self._ons) and self._opening_ns:
                group = self._group(np.array([len(self._ons) - 1]))
                self.costs.add_window(WindowTimes(self._opening_ns, moment, int(group[0])))

    def _open(self, moment: int) -> None:
        self._holes.end(moment)
        if len(self._offs) and self._offs[-1] == LATEST_NS:
            return  # it is open: its end was lost
        self._ons = np.append(self._ons, moment)
        self._offs = np.append(self._offs, LATEST_NS)
        if len(self._ons) > MOST_WINDOWS:
            less = MOST_WINDOWS // 2
            self._ons, self._offs = self._ons[less:], self._offs[less:]
            self._forgotten += less

    def _close(self, moment: int) -> None:
        self._holes.begin(moment)
        if len(self._offs) and self._offs[-1] == LATEST_NS:
            self._offs[-1] = max(moment, int(self._ons[-1]))
            self._closed += 1
            # Outside ranges a second of tracing is an occurrence.
            key = NO_NODE, int(self._group(np.array([len(self._ons) - 1]))[0])
            before = self._sums.get(key, (0, 0))
            passed = int(self._offs[-1] - self._ons[-1]) // 1000
            self._sums[key] = before[0] + passed, before[1]

    def _group(self, windows: Int64s) -> Int64s:
        groups: Int64s = (windows + self._forgotten) % WINDOW_GROUPS
        return groups

    def _add(self, finalised: Finalised, launched: Launched) -> None:
        """Instances that are complete, and operations with the ranges that launched them."""
        self.costs.add(finalised.nodes, finalised.starts_ns)
        if not len(self._ons):
            return
        self._add_instances(finalised)
        if len(launched.starts_ns):
            at = np.searchsorted(self._ons, launched.starts_ns, side="right") - 1
            seen = (at >= 0) & self._are_known(at)
            spent = durations_ns(launched.starts_ns[seen], launched.ends_ns[seen])
            self._count(
                launched.nodes[seen], self._group(at[seen]), np.zeros(len(spent), np.int64), spent
            )

    def _add_instances(self, finalised: Finalised) -> None:
        starts, ends, nodes = finalised.starts_ns, finalised.ends_ns, finalised.nodes
        first = np.searchsorted(self._offs, starts, side="right")
        last = np.searchsorted(self._ons, ends, side="right") - 1
        # Of instances that began before the oldest window known, the share is not known.
        known = starts >= (self._ons[0] if self._forgotten else 0)
        short = np.flatnonzero(known & (first == last) & self._are_known(first))
        at = first[short]
        traced = np.minimum(ends[short], self._offs[at]) - np.maximum(starts[short], self._ons[at])
        lengths = ends[short] - starts[short]
        ppm = np.where(lengths > 0, traced * _PPM // np.maximum(lengths, 1), _PPM)
        none = np.zeros(len(short), np.int64)
        self._count(nodes[short], self._group(at), np.maximum(ppm, 0), none)
        for row in np.flatnonzero(known & (first < last)).tolist():
            some = slice(int(first[row]), int(last[row]) + 1)
            traced = np.minimum(ends[row], self._offs[some]) - np.maximum(
                starts[row], self._ons[some]
            )
            ppm = np.maximum(traced, 0) * _PPM // max(1, int(ends[row] - starts[row]))
            windows = np.arange(some.start, some.stop)
            ppm = np.where(self._are_known(windows), ppm, 0)
            groups = self._group(windows)
            self._count(np.full(len(ppm), nodes[row]), groups, ppm, np.zeros(len(ppm), np.int64))

    def _are_known(self, windows: Int64s) -> Bools:
        """Which of these windows ended before attribution did."""
        if self._known_until_ns is None:
            return np.ones(len(windows), np.bool_)
        known: Bools = windows < np.searchsorted(self._offs, self._known_until_ns, side="right")
        return known

    def _count(self, nodes: Int64s, groups: Int64s, ppm: Int64s, gpu_ns: Int64s) -> None:
        few = nodes < MOST_NODES
        if not few.all():
            nodes, groups, ppm, gpu_ns = nodes[few], groups[few], ppm[few], gpu_ns[few]
        if not len(nodes):
            return
        keys, rows = np.unique(nodes * WINDOW_GROUPS + groups, return_inverse=True)
        occurred = np.bincount(rows, ppm, len(keys)).astype(np.int64).tolist()
        sums = np.minimum(np.bincount(rows, gpu_ns, len(keys)), LATEST_NS)  # hostile durations
        spent = sums.astype(np.int64).tolist()
        for key, one, other in zip(keys.tolist(), occurred, spent, strict=True):
            pair = divmod(key, WINDOW_GROUPS)
            before = self._sums.get(pair, (0, 0))
            self._sums[pair] = before[0] + one, before[1] + other

    def collect_parts(self, collection: Collection) -> DeltaParts:
        """What was seen in windows, what they cost the program, and how many ended."""
        # Windows that last longer than it is known which ranges launched what are left out.
        self._known_until_ns = collection.known_until_ns
        self._add(collection.finalised, collection.launched)
        sums, self._sums = self._sums, {}
        closed, self._closed = self._closed, 0
        numbers = collection.nodes.number
        return {
            "window_work": tuple(
                WindowWork(int(numbers[node]), group, ppm, gpu_ns)
                for (node, group), (ppm, gpu_ns) in sorted(sums.items())
                if ppm or gpu_ns
            ),
            "window_costs": tuple(self.costs.collect(collection.now_ns, collection.ended)),
            "windows": closed,
            "standing_ppm": self.costs.standing_ppm,
        }
