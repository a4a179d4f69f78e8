"""A trace's columns, in order of time, as records of the capture library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gputui.attribute.arrays import LATEST_NS, Int64s, Slots
from gputui.imports.kineto.table import Memory
from gputui.imports.ranges import RangeRecords, RangeRows
from gputui.imports.reading import Clock, ProcessFacts, Reading
from gputui.imports.shapes import LaunchShapes
from gputui.imports.texts import Texts
from gputui.model.events import AnyEvent, RunMetrics
from gputui.store.trace import TraceWriter


class KinetoReading(Reading):
    """One pass over what a trace holds: it is of one process."""

    def __init__(
        self,
        records: Slots,
        rows: RangeRows,
        memory: Memory,
        clock: Clock,
        texts: Texts,
        shapes: LaunchShapes,
        facts: ProcessFacts,
        thread_names: dict[int, str],
        trace: TraceWriter | None,
    ) -> None:
        """`records` are calls and operations, in order of time on the trace's clock."""
        super().__init__(clock, texts, trace, shapes)
        self._ranges = RangeRecords(rows, clock.base_ns)
        self._records = records
        self._memory = list(memory.devices())
        self._next = 0
        self._process = facts
        self._thread_names = thread_names

    def _horizon(self, tick: int) -> int:
        return tick

    def _take(self, until: int) -> Sequence[tuple[Slots, Int64s]]:
        ranges, _ = self._ranges.take(until)
        end = int(np.searchsorted(self._records["start"], until, side="right"))
        records = self._records[self._next : end].copy()
        self._next = end
        for side in ("start", "end"):
            moments = records[side].astype(np.int64) + self._clock.base_ns
            records[side] = np.clip(moments, 0, LATEST_NS)
        return [(part, np.zeros(len(part), np.int64)) for part in (ranges, records)]

    def _last_range_ns(self) -> int:
        return self._ranges.last_ns

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
            of = f"gpu{device}_" if len(self._memory) > 1 else ""
            for what, values in (("allocated", allocated), ("reserved", reserved)):
                metrics[f"{of}memory_{what}_bytes"] = int(values[seen - 1])
                metrics[f"{of}peak_memory_{what}_bytes"] = int(values[:seen].max())
        if metrics:
            yield RunMetrics(time_ns=self._clock.at(until), run=1, metrics=metrics)
