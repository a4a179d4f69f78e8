"""Running totals written between capture events, so that a reader of the final state can skip
the events they cover."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from typing import Any, Literal

from gputui.model.events import (
    PHASE_STARTS,
    AnyEvent,
    CaptureDelta,
    CaptureSum,
    OpenRange,
    ProcessDetached,
    RangeDefined,
    RunEnded,
)
from gputui.model.merge import merger_of

LEAST_BYTES = 256 << 10
"""Capture events of one process that make a sum worth writing."""

LAST_BYTES = 64 << 10
"""The same when no more will come."""

SHARE = 8
"""This many times the size of the last sum comes before the next."""

MOST_BYTES = 8 << 20
"""A larger sum is not written: it would cost more than it saves, and lines are limited."""


class ProcessSum:
    """What one process did, from the first event added."""

    def __init__(self) -> None:
        self._merger = merger_of(CaptureDelta)
        self._row: Any = None
        self._open: dict[int, int] = {}
        self._starts: list[tuple[int, int]] = []

    def add(self, delta: CaptureDelta, outermost: set[int]) -> None:
        """Add an event; `outermost` are the top-level ranges."""
        if self._row is None:
            self._row = self._merger.start(delta)
        else:
            self._merger.add(self._row, delta)
        now_open = {e.range: e.since_ns for e in delta.open_ranges if e.range in outermost}
        for number, since_ns in now_open.items():
            if self._open.get(number) != since_ns:
                insort(self._starts, (since_ns, number))
        del self._starts[:-PHASE_STARTS]
        self._open = now_open

    def freeze(self) -> CaptureSum:
        """The sum as an event, which may be too large to write."""
        return CaptureSum(
            **self._merger.frozen(self._row),
            phase_starts=tuple(
                OpenRange(number, since_ns)
                for since_ns, number in self._starts
                if self._open.get(number) != since_ns
            ),
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
