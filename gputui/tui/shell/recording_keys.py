"""Actions on a recording (rename, delete, export), and choosing another folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from gputui.base.errors import JournalError
from gputui.base.sanitize import sanitize
from gputui.store.library import LibraryEntry, belongings, delete, rename
from gputui.store.places import default_folder
from gputui.tui import scenes
from gputui.tui.dialogs.boxes import Prompt
from gputui.tui.recording_library import RecordingLibrary
from gputui.tui.source import Runner
from gputui.tui.widgets.recordings import recording_name
from gputui.tui.widgets.table_view import TableView

if TYPE_CHECKING:
    from gputui.tui.app import GputuiApp
    from gputui.tui.dialogs.export import ExportRequest

T = TypeVar("T")


class RecordingKeys(TableView):
    """A view of recordings, one of which is chosen."""

    marked: list[Path]

    def chosen(self) -> LibraryEntry | None:
        raise NotImplementedError

    def mark(self) -> None:
        """Mark the chosen one, or unmark it."""
        raise NotImplementedError

    def compare_marked(self) -> None:
        """Show the marked ones side by side."""
        raise NotImplementedError

    @property
    def gputui(self) -> GputuiApp:
        return cast("GputuiApp", self.app)

    @cached_property
    def library(self) -> RecordingLibrary:
        return RecordingLibrary(self.gputui, self._draw_if_seen, self.gputui.options.folder)

    def look_again(self) -> None:
        """A hidden view does not read the folder."""
        if self._is_seen:
            self.library.look()

    @property
    def _is_seen(self) -> bool:
        return self.gputui.main.view is self

    def _draw_if_seen(self) -> None:
        if self._is_seen:
            self.gputui.main.draw()

    @property
    def current(self) -> Path | None:
        """The file that this program is writing."""
        source = self.gputui.home_source
        return source.recording.path if isinstance(source, Runner) else None

    def on_recording(self, what: str) -> bool:
        """Apply an action to recordings."""
        actions: dict[str, Callable[[], None]] = {
            "mark": self.mark,
            "compare": self.compare_marked,
            "rename": self._rename,
            "delete": self._delete,
            "folder": self._choose_folder,
        }
        actions[what]()
        return True

    def export(self) -> bool:
        """Ask for the format and the target of the chosen recording."""
        entry = self.chosen()
        if entry is None or entry.problem is not None:
            self.refuse("choose a recording to export first")
            return True
        from gputui.render import formats
        from gputui.tui.dialogs.export import ExportDialog

        def answered(request: ExportRequest | None) -> None:
            if request is not None:
                self.say(f"exporting {recording_name(entry.path)}…")
                self._export(entry, request)

        # Beside the recording; the demo's lie in the installed package, where nobody looks.
        is_demo = entry.path.parent == scenes.FOLDER
        stem = (Path.cwd() if is_demo else entry.path.parent) / recording_name(entry.path)
        dialog = ExportDialog(stem, formats.every(), "Export the recording")
        self.app.push_screen(dialog, answered)
        return True

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
                    lambda: rename(entry.path, name.strip()),
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
            lambda: self._change(lambda: delete(entry.path), told),
        )  # fmt: skip

    def _changeable(self, what: str) -> LibraryEntry | None:
        """The chosen recording, if it may be changed."""
        entry = self.chosen()
        if entry is None:
            self.say(f"choose a recording to {what} first")
        elif self.model.readonly:
            self.refuse(f"cannot {what} it: gputui is read-only")
        elif entry.path.parent == scenes.FOLDER:
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

    def _export(self, entry: LibraryEntry, request: ExportRequest) -> None:
        def work() -> str:
            from gputui.render import formats

            source = formats.ExportSource(str(entry.path))
            written = formats.export(source, request.key, request.path)
            return "; ".join([f"written: {', '.join(map(str, written.paths))}", *written.remarks])

        self.gputui.in_thread(work, self.say, self.refuse)

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
