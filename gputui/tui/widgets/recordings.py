"""The recordings of a folder as table rows: columns, order, filter, details of one."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from datetime import datetime
from pathlib import Path

from gputui.base.sanitize import sanitize
from gputui.model.units import MISSING, duration, size
from gputui.report.schema import Column
from gputui.store.library import Entry
from gputui.store.places import SUFFIXES
from gputui.tui.widgets.canvas import Row
from gputui.tui.widgets.table import column

SORTS = ("date", "name", "workload", "host", "length", "result", "size")
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


def recording_columns(marked: Collection[Path], current: Path | None) -> list[Column[Entry]]:
    """The columns; the least useful ones are dropped first if there is no room."""
    return [
        column("", lambda e: "●" if e.path in marked else " ", 0, right=False, width=1, role="key"),
        column("date", lambda e: date_text(e.started_ns), 1, right=False, width=16),
        column("workload", lambda e: e.name or "-", 0, right=False, width=9),
        column("length", lambda e: duration(e.length_ns) if e.length_ns else "-", 1, width=7),
        column(
            "result",
            lambda e: result_text(e, current)[:60],
            1,
            flexible=True,
            right=False,
            width=16,
            role=lambda e: result_role(e, current),
        ),
        column("host", lambda e: (e.hostname or "-")[:16], 4, right=False, width=6),
        column("GPU", lambda e: gpus_text(e)[:20], 6, right=False, width=8),
        column("size", lambda e: size(e.size_bytes), 3, width=8),
        column("name", lambda e: recording_name(e.path), 2, flexible=True, right=False, width=18),
    ]


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
    """The recordings by one of SORTS: names from A, figures and dates from the highest."""

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
