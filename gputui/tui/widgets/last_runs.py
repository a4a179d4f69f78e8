"""The runs of a command that were recorded before, in short, for the overview."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path

from gputui.model.naming import command_key
from gputui.model.units import duration, quantity
from gputui.state import Run
from gputui.store.library import LibraryEntry
from gputui.tui.recording_library import RecordingLibrary
from gputui.tui.run_index import RunIndex
from gputui.tui.threads import Threads
from gputui.tui.widgets.canvas import Row, chosen_row, fit
from gputui.tui.widgets.panels import Panel
from gputui.tui.widgets.recordings import (
    command_of,
    date_text,
    run_before,
    what_changed,
)
from gputui.tui.widgets.run_panels import Chosen

_WITH_RATES = 76
"""Columns from which there is room for tokens per second."""

RECORDED = "recorded"
"""What kind of thing a row is."""


class LastRuns:
    """What was recorded, read in the background. `changed` is called when more is known."""

    def __init__(self, threads: Threads, changed: Callable[[], None], folder: Path | None) -> None:
        self._library = RecordingLibrary(threads, changed, folder)
        self._index = RunIndex(threads, changed)

    def look(self) -> None:
        """Read what is new in the folder."""
        self._library.look()

    def of(self, run: Run | None) -> list[LibraryEntry]:
        """The newest runs of this run's command, before it; of any command where there is none."""
        entries = [one for one in self._library.entries if one.problem is None and one.name]
        return [one for one in entries if run is None or _is_before(one, run)]

    def panel(self, run: Run | None, height: int, chosen: Chosen | None, width: int) -> Panel:
        """The first of them, one a row."""
        entries, shown = self._library.entries, self.of(run)[:height]
        if run is None or not run.is_active:  # reading them would slow the screen of a run
            self._index.want(shown)
        rows = [self._row(one, entries, width, is_named=run is None) for one in shown]
        keys = [Chosen(RECORDED, one.path) for one in shown]
        rows = [
            chosen_row(row, width) if key == chosen else row
            for row, key in zip(rows, keys, strict=True)
        ]
        items: dict[int, Hashable] = dict(enumerate(keys))
        title = "Last runs" if run is None else "Runs of this command before"
        return Panel(title, rows, "7 all", items, "sessions")

    def _row(
        self, entry: LibraryEntry, entries: list[LibraryEntry], width: int, *, is_named: bool
    ) -> Row:
        facts = self._index.of(entry)
        step = duration(facts.step.amount) if facts is not None and facts.step else ""
        rate = f"{quantity(facts.rate)}/s" if facts is not None and facts.rate else ""
        cause = facts.cause if facts is not None else ""
        changed = what_changed(entry, run_before(entry, entries))
        what = f"{entry.name}  {changed}" if is_named else changed
        room = max(8, width - 44 - (11 if width >= _WITH_RATES else 0))
        return (
            (f" {date_text(entry.started_ns)[5:]}  ", "dim"),
            (fit(what, room), "text"),
            (f" {step:>9}{f' {rate:>10}' if width >= _WITH_RATES else ''}  ", "value"),
            (fit(cause, 18), "text"),
        )


def _is_before(entry: LibraryEntry, run: Run) -> bool:
    started = run.started
    own = command_key(started.kind, started.name, started.arguments)
    return command_of(entry) == own and (
        entry.started_ns + (entry.length_ns or 0) <= started.time_ns
    )
