"""The raw records of a job's members in one trace, with the numbers of the merged session."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gputui.model.events import Numbered
from gputui.playback.job.recording import JobRecording, MemberNumbers
from gputui.playback.opening import open_import
from gputui.store.journal import JournalError
from gputui.store.places import trace_path
from gputui.store.trace import Int64s, Slots, TraceKind, TraceReader, TraceWriter

_NAMED = {
    TraceKind.KERNEL: Numbered.KERNEL,
    TraceKind.GRAPH: Numbered.KERNEL,
    TraceKind.MARK: Numbered.MARK,
}
"""What `name` numbers in records of a kind."""


def write_job_trace(job: JobRecording, writer: TraceWriter, folder: Path) -> int:
    """Write the records of all members, whose events have been read; how many had been dropped.

    `folder` is for what is unpacked. Raises JournalError where one has no trace.
    """
    dropped = 0
    for place, (member, numbers) in enumerate(zip(job.members, job.numbers, strict=True)):
        reader = _trace_of(member.path, folder / f"member-{place}", writer.limit_bytes)
        calls = {number: writer.name(text) for number, text in reader.call_names.items() if number}
        tables = _Tables(numbers, calls)
        for portion in reader.portions():
            writer.append(tables.renumbered(portion))
        dropped += reader.dropped
    return dropped


def _trace_of(path: Path, place: Path, limit_bytes: int) -> TraceReader:
    with closing(TraceWriter(place, limit_bytes)) as writer:
        imported = open_import(path, writer)
        if imported is not None:
            with closing(imported):
                for _ in imported:
                    pass
    if imported is not None:
        if writer.failure:
            raise JournalError(writer.failure)
        return TraceReader(place)
    place.unlink()
    beside = trace_path(path)
    if not beside.exists():
        raise JournalError(
            f"{path} has no trace beside it ({beside.name}): record with --trace for this"
        )
    return TraceReader(beside)


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
