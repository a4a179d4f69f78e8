"""Sessions: the recordings of a folder, to open, compare, rename, export and delete."""

from __future__ import annotations

from functools import cached_property

from rich.cells import cell_len

from gputui.store.library import LibraryEntry
from gputui.tui.model import Model
from gputui.tui.run_index import RunIndex
from gputui.tui.shell.recording_keys import RecordingKeys
from gputui.tui.widgets.canvas import Row, heading, wrap
from gputui.tui.widgets.recordings import (
    FIGURES,
    FROM_LEAST,
    SORTS,
    folder_text,
    matching,
    ordered,
    recording_columns,
    recording_details,
    recording_name,
    run_before,
    what_changed,
)
from gputui.tui.widgets.table import Move
from gputui.tui.widgets.table_view import NO_MATCH
from gputui.tui.widgets.view import (
    Details,
)

_LOOK_EVERY_S = 3.0


class SessionsView(RecordingKeys):
    """What was recorded."""

    orders = SORTS
    RECORDINGS = True

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.marked = []
        self._listed: list[LibraryEntry] = []

    @cached_property
    def index(self) -> RunIndex:
        return RunIndex(self.gputui, self._draw_if_seen)

    def chosen(self) -> LibraryEntry | None:
        """The one under the cursor."""
        return next((one for one in self._listed if one.path == self.cursor.key), None)

    def on_mount(self) -> None:
        """Read the folder now, and repeatedly while this view is visible."""
        self.library.look()
        self.set_interval(_LOOK_EVERY_S, self.look_again)

    def on_show(self) -> None:
        """Do not wait for the timer to see what the run wrote meanwhile."""
        self.library.look()

    def rows(self, width: int, height: int) -> list[Row]:
        """One line per recording, newest first."""
        folder = self.library.folder
        title = f"Recordings in {folder_text(folder)}" if folder else "Recordings"
        rows = [heading(title, width, self._note(width - cell_len(title) - 8))]
        by = SORTS[self.sorting]
        found = matching(self.library.entries, self.needle)
        self._listed = ordered(found, by, self.index.of, other_way=self.other_way)
        if not self._listed:
            return [*rows, (), *wrap(self._why_empty(), width - 2, "dim", "  ")]
        paths = [entry.path for entry in self._listed]
        shown = self._listed[self.cursor.window(paths, height - 2)]
        entries = self.library.entries
        self.index.want([*shown, *(found if by in FIGURES else ())])
        before = {entry.path: run_before(entry, entries) for entry in shown}
        columns = recording_columns(
            shown, self.marked, self.current, self.index.of, lambda entry: before[entry.path]
        )
        return rows + self.table(
            columns, self._listed, paths, width, height - 1, 1,
            sorted_by=by, ascending=self._is_ascending,
        )  # fmt: skip

    # --- keys

    def move(self, move: Move) -> None:
        """Right shows the details of one."""
        entry = self.chosen()
        if move == "right" and entry is not None:
            from gputui.tui.dialogs.boxes import DetailsBox

            rows = recording_details(
                entry, self.current, what_changed(entry, run_before(entry, self.library.entries))
            )
            self.app.push_screen(DetailsBox(Details(recording_name(entry.path), rows)))
        else:
            super().move(move)

    def activate(self) -> Details | None:
        entry = self.chosen()
        if entry is not None and entry.problem is not None:
            self.refuse(entry.problem)
        elif entry is not None:
            self.say(f"opening {recording_name(entry.path)}")
            self.gputui.visit(entry.path, follow=entry.is_written)
        return None

    def sort(self) -> None:
        self.sort_by(SORTS[(self.sorting + 1) % len(SORTS)])

    # --- what is shown

    @property
    def _is_ascending(self) -> bool:
        return (SORTS[self.sorting] in FROM_LEAST) != self.other_way

    def _note(self, room: int) -> str:
        """The state of the list, as much as there is room for."""
        parts = [f"{len(self.marked)} marked: c compares" if self.marked else ""]
        parts.append(self.filter_note)
        unread = self.library.unread
        if unread is not None:
            known = len(self.library.entries)
            all_of_them = "1 recording" if known == 1 else f"{known} recordings"
            parts.append(f"reading {unread} more…" if unread else all_of_them)
        kept: list[str] = []
        for part in filter(None, parts):
            if cell_len("  ".join([*kept, part])) <= room:
                kept.append(part)
        return "  ".join(kept)

    def _why_empty(self) -> str:
        if self.library.failure:
            return f"{self.library.failure} (f chooses another folder)"
        if self.library.unread is None or self.library.unread:
            return "reading the folder…"
        if self.needle:
            return NO_MATCH
        return (
            "No recordings here. Every run that the screen starts is recorded, in a file of its "
            "own, and gputui --record writes one without a screen; f chooses another folder."
        )

    # --- what keys do

    def mark(self) -> None:
        entry = self.chosen()
        if entry is None:
            self.say("no recording to mark")
            return
        if entry.problem is not None:
            self.refuse(entry.problem)
        elif entry.path in self.marked:
            self.marked.remove(entry.path)
        else:
            self.marked.append(entry.path)
        self.draw()

    def compare_marked(self) -> None:
        """The marked ones, in the order they were marked; with only one, that and the chosen one;
        with none, the run before the chosen one and that."""
        there = {entry.path for entry in self.library.entries if entry.problem is None}
        paths = [path for path in self.marked if path in there]
        entry = self.chosen()
        if len(paths) == 1 and entry is not None and entry.path in there - set(paths):
            paths.append(entry.path)
        before = run_before(entry, self.library.entries) if entry is not None else None
        if not paths and entry is not None and before is not None and entry.path in there:
            paths = [before.path, entry.path]
        if len(paths) < 2:
            self.say("no earlier run of this command: m marks others, the baseline first")
        else:
            self.gputui.main.compare(paths)
