"""The records of a file, in order of time, through the attribution that live capture goes through:
a kernel belongs to the range around its launch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from gputui.attribute.arrays import Int64s, Slots
from gputui.attribute.numbering import Numbering
from gputui.attribute.traced_process import TracedProcess
from gputui.imports.shapes import LaunchShapes
from gputui.imports.texts import Texts
from gputui.model.events import AnyEvent, ProcessAttached, ProcessDetached
from gputui.ring.layout import RecordKind
from gputui.store.trace import TraceWriter

MAX_PROCESSES = 1024

TICKS = 600
SHORTEST_TICK_NS = 100_000_000
"""A file is divided into at most this many ticks, none shorter than this."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The time that a file covers, on its own clock, and where that begins since the epoch."""

    first: int
    last: int
    base_ns: int

    def at(self, time: int) -> int:
        """A moment of the file's clock as nanoseconds since the epoch."""
        return min(max(0, time + self.base_ns), 4_102_444_800_000_000_000)

    @property
    def tick_ns(self) -> int:
        """How much of the file one tick covers."""
        return max(SHORTEST_TICK_NS, -(-(self.last - self.first) // TICKS))


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What a file says of one of its processes."""

    pid: int
    command: str
    cuda_status: str
    rank: int | None = None


@dataclass(slots=True)
class _Process:
    """A process of the file, and the strings and launch shapes already defined for it."""

    traced: TracedProcess
    strings: set[int] = field(default_factory=set)
    shapes: set[int] = field(default_factory=lambda: {0})


class Reading(ABC):
    """One pass over a file in order of time."""

    def __init__(
        self, clock: Clock, texts: Texts, trace: TraceWriter | None, shapes: LaunchShapes
    ) -> None:
        self.skipped = 0
        """Records of processes beyond the limit."""
        self._clock = clock
        self._texts = texts
        self._trace = trace
        self._numbering = Numbering()
        self._processes: dict[int, _Process] = {}
        self._shapes = shapes

    @abstractmethod
    def _horizon(self, tick: int) -> int:
        """Up to which moment, `tick` at the latest, every record is at hand."""

    @abstractmethod
    def _take(self, until: int) -> Sequence[tuple[Slots, Int64s]]:
        """The records up to a moment, and which process each is of: ranges, then calls, then
        operations, as they stand where they begin at once."""

    @abstractmethod
    def _facts(self, owner: int) -> ProcessFacts:
        """What is known of a process."""

    @abstractmethod
    def _thread_name(self, owner: int, thread: int) -> str | None:
        """The name of a thread."""

    def _last_range_ns(self) -> int:
        """When the last range ended, since the epoch."""
        return 0

    def _mended(self, events: list[AnyEvent]) -> Iterator[AnyEvent]:
        """What came of a process, with what only the file knows."""
        yield from events

    def _beside(self, _until: int) -> Iterator[AnyEvent]:
        """What the file holds beside what processes did, up to a moment."""
        yield from ()

    def events(self) -> Iterator[AnyEvent]:
        """The events between the run's start and its end. Raises JournalError."""
        clock = self._clock
        tick = clock.first
        while tick < clock.last:
            tick = min(clock.last, tick + clock.tick_ns)
            yield from self._until(tick)
            if tick == clock.last:
                break  # what ends with the file and what it leaves open end together
            for process in self._processes.values():
                yield from self._mended(process.traced.collect(clock.at(tick)))
            yield from self._beside(tick)
        end_ns = clock.at(clock.last)
        for process in self._processes.values():
            yield from self._mended(
                process.traced.collect(end_ns, ended=True, open_until_ns=self._last_range_ns())
            )
        yield from self._beside(clock.last)
        for process in self._processes.values():
            yield ProcessDetached(time_ns=end_ns, process=process.traced.number, clean=True)

    def _until(self, tick: int) -> Iterator[AnyEvent]:
        while True:
            until = self._horizon(tick)
            yield from self._feed(until)
            if until >= tick:
                return

    def _feed(self, until: int) -> Iterator[AnyEvent]:
        parts = self._take(until)
        records = np.concatenate([part for part, _ in parts])
        owners = np.concatenate([owner for _, owner in parts])
        if not len(records):
            return
        # Ranges before the calls inside them, calls before what they launched: the parts are in
        # that order, and the sort is stable.
        order = np.argsort(records["start"], kind="stable")
        records, owners = records[order], owners[order]
        now_ns = self._clock.at(until)
        for owner in np.unique(owners).tolist():
            process = self._processes.get(owner)
            if process is None:
                if len(self._processes) >= MAX_PROCESSES:
                    self.skipped += int(np.count_nonzero(owners == owner))
                    continue
                process, attached = self._attach(owner, now_ns)
                yield attached
            self._give(process, records[owners == owner], now_ns)

    def _give(self, process: _Process, records: Slots, now_ns: int) -> None:
        wanted = {
            number
            for column in ("name", "a", "b")
            for number in np.unique(records[column]).tolist()
        } - process.strings
        process.strings |= wanted
        is_kernel = records["kind"] == RecordKind.KERNEL
        shapes = set(np.unique(records["d"][is_kernel]).tolist()) - process.shapes
        process.shapes |= shapes
        texts = self._texts.texts
        process.traced.feed(
            np.concatenate((self._shapes.records(sorted(shapes)), records)),
            {number: texts[number] for number in wanted if number in texts},
            now_ns,
        )

    def _attach(self, owner: int, now_ns: int) -> tuple[_Process, ProcessAttached]:
        facts = self._facts(owner)
        traced = TracedProcess(
            self._numbering.process(),
            facts.pid,
            self._numbering,
            trace=self._trace,
            thread_name=lambda thread: self._thread_name(owner, thread),
            nested_ns=0,
        )
        process = _Process(traced)
        self._processes[owner] = process
        return process, ProcessAttached(
            time_ns=now_ns,
            run=1,
            process=traced.number,
            pid=facts.pid,
            parent_pid=0,
            rank=facts.rank,
            command=facts.command,
            cuda_status=facts.cuda_status,
        )
