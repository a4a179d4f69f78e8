"""Windows of tracing: what was seen in each and what each cost, where kernels are traced part of
the time.

For `traced_process`; `reader` asks how often a window may be opened.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from gputui.attribute import LaunchedOperations
from gputui.attribute.arrays import LATEST_NS, Bools, Holes, Int64s, Slots, durations_ns, times_ns
from gputui.attribute.collection import Collection, DeltaParts
from gputui.attribute.instances import Finalised
from gputui.attribute.range_stacks import NO_NODE, Nodes
from gputui.inject import FIRST_EXCESS_NS, WINDOW_NS
from gputui.model.events import WINDOW_GROUPS, WindowCost, WindowWork
from gputui.model.naming import NOT_A_STEP
from gputui.ring import WindowEdge

# --- What windows of tracing cost the program, and how often one may be opened.
#
# Ranges go on between windows: the turns of one that repeats, from start to start, are compared
# where a window touched them, opening and closing included, with as many turns before it and after
# it. The mean excess of a window over the budget is how often one may come.

LEAST_TURNS = 20
"""A range repeats if it has this many turns; a window is compared with at least as many around it.
"""

# Of longer turns a window holds less than two, so that its cost cannot be seen in them.
LONGEST_TURN_NS = WINDOW_NS // 2

PAUSE = 10.0
PAUSE_NS = 20_000_000
"""A turn this many times as long as the usual one, and this long, is a pause of the program's."""

STALL_NS = 200_000_000
"""The most that opening or closing a window is taken to have held a turn up."""

MOST_STANDING = 0.3
"""CUPTI that stays in a program costs it less: a larger difference is the program's own."""

KEPT_STARTS = 50_000
"""The newest starts of turns that are kept: more than a window touches and as many around it."""

# Chosen, not measured: recent windows, so that a program that changes is followed.
KEPT_EXCESSES = 32
SOON = 0.8
"""The largest share of the time that windows take: the rest is what they are compared with."""

# Chosen, not measured: a window every ten minutes still shows what a long run does.
LONGEST_PERIOD_NS = 600_000_000_000
FEWEST = 4
"""Windows from which their spread is known."""

# A normal variable is less than this many deviations above its mean in 80 % of the cases.
_NORMAL_80 = 0.85


class WindowTimes(NamedTuple):
    """From when to when a window cost something, and the group in which it is summed up."""

    opening_ns: int
    closed_ns: int
    group: int


class WindowCostMeter:
    """Measures what the windows of one process cost, by comparing the turns of a range."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._node: int | None = None
        self._starts: list[Int64s] = []
        self._held = 0
        self._waiting: deque[WindowTimes] = deque()
        self._before_ns = 0
        self._excesses: deque[float] = deque(maxlen=KEPT_EXCESSES)
        self.standing_ppm: int | None = None
        """How much longer turns took after the first window than before it."""

    def add(self, nodes: Int64s, starts_ns: Int64s) -> None:
        """Adds complete instances with their nodes; the instances of the range that is compared are
        its turns."""
        if not len(nodes):
            return
        if self._node is None:
            self._choose(nodes, starts_ns)
        if self._node is None:
            return
        starts = starts_ns[nodes == self._node]
        self._starts.append(np.sort(starts))
        self._held += len(starts)
        if self._held > 2 * KEPT_STARTS:
            self._joined()

    def add_window(self, window: WindowTimes) -> None:
        """A window that has ended, in order."""
        self._waiting.append(window)

    def _choose(self, nodes: Int64s, starts_ns: Int64s) -> None:
        """The range whose turns are compared: a step by its name, else what repeats and takes the
        largest part of the time."""
        best: tuple[bool, int] | None = None
        for node in np.flatnonzero(np.bincount(nodes) >= LEAST_TURNS).tolist():
            starts = np.sort(starts_ns[nodes == node])
            turns = np.diff(starts)
            if node == 0 or np.median(turns) > LONGEST_TURN_NS:
                continue
            likeliest = self._nodes.likeliest_step
            is_step = likeliest != NOT_A_STEP and int(self._nodes.step_rank[node]) == likeliest
            rank = is_step, -int(self._nodes.level[node])
            if best is None or rank > best:
                best, self._node = rank, node

    @property
    def step(self) -> int | None:
        """The range whose turns are compared; None while none repeats."""
        return self._node

    def collect(self, now_ns: int, ended: bool) -> list[WindowCost]:
        """The costs of windows whose turns before and after have arrived by now."""
        costs: list[WindowCost] = []
        while self._waiting:
            window = self._waiting[0]
            after_ns = window.closed_ns + (window.closed_ns - window.opening_ns)
            following = self._waiting[1].opening_ns if len(self._waiting) > 1 else None
            starts = self._joined()
            newest_ns = int(starts[-1]) if len(starts) else 0
            if not ended and following is None and newest_ns < after_ns and now_ns < 2 * after_ns:
                break
            self._waiting.popleft()
            cost = self._compare(starts, window, following)
            self._before_ns = window.closed_ns
            if cost is not None:
                costs.append(cost)
        return costs

    def _joined(self) -> Int64s:
        if not self._starts:
            return np.empty(0, np.int64)
        starts = np.concatenate(self._starts)
        if (starts[1:] < starts[:-1]).any():
            starts = np.sort(starts)
        starts = starts[-KEPT_STARTS:]
        self._starts, self._held = [starts], len(starts)
        return starts

    def _compare(
        self, starts: Int64s, window: WindowTimes, following_ns: int | None
    ) -> WindowCost | None:
        begins, ends = starts[:-1], starts[1:]
        turns = durations_ns(begins, ends)
        touched = (ends > window.opening_ns) & (begins < window.closed_ns)
        count = int(np.count_nonzero(touched))
        around = max(count, LEAST_TURNS)
        before = turns[(ends <= window.opening_ns) & (begins >= self._before_ns)][-around:]
        is_after = begins >= window.closed_ns
        if following_ns is not None:
            is_after &= ends <= following_ns
        after = turns[is_after][:around]
        bare = np.concatenate((before, after))
        if count < LEAST_TURNS or len(bare) < LEAST_TURNS:
            return None
        usual = float(np.median(bare))
        longest = max(PAUSE * usual, usual + PAUSE_NS)
        bare = bare[bare <= longest]
        edges = np.array([window.opening_ns, window.closed_ns])
        holds_edge = np.zeros(len(turns), np.bool_)
        edge_turns = np.searchsorted(begins, edges, side="right") - 1
        holds_edge[edge_turns[edge_turns >= 0]] = True
        counted = touched & ((turns <= longest) | holds_edge)
        counted_ns = np.minimum(turns[counted], int(usual) + STALL_NS)
        bare_ns = len(counted_ns) * float(bare.mean())
        self._excesses.append(float(counted_ns.sum()) - bare_ns)
        if self._before_ns == 0 and len(before) >= LEAST_TURNS <= len(after):
            # By the fastest turns: the machine, or the program, may have slowed down meanwhile.
            fast, before_fast = (float(np.percentile(some, 10)) for some in (after, before))
            if before_fast and fast / before_fast - 1 < MOST_STANDING:
                self.standing_ppm = round(1e6 * (fast / before_fast - 1))
        return WindowCost(window.group, 1, len(counted_ns), int(counted_ns.sum()), round(bare_ns))

    def period_ns(self, max_cost_percent: float) -> int:
        """How often a window may be opened: its excess, at the upper end of what it may be, is at
        most this share of the time. Until some were measured, one is taken to cost more than any
        program was seen to lose."""
        excesses = [*self._excesses]
        if len(excesses) >= FEWEST:
            excess = fmean(excesses) + _NORMAL_80 * stdev(excesses) / math.sqrt(len(excesses))
        else:
            excess = fmean([*excesses, FIRST_EXCESS_NS])
        wanted = max(0.0, excess) / (max_cost_percent / 100)
        wanted = min(max(wanted, WINDOW_NS / SOON), LONGEST_PERIOD_NS)
        # Few different ones: the moments of windows follow from the period.
        return round(2 ** (math.ceil(4 * math.log2(wanted)) / 4))


# --- Windows of tracing: what was seen in each, where kernels are traced part of the time.
#
# Figures are estimated by occurrences, which ranges count always (model.events.windows): a range's
# GPU time in windows by its occurrences there, times all of its occurrences. An instance that a
# window's edge cuts counts by the part of its time that was traced.

MOST_WINDOWS = 4096
"""Windows remembered: ranges that began before the oldest are not estimated by occurrences."""

MOST_NODES = 2000
"""Ranges that are estimated by occurrences, the first ones; others as time was traced."""

# Shares of a range's time are whole numbers, so that sums of them merge exactly.
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
        self.costs = WindowCostMeter(nodes)
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
            # CUPTI stays when a window closes: cuptiFinalize ended programs, for reasons that
            # nobody found (docs/attaching.md).
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

    def _add(self, finalised: Finalised, launched: LaunchedOperations) -> None:
        """Instances that are complete, and operations with the ranges that launched them."""
        self.costs.add(finalised.nodes, finalised.starts_ns)
        if not len(self._ons):
            return
        self._add_instances(finalised)
        if len(launched.starts_ns):
            rows = np.searchsorted(self._ons, launched.starts_ns, side="right") - 1
            seen = (rows >= 0) & self._are_known(rows)
            spent = durations_ns(launched.starts_ns[seen], launched.ends_ns[seen])
            self._count(
                launched.nodes[seen], self._group(rows[seen]), np.zeros(len(spent), np.int64), spent
            )

    def _add_instances(self, finalised: Finalised) -> None:
        starts, ends, nodes = finalised.starts_ns, finalised.ends_ns, finalised.nodes
        first = np.searchsorted(self._offs, starts, side="right")
        last = np.searchsorted(self._ons, ends, side="right") - 1
        # Of instances that began before the oldest window known, the share is not known.
        in_reach = starts >= (self._ons[0] if self._forgotten else 0)
        short = np.flatnonzero(in_reach & (first == last) & self._are_known(first))
        of_window = first[short]
        traced = np.minimum(ends[short], self._offs[of_window]) - np.maximum(
            starts[short], self._ons[of_window]
        )
        lengths = ends[short] - starts[short]
        ppm = np.where(lengths > 0, traced * _PPM // np.maximum(lengths, 1), _PPM)
        none = np.zeros(len(short), np.int64)
        self._count(nodes[short], self._group(of_window), np.maximum(ppm, 0), none)
        for row in np.flatnonzero(in_reach & (first < last)).tolist():
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
        """Which of these windows ended before the time up to which operations are attributed."""
        if self._known_until_ns is None:
            return np.ones(len(windows), np.bool_)
        ended_before: Bools = windows < np.searchsorted(
            self._offs, self._known_until_ns, side="right"
        )
        return ended_before

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
        for key, occurred_ppm, other in zip(keys.tolist(), occurred, spent, strict=True):
            pair = divmod(key, WINDOW_GROUPS)
            before = self._sums.get(pair, (0, 0))
            self._sums[pair] = before[0] + occurred_ppm, before[1] + other

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
