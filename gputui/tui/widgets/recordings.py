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

import msgspec
from rich.cells import cell_len

from gputui.base import JournalError
from gputui.base.decoding import json_decoder
from gputui.base.sanitize import sanitize
from gputui.model.leaves import LEAVES
from gputui.model.naming import command_key, operands
from gputui.model.units import MISSING, duration, joules, percent, quantity, size
from gputui.report.common_unit import StepKind
from gputui.report.schema import Column, Show
from gputui.report.statistics import Mean
from gputui.store import SUFFIXES, default_folder
from gputui.store.library import Found, LibraryEntry, describe, files
from gputui.tui.threads import Threads
from gputui.tui.widgets.canvas import Row, labelled
from gputui.tui.widgets.table import column

# What each recorded run did: read once, in the background, and kept in a small file.


LARGEST_BYTES = 64 << 20
"""A recording that is larger is not read in passing."""

OTHER = "another step"
"""In place of a change where there is none to speak of."""

_MOST = 5000
"""Runs kept, the newest read."""


class RunFacts(msgspec.Struct, frozen=True):
    """The figures by which runs of one command are compared. None where nothing is known."""

    step: Mean | None = None
    rate: float | None = None
    """Of the first thing that the workload reports per second: tokens, if it has some."""
    busy_percent: float | None = None
    kind: StepKind | None = None
    cause: str = ""
    """The verdict's word, or the largest leaf, with its share."""
    token_joules: float | None = None
    """Of all its GPUs."""


def read_facts(path: Path) -> RunFacts:
    """Read a recording. Raises JournalError."""
    from gputui.model.leaves import LEAVES
    from gputui.playback.opening import load
    from gputui.report.common_unit import step_kind
    from gputui.report.comparable import Subject, step_mean
    from gputui.report.explain import Analysis, conclusion
    from gputui.report.tables.energy import run_energy

    loaded = load(str(path))
    run = loaded.run
    if run is None:
        return RunFacts()
    analysis = Analysis(loaded.session, run)
    found = conclusion(analysis)
    tree = found.tree if found is not None else None
    rates = [name for name in run.metrics if name.endswith("_per_s") and "bytes" not in name]
    rates.sort(key=lambda name: (name != "tokens_per_s", name))
    value = run.metrics.get(rates[0]) if rates else None
    rate = float(value) if isinstance(value, int | float) else None
    subject = Subject("", loaded.session, run)
    step, kind = step_mean(subject), step_kind(subject)
    joules = [
        one.token_joules for one in run_energy(run, analysis.tree) if one.token_joules is not None
    ]
    token_joules = sum(joules) if joules else None
    cause = ""
    if found is not None and found.findings:
        cause = found.findings[0].headline.lower().replace(":", "")
    if tree is None:
        return RunFacts(step=step, rate=rate, cause=cause, token_joules=token_joules)
    if not cause:
        largest = max(tree.leaves, key=lambda leaf: tree.leaves[leaf])
        cause = f"{LEAVES[largest].label} {100 * tree.share(tree.leaves[largest]):.0f} %"
    busy_percent = 100 * (1 - tree.share(tree.idle_ns))
    return RunFacts(step, rate, busy_percent, kind, cause, token_joules)


def change_between(before: RunFacts | None, after: RunFacts | None, has_same_words: bool) -> str:
    """How the step's length changed, in a few words; "" where it is not known. The commands have
    the same words, or only options differ."""
    from gputui.report.change import step_change
    from gputui.report.common_unit import have_other_operations

    if before is None or after is None or before.step is None or after.step is None:
        return ""
    is_other = not has_same_words and have_other_operations(before.kind, after.kind)
    return OTHER if is_other else step_change(before.step, after.step)


class RunIndex:
    """Facts by recording. `changed` is called in the screen's thread when there are more."""

    def __init__(self, threads: Threads, changed: Callable[[], None]) -> None:
        self._threads = threads
        self._changed = changed
        self._known: dict[str, RunFacts] | None = None
        self._is_reading = False

    def of(self, entry: LibraryEntry) -> RunFacts | None:
        """What is known of a run; None before it was read, now or earlier."""
        if self._known is None:
            self._known = _load()
        return self._known.get(_key(entry))

    def want(self, entries: Sequence[LibraryEntry]) -> None:
        """Read what is not known of these, one after another."""
        missing = next((entry for entry in entries if is_unread(entry, self.of(entry))), None)
        if missing is None or self._is_reading:
            return
        self._is_reading = True
        key, path = _key(missing), missing.path

        def done(facts: RunFacts) -> None:
            self._is_reading = False
            known = self._known = {**(self._known or {}), key: facts}
            _store(known)
            self._changed()

        self._threads.in_thread(lambda: read_facts(path), done, lambda _: done(RunFacts()))


def is_unread(entry: LibraryEntry, facts: RunFacts | None) -> bool:
    """Whether more will be known of a run once it is read."""
    return (
        facts is None
        and entry.problem is None
        and entry.kind is not None
        and not (entry.is_written and entry.succeeded is None)
        and entry.size_bytes <= LARGEST_BYTES
    )


def _key(entry: LibraryEntry) -> str:
    return f"{entry.path}|{entry.size_bytes}|{entry.started_ns}"


def _place() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "gputui", "run-facts.json")


def _load() -> dict[str, RunFacts]:
    # It can always be made again: whatever is wrong with it, begin anew.
    try:
        return json_decoder(dict[str, RunFacts]).decode(_place().read_bytes())
    except (OSError, msgspec.MsgspecError, ValueError):
        return {}


def _store(known: dict[str, RunFacts]) -> None:
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
    """What is known about a folder. `changed` is called in the screen's thread on news."""

    def __init__(
        self, threads: Threads, changed: Callable[[], None], folder: Path | None = None
    ) -> None:
        """Of `folder`, or where runs are recorded without one."""
        self._threads = threads
        self._changed = changed
        self._known: dict[Found, LibraryEntry] = {}
        self._found: list[Found] | None = None
        self._is_reading = False
        self.folder = folder
        self.failure = ""
        try:
            self.folder = folder or default_folder()
        except JournalError as error:
            self.failure = str(error)

    @property
    def entries(self) -> list[LibraryEntry]:
        """The recordings read so far, newest first."""
        return [self._known[file] for file in self._found or () if file in self._known]

    @property
    def unread(self) -> int | None:
        """Files not read yet; None before the folder was."""
        if self._found is None:
            return None
        return sum(file not in self._known for file in self._found)

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

        def read() -> tuple[list[Found], dict[Found, LibraryEntry]]:
            found = files(folder)
            entries: dict[Found, LibraryEntry] = {}
            for file in found:
                old = known.get(file)
                entries[file] = describe(file.path) if old is None or old.is_written else old
                if old is None and len(entries) % _BATCH == 0:
                    self._threads.from_thread(partial(self._arrived, folder, found, dict(entries)))
            return found, entries

        def done(read: tuple[list[Found], dict[Found, LibraryEntry]]) -> None:
            if folder == self.folder:
                self._is_reading = False
            self._arrived(folder, *read)

        def failed(reason: str) -> None:
            if folder == self.folder:
                self._is_reading, self.failure, self._found = False, reason, []
                self._changed()

        self._threads.in_thread(read, done, failed)

    def _arrived(
        self, folder: Path, found: list[Found], entries: dict[Found, LibraryEntry]
    ) -> None:
        if folder == self.folder:
            self.failure, self._found, self._known = "", found, entries
            self._changed()


# As table rows: columns, order, filter, details of one.


FIGURES: dict[str, Callable[[RunFacts], float | None]] = {
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


def result_text(entry: LibraryEntry, current: Path | None) -> str:
    """The outcome of the run, or why the recording cannot be opened."""
    if entry.problem is not None:
        # The path is in the first column; the error comes first here.
        return entry.problem.replace(f"{entry.path} ", "").replace(f"{entry.path}: ", "")
    if entry.is_nsys:
        return "opens as a recording"
    if entry.path == current and entry.succeeded is None:
        return "being recorded here"
    if entry.is_written and entry.succeeded is None:
        return "being recorded"
    if entry.name is None:
        return "no run" if entry.length_ns is not None else MISSING
    if entry.succeeded:
        return "done"
    return (entry.result or MISSING).removeprefix(f"{entry.name} ")


_BUSY = tuple(meaning.label for meaning in LEAVES.values() if not meaning.is_idle)


def result_role(entry: LibraryEntry, current: Path | None, cause: str = "") -> str:
    """The role of that text; `cause` is what took most of the run's time, or its finding: work is
    no fault."""
    if entry.succeeded and cause:
        return "good" if cause.startswith(_BUSY) else "warn"
    if entry.problem is not None:
        return "warn"
    if entry.succeeded is None and (entry.path == current or entry.is_written):
        return "accent"
    return {True: "good", False: "hot", None: "text"}[entry.succeeded]


def command_of(entry: LibraryEntry) -> tuple[str, ...]:
    """What runs of one command share."""
    return command_key(entry.kind, entry.name, entry.arguments)


def program_of(entry: LibraryEntry) -> str | None:
    """What ran: a workload, or the script of a command rather than the interpreter that all
    scripts share."""
    if entry.kind == "command":
        scripts = (Path(word).name for word in entry.arguments[1:] if word.endswith(".py"))
        return next(scripts, entry.name)
    return entry.name


def run_before(entry: LibraryEntry, entries: Iterable[LibraryEntry]) -> LibraryEntry | None:
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


def what_changed(entry: LibraryEntry, before: LibraryEntry | None) -> str:
    """The parameters and arguments that the run before did not have."""
    if entry.kind is None:
        return ""
    if before is None:
        return "first run"
    was = dict(before.parameters)
    parts = [f"{name}={value}" for name, value in entry.parameters if was.get(name) != value]
    if back := [name for name in was if name not in dict(entry.parameters)]:
        parts.append(f"default {' '.join(back)}")
    if entry.kind == "command":
        own = [word for word in entry.arguments if word not in before.arguments]
        gone = [word for word in before.arguments if word not in entry.arguments]
        parts += own or [f"without {' '.join(gone)}"] * bool(gone)
    if entry.hostname != before.hostname:
        parts.append(f"on {entry.hostname}")
    if entry.gpus != before.gpus:
        parts.append(f"on {gpus_text(entry)}" if entry.gpus else "without a GPU")
    return sanitize(" ".join(parts), 200) or "same command"


def run_words(entry: LibraryEntry, entries: Iterable[LibraryEntry]) -> str:
    """A run in a line: when, what, and what it changed."""
    changed = what_changed(entry, run_before(entry, entries))
    return f"{when_text(entry.started_ns)} {sanitize(program_of(entry) or '')}  {changed}".rstrip()


def recording_columns(
    listed: Sequence[LibraryEntry],
    marked: Collection[Path],
    current: Path | None,
    facts: Callable[[LibraryEntry], RunFacts | None],
    before: Callable[[LibraryEntry], LibraryEntry | None],
) -> list[Column[LibraryEntry]]:
    """The columns; the least useful ones are dropped first if there is no room. `facts` are those
    of a run, `before` the run that it is compared with."""

    def figure(title: str, show: Show, priority: int) -> Column[LibraryEntry]:
        def of(entry: LibraryEntry) -> float | None:
            found = facts(entry)
            return None if found is None else FIGURES[title](found)

        def words(entry: LibraryEntry) -> str:
            value = of(entry)
            return show(value) if value is not None else "" if facts(entry) is None else "-"

        return column(title, words, priority, by=of, show=show)

    def cause(entry: LibraryEntry) -> str:
        found = facts(entry)
        return "" if found is None else found.cause

    def change(entry: LibraryEntry) -> str:
        other = before(entry)
        if other is None:
            return ""
        has_same_words = operands(other.arguments) == operands(entry.arguments)
        return change_between(facts(other), facts(entry), has_same_words)

    def result(entry: LibraryEntry) -> str:
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


def _own_name(entry: LibraryEntry) -> str:
    """A file's name, unless it only repeats when what was run."""
    name = recording_name(entry.path)
    return "" if _GIVEN_NAME.fullmatch(name) and entry.problem is None else name


def _length(entry: LibraryEntry) -> str:
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


def gpus_text(entry: LibraryEntry) -> str:
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


def matching(entries: Iterable[LibraryEntry], needle: str) -> list[LibraryEntry]:
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


def by_command(entries: Iterable[LibraryEntry], *, other_way: bool) -> list[LibraryEntry]:
    """The runs of the command that ran last first, newest first."""
    known = list(entries)
    newest: dict[tuple[str, ...], int] = {}
    for one in known:
        newest[command_of(one)] = max(newest.get(command_of(one), 0), one.started_ns)
    known.sort(
        key=lambda e: (newest[command_of(e)], command_of(e), e.started_ns, e.path), reverse=True
    )
    return known[::-1] if other_way else known


def recording_details(entry: LibraryEntry, current: Path | None, changed: str) -> tuple[Row, ...]:
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
