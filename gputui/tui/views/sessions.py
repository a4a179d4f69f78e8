"""Sessions: the recordings of a folder, to open, compare, rename, export and delete."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from rich.cells import cell_len

from gputui.base import JournalError
from gputui.base.sanitize import sanitize
from gputui.store import default_folder
from gputui.store.recordings import (
    RecordingEntry,
    belongings,
    by_command,
    delete_recording,
    recording_name,
    rename_recording,
    run_before,
    what_changed,
)
from gputui.tui import tour
from gputui.tui.dialogs.boxes import Prompt
from gputui.tui.model import Model
from gputui.tui.shell.commands import written
from gputui.tui.source import Runner
from gputui.tui.widgets.canvas import Row, halved, heading, wrap
from gputui.tui.widgets.recordings import (
    FIGURES,
    SORTS,
    RecordingLibrary,
    folder_text,
    matching,
    recording_columns,
    recording_details,
)
from gputui.tui.widgets.table import Move
from gputui.tui.widgets.view import NO_MATCH, Details, TableView

if TYPE_CHECKING:
    from gputui.tui.app import GputuiApp


T = TypeVar("T")

_LOOK_EVERY_S = 3.0
_LEAST_BELOW = 8
"""Lines left under the list from which they say more of the chosen one."""


class SessionsView(TableView):
    """The list of runs and recordings, which can be opened, compared, renamed and deleted."""

    orders = SORTS
    offers = TableView.offers | {
        *("recording('mark')", "recording('compare')", "recording('rename')"),
        *("recording('delete')", "recording('folder')", "export"),
    }

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.marked: list[Path] = []

    def chosen(self) -> RecordingEntry | None:
        """The one under the cursor."""
        entry: RecordingEntry | None = self.item
        return entry

    def on_mount(self) -> None:
        """Read the folder now, and repeatedly while this view is visible."""
        self.library.look()
        self.set_interval(_LOOK_EVERY_S, self.look_again)

    def on_show(self) -> None:
        """Do not wait for the timer to see what the run wrote meanwhile."""
        self.library.look()

    def rows(self, width: int, height: int) -> list[Row]:
        folder = self.library.folder
        title = f"Recordings in {folder_text(folder)}" if folder else "Recordings"
        rows = [heading(title, width, self._note(width - cell_len(title) - 8))]
        by = SORTS[self.sorting]
        found = matching(self.library.entries, self.needle)
        if not found:
            return [*rows, (), *wrap(self._why_empty(), width - 2, "dim", "  ")]
        entries = self.library.entries
        before_of: dict[Path, RecordingEntry | None] = {}

        def before(entry: RecordingEntry) -> RecordingEntry | None:
            # Of lines that come in sight, too, for which the table asks when it is scrolled.
            if entry.path not in before_of:
                before_of[entry.path] = run_before(entry, entries)
            return before_of[entry.path]

        columns = recording_columns(found, self.marked, self.current, self.library.facts, before)
        if by == "command":
            listed = by_command(found, other_way=self.other_way)
        else:
            listed = self.in_order(columns, found)
        paths = [entry.path for entry in listed]
        shown = listed[self.cursor.window(paths, height - 2)]
        # Of rows out of sight figures are read only where they decide the order.
        self.library.read_facts([*shown, *(found if by in FIGURES else ())])
        rows += self.table(columns, listed, paths, width, height - 1, 1)
        entry = self.chosen()
        if entry is None or height - len(rows) < _LEAST_BELOW:
            return rows
        known = halved(self._details(entry), width)
        rows += [(), heading(recording_name(entry.path), width, "Enter opens it"), *known]
        return rows[:height]

    # --- keys

    def move(self, move: Move) -> None:
        entry = self.chosen()
        if move == "right" and entry is not None:
            from gputui.tui.dialogs.boxes import DetailsBox

            rows = self._details(entry)
            self.app.push_screen(DetailsBox(Details(recording_name(entry.path), rows)))
        else:
            super().move(move)

    def _details(self, entry: RecordingEntry) -> tuple[Row, ...]:
        changed = what_changed(entry, run_before(entry, self.library.entries))
        return recording_details(entry, self.current, changed)

    def activate(self) -> Details | None:
        entry = self.chosen()
        if entry is not None and entry.problem is not None:
            self.refuse(entry.problem)
        elif entry is not None:
            self.say(f"opening {recording_name(entry.path)}")
            self.gputui.visit(entry.path, follow=entry.is_written)
        return None

    # --- what is shown

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

    # --- what keys do to a recording

    @property
    def gputui(self) -> GputuiApp:
        return cast("GputuiApp", self.app)

    @property
    def library(self) -> RecordingLibrary:
        return self.gputui.main.library

    def look_again(self) -> None:
        """A hidden view does not read the folder."""
        if self.gputui.main.view is self:
            self.library.look()

    @property
    def current(self) -> Path | None:
        """The file that this program is writing."""
        source = self.gputui.home_source
        return source.recording.path if isinstance(source, Runner) else None

    def on_recording(self, what: str) -> bool:
        actions: dict[str, Callable[[], None]] = {
            "mark": self.mark,
            "compare": self.compare_marked,
            "rename": self._rename,
            "delete": self._delete,
            "folder": self._choose_folder,
        }
        actions[what]()
        return True

    def export(self) -> None:
        """Ask for the format and the target of the chosen recording."""
        entry = self.chosen()
        if entry is None or entry.problem is not None:
            self.refuse("choose a recording to export first")
            return

        def write(key: str, path: str) -> str:
            from gputui.render import formats

            return written(formats.export(formats.ExportSource(str(entry.path)), key, path))

        # Beside the recording; the demo's lie in the installed package, where nobody looks.
        is_demo = entry.path.parent == tour.FOLDER
        stem = (Path() if is_demo else entry.path.parent) / recording_name(entry.path)
        self.gputui.main.ask_export("Export the recording", stem, write, say=self.say)

    def say(self, text: str, *, bad: bool = False) -> None:
        # The folder is in the heading; the error must not be cut off for its sake.
        self.gputui.main.say(sanitize(text.replace(f"{self.library.folder}/", "")), bad=bad)

    def refuse(self, why: str) -> None:
        self.say(why, bad=True)

    def _rename(self) -> None:
        entry = self._changeable("rename")
        if entry is None:
            return

        def answered(name: str | None) -> None:
            if name is not None and name.strip() != recording_name(entry.path):
                self._change(
                    lambda: rename_recording(entry.path, name.strip()),
                    lambda new: f"renamed to {recording_name(new)}",
                )

        title = f"Another name for {recording_name(entry.path)}"
        hint = "The suffix stays; its other files, including a trace, are renamed with it."
        self.app.push_screen(Prompt(title, hint, "rename", recording_name(entry.path)), answered)

    def _delete(self) -> None:
        entry = self._changeable("delete")
        if entry is None:
            return

        def told(count: int) -> str:
            files = f" ({count} files)" if count > 1 else ""
            return f"deleted {recording_name(entry.path)}{files}"

        others = len(belongings(entry.path)) - 1
        more = f" and its files, {others + 1} files," if others else ""
        trace = " (the trace beside it too)" if entry.has_trace else ""
        text = f"{sanitize(str(entry.path))}{more} will be deleted for good{trace}."
        if entry.is_written:
            text += " Some program seems to be recording into it."
        self.gputui.main.ask(
            "Delete this recording?", text, "delete it",
            lambda: self._change(lambda: delete_recording(entry.path), told),
        )  # fmt: skip

    def _changeable(self, what: str) -> RecordingEntry | None:
        """The chosen recording, if it may be changed."""
        entry = self.chosen()
        if entry is None:
            self.say(f"choose a recording to {what} first")
        elif self.model.readonly:
            self.refuse(f"cannot {what} it: gputui is read-only")
        elif entry.path.parent == tour.FOLDER:
            self.refuse(f"cannot {what} it: it belongs to the demo")
        elif not self._is_own(entry.path):
            self.refuse(f"cannot {what} it: only those in gputui's own folder are changed here")
        elif entry.path == self.current:
            self.refuse(f"it is being recorded here: {what} it after the end")
        else:
            return entry
        return None

    @staticmethod
    def _is_own(path: Path) -> bool:
        """Whether it lies where gputui itself records: what else there is may be anybody's."""
        try:
            return path.parent.resolve() == default_folder().resolve()
        except (JournalError, OSError, RuntimeError):
            return False

    def _change(self, work: Callable[[], T], told: Callable[[T], str]) -> None:
        """Change a file in a thread, then read the folder again."""

        def done(result: T) -> None:
            self.say(told(result))
            self.library.look()

        self.gputui.in_thread(work, done, self.refuse)

    def _choose_folder(self) -> None:
        def wrong(text: str) -> str:
            # Not by pathlib, which raises of a name that is too long and of ~ before no user.
            is_folder = text.strip() and os.path.isdir(os.path.expanduser(text.strip()))
            return "" if is_folder else f"{sanitize(text)} is not a folder"

        def answered(text: str | None) -> None:
            if text is not None:
                self.marked.clear()
                self.library.choose(Path(text.strip()).expanduser())
                self.draw()

        hint = "Recordings in it are listed, not those in folders below it."
        start = str(self.library.folder or Path.home())
        self.app.push_screen(Prompt("Another folder", hint, "look there", start, wrong), answered)

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
