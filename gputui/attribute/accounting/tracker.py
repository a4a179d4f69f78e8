"""Where steps begin: launches in the order of their calls, the stream that paces them, and the
steps followed from one batch to the next.

For `device_steps`. What repeats at all is found by `repetition`.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gputui.attribute import TimedOperations
from gputui.attribute.accounting.operations import FIRST_KERNEL, Columns, Kernels
from gputui.attribute.accounting.repetition import GRAM, Cues, Level, Places, Tokens, find_step
from gputui.attribute.arrays import Bools, Int64s, Slots, differences, distinct, median
from gputui.model.leaves import Leaf
from gputui.model.steps import HELD_NS

# --- The stream that paces a program: the one that does most of the work.
#
# A copy on a stream of its own waits for nobody: the CPU runs ahead, copies bunch until it blocks,
# and the distance from one to the next says how fast it launches, not how long a step takes. On
# the stream that does most of the work operations follow each other as fast as the loop goes.

NEVER = np.iinfo(np.int32).max
"""Launches until the next one there where none is known."""

KEPT = 0.5
"""Of what was added up each time that launches are taken: what a program did long ago says little
of what it does."""

_COMMUNICATION = int(Leaf.COMMUNICATION)


class MainStream:
    """Operations in; which stream of which device did most of the work of late out."""

    def __init__(self) -> None:
        self._busy_ns: dict[int, float] = {}

    def add(
        self, lanes: Int64s, starts: Int64s, ends: Int64s, leaves: npt.NDArray[np.uint8]
    ) -> None:
        """Operations by the stream that they ran on. Collectives wait on theirs for others."""
        if len(self._busy_ns) == 1 and (lanes == next(iter(self._busy_ns))).all():
            return  # nothing to choose between
        present = distinct(lanes).tolist()
        if len(present) == 1 and not self._busy_ns:
            self._busy_ns[present[0]] = 0.0
            return
        spent_ns = np.where(leaves == _COMMUNICATION, 0, ends - starts)
        for lane in present:
            its_work = spent_ns if len(present) == 1 else spent_ns[lanes == lane]
            self._busy_ns[lane] = self._busy_ns.get(lane, 0.0) + float(its_work.sum())

    def fade(self) -> None:
        """Let what comes count for more than what was."""
        for lane in self._busy_ns:
            self._busy_ns[lane] *= KEPT

    @property
    def is_chosen(self) -> bool:
        """Whether there is more than one stream."""
        return len(self._busy_ns) > 1

    def has(self, lanes: Int64s) -> Bools | None:
        """Which launches are on the stream that paces the program; None if there is only one
        stream."""
        if not self.is_chosen:
            return None
        main = max(self._busy_ns, key=lambda lane: (self._busy_ns[lane], -lane))
        is_main: Bools = lanes == main
        return is_main


def until_next(is_main: Bools | None, count: int) -> Int64s:
    """How many launches each is before the next one on the main stream; 0 on it."""
    if is_main is None:
        return np.broadcast_to(np.int64(0), count)
    rows = np.arange(count)
    following = np.where(is_main, rows, NEVER)
    distances: Int64s = np.minimum.accumulate(following[::-1])[::-1] - rows
    return distances


# --- The launches of one process in the order of their calls, which is where steps are found.

HELD_LAUNCHES = 1 << 17
"""How many launches wait until it is clear where steps begin, for HELD_NS at most."""

FOLLOWS_NS = 1_000_000_000
"""For how long a launch waits for the next one on the stream that paces the program."""

_GRAPH = 1 << 24


class OrderedLaunches(NamedTuple):
    """Launches: when each was called, when its first operation began on the device, its token, and
    the number of its stream."""

    called_ns: Int64s
    starts: Int64s
    tokens: Tokens
    lanes: Int64s

    def cut(self, first: int | np.intp, last: int | None = None) -> OrderedLaunches:
        """The launches from row `first` to before row `last`."""
        return OrderedLaunches._make(column[first:last] for column in self)

    def pick(self, rows: npt.NDArray[np.intp]) -> OrderedLaunches:
        """The launches of these row numbers."""
        return OrderedLaunches._make(column.take(rows) for column in self)


_EMPTY = np.empty(0, np.int64)
_NOTHING = OrderedLaunches(_EMPTY, _EMPTY, np.empty(0, np.uint32), _EMPTY)


class LaunchOrder:
    """Launches in, in any order; sorted by their calls out."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._main = MainStream()
        self._last_moment_ns: int | None = None
        self._newest_ns = 0
        self.first_ns = 0
        """When the first launch of all was called; 0 before it."""
        self._parts = [_NOTHING]
        self._new: list[OrderedLaunches] = []

    def add(
        self,
        operations: Columns,
        records: Slots,
        calls: Slots,
        timed: TimedOperations,
        lanes: Int64s,
        is_graph: Bools | None,
    ) -> None:
        """The operations that were `found` and are the first of their call, which is known, of
        those that `columns` made of the others; `lanes` number their streams, `is_graph` is by the
        call's name, None where none is."""
        first = timed.first
        self._main.add(lanes, operations.starts, operations.ends, operations.leaves)
        launched = OrderedLaunches(operations.called_ns, operations.starts, operations.codes, lanes)
        # Asked once, and not for each batch, whether there are graphs at all.
        if is_graph is not None and (graphs := np.flatnonzero(is_graph.take(calls["name"]))).size:
            tokens = launched.tokens.copy()
            tokens[graphs] = _GRAPH + (records["e"][graphs].astype(np.int64) & 0xFF_FFFF)
            launched = launched._replace(tokens=tokens)
        if not first.all():
            launched = launched.pick(np.flatnonzero(first))
        if len(launched.starts):
            self._new.append(launched)

    def starts_after(self, moments_ns: Int64s, limits_ns: Int64s | None = None) -> Int64s:
        """When the first operation began that was launched at or after each moment: on the stream
        that paces the program, if one comes there before its limit, which is else the next moment.
        With limits the moments are in order."""
        if limits_ns is None:
            moments_ns = np.sort(moments_ns)
        self._settle()
        cuts = (part.cut(np.searchsorted(part.called_ns, moments_ns[0])) for part in self._parts)
        # Only launches from the first moment on.
        late = [part for part in cuts if len(part.starts)]
        if not late:
            return _EMPTY
        called_ns = np.concatenate([part.called_ns for part in late])
        starts = np.concatenate([part.starts for part in late])
        before_ns = moments_ns[0] if self._last_moment_ns is None else self._last_moment_ns
        self._last_moment_ns = int(moments_ns[-1])
        usual_ns = median(differences(moments_ns, before_ns))
        rows = np.searchsorted(called_ns, moments_ns)
        following_ns = limits_ns
        if following_ns is None:
            following_ns = np.append(moments_ns[1:], moments_ns[-1] + int(usual_ns / 2))
        moments_ns, rows = moments_ns[rows < len(called_ns)], rows[rows < len(called_ns)]
        is_main = None
        if self._main.is_chosen:
            is_main = self._main.has(np.concatenate([part.lanes for part in late]))
        if is_main is not None:
            main = rows + until_next(is_main, len(called_ns)).take(rows)
            its = np.flatnonzero(main < len(called_ns))
            its = its[called_ns.take(main[its]) < following_ns.take(its)]
            rows[its] = main[its]
        return distinct(starts.take(rows))

    @property
    def newest_ns(self) -> int:
        """When the newest launch that has arrived was called; 0 before the first."""
        self._settle()
        if len(called_ns := self._parts[-1].called_ns):
            self._newest_ns = max(self._newest_ns, int(called_ns[-1]))
        return self._newest_ns

    @property
    def newest_of_main_ns(self) -> int:
        """The same of the stream that paces the program: its launches run, and so arrive, in their
        order, while a copy on another stream arrives before what was launched earlier."""
        newest_ns = self.newest_ns
        for part in reversed(self._parts):
            is_main = self._main.has(part.lanes)
            if is_main is None:
                return newest_ns
            if len(rows := np.flatnonzero(is_main)):
                return int(part.called_ns[rows[-1]])
        return newest_ns

    def had_begun(self, moment_ns: int) -> bool:
        """Whether what was launched last before a moment had begun by then: no queue was left."""
        self._settle()
        for part in reversed(self._parts):
            if before := int(np.searchsorted(part.called_ns, moment_ns)):
                return bool(part.starts[before - 1] <= moment_ns)
        return False

    def are_between(self, begin_ns: int, end_ns: int) -> bool:
        """Whether anything was launched between two moments."""
        self._settle()
        return any(
            np.searchsorted(part.called_ns, begin_ns) < np.searchsorted(part.called_ns, end_ns)
            for part in self._parts
        )

    def keep_newest(self) -> None:
        """Steps come as ranges or marks: the launches that they may begin with stay."""
        self._main.fade()
        self._settle()
        newest = self._parts[-1].called_ns
        if not len(newest):
            return
        horizon_ns = int(newest[-1]) - HELD_NS
        surplus = sum(len(part.starts) for part in self._parts) - HELD_LAUNCHES
        while True:
            oldest = self._parts[0]
            first = max(int(np.searchsorted(oldest.called_ns, horizon_ns)), surplus)
            if first < len(oldest.starts):
                self._parts[0] = oldest.cut(first)
                return
            surplus -= len(oldest.starts)
            del self._parts[0]

    def take_before(self, until_ns: int | None) -> tuple[OrderedLaunches, Int64s]:
        """Those that were called before, in the order of their calls, and how many launches each is
        before the next one on the stream that paces the program."""
        self._settle()
        launches = _joined(self._parts)
        ready = len(launches.called_ns)
        is_main = self._main.has(launches.lanes)
        self._main.fade()
        if until_ns is not None:
            ready = int(np.searchsorted(launches.called_ns, until_ns))
            if is_main is not None:
                # The last ones are followed by one there that may not be known yet.
                mains = np.flatnonzero(is_main[:ready])
                last = int(mains[-1]) if len(mains) else -1
                old = int(np.searchsorted(launches.called_ns[:ready], until_ns - FOLLOWS_NS))
                ready = min(ready, max(last + 1, old))
        self._parts = [launches.cut(ready)]
        of_main = None if is_main is None else is_main[:ready]
        return launches.cut(0, ready), until_next(of_main, ready)

    def meanings(self, tokens: Tokens) -> tuple[Tokens, Cues]:
        """The tokens of their families, and what they say of where they stand in a step."""
        numbers = tokens.astype(np.int64) - FIRST_KERNEL
        families = self._kernels.families.take(numbers, mode="clip")
        cues = self._kernels.cues.take(numbers, mode="clip")
        others = np.flatnonzero((tokens < FIRST_KERNEL) | (tokens >= _GRAPH))
        families[others], cues[others] = tokens[others], 0
        return families, cues

    def _settle(self) -> None:
        """Adds what is new: parts in order, one after the other."""
        if not self._new:
            return
        new, self._new = self._new, []
        if 4 * len(self._parts[-1].starts) < sum(len(part.starts) for part in new):
            new.insert(0, self._parts.pop())  # little is left, as a rule
        part = _joined(new)
        self.first_ns = self.first_ns or int(part.called_ns.min())
        if (part.called_ns[1:] < part.called_ns[:-1]).any():
            part = part.pick(np.argsort(part.called_ns, kind="stable"))
        if self._parts and part.called_ns[0] < self._parts[-1].called_ns[-1]:
            part, self._parts = _joined([*self._parts, part]), []
            part = part.pick(np.argsort(part.called_ns, kind="stable"))
        self._parts.append(part)


def _joined(launches: list[OrderedLaunches]) -> OrderedLaunches:
    if len(launches) == 1:
        return launches[0]
    return OrderedLaunches._make(np.concatenate(column) for column in zip(*launches, strict=True))


# --- Where each step begins, launch by launch, once the repetition of a program is known.

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

# Launches below which a part grows before another one begins.
_SMALL_PART = 4096

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
        begins: list[int] = []
        if len(marks):
            marks = np.clip(marks - base, 0, len(times) - 1)
            begins = _begins(marks, times, ahead, period)
        is_whole = ended and self.seen <= self._window
        if is_whole or (self.seen >= self._next_try and self._may_discover()):
            renewed = self._discover()
            if renewed is not None:
                return renewed, True
        return begins, False

    def hurry(self) -> None:
        """Look for what repeats now, if nobody has yet: the time axis is about to be given up."""
        if self.level is None and not self._failures:
            self._next_try = self.seen

    def _keeps_other_time(self, level: Level) -> bool:
        """Whether the first anchor now recurs at another distance, because another loop has it,
        too."""
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
        for guess, fills_in in guesses:
            late = guess - last
            if late <= level.period / 2:
                continue
            if fills_in and (
                late < FILLS_IN * level.period
                or bool((np.abs(main - guess) < level.period / 2).any())
            ):
                continue
            last = guess
            marks.append(base + round(guess))
        if marks:
            self._last = marks[-1]
        return np.array(marks, np.int64)

    def _is_even(self, main: Places, base: int, count: int, period: float) -> bool:
        """Whether the first anchor came so regularly that no other one fills in."""
        if self._last is None or not len(main):
            return False
        distances = differences(np.append(main, count), self._last - base)
        # The first anchor is followed only while it comes evenly; where it stays out the others are
        # looked for.
        return bool(distances.max() < FILLS_IN * period and distances[:-1].min() > period / 2)

    def _follow_main(self, mains: Places, period: float) -> None:
        """Remember where the first anchor stands: steps begin there, the others only fill in."""
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
        # Looking for steps keeps to 2 % of the reader's time.
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
            # In the newest quarter of the launches, too: XLA's set-up hid a loop that begins after
            # it.
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
        parts_back: list[npt.NDArray[Any]] = []
        for part in reversed(self._parts):
            if count <= 0:
                break
            parts_back.append(part[column][-count:])
            count -= len(parts_back[-1])
        return np.concatenate(parts_back[::-1]) if parts_back else np.empty(0, np.uint32)


def _begins(marks: Places, times: Int64s, ahead: Int64s, period: float) -> list[int]:
    """When steps begin that begin with these launches."""
    shifts = ahead[marks]  # broadcast, as a rule: take copies all of it
    rows = marks + np.where(shifts <= period / 2, shifts, 0)
    begins: list[int] = times.take(rows, mode="clip").tolist()
    return begins


def _still_goes_on(step: Level, seen: int) -> bool:
    """Whether a repetition in the newest `seen` launches has not ended among them."""
    return seen - int(step.marks[-1]) <= LOST_PERIODS * step.period + 64


def _is_same(level: Level, other: Level) -> bool:
    contexts = {anchor.tokens for anchor in level.anchors}
    return (
        level.by_family == other.by_family
        and abs(level.period - other.period) <= 0.1 * other.period
        and any(anchor.tokens in contexts for anchor in other.anchors)
    )
