"""The recordings of a folder, and what each recorded run did, as table rows."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from time import time as now_s
from typing import TYPE_CHECKING

import msgspec
from rich.cells import cell_len

from gputui.base import JournalError
from gputui.base.decoding import json_decoder
from gputui.base.sanitize import sanitize
from gputui.model.leaves import LEAVES
from gputui.model.naming import operands
from gputui.model.units import duration, joules, percent, quantity, size
from gputui.report.schema import Column, Show
from gputui.store import default_folder
from gputui.store.recordings import (
    Found,
    RecordingEntry,
    describe_recording,
    gpus_text,
    program_of,
    recording_name,
    recordings_in,
    result_text,
    run_before,
    what_changed,
)
from gputui.tui.threads import Threads
from gputui.tui.widgets.canvas import Row, labelled
from gputui.tui.widgets.table import column

if TYPE_CHECKING:
    from gputui.report.change import RunFigures

# What each recorded run did: read once, in the background, and kept in a small file.


LARGEST_BYTES = 64 << 20
"""A recording that is larger is not read in passing."""


_MOST = 5000
"""Runs kept, the newest read."""


def is_unread(entry: RecordingEntry, facts: RunFigures | None) -> bool:
    """Whether more will be known of a run once it is read."""
    return (
        facts is None
        and entry.problem is None
        and entry.kind is not None
        and not (entry.is_written and entry.succeeded is None)
        and entry.size_bytes <= LARGEST_BYTES
    )


def _key(entry: RecordingEntry) -> str:
    return f"{entry.path}|{entry.size_bytes}|{entry.started_ns}"


def _place() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "gputui", "run-facts.json")


def _load() -> dict[str, RunFigures]:
    from gputui.report.change import RunFigures

    # It can always be made again: whatever is wrong with it, begin anew.
    try:
        return json_decoder(dict[str, RunFigures]).decode(_place().read_bytes())
    except (OSError, msgspec.MsgspecError, ValueError):
        return {}


def _store(known: dict[str, RunFigures]) -> None:
    place = _place()
    kept = dict(list(known.items())[-_MOST:])
    with contextlib.suppress(OSError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = place.with_suffix(f".{os.getpid()}")
        part.write_bytes(msgspec.json.encode(kept))
        part.replace(place)


_BATCH = 25
"""Recordings shown at once while a large folder is read for the first time."""


class RecordingLibrary:
    """What is known about a folder and the runs in it. `changed` is called in the screen's thread
    on news."""

    def __init__(
        self, threads: Threads, changed: Callable[[], None], folder: Path | None = None
    ) -> None:
        """Of `folder`, or where runs are recorded without one."""
        self._threads = threads
        self._changed = changed
        self._known: dict[Found, RecordingEntry] = {}
        self._found: list[Found] | None = None
        self._is_reading = False
        self._facts: dict[str, RunFigures] | None = None
        self._is_reading_facts = False
        self.folder = folder
        self.failure = ""
        try:
            self.folder = folder or default_folder()
        except JournalError as error:
            self.failure = str(error)

    @property
    def entries(self) -> list[RecordingEntry]:
        """The recordings read so far, newest first."""
        return [self._known[file] for file in self._found or () if file in self._known]

    @property
    def unread(self) -> int | None:
        """Files not read yet; None before the folder was."""
        if self._found is None:
            return None
        return sum(file not in self._known for file in self._found)

    def facts(self, entry: RecordingEntry) -> RunFigures | None:
        """What is known of a run; None before it was read, now or earlier."""
        if self._facts is None:
            self._facts = _load()
        return self._facts.get(_key(entry))

    def read_facts(self, entries: Sequence[RecordingEntry]) -> None:
        """Read what is not known of these runs, one after another."""
        missing = next((entry for entry in entries if is_unread(entry, self.facts(entry))), None)
        if missing is None or self._is_reading_facts:
            return
        self._is_reading_facts = True
        key, path = _key(missing), missing.path
        from gputui.report.change import RunFigures, facts_of

        def read() -> RunFigures:
            from gputui.playback.opening import load
            from gputui.report.comparable import Subject

            loaded = load(str(path))
            return facts_of(Subject("", loaded.session, loaded.run))

        def done(facts: RunFigures) -> None:
            self._is_reading_facts = False
            self._facts = {**(self._facts or {}), key: facts}
            _store(self._facts)
            self._changed()

        self._threads.in_thread(read, done, lambda _: done(RunFigures()))

    def choose(self, folder: Path) -> None:
        """Switch to another folder."""
        self.folder, self.failure = folder, ""
        self._known, self._found, self._is_reading = {}, None, False
        self.look()

    def look(self) -> None:
        """Read new files, and those being written."""
        folder, known = self.folder, self._known
        if folder is None or self._is_reading:
            return
        self._is_reading = True

        def read() -> tuple[list[Found], dict[Found, RecordingEntry]]:
            found = recordings_in(folder)
            entries: dict[Found, RecordingEntry] = {}
            for file in found:
                old = known.get(file)
                entries[file] = (
                    describe_recording(file.path) if old is None or old.is_written else old
                )
                if old is None and len(entries) % _BATCH == 0:
                    self._threads.from_thread(partial(self._arrived, folder, found, dict(entries)))
            return found, entries

        def done(read: tuple[list[Found], dict[Found, RecordingEntry]]) -> None:
            if folder == self.folder:
                self._is_reading = False
            self._arrived(folder, *read)

        def failed(reason: str) -> None:
            if folder == self.folder:
                self._is_reading, self.failure, self._found = False, reason, []
                self._changed()

        self._threads.in_thread(read, done, failed)

    def _arrived(
        self, folder: Path, found: list[Found], entries: dict[Found, RecordingEntry]
    ) -> None:
        if folder == self.folder:
            self.failure, self._found, self._known = "", found, entries
            self._changed()


# As table rows: columns, order, filter, details of one.


FIGURES: dict[str, Callable[[RunFigures], float | None]] = {
    "step": lambda found: found.step.amount if found.step else None,
    "per s": lambda found: found.rate,
    "busy": lambda found: found.busy_percent,
    "J/token": lambda found: found.token_joules,
}
"""What is known of a run once it was read, by its column."""

SORTS = ("when", "name", "workload", "host", "length", "result", "size", "command", *FIGURES)
"""By "command", which is no column, runs of one stand together."""

_GIVEN_NAME = re.compile(r"\d{8}-\d{6}-.*")
"""What the screen calls a recording: when, and what."""


def folder_text(path: Path) -> str:
    """A folder with "~" for the home folder."""
    home = os.path.expanduser("~")
    text = str(path)
    return sanitize(f"~{text.removeprefix(home)}" if text.startswith(f"{home}/") else text)


_BUSY = ("healthy", *(leaf.label for leaf in LEAVES.values() if not leaf.is_idle))


def result_role(entry: RecordingEntry, current: Path | None, cause: str = "") -> str:
    """The role of that text; `cause` is what took most of the run's time, or its finding: work is
    no fault."""
    if entry.succeeded and cause:
        return "good" if cause.startswith(_BUSY) else "warn"
    if entry.problem is not None:
        return "warn"
    if entry.succeeded is None and (entry.path == current or entry.is_written):
        return "accent"
    return {True: "good", False: "hot", None: "text"}[entry.succeeded]


def run_words(entry: RecordingEntry, entries: Iterable[RecordingEntry]) -> str:
    """A run in a line: when, what, and what it changed."""
    changed = what_changed(entry, run_before(entry, entries))
    return f"{when_text(entry.started_ns)} {sanitize(program_of(entry) or '')}  {changed}".rstrip()


def recording_columns(
    listed: Sequence[RecordingEntry],
    marked: Collection[Path],
    current: Path | None,
    facts: Callable[[RecordingEntry], RunFigures | None],
    before: Callable[[RecordingEntry], RecordingEntry | None],
) -> list[Column[RecordingEntry]]:
    """The columns; the least useful ones are dropped first if there is no room. `facts` are those
    of a run, `before` the run that it is compared with."""

    def figure(title: str, show: Show, priority: int) -> Column[RecordingEntry]:
        def of(entry: RecordingEntry) -> float | None:
            found = facts(entry)
            return None if found is None else FIGURES[title](found)

        def words(entry: RecordingEntry) -> str:
            value = of(entry)
            return show(value) if value is not None else "" if facts(entry) is None else "-"

        return column(title, words, priority, by=of, show=show)

    def cause(entry: RecordingEntry) -> str:
        found = facts(entry)
        return "" if found is None else found.cause

    def change(entry: RecordingEntry) -> str:
        from gputui.report.change import change_between

        other = before(entry)
        if other is None:
            return ""
        has_same_words = operands(other.arguments) == operands(entry.arguments)
        return change_between(facts(other), facts(entry), has_same_words)

    def result(entry: RecordingEntry) -> str:
        """What limited it, where it ended well."""
        limited = cause(entry) if entry.succeeded else ""
        unread = ", reading…" * (entry.succeeded is True and is_unread(entry, facts(entry)))
        return limited or result_text(entry, current)[:60] + unread

    columns = [
        column("", lambda e: "●" if e.path in marked else " ", 0, right=False, width=1, role="key"),
        column(
            "when", lambda e: when_text(e.started_ns), 4, right=False, width=5,
            by=lambda e: e.started_ns, show=duration,
        ),
        # By the script that ran: each run was called python.
        column(
            "workload", lambda e: program_of(e) or "-", 0, right=False, width=8, by=program_of
        ),
        column(
            "changed", lambda e: what_changed(e, before(e)), 2, flexible=True, right=False, width=16
        ),
        figure("step", duration, 1),
        column("change", change, 3, right=False),
        figure("per s", quantity, 6),
        figure("busy", percent, 6),
        column(
            "result",
            result,
            0,
            flexible=True,
            right=False,
            width=19,
            role=lambda e: result_role(e, current, cause(e)),
            by=lambda e: e.problem or e.result or "",
        ),
        column("length", _length, 5, width=7, by=lambda e: e.length_ns or 0, show=duration),
        column(
            "host", lambda e: (e.hostname or "-")[:16], 9, right=False, width=6,
            by=lambda e: e.hostname or "",
        ),
        column("GPU", lambda e: gpus_text(e)[:20], 10, right=False, width=8),
        column("size", lambda e: size(e.size_bytes), 8, width=8, by=lambda e: e.size_bytes,
               show=size),
    ]  # fmt: skip
    if any(one is not None and one.token_joules for one in map(facts, listed)):
        columns.insert(-4, figure("J/token", joules, 6))
    if widest := max(map(cell_len, map(_own_name, listed)), default=0):
        width = min(14, widest)
        columns.append(
            column("name", _own_name, 1, flexible=True, right=False, width=width,
                   by=lambda e: recording_name(e.path))
        )  # fmt: skip
    return columns


def _own_name(entry: RecordingEntry) -> str:
    """A file's name, unless it only repeats when what was run."""
    name = recording_name(entry.path)
    return "" if _GIVEN_NAME.fullmatch(name) and entry.problem is None else name


def _length(entry: RecordingEntry) -> str:
    length_ns = entry.run_ns or entry.length_ns
    return duration(length_ns) if length_ns else "-"


def date_text(time_ns: int) -> str:
    """A moment in local time, to the minute."""
    return f"{datetime.fromtimestamp(time_ns / 1e9).astimezone():%Y-%m-%d %H:%M}"


def when_text(time_ns: int) -> str:
    """The same in little room: the time of today, else the day too."""
    then, now = (datetime.fromtimestamp(t).astimezone() for t in (time_ns / 1e9, now_s()))
    if then.date() == now.date():
        return f"{then:%H:%M}"
    return f"{then:%b} {then.day} {then:%H:%M}" if then.year == now.year else f"{then:%Y-%m-%d}"


def matching(entries: Iterable[RecordingEntry], needle: str) -> list[RecordingEntry]:
    """The recordings with a text in any displayed column, ignoring case."""
    low = needle.lower()
    return [
        entry
        for entry in entries
        if low
        in " ".join(
            part or ""
            for part in (
                *(recording_name(entry.path), entry.name, program_of(entry), entry.hostname),
                *(entry.result, entry.problem, gpus_text(entry), date_text(entry.started_ns)),
            )
        ).lower()
    ]


def recording_details(entry: RecordingEntry, current: Path | None, changed: str) -> tuple[Row, ...]:
    """Everything known about one without reading it completely."""
    pairs = (
        ("file", folder_text(entry.path)),
        ("files", f"{entry.file_count}, read as one" if entry.file_count > 1 else ""),
        ("size", size(entry.size_bytes)),
        ("problem", entry.problem or ""),
        ("begun", "" if entry.problem else date_text(entry.started_ns)),
        ("workload", f"{entry.name} ({entry.kind})" if entry.name and entry.kind else ""),
        ("length", duration(entry.run_ns) if entry.run_ns else ""),
        ("recorded", duration(entry.length_ns) if entry.length_ns else ""),
        ("result", "" if entry.problem else result_text(entry, current)),
        ("changed", changed),
        ("host", entry.hostname or ""),
        ("GPUs", "" if entry.problem or entry.is_nsys else ", ".join(entry.gpus) or "none"),
        ("trace", "beside it: chrome and nsys exports work" if entry.has_trace else ""),
    )
    return labelled([pair for pair in pairs if pair[1]], 12)
