"""What windows of tracing cost the program, and how often one may be opened.

Ranges go on between windows: the turns of one that repeats, from start to start, are compared where
a window touched them, opening and closing included, with as many turns before it and after it. The
mean excess of a window over the budget is how often one may come.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from gputui.attribute.arrays import Int64s, durations_ns
from gputui.attribute.range_tree import Nodes
from gputui.inject.options import FIRST_EXCESS_NS, WINDOW_NS
from gputui.model.cuda_names import NOT_A_STEP
from gputui.model.events import WindowCost

LEAST_TURNS = 20
"""Of a range, before it is taken for one that repeats; and around a window, to compare it with."""

LONGEST_TURN_NS = WINDOW_NS // 2

PAUSE = 10.0
PAUSE_NS = 20_000_000
"""A turn this many times as long as the usual one, and this long, is a pause of the program's."""

STALL_NS = 200_000_000
"""The most that opening or closing a window is taken to have held a turn up."""

MOST_STANDING = 0.3
"""CUPTI that stays in a program costs it less: a larger difference is the program's own."""

KEPT_STARTS = 50_000
"""Of turns, the newest: more than a window touches, and as many around it."""

KEPT_EXCESSES = 32
SOON = 0.8
"""The largest share of the time that windows take: the rest is what they are compared with."""

LONGEST_PERIOD_NS = 600_000_000_000
FEWEST = 4
"""Windows from which their spread is known."""

_NORMAL_80 = 0.85
"""A normal variable is less than this many deviations above its mean in 80 % of the cases."""


class WindowTimes(NamedTuple):
    """From when to when a window cost something, and the group that it is summed up in."""

    opening_ns: int
    closed_ns: int
    group: int


class WindowCosts:
    """Turns of one process in, what its windows cost out."""

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
        """Instances that are complete."""
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
            found = is_step, -int(self._nodes.level[node])
            if best is None or found > best:
                best, self._node = found, node

    @property
    def step(self) -> int | None:
        """The range whose turns are compared; None while none repeats."""
        return self._node

    def collect(self, now_ns: int, ended: bool) -> list[WindowCost]:
        """Windows whose surroundings are known by now."""
        found: list[WindowCost] = []
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
                found.append(cost)
        return found

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
        at = np.searchsorted(begins, edges, side="right") - 1
        holds_edge[at[at >= 0]] = True
        counted = touched & ((turns <= longest) | holds_edge)
        taken = np.minimum(turns[counted], int(usual) + STALL_NS)
        bare_ns = len(taken) * float(bare.mean())
        self._excesses.append(float(taken.sum()) - bare_ns)
        if self._before_ns == 0 and len(before) >= LEAST_TURNS <= len(after):
            # By the fastest turns: the machine, or the program, may have slowed down meanwhile.
            fast, before_fast = (float(np.percentile(one, 10)) for one in (after, before))
            if before_fast and fast / before_fast - 1 < MOST_STANDING:
                self.standing_ppm = round(1e6 * (fast / before_fast - 1))
        return WindowCost(window.group, 1, len(taken), int(taken.sum()), round(bare_ns))

    def period_ns(self, max_cost_percent: float) -> int:
        """How often a window may be opened: its excess, at the upper end of what it may be, is at
        most this share of the time. Until some were measured, one is taken to cost more than any
        program was seen to lose."""
        known = [*self._excesses]
        if len(known) >= FEWEST:
            excess = fmean(known) + _NORMAL_80 * stdev(known) / math.sqrt(len(known))
        else:
            excess = fmean([*known, FIRST_EXCESS_NS])
        wanted = max(0.0, excess) / (max_cost_percent / 100)
        wanted = min(max(wanted, WINDOW_NS / SOON), LONGEST_PERIOD_NS)
        # Few different ones: the moments of windows follow from the period.
        return round(2 ** (math.ceil(4 * math.log2(wanted)) / 4))
