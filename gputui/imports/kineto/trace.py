"""A trace that torch.profiler exported, as the events of a session.

Annotations and operators become ranges, `ProfilerStep#N` the steps; calls, kernels, copies and
memsets become the records the capture library would have written, and go through the same
attribution. Python functions, flows and the projections that Kineto computed are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gputui.base.sanitize import sanitize
from gputui.base.version import VERSION
from gputui.imports.kineto.nesting import as_rows
from gputui.imports.kineto.reading import KinetoReading
from gputui.imports.kineto.table import Table, amount, number
from gputui.imports.kineto.trace_events import Beside, TraceEvents
from gputui.imports.reading import Clock, ProcessFacts
from gputui.model.events import (
    JOURNAL_SCHEMA,
    AnyEvent,
    GpuFacts,
    Header,
    HostFacts,
    RunEnded,
    RunStarted,
)
from gputui.ring.layout import RecordKind
from gputui.store.journal import JournalError
from gputui.store.journal.compression import CompressionError, expanded
from gputui.store.regular_file import open_regular
from gputui.store.trace import TraceWriter

_LONG_AGO_NS = 10**18
"""2001: a trace that ends before has no date."""

MAX_GPUS = 256


class KinetoTrace:
    """The events of one trace, read once. Raises JournalError if the file is none.

    `damage` and `skipped` as in JournalReader: events that are not of the trace's form are counted
    as skipped.
    """

    def __init__(self, path: Path, trace: TraceWriter | None = None) -> None:
        """With `trace`, every call and operation also goes there."""
        self.name = str(path)
        self._trace = trace
        self._table = Table()
        with expanded(open_regular(path), self.name) as stream:
            events = TraceEvents(stream)
            self.damage = self._read(events)
        self.skipped = events.skipped + self._table.skipped
        self._records, self._rows = self._table.records, as_rows(self._table.ranges)
        starts, ends = self._records["start"], self._records["end"]
        moments = [int(starts[0]), int(ends.max())] if len(starts) else []
        if len(self._rows.start):
            moments += [int(self._rows.start.min()), int(self._rows.end.max())]
        if not moments:
            raise JournalError(
                f"{path} has no operators, annotations, CUDA calls or kernels: export it with "
                "torch.profiler's export_chrome_trace()"
            )
        first, last = min(moments), max(moments)
        self._clock = Clock(first, last, _base_ns(events.beside, path, last))
        self.header = self._header(events.beside)
        self._rank = events.beside.distributed.rank if events.beside.distributed else None

    def _read(self, events: TraceEvents) -> str | None:
        try:
            for portion in events:
                self._table.add(portion)
        except (CompressionError, OSError) as error:
            return f"{self.name} is damaged: {sanitize(str(error), 160)}; read until there"
        except JournalError as error:
            raise JournalError(
                f"{self.name} is not a trace of torch.profiler: {error}; export one with "
                "export_chrome_trace()"
            ) from None
        return f"{self.name}: {events.damage}" if events.damage else None

    def close(self) -> None:
        """Nothing: it was read when it was opened."""

    def __iter__(self) -> Iterator[AnyEvent]:
        yield self.header
        pid = next((pid for pid, _ in self._table.pids.most_common(1)), 0)
        command = self._table.commands.get(pid, "")
        yield RunStarted(
            time_ns=self._clock.at(self._clock.first),
            run=1,
            kind="command",
            name=command or "torch.profiler trace",
            arguments=(),
            pid=None,
        )
        traced_cuda = len(self._records) > 0
        facts = ProcessFacts(
            pid,
            command,
            "tracing" if traced_cuda else "the trace holds no CUDA activity",
            self._rank,
        )
        yield from KinetoReading(
            self._records,
            self._rows,
            self._table.memory,
            self._clock,
            self._table.texts,
            self._table.shapes,
            facts,
            self._table.thread_names,
            self._trace,
        ).events()
        yield RunEnded(
            time_ns=self._clock.at(self._clock.last), run=1, reason="the trace ends here"
        )

    def _header(self, beside: Beside) -> Header:
        driver = beside.driver
        return Header(
            time_ns=self._clock.at(self._clock.first),
            schema=JOURNAL_SCHEMA,
            gputui_version=VERSION,
            python_version="",
            monotonic_ns=0,
            arguments=("torch.profiler",),
            interval_s=self._clock.tick_ns / 1e9,
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

    def _gpus(self, beside: Beside) -> tuple[GpuFacts, ...]:
        """The devices that something ran on: traces list every one of the machine."""
        operations = self._records[self._records["kind"] != RecordKind.API]
        used = set(np.unique(operations["a"]).tolist())
        return tuple(
            GpuFacts(
                index=number(gpu.id),
                uuid="",
                name=sanitize(gpu.name, 200),
                compute_capability=(
                    f"{number(gpu.major)}.{number(gpu.minor)}" if gpu.major is not None else None
                ),
                sm_count=number(gpu.sm_count) or None,
                memory_total_bytes=amount(gpu.memory_bytes) or None,
            )
            for gpu in beside.gpus[:MAX_GPUS]
            if gpu.id in used
        )


def _base_ns(beside: Beside, path: Path, last: int) -> int:
    """Where the trace's clock begins: named beside the events since torch 2.4, else the epoch."""
    base_ns = beside.base_ns if 0 < beside.base_ns < 4 * _LONG_AGO_NS else 0
    if last + base_ns >= _LONG_AGO_NS:
        return base_ns
    # Without a date; the file cannot be older than what it tells.
    return path.stat().st_mtime_ns - last
