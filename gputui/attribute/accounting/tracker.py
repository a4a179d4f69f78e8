"""Where each step begins, launch by launch, once the repetition of a program is known."""

from __future__ import annotations

import time
from collections import deque
from statistics import median

import numpy as np

from gputui.attribute.accounting.repetition import (
    Cues,
    Level,
    Places,
    Tokens,
    find_step,
    grams,
)
from gputui.attribute.arrays import Int64s

WINDOW = 65_536
FIRST_TRY = 256
MOST_OF_TIME = 0.02
"""Discovery takes no more than this share of the time that passes."""

CHANGED = 8
"""Distances of the first anchor in a row that have to be others."""

FILLS_IN = 1.2
"""Periods without the first anchor after which another one stands in."""

LOST_PERIODS = 4
"""Periods without any anchor after which the repetition is looked for anew."""


class StepTracker:
    """Launches in, in the order of their calls; boundaries of steps out.

    Locked, launches are compared with up to eight anchors. The first says exactly where a step
    begins; another one fills in only where the first stayed out for more than a period. Discovery
    runs while nothing is locked, after LOST_PERIODS, and at each doubling of what was seen until
    the window is full, so that a layer found early gives way to the step.
    """

    def __init__(
        self, window: int = WINDOW, *, measured: bool = True, first_try: int = FIRST_TRY
    ) -> None:
        """`measured` keeps discovery to its share of wall time; files are read at any speed.
        `first_try` is after so many launches: nobody waits for what a file says first, and one look
        at the whole window is the best one."""
        self._window = window
        self._measured = measured
        self._tokens = np.empty(0, np.uint32)
        self._families = np.empty(0, np.uint32)
        self._cues = np.empty(0, np.uint8)
        self._times = np.empty(0, np.int64)
        self._next_try = first_try
        self._failures = 0
        self._began_s = time.perf_counter()
        self._discovery_s = 0.0
        self._last: int | None = None
        self._distances: deque[int] = deque(maxlen=CHANGED)
        self._last_main: int | None = None
        self._changed_at = 0
        self._lost_at: int | None = None
        self.seen = 0
        self.level: Level | None = None

    def feed(
        self,
        tokens: Tokens,
        families: Tokens,
        cues: Cues,
        times: Int64s,
        *,
        ended: bool = False,
    ) -> tuple[list[int], bool]:
        """The times of launches at which steps begin; whether they replace those from the first
        one on, since the repetition was found anew. `times` are on whatever axis is wanted.
        `ended` means that nothing more comes: a program that fits into the window is looked at as
        a whole, so that what began as a layer gives way to its few steps."""
        base = self.seen
        self.seen += len(tokens)
        keep = self._window
        self._tokens = np.concatenate((self._tokens[-keep:], tokens))
        self._families = np.concatenate((self._families[-keep:], families))
        self._cues = np.concatenate((self._cues[-keep:], cues))
        self._times = np.concatenate((self._times[-keep:], times))
        marks: list[int] = []
        if self.level is not None and len(tokens):
            marks = self._follow(self.level, base, len(tokens))
            last = self._last if self._last is not None else base
            first = self._last_main if self._last_main is not None else last
            silent = (
                self.seen - last > LOST_PERIODS * self.level.period + 64
                or self.seen - first > 2 * LOST_PERIODS * self.level.period + 64
            )
            if silent or self._keeps_other_time(self.level):
                self._lost_at = min(first, last) if silent else self._changed_at
                self.level = None
                self._next_try = self.seen
        found = [int(times[min(max(mark - base, 0), len(times) - 1)]) for mark in marks]
        is_whole = ended and self.seen <= self._window
        if is_whole or (self.seen >= self._next_try and self._may_discover()):
            renewed = self._discover()
            if renewed is not None:
                return renewed, True
        return found, False

    def hurry(self) -> None:
        """Look for what repeats now, if nobody has yet: the time axis is about to be given up."""
        if self.level is None and not self._failures:
            self._next_try = self.seen

    def _keeps_other_time(self, level: Level) -> bool:
        """Whether the first anchor recurs at another distance by now: another loop has it too."""
        if len(self._distances) < CHANGED:
            return False
        return not 0.7 <= median(self._distances) / level.period <= 1.3

    def _may_discover(self) -> bool:
        passed_s = time.perf_counter() - self._began_s
        return not self._measured or self._discovery_s <= MOST_OF_TIME * passed_s + 0.1

    def _follow(self, level: Level, base: int, count: int) -> list[int]:
        tokens = self._families if level.by_family else self._tokens
        hashes = {}
        main: Places = np.empty(0, np.intp)
        guesses: list[tuple[float, bool]] = []
        for number, anchor in enumerate(level.anchors):
            if anchor.gram not in hashes:
                newest = tokens[-(count + anchor.gram - 1) :]
                hashes[anchor.gram] = grams(newest, anchor.gram)[-count:]
            places = np.flatnonzero(hashes[anchor.gram] == np.uint64(anchor.value))
            if number == 0:
                main = places
                if self._is_even(main, base, count, level.period):
                    mains = self._follow_main(main, base, level.period)
                    self._last = mains[-1]
                    return mains
            guesses += [(float(place) - anchor.offset, number > 0) for place in places.tolist()]
        self._follow_main(main, base, level.period)
        guesses.sort()
        marks: list[int] = []
        last = float(self._last - base) if self._last is not None else -float("inf")
        for at, fills_in in guesses:
            late = at - last
            if late <= level.period / 2:
                continue
            if fills_in and (
                late < FILLS_IN * level.period or bool((np.abs(main - at) < level.period / 2).any())
            ):
                continue
            last = at
            marks.append(base + round(at))
        if marks:
            self._last = marks[-1]
        return marks

    def _is_even(self, main: Places, base: int, count: int, period: float) -> bool:
        """Whether the first anchor came so regularly that no other one fills in."""
        if self._last is None or not len(main):
            return False
        distances = np.diff(main, prepend=self._last - base, append=count)
        return bool(distances.max() < FILLS_IN * period and distances[:-1].min() > period / 2)

    def _follow_main(self, main: Places, base: int, period: float) -> list[int]:
        """Where the first anchor stands, which is where steps begin."""
        mains = [base + place for place in main.tolist()]
        for place in mains:
            if self._last_main is not None:
                distance = place - self._last_main
                if 0.7 <= distance / period <= 1.3:
                    self._changed_at = place
                self._distances.append(distance)
            self._last_main = place
        return mains

    def _find(self, newest: int) -> Level | None:
        """What repeats among the newest launches, to their end."""
        if newest < 1:
            return None
        tokens, families = self._tokens[-newest:], self._families[-newest:]
        step = find_step(tokens, families, self._cues[-newest:])
        return step if step is not None and _still_goes_on(step, newest) else None

    def _discover(self) -> list[int] | None:
        keep = min(self._window, len(self._tokens))
        began_s = time.perf_counter()
        step = self._find(keep)
        if step is None and self._lost_at is not None:
            # What repeated is over: look at what came after it.
            keep = min(keep, self.seen - self._lost_at)
            step = self._find(keep)
        self._discovery_s += time.perf_counter() - began_s
        self._failures = 0 if step else self._failures + 1
        if keep < self._window:
            self._next_try = self.seen + max(FIRST_TRY, keep if step else keep // 2)
        elif step:
            self._next_try = self.seen + 32 * keep
        else:
            self._next_try = self.seen + (keep >> 2 << min(self._failures, 3))
        if step is None:
            return None
        if self.level is not None and _is_same(step, self.level):
            return None
        self.level = step
        self._lost_at = None
        self._distances.clear()
        self._last = self._last_main = self.seen - keep + int(step.marks[-1])
        times: list[int] = self._times[-keep:][step.marks].tolist()
        return times


def _still_goes_on(step: Level, seen: int) -> bool:
    """Whether a repetition in the newest `seen` launches has not ended among them."""
    return seen - int(step.marks[-1]) <= LOST_PERIODS * step.period + 64


def _is_same(one: Level, other: Level) -> bool:
    contexts = {(anchor.gram, anchor.value) for anchor in one.anchors}
    return (
        one.by_family == other.by_family
        and abs(one.period - other.period) <= 0.1 * other.period
        and any((anchor.gram, anchor.value) in contexts for anchor in other.anchors)
    )
