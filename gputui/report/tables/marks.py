"""NVTX marks of a run: how often each occurred, the first and the last, with what payload."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import msgspec

from gputui.model.events import MarkDelta, Payload
from gputui.model.merge import merger_of
from gputui.model.naming import is_library_domain
from gputui.model.payloads import payload_text
from gputui.report.domains import DEFAULT
from gputui.report.schema import Cell, TableSpec, count, if_any, number, text, time
from gputui.state import Run
from gputui.state.tables import Table


@dataclass(frozen=True, slots=True)
class MarkRow:
    """Marks of one process, domain and name. Times are since the run's start, `payload` is the
    newest, `category` its name or its number.
    """

    pid: int
    rank: int | None
    domain: str
    name: str
    count: int
    first_ns: int
    last_ns: int
    category: str | None = None
    payload: Payload | None = None


@dataclass(slots=True)
class NewestMark:
    """Marks of one domain and name in all processes; `last_ns` is since the run's start, `payload`
    that of the process with the newest one.
    """

    domain: str
    name: str
    count: int
    last_ns: int
    payload: Payload | None


def newest_marks(run: Run, most: int, *, library_domains: bool = False) -> list[NewestMark]:
    """The most recent mark names, newest first, at most so many; those of NCCL, CUB and similar
    only with `library_domains`.
    """
    found: dict[tuple[str, str], NewestMark] = {}
    began_ns = run.started.time_ns
    for marks in (run.marks or _kept(run)).values():
        domain, name = marks.domain, marks.name
        last_ns = max(0, marks.last_ns - began_ns)
        known = found.get((domain, name))
        if known is None:
            if library_domains or not is_library_domain(domain):
                newest = NewestMark(domain, name, marks.count, last_ns, marks.payload)
                found[domain, name] = newest
            continue
        known.count += marks.count
        if last_ns >= known.last_ns:
            known.last_ns, known.payload = last_ns, marks.payload or known.payload
    return heapq.nlargest(most, found.values(), key=lambda mark: mark.last_ns)


def mark_rows(run: Run) -> list[MarkRow]:
    """The marks of `run`, the most frequent first.

    If a recording did not count them, they are counted among the newest that it kept.
    """
    began_ns = run.started.time_ns
    rows = []
    categories = {
        (known.process, known.domain, known.name): known.category or str(known.category_id)
        for known in run.mark_definitions.values()
        if known.category_id is not None
    }
    for marks in (run.marks or _kept(run)).values():
        process, domain, name = marks.process, marks.domain, marks.name
        attached = run.processes[process].attached
        first_ns, last_ns = (max(0, at - began_ns) for at in (marks.first_ns, marks.last_ns))
        rows.append(
            MarkRow(
                pid=attached.pid,
                rank=attached.rank,
                domain=domain,
                name=name,
                count=marks.count,
                first_ns=first_ns,
                last_ns=last_ns,
                category=categories.get((process, domain, name)),
                payload=marks.payload,
            )
        )
    return sorted(rows, key=lambda row: (-row.count, row.first_ns, row.name))


def marks_note(run: Run) -> str:
    """The note beside counts that may not cover all marks."""
    if run.marks or not run.newest_marks:
        return ""
    return f"only of the newest {len(run.newest_marks)}: an older gputui did not count them"


class PayloadValue(msgspec.Struct, frozen=True):
    """A payload for programs; NaN and infinity are text."""

    type: str
    value: int | float | str


def payload_value(told: Payload | None) -> PayloadValue | None:
    """What the program put beside a range or a mark."""
    return None if told is None else PayloadValue(told.type, told.value)


def _payload_cell(told: Payload | None) -> Cell:
    """A number if it is one."""
    if told is None:
        return ""
    return payload_text(told) if told.type == "bytes" else told.value


MARKS: TableSpec[MarkRow] = TableSpec(
    key="nvtx_marks",
    title="NVTX Marks",
    meaning="NVTX marks by process, domain and name. nsys has no such table: its nvtx_sum leaves "
    "marks out.",
    columns=(
        count("Marks", "count", lambda row: row.count, "How many", label="count", width=6),
        time("First", "first_ns", lambda row: row.first_ns, "The first, since the run's start",
             priority=2, label="first", width=8),
        time("Last", "last_ns", lambda row: row.last_ns, "The last, since the run's start",
             priority=1, label="last", width=8),
        number("Rank", "rank", lambda row: row.rank, "The process's rank", kind=int | None,
               priority=4, seen=if_any, label="rank", width=4),
        number("PID", "pid", lambda row: row.pid, "The process", priority=4),
        text("Domain", "domain", lambda row: row.domain or DEFAULT, "The NVTX domain",
             document=lambda row: row.domain, flexible=False, priority=3, label="domain", width=8),
        text("Category", "category", lambda row: row.category or "",
             "The NVTX category's name, or its number", kind=str | None,
             document=lambda row: row.category, flexible=False, priority=5, label="category",
             width=8),
        text("Payload", "payload", lambda row: _payload_cell(row.payload), "The newest payload",
             kind=PayloadValue | None, document=lambda row: payload_value(row.payload),
             words=lambda row: payload_text(row.payload) if row.payload else "", right=True,
             flexible=False, priority=3, label="payload", width=9),
        text("Name", "name", lambda row: row.name, "The mark", label="mark", width=24),
    ),
    rows=lambda _session, run: mark_rows(run),
    order=200,
    in_summary=True,
    document="marks",
    note=lambda run, _rows: marks_note(run) or "times since the run's start",
)  # fmt: skip
TABLES = (MARKS,)


def _kept(run: Run) -> Table[MarkDelta]:
    merger = merger_of(MarkDelta)
    rows: Table[MarkDelta] = {}
    for mark in run.newest_marks:
        part = MarkDelta(mark.domain, mark.name, 1, mark.time_ns, mark.time_ns, mark.payload)
        key = mark.process, mark.domain, mark.name
        if key in rows:
            merger.add(rows[key], part)
        else:
            row: Any = merger.start(part)
            row.process = mark.process
            rows[key] = row
    return rows
