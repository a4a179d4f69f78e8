"""Exports of every single event: they need the trace beside a recording, or another tool's file."""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gputui.base import JournalError
from gputui.imports.kineto_columns import TimedRows
from gputui.model import units
from gputui.model.events import MachineSample, Numbered, SampledCounters
from gputui.model.naming import MEMORY_KINDS, MEMSET, copy_name
from gputui.playback.job_recording import JobRecording, MemberNumbers
from gputui.playback.opening import (
    TEMPORARY_BYTES,
    Loaded,
    fold_recording,
    load,
    open_import,
    open_recording,
    trace_of,
)
from gputui.report.schema import AnyColumn, AnyTable, Cell, Column, Show, Table, count, text, time
from gputui.state import Run, Session, gpu_of
from gputui.store import trace_path
from gputui.store.trace import TRACE, Int64s, Slots, TraceKind, TraceReader, TraceWriter, UInt32s


@dataclass(frozen=True, slots=True)
class Traced:
    """A run with its raw records. `name` is the name under which it was opened."""

    name: str
    session: Session
    run: Run
    trace: TraceReader
    remarks: tuple[str, ...]
    """Remarks about the file, one line each."""
    has_samples: bool
    """Whether the file can hold readings of the machine."""

    def samples(self) -> Iterator[MachineSample | SampledCounters]:
        """The machine's readings and the GPUs' sampled counters, read again from the file."""
        if self.has_samples:
            with closing(open_recording(self.name, summed=True)) as recording:
                for event in recording:
                    if isinstance(event, MachineSample | SampledCounters):
                        yield event


@contextmanager
def open_traced(name: str, number: int | None = None) -> Iterator[Traced]:
    """Run `number` of the recording or of another tool's file `name`, or the newest if None, with
    its raw records.

    Raises JournalError, one line, if it has none.
    """
    with tempfile.TemporaryDirectory(prefix="gputui-trace-") as folder:
        with closing(TraceWriter(Path(folder, "trace"), TEMPORARY_BYTES)) as writer:
            written = None if name == "-" else _written(Path(name), number, writer, Path(folder))
        if written is None:
            loaded, trace = _recorded(name, number)
            dropped, has_samples = trace.dropped, True
        else:
            loaded, dropped, has_samples = written
            if writer.failure:
                raise JournalError(writer.failure)
            trace = TraceReader(writer.path)
            dropped += trace.dropped
        remarks = loaded.remarks
        if dropped:
            remarks += (f"{trace.path.name} is full: the oldest {dropped} records were dropped",)
        yield Traced(name, loaded.session, loaded.needed_run(), trace, remarks, has_samples)


def _written(
    path: Path, number: int | None, writer: TraceWriter, folder: Path
) -> tuple[Loaded, int, bool] | None:
    """Write the trace of another tool's file, or of a job's folder; how many of its records had
    been dropped, and whether it may have samples. None for a recording."""
    if path.is_dir():
        with closing(open_recording(str(path), summed=True)) as job:
            if isinstance(job, JobRecording):
                loaded = fold_recording(job, number)
                loaded.needed_run()
                return loaded, write_job_trace(job, writer, folder), True
    imported = open_import(path, writer, summed=True)
    if imported is None:
        return None
    with closing(imported):
        return fold_recording(imported, number), 0, False


def _recorded(name: str, number: int | None) -> tuple[Loaded, TraceReader]:
    """A recording with the trace beside it."""
    beside = trace_path(Path(name))
    if name == "-" or not beside.exists():
        load(name, number).needed_run()  # without one, a trace would not help
        raise JournalError(
            f"{name} has no trace beside it ({beside.name}): record with --trace for this"
        )
    return load(name, number), TraceReader(beside)


# --- tables of single calls and GPU operations, as `nsys stats` has them: they need the trace
#
# Columns are those of nsys's reports of the same names. `cuda_gpu_trace` has two more at its end:
# the thread that launched an operation, and the time from that call's start to the operation's.


LONGEST = 100
"""Events that a table for people, or a JSON document, has."""

_GPU_KINDS = (TraceKind.KERNEL, TraceKind.COPY, TraceKind.SET, TraceKind.GRAPH)


def _id(title: str, key: str, meaning: str, priority: int) -> AnyColumn:
    return Column(title, str, key, meaning=meaning, kind=int | None, priority=priority)


def _megabytes(
    title: str, key: str, unit: str, meaning: str, show: Show, priority: int
) -> AnyColumn:
    return Column(
        title,
        lambda value: show(None if value is None else value * 1e6),
        key,
        unit=unit,
        meaning=meaning,
        kind=float | None,
        decimals=3,
        priority=priority,
    )


def _extent(title: str, key: str, meaning: str, priority: int) -> AnyColumn:
    return count(title, key, meaning=meaning, kind=int | None, priority=priority)


_START: AnyColumn = time("Start", "start_ns", meaning="Since the recording's start")
_DURATION: AnyColumn = time("Duration", "duration_ns", meaning="How long it took")
_CALL_COLUMNS: tuple[AnyColumn, ...] = (
    _START,
    _DURATION,
    text("Name", "name", meaning="The function"),
    count(
        "Result",
        "result",
        meaning="What it returned, 0 if all is well; n/a of torch.profiler's",
        kind=int | None,
    ),
    _id("CorrID", "correlation_id", "Joins a call with what it launched", 0),
    _id("Pid", "pid", "The process", 0),
    _id("Tid", "tid", "The thread", 0),
    count("T-Pri", "thread_priority", meaning="The thread's, to the scheduler", kind=int | None),
    text("Thread Name", "thread_name", meaning="What the thread is called", kind=str | None),
)
_GPU_COLUMNS: tuple[AnyColumn, ...] = (
    _START,
    _DURATION,
    _id("CorrId", "correlation_id", "Joins a call with what it launched", 8),
    *(_extent(f"Grd{axis}", f"grid_{axis.lower()}", "Blocks of the grid", 9) for axis in "XYZ"),
    *(_extent(f"Blk{axis}", f"block_{axis.lower()}", "Threads of a block", 10) for axis in "XYZ"),
    _extent("Reg/Trd", "registers_per_thread", "Registers of a thread", 7),
    _megabytes("StcSMem", "static_shared_mb", "MB", "Static shared memory", units.size, 12),
    _megabytes("DymSMem", "dynamic_shared_mb", "MB", "Dynamic shared memory", units.size, 11),
    _megabytes("Bytes", "mb", "MB", "Copied or set", units.size, 1),
    _megabytes("Throughput", "mb_per_s", "MB/s", "While it ran", units.rate, 2),
    text("SrcMemKd", "source_kind", meaning="The kind of memory it reads", kind=str | None),
    text("DstMemKd", "destination_kind", meaning="The kind of memory it writes", kind=str | None),
    text("Device", "gpu", meaning="The GPU's name and index"),
    _id("Ctx", "context", "CUDA's context", 13),
    _id("GreenCtx", "green_context", "Not recorded", 14),
    _id("Strm", "stream", "CUPTI's number of the stream", 5),
    text("Name", "name", meaning="The kernel or operation"),
    _id("Tid", "tid", "The launching thread", 6),
    time("Latency", "latency_ns", meaning="Launch call's start to its own", kind=int | None,
         priority=3),
)  # fmt: skip


def event_table(traced: Traced, name: str) -> AnyTable:
    """The longest events of the run, the longest first."""
    kind = EVENT_TABLES[name]
    reader = _Reader(traced)
    longest: list[tuple[int, int, int, np.void]] = []
    total = 0
    for part in reader.portions(kind.kinds):
        total += len(part)
        lengths = part["end"] - part["start"]
        for place in np.argsort(-lengths, kind="stable")[:LONGEST]:
            event = (int(lengths[place]), -int(part["start"][place]), -total, part[place].copy())
            longest.append(event)
        longest = heapq.nlargest(LONGEST, longest, key=lambda entry: entry[:3])
    events = np.array([entry[3] for entry in longest], TRACE)
    note = f"the {len(longest)} longest of {total}; --format csv has all" if total > LONGEST else ""
    return Table(name, kind.title, kind.columns, tuple(kind.rows(reader, events)), note)


def all_events(
    traced: Traced, name: str
) -> tuple[tuple[AnyColumn, ...], Iterator[tuple[Cell, ...]]]:
    """The columns, and every event of the run in order of start: of many, most wait in a file."""
    kind = EVENT_TABLES[name]
    reader = _Reader(traced)
    events = TimedRows(TRACE)
    for portion in reader.portions(kind.kinds):
        events.add(portion)

    def rows() -> Iterator[tuple[Cell, ...]]:
        left = events.count
        with closing(events):
            while left:
                some = events.rows_until(events.horizon(events.last))
                left -= len(some)
                yield from kind.rows(reader, some)

    return kind.columns, rows()


class _Reader:
    """The records of a run, and what its numbers stand for."""

    def __init__(self, traced: Traced) -> None:
        self.session: Session = traced.session
        self.run: Run = traced.run
        self.trace = traced.trace
        header = self.session.header
        self.base_ns = header.time_ns if header else 0
        self._launching: tuple[npt.NDArray[np.uint64], UInt32s, Int64s] | None = None
        self._gpus: dict[tuple[int, int], str] = {}
        self._shapes: dict[int, tuple[Cell, ...]] = {}

    def gpu(self, process: int, device: int) -> str:
        """What a process's device is called."""
        name = self._gpus.get((process, device))
        if name is None:
            index = gpu_of(self.session, self.run, process, device)
            gpu = self.session.gpus.get(index)
            name = f"{gpu.facts.name} ({index})" if gpu else f"({index})"
            self._gpus[process, device] = name
        return name

    def shape(self, number: int) -> tuple[Cell, ...]:
        """The cells of a launch shape."""
        cells = self._shapes.get(number)
        if cells is None:
            shape = self.session.launch_shapes.get(number)
            cells = self._shapes[number] = _NO_SHAPE if shape is None else (
                *shape.grid,
                *shape.block,
                shape.registers_per_thread,
                shape.static_shared_bytes / 1e6,
                shape.dynamic_shared_bytes / 1e6,
            )  # fmt: skip
        return cells

    def portions(self, kinds: Sequence[TraceKind]) -> Iterator[Slots]:
        # A session may have had other runs before this one.
        ours = np.array(sorted(self.run.processes), np.uint32)
        for portion in self.trace.portions():
            ours_of = np.isin(portion["kind"], kinds) & np.isin(portion["process"], ours)
            # Whole records are copied, not field by field.
            yield portion if ours_of.all() else _whole(portion)[ours_of].view(TRACE)

    def launching(self, events: Slots) -> list[tuple[int | None, int | None]]:
        """The thread that launched each operation, and when its call began."""
        if self._launching is None:
            self._launching = self._launches()
        keys, threads, starts = self._launching
        if not len(keys):
            return [(None, None)] * len(events)
        wanted = _keys(events)
        places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        matches = (keys[places] == wanted) & (starts[places] != _NO_CALL)
        columns = (threads[places].tolist(), starts[places].tolist(), matches.tolist())
        return [
            (thread, start_ns) if is_match else (None, None)
            for thread, start_ns, is_match in zip(*columns, strict=True)
        ]

    def _launches(self) -> tuple[npt.NDArray[np.uint64], UInt32s, Int64s]:
        """Key of whatever was launched, in order; thread and start of the call that did so first.
        Calls are put in their places portion by portion: sorting all of them took four times the
        memory, 80 bytes for each operation."""
        keys = np.concatenate([np.zeros(0, np.uint64), *map(_keys, self.portions(_GPU_KINDS))])
        keys.sort()
        keys = keys[np.append(True, keys[1:] != keys[:-1])] if len(keys) else keys
        threads, starts = np.zeros(len(keys), np.uint32), np.full(len(keys), _NO_CALL)
        for calls in self.portions((TraceKind.CALL,) if len(keys) else ()):
            wanted = _keys(calls)
            places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            new = np.flatnonzero((keys[places] == wanted) & (starts[places] == _NO_CALL))[::-1]
            threads[places[new]], starts[places[new]] = calls["thread"][new], calls["start"][new]
        return keys, threads, starts


_NO_CALL = np.int64(-(1 << 63))


def _whole(records: Slots) -> Slots:
    return np.ascontiguousarray(records).view(np.dtype((np.void, TRACE.itemsize)))


def _keys(records: Slots) -> npt.NDArray[np.uint64]:
    high = records["process"].astype(np.uint64) << np.uint64(32)
    keys: npt.NDArray[np.uint64] = high | records["correlation"].astype(np.uint64)
    return keys


def _call_rows(reader: _Reader, events: Slots) -> Iterator[tuple[Cell, ...]]:
    names = reader.trace.call_names
    columns = ("process", "thread", "start", "end", "name", "bytes", "sub", "correlation")
    for number, thread, start_ns, end_ns, name, result, has_result, correlation in zip(
        *(events[column].tolist() for column in columns), strict=True
    ):
        process = reader.run.processes[number]
        named = process.threads.get(thread)
        yield (
            start_ns - reader.base_ns,
            end_ns - start_ns,
            names.get(name, names[0]),
            result if has_result else None,
            correlation,
            process.attached.pid,
            thread,
            named.priority if named else None,
            named.name if named else None,
        )


def _gpu_rows(reader: _Reader, events: Slots) -> Iterator[tuple[Cell, ...]]:
    session = reader.session
    columns = ("kind", "process", "device", "start", "end", "correlation", "context", "stream",
               "name", "bytes", "sub", "source_kind", "destination_kind")  # fmt: skip
    rows = zip(*(events[column].tolist() for column in columns), strict=True)
    for row, (thread, call_ns) in zip(rows, reader.launching(events), strict=True):
        (kind, process, device, start_ns, end_ns, correlation, context, stream, name, size, sub,
         source, destination) = row  # fmt: skip
        shape, moved, label = _NO_SHAPE, _NOT_MOVED, MEMSET
        if kind in (_COPY, _SET):
            moved = _moved(size, end_ns - start_ns, source, destination)
            label = copy_name(sub) if kind == _COPY else MEMSET
        else:
            shape = reader.shape(size) if kind == _KERNEL else _NO_SHAPE
            kernel = session.kernel_names.get(name)
            label = kernel.name if kernel else "(unknown)"
        yield (
            start_ns - reader.base_ns,
            end_ns - start_ns,
            correlation,
            *shape,
            *moved,
            reader.gpu(process, device),
            context or None,
            None,
            stream,
            label,
            thread,
            None if call_ns is None else start_ns - call_ns,
        )


# Plain numbers: an enumeration's members took a third of the time.
_KERNEL, _COPY, _SET = int(TraceKind.KERNEL), int(TraceKind.COPY), int(TraceKind.SET)
_NO_SHAPE: tuple[Cell, ...] = (None,) * 9
_NOT_MOVED: tuple[Cell, ...] = (None,) * 4


def _moved(size: int, length_ns: int, source: int, destination: int) -> tuple[Cell, ...]:
    """Bytes, throughput, and the kinds of memory at both ends."""
    megabytes = size / 1e6
    kinds = [
        MEMORY_KINDS.get(end, "unknown").title() if end else None for end in (source, destination)
    ]
    return megabytes, megabytes / (length_ns / 1e9) if length_ns > 0 else None, *kinds


@dataclass(frozen=True, slots=True)
class _Kind:
    title: str
    kinds: tuple[TraceKind, ...]
    columns: tuple[AnyColumn, ...]
    rows: Callable[[_Reader, Slots], Iterator[tuple[Cell, ...]]]


EVENT_TABLES = {
    "cuda_api_trace": _Kind("CUDA API Trace", (TraceKind.CALL,), _CALL_COLUMNS, _call_rows),
    "cuda_gpu_trace": _Kind("CUDA GPU Trace", _GPU_KINDS, _GPU_COLUMNS, _gpu_rows),
}
"""By nsys's names."""


# The raw records of a job's members in one trace, with the numbers of the merged session.


# What `name` numbers in records of a kind.
_NAMED = {
    TraceKind.KERNEL: Numbered.KERNEL,
    TraceKind.GRAPH: Numbered.KERNEL,
    TraceKind.MARK: Numbered.MARK,
}


def write_job_trace(job: JobRecording, writer: TraceWriter, folder: Path) -> int:
    """Writes the records of all members, whose events have been read; returns how many records had
    been dropped. `folder` is for unpacked files. Raises JournalError if a member has no trace."""
    dropped = 0
    for place, (member, numbers) in enumerate(zip(job.members, job.numbers, strict=True)):
        reader = trace_of(member.path, folder / f"member-{place}", writer.limit_bytes)
        calls = {number: writer.name(text) for number, text in reader.call_names.items() if number}
        tables = _Tables(numbers, calls)
        for portion in reader.portions():
            writer.append(tables.renumbered(portion))
        dropped += reader.dropped
    return dropped


class _Tables:
    """New numbers by old ones, as arrays."""

    def __init__(self, numbers: MemberNumbers, calls: Mapping[int, int]) -> None:
        self._new_numbers = {kind: _table(numbers.items(kind)) for kind in Numbered}
        self._calls = _table(calls)

    def renumbered(self, portion: Slots) -> Slots:
        """A copy of records with the new numbers."""
        records = portion.copy()
        for column, kind in (("process", Numbered.PROCESS), ("range", Numbered.RANGE)):
            records[column] = _looked_up(self._new_numbers[kind], records[column])
        kinds = records["kind"]
        for number, kind in _NAMED.items():
            rows = kinds == number
            records["name"][rows] = _looked_up(self._new_numbers[kind], records["name"][rows])
        rows = kinds == TraceKind.CALL
        records["name"][rows] = _looked_up(self._calls, records["name"][rows])
        rows = kinds == TraceKind.KERNEL
        records["bytes"][rows] = _looked_up(
            self._new_numbers[Numbered.SHAPE], records["bytes"][rows]
        )
        return records


def _table(numbers: Mapping[int, int]) -> Int64s:
    table = np.zeros(max(numbers, default=0) + 1, np.int64)
    table[list(numbers)] = list(numbers.values())
    return table


def _looked_up(table: Int64s, values: npt.NDArray[Any]) -> Int64s:
    """0, which is none, for a number that no event spoke of."""
    return table[np.where(values < len(table), values, 0)]
