"""A trace that torch.profiler exported (a Chrome trace of Kineto), as the events of a session."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from gputui.attribute import LOST_NAME, MAX_LABEL
from gputui.attribute.arrays import (
    LATEST_NS,
    Bools,
    Int64s,
    Slots,
    durations_ns,
    pick,
    run_starts,
    stack,
)
from gputui.attribute.distributions import ValueSums
from gputui.attribute.operation_sums import MemorySums
from gputui.base import VERSION, JournalError
from gputui.base.sanitize import sanitize
from gputui.imports import ABSENT, Clock, ImportedReading, ProcessFacts, RangeRecords, RangeRows
from gputui.imports.kineto_columns import (
    RANGE,
    ROWS_AT_ONCE,
    OperationTable,
    TimedRows,
    byte_count,
    id_number,
)
from gputui.imports.kineto_events import TraceEvents, TraceFacts
from gputui.model.events import (
    JOURNAL_SCHEMA,
    AnyEvent,
    CaptureDelta,
    GpuFacts,
    Header,
    HostFacts,
    KernelDefined,
    KernelDelta,
    MemoryOperationDelta,
    ProcessAttached,
    RangeDefined,
    RangeDelta,
    RunEnded,
    RunMetrics,
    RunResult,
    RunStarted,
)
from gputui.model.hub import Numbering
from gputui.model.naming import NOT_A_STEP, demangle, step_rank
from gputui.ring import RecordKind
from gputui.store import open_regular
from gputui.store.journal import CompressionError, expanded
from gputui.store.trace import TraceWriter

# Ranges of threads as pushes and pops where they nest, as starts and ends where they do not.
#
# Traces in whole microseconds end a range up to a microsecond after the one around it; operators
# that begin on one thread and end on another overlap by more.

ROUNDING_NS = 1_000


class NestedRanges:
    """A trace's ranges in order of time, of which those that overlap are Start/End ranges."""

    def __init__(self, ranges: TimedRows) -> None:
        self._ranges = ranges
        self._open: Slots = np.empty(0, RANGE)
        """Those that were open at the moment up to which ranges were read, without overlaps."""
        self._count = 0

    def rows_until(self, until: int) -> RangeRows:
        """The ranges that begin up to a moment and were not read."""
        ranges = stack((self._open, self._ranges.rows_until(until)))
        start, end, thread = (ranges[name] for name in ("start", "end", "thread"))
        order = np.lexsort((-end, start, thread))
        is_new = order >= len(self._open)
        ranges = pick(ranges, order)
        start, end, thread = (ranges[name].copy() for name in ("start", "end", "thread"))
        overlaps = np.zeros(len(start), np.bool_)
        if len(start):
            firsts = run_starts(thread)
            for first, after in _apart(start, end, np.append(firsts, len(start))):
                end[first:after], overlaps[first:after] = _mended(
                    start[first:after], end[first:after]
                )
        ranges["end"] = end
        self._open = pick(ranges, (end > until) & ~overlaps)
        return self._as_rows(pick(ranges, is_new), overlaps[is_new])

    def _as_rows(self, ranges: Slots, overlaps: Bools) -> RangeRows:
        first, self._count = self._count, self._count + len(ranges)
        zero = np.broadcast_to(np.int64(0), len(ranges))
        return RangeRows(
            number=np.arange(first, self._count),
            start=ranges["start"],
            end=ranges["end"],
            kind=np.where(overlaps, RecordKind.RANGE_START, RecordKind.RANGE_PUSH),
            category=ranges["category"],
            color=np.broadcast_to(np.int64(ABSENT), len(ranges)),
            name=ranges["name"],
            task=ranges["thread"],
            domain=zero,
            end_task=ranges["thread"],
            category_id=zero,
            payload_type=ranges["payload_type"],
            payload=ranges["payload"],
        )


def _apart(start: Int64s, end: Int64s, bounds: Int64s) -> Iterator[tuple[int, int]]:
    """Pieces of each thread's ranges, between two of `bounds`, at whose ends none is open: all at
    once were two thirds of what is held of a trace again."""
    for first, after in pairwise(bounds.tolist()):
        reach = np.maximum.accumulate(end[first:after])
        cuts = first + 1 + np.flatnonzero(start[first + 1 : after] >= reach[:-1])
        begin = first
        while begin < after:
            place = int(np.searchsorted(cuts, begin + ROWS_AT_ONCE))
            until = int(cuts[place]) if place < len(cuts) else after
            yield begin, until
            begin = until


def _mended(start: Int64s, end: Int64s) -> tuple[Int64s, Bools]:
    """The ends of one thread's ranges, and which ranges overlap others without nesting."""
    overlaps = np.zeros(len(start), np.bool_)
    if _nest(start, end):
        return end, overlaps
    mended = end.copy()
    open_until: list[int] = []
    for row, (begin, until) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while open_until and open_until[-1] <= begin:
            open_until.pop()
        if open_until and until > open_until[-1]:
            if until - open_until[-1] > ROUNDING_NS:
                overlaps[row] = True
                continue
            until = mended[row] = open_until[-1]
        open_until.append(until)
    return mended, overlaps


def _nest(start: Int64s, end: Int64s) -> bool:
    """Whether each range lies within those that are open where it begins."""
    # With both ends in order, the n-th opening at a level is closed by the n-th closing there.
    every = np.arange(len(start))
    time = np.concatenate((start, end))
    is_end = np.arange(len(time)) >= len(start)
    row = np.concatenate((every, every))
    # Ends before starts at one moment, inner ones first; a range without length stays whole.
    empty = (end <= start)[row]
    inner = np.where(is_end & ~empty, -row, 2 * row + is_end)
    order = np.lexsort((inner, ~is_end | empty, time))
    row, is_end = row[order], is_end[order]
    depth = np.cumsum(np.where(is_end, -1, 1))
    level = np.where(is_end, depth + 1, depth)
    opened = np.empty(len(start), np.int64)
    opened[row[~is_end]] = level[~is_end]
    return bool((opened[row[is_end]] == level[is_end]).all())


# A trace's columns, in order of time, as records of the capture library.


class KinetoReading(ImportedReading):
    """One pass over what a trace holds: it is of one process."""

    def __init__(
        self,
        table: OperationTable,
        clock: Clock,
        facts: ProcessFacts,
        trace: TraceWriter | None,
        *,
        summed: bool,
    ) -> None:
        super().__init__(clock, table.texts, trace, table.shapes, summed=summed)
        self._pushed = RangeRecords(clock.base_ns)
        self._ranges, self._records = table.ranges, table.records
        self._nested = NestedRanges(table.ranges)
        self._memory = list(table.memory.devices())
        self._process = facts
        self._thread_names = table.thread_names
        self._keeps = bool(table.of_operators)
        self._kept: list[RangeRows] = []

    def kept_ranges(self) -> RangeRows:
        """Start, end, thread and name of all ranges, if something was allocated in them."""
        if not self._kept:
            return RangeRows.empty()
        columns = zip(*((rows.start, rows.end, rows.task, rows.name) for rows in self._kept),
                      strict=True)  # fmt: skip
        start, end, task, name = map(np.concatenate, columns)
        return RangeRows.empty()._replace(start=start, end=end, task=task, name=name)

    def _horizon(self, tick: int) -> int:
        # A tick of 5.6 million ranges held 600,000 open instances until its end, and took 12 of 210
        # s.
        return min(self._records.horizon(tick), self._ranges.horizon(tick))

    def _records_until(self, until: int) -> Sequence[tuple[Slots, Int64s]]:
        begun = self._nested.rows_until(until)
        if self._keeps:
            self._kept.append(begun)
        ranges, _ = self._pushed.records_until(until, begun)
        records = self._records.rows_until(until).copy()
        for side in ("start", "end"):
            moments = records[side].astype(np.int64) + self._clock.base_ns
            records[side] = np.clip(moments, 0, LATEST_NS)
        return [(part, np.zeros(len(part), np.int64)) for part in (ranges, records)]

    def _last_range_ns(self) -> int:
        return self._pushed.last_ns

    def _facts(self, _owner: int) -> ProcessFacts:
        return self._process

    def _thread_name(self, _owner: int, thread: int) -> str | None:
        return self._thread_names.get(thread)

    def _beside(self, until: int) -> Iterator[AnyEvent]:
        metrics: dict[str, float | int | str | bool | None] = {}
        for device, times, allocated, reserved in self._memory:
            seen = int(np.searchsorted(times, until, side="right"))
            if not seen:
                continue
            prefix = f"gpu{device}_" if len(self._memory) > 1 else ""
            for what, values in (("allocated", allocated), ("reserved", reserved)):
                metrics[f"{prefix}memory_{what}_bytes"] = int(values[seen - 1])
                metrics[f"{prefix}peak_memory_{what}_bytes"] = int(values[:seen].max())
        if metrics:
            yield RunMetrics(time_ns=self._clock.epoch_ns(until), run=1, metrics=metrics)


# What was read of a trace, while the rest is: its events are in no order, operators before all
# kernels, so that only sums by name can be told.

MOST_NAMES = 4096
"""Names of ranges that are summed so; any further ones come with the events."""

FIRST_SUMS_S = 0.3
SUMS_S = 2.0
"""Seconds until the first sums are shown, and at most between later ones: pauses double. Showing
them took 1 to 2 % of the time of reading a million events."""

_DEVICE_SHIFT = 32
_TEXT = (1 << _DEVICE_SHIFT) - 1


class SumsByName:
    """Rows in, as they are read; out what came since the last time, as events of process 1: counts
    and times of kernels, copies and ranges, which are in no range and of no thread. Steps are left
    out: some of them would be taken for the loop."""

    def __init__(self, texts: Mapping[int, str]) -> None:
        """`texts` are those that rows name by number, as they grow."""
        self._texts = texts
        self._numbering = Numbering()
        self._ranges: dict[int, int] = {}
        self._kernels, self._of_ranges = ValueSums(), ValueSums()
        self._copies = MemorySums()

    def add(self, rows: Slots) -> None:
        """Add ranges, or records of one kind: not calls, as some are made by others."""
        is_range = rows.dtype == RANGE
        if not is_range and rows["kind"][0] == RecordKind.API:
            return
        start, end, name = (rows[field].astype(np.int64) for field in ("start", "end", "name"))
        durations = durations_ns(start, end)
        if is_range:
            self._of_ranges.add(name, durations)
        else:
            devices = rows["a"].astype(np.int64) << _DEVICE_SHIFT
            if rows["kind"][0] == RecordKind.KERNEL:
                self._kernels.add(devices | name, durations)
                return
            self._copies.add(devices, rows, durations)

    def events(self, now_ns: int) -> list[AnyEvent]:
        """What was added since the last call, with the names that are new."""
        events: list[AnyEvent] = []
        kernels, ranges = [], []
        for key, times in self._kernels.drain():
            text = self._text(key & _TEXT)
            kernel, text, is_new = self._numbering.kernel(text)
            if is_new:
                name = demangle(text)
                events.append(KernelDefined(time_ns=now_ns, kernel=kernel, name=name, mangled=text))
            device = key >> _DEVICE_SHIFT
            kernels.append(
                KernelDelta(process=1, range=0, kernel=kernel, device=device, time=times)
            )
        for key, times in self._of_ranges.drain():
            number = self._ranges.get(key)
            if number is None and len(self._ranges) < MOST_NAMES:
                name = self._text(key)
                is_step = step_rank(name, None) != NOT_A_STEP
                number = self._ranges[key] = 0 if is_step else self._numbering.range()
                if not is_step:
                    # Without a thread its nesting is not known.
                    events.append(
                        RangeDefined(
                            time_ns=now_ns, range=number, process=1, thread=0, parent=0, name=name
                        )
                    )
            if number:
                ranges.append(RangeDelta(range=number, cpu=times))
        copies = tuple(
            MemoryOperationDelta(process=1, range=0, device=place >> _DEVICE_SHIFT, **sums)
            for place, sums in self._copies.drain()
        )
        delta = CaptureDelta(
            time_ns=now_ns, process=1, kernels=tuple(kernels), ranges=tuple(ranges),
            memory_operations=copies,
        )  # fmt: skip
        return [*events, delta]

    def _text(self, number: int) -> str:
        return sanitize(self._texts.get(number, LOST_NAME), MAX_LABEL)


# A trace that torch.profiler exported, as the events of a session.
#
# Annotations and operators become ranges, `ProfilerStep#N` the steps; calls, kernels, copies and
# memsets become the records the capture library would have written, and go through the same
# attribution. Python functions, flows and the projections that Kineto computed are not read.

# 2001: a trace that ends before has no date.
_LONG_AGO_NS = 10**18

MAX_GPUS = 256


class KinetoTrace:
    """The events of one trace, read once. Raises JournalError if the file is none.

    `damage` and `skipped` as in JournalReader: events that are not of the trace's form are counted
    as skipped.
    """

    def __init__(
        self, path: Path, trace: TraceWriter | None = None, *, summed: bool = False
    ) -> None:
        """With `trace`, every call and operation also goes there. `summed` is for callers that look
        only at what all events come to."""
        self.name = str(path)
        self.damage: str | None = None
        self._path = path
        self._summed = summed
        self._trace = trace
        self._table = OperationTable()
        self.tell_sums: Callable[[Sequence[AnyEvent]], None] | None = None
        """Gets what was read so far as events of a session of its own, now and then and from the
        thread that reads, until the events themselves come."""
        self._sums: SumsByName | None = SumsByName(self._table.texts.texts)
        self._table.also = self._sums.add
        self._tells_at, self._tells_every_s = time.monotonic() + FIRST_SUMS_S, FIRST_SUMS_S
        self._has_told = False
        self._share_of_file = 0.0
        self._is_read = self._stopped = False
        self._reading: KinetoReading | None = None
        self._files = ExitStack()
        with ExitStack() as refused:
            refused.callback(self._files.close)
            self._file = open_regular(path)
            stream = self._files.enter_context(expanded(self._file, self.name))
            self._events = TraceEvents(stream)
            self._portions = iter(self._events)
            self._read(until_any=True)
            refused.pop_all()

    @property
    def skipped(self) -> int:
        """Events that are not of the trace's form, or too many."""
        return self._events.skipped + self._table.skipped

    @property
    def share_read(self) -> float:
        """How much of the work is done, from 0 to 1: events are in no order, so that the whole file
        is read before anything but sums can be told."""
        of_rows = self._reading.share_read if self._reading is not None else 0.0
        return (self._share_of_file + of_rows) / 2

    def stop(self) -> None:
        """Stops reading; may be called from any thread. Events of what was read so far still come,
        unless it is called again while they do."""
        self._stopped = True
        if self._reading is not None:
            self._reading.stop()

    @cached_property
    def header(self) -> Header:
        """Of the whole file, which is read for it."""
        self._read()
        return self._header(self._clock, self._events.beside)

    @cached_property
    def _clock(self) -> Clock:
        return self._clock_with(self._events.beside)

    def _clock_with(self, beside: TraceFacts) -> Clock:
        kinds = [rows for rows in (self._table.records, self._table.ranges) if rows.count]
        first, last = min(rows.first for rows in kinds), max(rows.last for rows in kinds)
        return Clock(first, last, _base_ns(beside, self._path, last))

    def _read(self, *, until_any: bool = False) -> None:
        """Read the file, or until there is something to tell. Raises JournalError where there is
        nothing."""
        if self._is_read:
            return
        table = self._table
        if not until_any and self.tell_sums is None:
            self._sums = table.also = None
        try:
            size = max(1, os.fstat(self._file.fileno()).st_size)
            for portion in self._portions:
                table.add(portion)
                read = os.lseek(self._file.fileno(), 0, os.SEEK_CUR)
                self._share_of_file = min(1.0, read / size)
                if self._stopped:
                    self.damage = f"{self.name}: reading was stopped at {self._share_of_file:.0%}"
                    break
                if until_any and (table.records.count or table.ranges.count):
                    return
                self._tell()
            else:
                self._share_of_file = 1.0
                if self._events.damage:
                    self.damage = f"{self.name}: {self._events.damage}"
        except (CompressionError, OSError) as error:
            self.damage = f"{self.name} is damaged: {sanitize(str(error), 160)}; read until there"
        except JournalError as error:
            raise JournalError(
                f"{self.name} is not a trace of torch.profiler: {error}; export one with "
                "export_chrome_trace()"
            ) from None
        self._is_read = True
        self._sums = table.also = None
        self._files.close()
        if not table.records.count and not table.ranges.count:
            raise JournalError(
                f"{self.name} has no operators, annotations, CUDA calls or kernels: export it with "
                "torch.profiler's export_chrome_trace()"
            )

    def _tell(self) -> None:
        """Tell what was read so far, where somebody looks and it is time."""
        now = time.monotonic()
        if self.tell_sums is None or self._sums is None or now < self._tells_at:
            return
        if not self._table.records.count and not self._table.ranges.count:
            return
        clock = self._clock_with(self._events.before)
        events = self._sums.events(clock.epoch_ns(clock.last))
        if not self._has_told:
            events = [*self._begun(clock, self._events.before), *events]
        self._has_told = True
        self.tell_sums(events)
        self._tells_at = time.monotonic() + self._tells_every_s
        self._tells_every_s = min(SUMS_S, 2 * self._tells_every_s)

    def _begun(self, clock: Clock, beside: TraceFacts) -> list[AnyEvent]:
        """The beginning of a session, as far as it is known."""
        facts = self._facts(beside)
        attached = ProcessAttached(
            time_ns=clock.epoch_ns(clock.first),
            run=1,
            process=1,
            pid=facts.pid,
            parent_pid=0,
            rank=facts.rank,
            command=facts.command,
            cuda_status="tracing",
        )
        return [self._header(clock, beside), self._run_started(clock, facts), attached]

    def close(self) -> None:
        """Close the file, and those in which rows waited for their turn."""
        self.tell_sums = None
        self._files.close()
        self._table.records.close()
        self._table.ranges.close()

    def __iter__(self) -> Iterator[AnyEvent]:
        yield self.header
        facts = self._facts(self._events.beside)
        yield self._run_started(self._clock, facts)
        reading = self._reading = KinetoReading(
            self._table, self._clock, facts, self._trace, summed=self._summed
        )
        yield from reading.events()
        if self._stopped and self.damage is None:
            self.damage = f"{self.name}: reading was stopped at {self.share_read:.0%}"
        last_ns = self._clock.epoch_ns(self._clock.last)
        table = None
        if self._table.of_operators:
            table = self._table.of_operators.table(reading.kept_ranges(), self._table.texts.texts)
        if table is not None:
            yield RunResult(
                time_ns=last_ns, run=1, complete=True, parameters={}, results={}, tables=(table,)
            )
        yield RunEnded(time_ns=last_ns, run=1, reason="the trace ends here")

    def _facts(self, beside: TraceFacts) -> ProcessFacts:
        distributed = beside.distributed
        pid = next((pid for pid, _ in self._table.pids.most_common(1)), 0)
        return ProcessFacts(
            pid,
            self._table.commands.get(pid, ""),
            "tracing" if self._table.records.count else "the trace holds no CUDA activity",
            distributed.rank if distributed is not None else None,
        )

    def _run_started(self, clock: Clock, facts: ProcessFacts) -> RunStarted:
        return RunStarted(
            time_ns=clock.epoch_ns(clock.first),
            run=1,
            kind="command",
            name=facts.command or "torch.profiler trace",
            arguments=(),
            pid=None,
        )

    def _header(self, clock: Clock, beside: TraceFacts) -> Header:
        driver = beside.driver
        return Header(
            time_ns=clock.epoch_ns(clock.first),
            schema=JOURNAL_SCHEMA,
            gputui_version=VERSION,
            python_version="",
            monotonic_ns=0,
            arguments=("torch.profiler",),
            interval_s=clock.tick_ns / 1e9,
            host=HostFacts(
                hostname=sanitize(beside.host, 200) if beside.host else "unknown host",
                system="unknown system",
                cpu_count=0,
                memory_total_bytes=0,
            ),
            cuda_driver_version=f"{driver // 1000}.{driver % 1000 // 10}" if driver else None,
            gpus=self._gpus(beside),
            gpu_unavailable_reason=None,
        )

    def _gpus(self, beside: TraceFacts) -> tuple[GpuFacts, ...]:
        """The devices that something ran on: traces list every one of the machine."""
        return tuple(
            GpuFacts(
                index=id_number(gpu.id),
                uuid="",
                name=sanitize(gpu.name, 200),
                compute_capability=(
                    f"{id_number(gpu.major)}.{id_number(gpu.minor)}"
                    if gpu.major is not None
                    else None
                ),
                sm_count=id_number(gpu.sm_count) or None,
                memory_total_bytes=byte_count(gpu.memory_bytes) or None,
            )
            for gpu in beside.gpus[:MAX_GPUS]
            if gpu.id in self._table.devices
        )


def _base_ns(beside: TraceFacts, path: Path, last: int) -> int:
    """Where the trace's clock begins: named beside the events since torch 2.4, else the epoch."""
    base_ns = beside.base_ns if 0 < beside.base_ns < 4 * _LONG_AGO_NS else 0
    if last + base_ns >= _LONG_AGO_NS:
        return base_ns
    # Without a date; the file cannot be older than what it tells.
    return path.stat().st_mtime_ns - last
