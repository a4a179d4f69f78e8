"""Where each step begins, launch by launch, once the repetition of a program is known."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.repetition import (
    GRAM,
    Cues,
    Level,
    Places,
    Tokens,
    find_step,
)
from gputui.attribute.arrays import Int64s, differences

WINDOW = 65_536
FIRST_TRY = 256
SET_UP = 4
"""Where nothing repeats in all launches, one part in so many, the newest, is looked at: before the
loop XLA tries hundreds of kernels, and a step is a copy and a graph."""

MOST_OF_TIME = 0.02
"""Discovery takes no more than this share of the time that passes."""

CHANGED = 8
"""Distances of the first anchor in a row that have to be others."""

FILLS_IN = 1.2
"""Periods without the first anchor after which another one stands in."""

LOST_PERIODS = 4
"""Periods without any anchor after which the repetition is looked for anew."""

_SMALL_PART = 4096
"""Launches below which a part grows before another one begins."""

Meanings = Callable[[Tokens], tuple[Tokens, Cues]]


class StepTracker:
    """Launches in, in the order of their calls; boundaries of steps out.

    Locked, launches are compared with up to eight anchors. The first says exactly where a step
    begins; another one fills in only where the first stayed out for more than a period. Discovery
    runs while nothing is locked, after LOST_PERIODS, and at each doubling of what was seen until
    the window is full, so that a layer found early gives way to the step.
    """

    def __init__(
        self,
        meanings: Meanings,
        window: int = WINDOW,
        *,
        measured: bool = True,
        first_try: int = FIRST_TRY,
    ) -> None:
        """`meanings` gives the families of tokens, and their cues. `measured` keeps discovery to
        its share of wall time; files are read at any speed. `first_try` is after so many launches:
        nobody waits for what a file says first, and one look at the whole window is the best one.
        """
        self._window = window
        self._measured = measured
        self._meanings = meanings
        self._held = _Held(window)
        self._next_try = first_try
        self._failures = self._confirmed = 0
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
        times: Int64s,
        ahead: Int64s | None = None,
        *,
        ended: bool = False,
    ) -> tuple[list[int], bool]:
        """The times of launches at which steps begin; whether they replace those from the first
        one on, since the repetition was found anew. `times` are on whatever axis is wanted.
        `ahead` is how many launches each is before one that keeps the pace of the loop, if others
        do not (main_stream): its time is the step's, if it is in the first half of it.
        `ended` means that nothing more comes: a program that fits into the window is looked at as
        a whole, so that what began as a layer gives way to its few steps."""
        base = self.seen
        self.seen += len(tokens)
        before = self._held.newest(GRAM - 1)
        ahead = np.zeros(len(tokens), np.int64) if ahead is None else ahead
        self._held.add(tokens, times, ahead)
        marks = np.empty(0, np.int64)
        period = 0.0
        if self.level is not None and len(tokens):
            period = self.level.period
            if self.level.by_family:
                (before, _), (tokens, _) = self._meanings(before), self._meanings(tokens)
            marks = self._follow(self.level, tokens, before, base)
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
        found: list[int] = []
        if len(marks):
            marks = np.clip(marks - base, 0, len(times) - 1)
            found = _begins(marks, times, ahead, period)
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
        return not 0.7 <= statistics.median(self._distances) / level.period <= 1.3

    def _may_discover(self) -> bool:
        passed_s = time.perf_counter() - self._began_s
        return not self._measured or self._discovery_s <= MOST_OF_TIME * passed_s + 0.1

    def _follow(self, level: Level, tokens: Tokens, before: Tokens, base: int) -> Int64s:
        main: Places = np.empty(0, np.intp)
        guesses: list[tuple[float, bool]] = []
        for number, anchor in enumerate(level.anchors):
            places = anchor.places(tokens, before)
            if number == 0:
                main = places
                if self._is_even(main, base, len(tokens), level.period):
                    self._follow_main(base + main, level.period)
                    self._last = base + int(main[-1])
                    return base + main
            guesses += [(float(place) - anchor.offset, number > 0) for place in places.tolist()]
        self._follow_main(base + main, level.period)
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
        return np.array(marks, np.int64)

    def _is_even(self, main: Places, base: int, count: int, period: float) -> bool:
        """Whether the first anchor came so regularly that no other one fills in."""
        if self._last is None or not len(main):
            return False
        distances = differences(np.append(main, count), self._last - base)
        return bool(distances.max() < FILLS_IN * period and distances[:-1].min() > period / 2)

    def _follow_main(self, mains: Places, period: float) -> None:
        """Where the first anchor stands, which is where steps begin."""
        if not len(mains):
            return
        if self._last_main is not None:
            mains = np.concatenate(([self._last_main], mains))
        distances = mains[1:] - mains[:-1]
        usual = np.flatnonzero((distances >= 0.7 * period) & (distances <= 1.3 * period))
        if len(usual):
            self._changed_at = int(mains[1:][usual[-1]])
        self._distances.extend(distances[-CHANGED:].tolist())
        self._last_main = int(mains[-1])

    def _find(self, newest: int) -> Level | None:
        """What repeats among the newest launches, to their end."""
        if newest < 1:
            return None
        began_s = time.perf_counter()
        tokens = self._held.newest(newest)
        step = find_step(tokens, *self._meanings(tokens))
        self._discovery_s += time.perf_counter() - began_s
        return step if step is not None and _still_goes_on(step, newest) else None

    def _discover(self) -> list[int] | None:
        keep = min(self._window, self._held.count)
        step = self._find(keep)
        if step is None and self._lost_at is not None:
            # What repeated is over: look at what came after it.
            keep = min(keep, self.seen - self._lost_at)
            step = self._find(keep)
        elif step is None and self.level is None and keep >= 2 * FIRST_TRY and self._may_discover():
            step = self._find(newest := keep // SET_UP)
            keep = keep if step is None else newest
        self._failures = 0 if step else self._failures + 1
        is_known = step is not None and self.level is not None and _is_same(step, self.level)
        self._confirmed = self._confirmed + 1 if is_known else 0
        if keep < self._window:
            self._next_try = self.seen + max(FIRST_TRY, keep if step else keep // 2)
        elif step:
            # The more often it was found again, the rarer is another look.
            self._next_try = self.seen + (32 * keep << min(self._confirmed, 5))
        else:
            self._next_try = self.seen + (keep >> 2 << min(self._failures, 3))
        if step is None or is_known:
            return None
        self.level = step
        self._lost_at = None
        self._distances.clear()
        self._last = self._last_main = self.seen - keep + int(step.marks[-1])
        return _begins(step.marks, *self._held.newest_times(keep), step.period)


class _Held:
    """The newest launches, as many as a window has or a few more, in the parts that they came in:
    only discovery needs all of them."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._parts: deque[tuple[Tokens, Int64s, Int64s]] = deque()
        self.count = 0

    def add(self, tokens: Tokens, times: Int64s, ahead: Int64s) -> None:
        if self._parts and len(self._parts[-1][0]) < _SMALL_PART:
            last = self._parts.pop()
            self.count -= len(last[0])
            tokens, times = np.concatenate((last[0], tokens)), np.concatenate((last[1], times))
            ahead = np.concatenate((last[2], ahead))
        self._parts.append((tokens, times, ahead))
        self.count += len(tokens)
        while self.count - len(self._parts[0][0]) >= self._window:
            self.count -= len(self._parts.popleft()[0])

    def newest(self, count: int) -> Tokens:
        """The tokens of the newest ones, in order."""
        return self._column(0, count)

    def newest_times(self, count: int) -> tuple[Int64s, Int64s]:
        """Their times, and how far ahead of the loop's pace they are."""
        return self._column(1, count), self._column(2, count)

    def _column(self, column: int, count: int) -> npt.NDArray[Any]:
        found: list[npt.NDArray[Any]] = []
        for part in reversed(self._parts):
            if count <= 0:
                break
            found.append(part[column][-count:])
            count -= len(found[-1])
        return np.concatenate(found[::-1]) if found else np.empty(0, np.uint32)


def _begins(marks: Places, times: Int64s, ahead: Int64s, period: float) -> list[int]:
    """When steps begin that begin with these launches."""
    shifts = ahead[marks]  # broadcast, as a rule: take copies all of it
    at = marks + np.where(shifts <= period / 2, shifts, 0)
    found: list[int] = times.take(at, mode="clip").tolist()
    return found


def _still_goes_on(step: Level, seen: int) -> bool:
    """Whether a repetition in the newest `seen` launches has not ended among them."""
    return seen - int(step.marks[-1]) <= LOST_PERIODS * step.period + 64


def _is_same(one: Level, other: Level) -> bool:
    contexts = {anchor.tokens for anchor in one.anchors}
    return (
        one.by_family == other.by_family
        and abs(one.period - other.period) <= 0.1 * other.period
        and any(anchor.tokens in contexts for anchor in other.anchors)
    )
