"""Where, and as what, the summary is to be written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from textual import events

from gputui.render.kinds import SUFFIXES
from gputui.tui.dialogs.dialog import Dialog, key_hints
from gputui.tui.widgets.canvas import Row
from gputui.tui.widgets.field import TextField

FORMATS = ("json", "csv", "md", "html")


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What the person asked for."""

    format: str
    path: Path


class ExportDialog(Dialog[ExportRequest | None]):
    """Format and path. The path's ending follows the format until it is changed by hand."""

    widest = 84

    def __init__(
        self,
        default: Path,
        formats: Sequence[str] = FORMATS,
        title: str = "Export the summary",
    ) -> None:
        """`default` is the path without its ending."""
        super().__init__()
        self._formats = formats
        self._title = title
        self._format = 0
        self._field = TextField.holding(f"{default}{self._ending}")
        self._on_path = True
        self._error = ""

    def rows(self, width: int) -> list[Row]:
        """Two fields."""
        formats: list[tuple[str, str]] = [("format  ", "label")]
        for number, name in enumerate(self._formats):
            formats.append((f" {name} ", "tab-active" if number == self._format else "tab"))
        marks = ("  ", "› ") if self._on_path else ("› ", "  ")
        rows: list[Row] = [
            ((self._title, "title"),),
            (),
            ((marks[0], "accent"), *formats),
            (),
            ((marks[1], "accent"), ("path    ", "label"), *self._field.spans(width - 10)),
        ]
        if self._error:
            rows += [(), ((f"! {self._error}", "error"),)]
        return rows

    def footer(self, width: int) -> list[Row]:
        """What keys do."""
        return key_hints(
            width, ("Enter", "write"), ("Tab", "next format"), ("↑ ↓", "field"), ("Esc", "cancel")
        )

    def key(self, key: str, character: str | None) -> None:
        """Edit, choose, write or leave."""
        self._error = ""
        if key == "escape":
            self.dismiss(None)
            return
        if key == "enter":
            self._finish()
            return
        if key in ("tab", "shift+tab"):
            self._choose(1 if key == "tab" else -1)
        elif key in ("up", "down"):
            self._on_path = not self._on_path
        elif not self._on_path:
            self._choose({"left": -1, "right": 1, "space": 1}.get(key, 0))
        else:
            self._field.key(key, character)
        self.draw()

    def on_paste(self, event: events.Paste) -> None:
        """Text from the clipboard goes to the path."""
        self._field.insert(event.text)
        self.draw()

    def _choose(self, step: int) -> None:
        before = self._ending
        self._format = (self._format + step) % len(self._formats)
        if self._field.text.endswith(before):
            self._field = TextField.holding(self._field.text.removesuffix(before) + self._ending)

    @property
    def _ending(self) -> str:
        name = self._formats[self._format]
        return f".{SUFFIXES.get(name, name)}"

    def _finish(self) -> None:
        text = self._field.text.strip()
        if not text:
            self._error = "a path is needed"
            self.draw()
            return
        self.dismiss(ExportRequest(self._formats[self._format], Path(text).expanduser()))
