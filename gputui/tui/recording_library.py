"""The recordings of a folder, kept up to date by a thread that reads what changed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from gputui.base import JournalError
from gputui.base.decoding import json_decoder
from gputui.report.common_unit import StepKind
from gputui.report.statistics import Mean
from gputui.store import default_folder
from gputui.store.library import Found, LibraryEntry, describe, files
from gputui.tui.threads import Threads

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
        missing = next(
            (
                entry
                for entry in entries
                if self.of(entry) is None
                and entry.problem is None
                and entry.kind is not None
                and not (entry.is_written and entry.succeeded is None)
                and entry.size_bytes <= LARGEST_BYTES
            ),
            None,
        )
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
