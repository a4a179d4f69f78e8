"""A window of recent CUDA calls, in which a GPU operation finds its launch by correlation id."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gputui.attribute.arrays import Bools, Int64s, Slots, UInt32s, pick, stack, whole
from gputui.attribute.instances import NO_INSTANCE
from gputui.attribute.range_stacks import NO_NODE

WINDOW_NS = 60_000_000_000
WINDOW_CALLS = 1 << 20
"""Calls are kept this long, or this many. Kernels of a graph launch may arrive long after it."""

_RUN_CALLS = WINDOW_CALLS // 8
"""Longer runs are not merged, so that old calls leave in small portions."""

CALL = np.dtype([
    ("instance", "i8"), ("sequence", "i8"), ("start", "i8"), ("end", "i8"),
    ("correlation", "u4"), ("node", "u4"), ("name", "u4"), ("thread", "u4"),
    ("inherited", "?"), ("awaits", "?"), ("answered", "?"), ("runtime", "?"), ("outside", "?"),
], align=True)  # fmt: skip
"""A call: the range around it; its number; whether operations are expected of it, and whether one
has arrived; whether its thread had no range open; and the call itself.
"""

NO_CALL = np.zeros(1, CALL)
NO_CALL["node"], NO_CALL["instance"], NO_CALL["sequence"] = NO_NODE, NO_INSTANCE, -1
NO_CALL["outside"] = True
"""What an operation gets if its call never arrived."""


@dataclass(slots=True)
class Found:
    """The calls of operations: for each whether there is one, the call (zeros if not), and whether
    it is the first operation of that call. `answered` are the calls whose first operations these
    were.
    """

    found: Bools
    calls: Slots
    first: Bools
    answered: Slots


@dataclass(slots=True)
class _Run:
    """Calls sorted by correlation id; among equal ids the newest comes last."""

    calls: Slots
    correlations: UInt32s
    newest_ns: int
    has_driver_calls: bool


class CallWindow:
    """Sorted runs, merged as they grow: most operations find their call in the newest run.

    Ids wrap at 2³², so an id can occur more than once in the window: the newest call counts.
    """

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    @property
    def oldest_sequence(self) -> int:
        """Calls with a lower number have been dropped."""
        return min((int(run.calls["sequence"].min()) for run in self._runs[:1]), default=0)

    def add(self, calls: Slots, now_ns: int) -> None:
        """Add calls, in order of arrival."""
        if not len(calls):
            return
        self._push(calls, now_ns)
        while len(self._runs) > 1:
            older, newer = self._runs[-2], self._runs[-1]
            total = len(older.calls) + len(newer.calls)
            if len(older.calls) > 2 * len(newer.calls) or total > _RUN_CALLS:
                break
            del self._runs[-2:]
            self._push(stack((older.calls, newer.calls)), newer.newest_ns)
        total = sum(len(run.calls) for run in self._runs)
        while self._runs and (total > WINDOW_CALLS or self._runs[0].newest_ns < now_ns - WINDOW_NS):
            total -= len(self._runs.pop(0).calls)

    def find(self, correlations: UInt32s) -> Found:
        """The newest call of each id."""
        found = np.zeros(len(correlations), np.bool_)
        first = np.zeros(len(correlations), np.bool_)
        calls = np.zeros(len(correlations), CALL)
        answered: list[Slots] = []
        rest = np.arange(len(correlations))
        for run in reversed(self._runs):
            if not len(rest):
                break
            hit, places = _search(run, correlations[rest])
            at = rest[hit]
            found[at] = True
            its = pick(run.calls, places)
            if len(at) == len(calls):
                calls = its
            else:
                whole(calls)[at] = whole(its)
            rest = rest[~hit]
            fresh = ~run.calls["answered"][places]
            if fresh.any():
                new, where = _firsts(places[fresh])
                first[at[fresh][where]] = True
                run.calls["answered"][new] = True
                answered.append(pick(run.calls, new))
        return Found(found, calls, first, stack(answered or [NO_CALL[:0]]))

    def runtime_calls(self, correlations: UInt32s) -> Bools:
        """Which ids have a runtime call in the window."""
        matched = np.zeros(len(correlations), np.bool_)
        for run, places, at in self._matches(correlations):
            matched[at] = run.calls["runtime"][places]
        return matched

    def promote(self, calls: Slots) -> Bools:
        """Which of these runtime calls have their driver call in the window, which now stands for
        them.
        """
        matched = np.zeros(len(calls), np.bool_)
        if not any(run.has_driver_calls for run in self._runs):
            return matched
        for run, places, at in self._matches(np.ascontiguousarray(calls["correlation"])):
            is_driver = ~run.calls["runtime"][places] & calls["runtime"][at]
            places, at = places[is_driver], at[is_driver]
            matched[at] = True
            for field in ("runtime", "name", "thread", "start", "end"):
                run.calls[field][places] = calls[field][at]
        return matched

    def _matches(self, correlations: UInt32s) -> Iterator[tuple[_Run, Int64s, Int64s]]:
        rest = np.arange(len(correlations))
        for run in reversed(self._runs):
            if not len(rest):
                return
            hit, places = _search(run, correlations[rest])
            yield run, places, rest[hit]
            rest = rest[~hit]

    def _push(self, calls: Slots, now_ns: int) -> None:
        correlations = calls["correlation"].copy()
        if (correlations[1:] < correlations[:-1]).any():
            order = np.argsort(correlations, kind="stable")
            calls, correlations = pick(calls, order), correlations.take(order)
        self._runs.append(_Run(calls, correlations, now_ns, not calls["runtime"].all()))


def _firsts(places: Int64s) -> tuple[Int64s, Int64s]:
    """The distinct positions, and the first occurrence of each. Only graphs repeat a call."""
    if (places[1:] > places[:-1]).all():
        return places, np.arange(len(places))
    return np.unique(places, return_index=True)


def _search(run: _Run, correlations: UInt32s) -> tuple[Bools, Int64s]:
    places = np.searchsorted(run.correlations, correlations, side="right") - 1
    hit = (places >= 0) & (run.correlations[places] == correlations)
    return hit, places[hit]
