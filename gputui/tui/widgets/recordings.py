"""The recordings of a folder as table rows: columns, order, filter, details of one."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from pathlib import Path

from gputui.base.sanitize import sanitize
from gputui.model.units import MISSING, duration, percent, quantity, size
from gputui.report.schema import Column
from gputui.store.library import Entry
from gputui.store.places import SUFFIXES
from gputui.tui.run_index import RunFacts
from gputui.tui.widgets.canvas import Row
from gputui.tui.widgets.table import column

SORTS = ("command", "name", "workload", "host", "length", "result", "size", "date")
FROM_LEAST = ("name", "workload", "host", "result")


def recording_name(path: Path) -> str:
    """A file's name without the common suffix."""
    name = path.name
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if name.endswith(suffix):
            return sanitize(name.removesuffix(suffix), 200)
    return sanitize(name, 200)


def folder_text(path: Path) -> str:
    """A folder with "~" for the home folder."""
    home = os.path.expanduser("~")
    text = str(path)
    return sanitize(f"~{text.removeprefix(home)}" if text.startswith(f"{home}/") else text)


def result_text(entry: Entry, current: Path | None) -> str:
    """The outcome of the run, or why the recording cannot be opened."""
    if entry.problem is not None:
        # The path is in the first column; the error comes first here.
        return entry.problem.replace(f"{entry.path} ", "").replace(f"{entry.path}: ", "")
    if entry.is_nsys:
        return "opens as a recording"
    if entry.path == current:
        return "being recorded here"
    if entry.is_written and entry.succeeded is None:
        return "being recorded"
    if entry.name is None:
        return "no run" if entry.length_ns is not None else MISSING
    if entry.succeeded:
        return "done"
    return (entry.result or MISSING).removeprefix(f"{entry.name} ")


def result_role(entry: Entry, current: Path | None) -> str:
    """The role of that text."""
    if entry.problem is not None:
        return "warn"
    if entry.path == current or (entry.is_written and entry.succeeded is None):
        return "accent"
    return {True: "good", False: "hot", None: "text"}[entry.succeeded]


def command_of(entry: Entry) -> tuple[str, ...]:
    """What runs of one command share: a workload's name, or a program with its script."""
    if entry.kind == "command":
        return ("command", *entry.arguments[:2])
    return (entry.kind or "", entry.name or "")


def run_before(entry: Entry, entries: Iterable[Entry]) -> Entry | None:
    """The newest older run of the same command."""
    older = [
        one
        for one in entries
        if one.problem is None
        and one.kind is not None
        and command_of(one) == command_of(entry)
        and (one.started_ns, one.path) < (entry.started_ns, entry.path)
    ]
    return max(older, key=lambda one: (one.started_ns, one.path), default=None)


def what_changed(entry: Entry, before: Entry | None) -> str:
    """The parameters and arguments that the run before did not have."""
    if entry.kind is None:
        return ""
    if before is None:
        return "first of its kind"
    was = dict(before.parameters)
    parts = [f"{name}={value}" for name, value in entry.parameters if was.get(name) != value]
    parts += [f"no {name}" for name in was if name not in dict(entry.parameters)]
    if entry.kind == "command":
        parts += [word for word in entry.arguments if word not in before.arguments]
        parts += [f"no {word}" for word in before.arguments if word not in entry.arguments]
    if entry.hostname != before.hostname:
        parts.append(f"on {entry.hostname}")
    return sanitize(" ".join(parts), 200) or "nothing"


def recording_columns(
    marked: Collection[Path],
    current: Path | None,
    facts: Callable[[Entry], RunFacts | None],
    changed: Callable[[Entry], str],
) -> list[Column[Entry]]:
    """The columns; the least useful ones are dropped first if there is no room. `facts` are those
    of a run, `changed` what it has of its own."""

    def of(entry: Entry, show: Callable[[RunFacts], str]) -> str:
        found = facts(entry)
        return "" if found is None else show(found)

    return [
        column("", lambda e: "●" if e.path in marked else " ", 0, right=False, width=1, role="key"),
        column("date", lambda e: date_text(e.started_ns), 3, right=False, width=16),
        column("workload", lambda e: e.name or "-", 0, right=False, width=9),
        column("changed", changed, 4, flexible=True, right=False, width=12),
        column("step", lambda e: of(e, lambda f: duration(f.step_ns) if f.step_ns else "-"), 2),
        column("per s", lambda e: of(e, lambda f: quantity(f.rate) if f.rate else "-"), 6),
        column("busy", lambda e: of(e, lambda f: _percent(f.busy_percent)), 6),
        column("top cause", lambda e: of(e, lambda f: f.cause or "-"), 3, right=False, width=9),
        column("length", lambda e: duration(e.length_ns) if e.length_ns else "-", 1, width=7),
        column(
            "result",
            lambda e: result_text(e, current)[:60],
            1,
            flexible=True,
            right=False,
            width=20,
            role=lambda e: result_role(e, current),
        ),
        column("host", lambda e: (e.hostname or "-")[:16], 8, right=False, width=6),
        column("GPU", lambda e: gpus_text(e)[:20], 9, right=False, width=8),
        column("size", lambda e: size(e.size_bytes), 7, width=8),
        column("name", lambda e: recording_name(e.path), 2, flexible=True, right=False, width=18),
    ]


def _percent(value: float | None) -> str:
    return "-" if value is None else percent(value)


def date_text(time_ns: int) -> str:
    """A moment in local time, to the minute."""
    return f"{datetime.fromtimestamp(time_ns / 1e9).astimezone():%Y-%m-%d %H:%M}"


def gpus_text(entry: Entry) -> str:
    """ "8 × NVIDIA H200"."""
    if entry.problem is not None or entry.is_nsys:
        return "-"
    if not entry.gpus:
        return "none"
    kinds = dict.fromkeys(entry.gpus)
    if len(kinds) > 1:
        return f"{len(entry.gpus)} GPUs"
    many = f"{len(entry.gpus)} × " if len(entry.gpus) > 1 else ""
    return many + entry.gpus[0].removeprefix("NVIDIA ")


def matching(entries: Iterable[Entry], needle: str) -> list[Entry]:
    """The recordings with a text in any displayed column, ignoring case."""
    low = needle.lower()
    return [
        entry
        for entry in entries
        if low
        in " ".join(
            part or ""
            for part in (
                *(recording_name(entry.path), entry.name, entry.hostname, entry.result),
                *(entry.problem, gpus_text(entry), date_text(entry.started_ns)),
            )
        ).lower()
    ]


def ordered(entries: Iterable[Entry], by: str, *, other_way: bool) -> list[Entry]:
    """The recordings by one of SORTS: names from A, figures and dates from the highest. By command:
    those of the newest run first, newest first."""

    if by == "command":
        known = list(entries)
        newest: dict[tuple[str, ...], int] = {}
        for one in known:
            newest[command_of(one)] = max(newest.get(command_of(one), 0), one.started_ns)
        known.sort(
            key=lambda e: (newest[command_of(e)], command_of(e), e.started_ns, e.path), reverse=True
        )
        return known[::-1] if other_way else known

    def key(entry: Entry) -> tuple[str | float, str]:
        texts = {
            "name": recording_name(entry.path),
            "workload": entry.name,
            "host": entry.hostname,
            "result": entry.problem or entry.result,
        }
        figures = {
            "date": entry.started_ns,
            "length": entry.length_ns or 0,
            "size": entry.size_bytes,
        }
        first = (texts[by] or "").lower() if by in texts else figures[by]
        return first, entry.path.name

    return sorted(entries, key=key, reverse=(by not in FROM_LEAST) != other_way)


def recording_details(entry: Entry, current: Path | None) -> tuple[Row, ...]:
    """Everything known about one without reading it completely."""
    pairs = (
        ("file", sanitize(str(entry.path))),
        ("files", f"{entry.file_count}, read as one" if entry.file_count > 1 else ""),
        ("size", size(entry.size_bytes)),
        ("problem", entry.problem or ""),
        ("begun", "" if entry.problem else date_text(entry.started_ns)),
        ("workload", f"{entry.name} ({entry.kind})" if entry.name and entry.kind else ""),
        ("length", duration(entry.length_ns) if entry.length_ns else ""),
        ("result", "" if entry.problem else result_text(entry, current)),
        ("host", entry.hostname or ""),
        ("GPUs", "" if entry.problem or entry.is_nsys else ", ".join(entry.gpus) or "none"),
        ("trace", "beside it: chrome and nsys exports work" if entry.has_trace else ""),
    )
    return tuple(((f"{label:<12}", "label"), (text, "text")) for label, text in pairs if text)
