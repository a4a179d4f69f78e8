"""Running totals written between capture events, so that a reader of the final state can skip the
events they cover.

A part of an event is added to the part that is equal in everything but what adds up: distributions,
amounts, the first and last moment of something, and the newest payload. So a new kind of part needs
no code here.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, Literal, get_args

import msgspec

from gputui.model.events import (
    PHASE_STARTS,
    Amount,
    AnyEvent,
    CaptureDelta,
    CaptureSum,
    Distribution,
    OpenRange,
    Payload,
    ProcessDetached,
    RangeDefined,
    RunEnded,
)
from gputui.model.sketch import Accumulator

LEAST_BYTES = 256 << 10
"""Capture events of one process that make a sum worth writing."""

LAST_BYTES = 64 << 10
"""The same when no more will come."""

SHARE = 8
"""This many times the size of the last sum comes before the next."""

MOST_BYTES = 8 << 20
"""A larger sum is not written: it would cost more than it saves, and lines are limited."""

_EXTREMES: dict[str, Callable[..., int]] = {
    "first_start_ns": min,
    "first_ns": min,
    "last_end_ns": max,
    "last_ns": max,
}


class _Parts:
    """The parts of one field of the event, summed."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        types = {field.name: field.type for field in msgspec.structs.fields(kind)}
        self._distributions = [
            name for name, of in types.items() if of in (Distribution, Distribution | None)
        ]
        self._amounts = [name for name, of in types.items() if of == Amount]
        self._extremes = [name for name in types if name in _EXTREMES]
        self._newest = [name for name, of in types.items() if of == Payload | None]
        added = {*self._distributions, *self._amounts, *self._extremes, *self._newest}
        self._key = attrgetter(*(name for name in types if name not in added))
        self._optional = {name for name, of in types.items() if of == Distribution | None}
        self._sums: dict[Any, tuple[msgspec.Struct, list[Accumulator], list[int]]] = {}
        self._found: dict[Any, dict[str, Any]] = {}

    def add(self, part: msgspec.Struct) -> None:
        key = self._key(part)
        known = self._sums.get(key)
        if known is None:
            amounts = [getattr(part, name) for name in (*self._amounts, *self._extremes)]
            times = [Accumulator() for _ in self._distributions]
            self._sums[key] = known = part, times, amounts
        else:
            amounts = known[2]
            for place, name in enumerate(self._amounts):
                amounts[place] += getattr(part, name)
            for place, name in enumerate(self._extremes, len(self._amounts)):
                amounts[place] = _EXTREMES[name](amounts[place], getattr(part, name))
        for name in self._newest:
            if (newest := getattr(part, name)) is not None:
                self._found.setdefault(key, {})[name] = newest
        for accumulator, name in zip(known[1], self._distributions, strict=True):
            distribution = getattr(part, name)
            if distribution is not None:
                accumulator.add(distribution)

    def freeze(self) -> tuple[msgspec.Struct, ...]:
        return tuple(self._frozen(key, *entry) for key, entry in self._sums.items())

    def _frozen(
        self, key: Any, part: msgspec.Struct, times: list[Accumulator], amounts: list[int]
    ) -> msgspec.Struct:
        changes: dict[str, Any] = dict(zip((*self._amounts, *self._extremes), amounts, strict=True))
        changes |= self._found.get(key, {})
        for name, accumulator in zip(self._distributions, times, strict=True):
            is_absent = name in self._optional and not accumulator.count
            changes[name] = None if is_absent else accumulator.freeze()
        return msgspec.structs.replace(part, **changes)


_FIELDS = {field.name: field.type for field in msgspec.structs.fields(CaptureDelta)}
_AMOUNTS = tuple(name for name, of in _FIELDS.items() if of == Amount)
_PARTS = {
    name: get_args(of)[0]
    for name, of in _FIELDS.items()
    if get_args(of)[1:] == (...,) and get_args(of)[0] is not OpenRange
}


class ProcessSum:
    """What one process did, from the first event added."""

    def __init__(self) -> None:
        self._parts = {name: _Parts(kind) for name, kind in _PARTS.items()}
        self._amounts = dict.fromkeys(_AMOUNTS, 0)
        self._last: CaptureDelta | None = None
        self._time_ns = 0
        self._open: dict[int, int] = {}
        self._starts: list[tuple[int, int]] = []

    def add(self, delta: CaptureDelta, outermost: set[int]) -> None:
        """Add an event; `outermost` are the top-level ranges."""
        self._last = delta
        # Setting the clock back does not make the newest moment older.
        self._time_ns = max(self._time_ns, delta.time_ns)
        for name, parts in self._parts.items():
            for part in getattr(delta, name):
                parts.add(part)
        for name in _AMOUNTS:
            self._amounts[name] += getattr(delta, name)
        now_open = {e.range: e.since_ns for e in delta.open_ranges if e.range in outermost}
        for number, since_ns in now_open.items():
            if self._open.get(number) != since_ns:
                insort(self._starts, (since_ns, number))
        del self._starts[:-PHASE_STARTS]
        self._open = now_open

    def freeze(self) -> CaptureSum:
        """The sum as an event, which may be too large to write."""
        last = self._last
        assert last is not None
        fields: dict[str, Any] = {name: parts.freeze() for name, parts in self._parts.items()}
        fields.update(self._amounts)
        return CaptureSum(
            time_ns=self._time_ns,
            process=last.process,
            open_ranges=last.open_ranges,
            phase_starts=tuple(
                OpenRange(number, since_ns)
                for since_ns, number in self._starts
                if self._open.get(number) != since_ns
            ),
            **fields,
        )


class _Pending:
    """A process's sum, and how many bytes of its events were written since the last one."""

    def __init__(self, due: int) -> None:
        self.sum = ProcessSum()
        self.bytes = 0
        self.due = due


class Sums:
    """The sums of one file: which are to be written, and where."""

    def __init__(self, least_bytes: int = LEAST_BYTES, last_bytes: int = LAST_BYTES) -> None:
        """How many events of one process make a sum worth writing, and the same at the end."""
        self._least = least_bytes
        self._at_end = last_bytes
        self._pending: dict[int, _Pending | Literal["ended"]] = {}
        self._outermost: set[int] = set()

    def begin(self) -> None:
        """Another file begins."""
        self._pending = {}

    def before(self, event: AnyEvent) -> Iterator[CaptureSum]:
        """The sums to write before an event: whatever ends gets its last one."""
        match event:
            case ProcessDetached():
                yield from self._last(event.process)
            case RunEnded():
                yield from self.end()

    def after(self, event: AnyEvent, size: int) -> Iterator[CaptureSum]:
        """The sums to write after an event of this many bytes."""
        if isinstance(event, RangeDefined) and not event.parent:
            self._outermost.add(event.range)
        if not isinstance(event, CaptureDelta):
            return
        pending = self._pending.setdefault(event.process, _Pending(self._least))
        if pending == "ended":
            return
        pending.sum.add(event, self._outermost)
        pending.bytes += size
        if pending.bytes >= pending.due:
            pending.bytes = 0
            yield pending.sum.freeze()

    def wrote(self, process: int, size: int | None) -> None:
        """Set the size of the last sum returned; None if it cannot be written."""
        pending = self._pending.get(process)
        if size is None:
            self._pending[process] = "ended"
        elif isinstance(pending, _Pending):
            pending.due = max(self._least, SHARE * size)

    def end(self) -> Iterator[CaptureSum]:
        """The last sums of all processes."""
        for process in list(self._pending):
            yield from self._last(process)

    def _last(self, process: int) -> Iterator[CaptureSum]:
        pending = self._pending.get(process)
        if not isinstance(pending, _Pending):
            return
        if pending.bytes and pending.bytes >= self._at_end:
            yield pending.sum.freeze()
        # A later sum would cover only later events.
        self._pending[process] = "ended"
