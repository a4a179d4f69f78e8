"""Where to write something, and in which format."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from textual import events

from gputui.render.formats import Format
from gputui.tui.dialogs.dialog import Dialog, key_hints
from gputui.tui.widgets.canvas import Row, fit
from gputui.tui.widgets.field import TextField

_HEAD = 2
"""Lines above the formats."""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The chosen format's key, and a path, which may end in "/"."""

    key: str
    path: str


class ExportDialog(Dialog[ExportRequest | None]):
    """Format and path. The path's suffix follows the format until it is edited."""

    widest = 84

    def __init__(self, default: Path, formats: Sequence[Format], title: str) -> None:
        """`default` is the path without its suffix."""
        super().__init__()
        self._formats = formats
        self._title = title
        self._chosen = 0
        self._field = TextField.holding(f"{default}{self._ending}")
        self._error = ""

    def rows(self, width: int) -> list[Row]:
        del width
        rows: list[Row] = [((self._title, "title"),), ()]
        self.focus_line = len(rows) + self._chosen
        for number, known in enumerate(self._formats):
            role = "tab-active" if number == self._chosen else "tab"
            rows.append(((f" {known.key:<12}", role), (f" {known.title}", "text")))
        return rows

    def footer(self, width: int) -> list[Row]:
        """What the format needs, where it goes, an error if there is one, and the keys."""
        needs = self._formats[self._chosen].requirements
        rows: list[Row] = [
            ((fit(needs, width), "dim"),),
            (("path  ", "label"), *self._field.spans(width - 7)),
        ]
        if self._error:
            rows += [((f"! {self._error}", "error"),)]
        hints = (("Enter", "write"), ("↑ ↓ Tab", "format"), ("Esc", "cancel"))
        return [*rows, *key_hints(width, *hints)]

    def key(self, key: str, character: str | None) -> None:
        self._error = ""
        if key == "escape":
            self.dismiss(None)
            return
        if key == "enter":
            self._finish()
            return
        if step := {"tab": 1, "down": 1, "shift+tab": -1, "up": -1}.get(key):
            self._choose(step)
        else:
            self._field.key(key, character)
        self.draw()

    def clicked(self, line: int) -> None:
        """A format: chosen already, as Enter."""
        number = line - _HEAD
        if number == self._chosen:
            self._finish()
        elif 0 <= number < len(self._formats):
            self._choose(number - self._chosen)
            self.draw()

    def on_paste(self, event: events.Paste) -> None:
        """Pasted text goes to the path."""
        self._field.insert(event.text)
        self.draw()

    def _choose(self, step: int) -> None:
        before = self._ending
        self._chosen = (self._chosen + step) % len(self._formats)
        if self._field.text.endswith(before):
            self._field = TextField.holding(self._field.text.removesuffix(before) + self._ending)

    @property
    def _ending(self) -> str:
        return self._formats[self._chosen].ending

    def _finish(self) -> None:
        text = self._field.text.strip()
        if not text:
            self._error = "a path is needed"
            self.draw()
            return
        self.dismiss(ExportRequest(self._formats[self._chosen].key, os.path.expanduser(text)))
