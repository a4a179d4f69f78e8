"""Where to write something, and in which format."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from gputui.render.formats import Format
from gputui.tui.dialogs.dialog import Dialog, Frame, Line, Options


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The chosen format's key, and a path, which may end in "/"."""

    key: str
    path: str


class ExportDialog(Dialog[ExportRequest]):
    """Format and path. The path's suffix follows the format until it is edited."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "choose(-1)", show=False),
        Binding("down", "choose(1)", show=False),
    ]

    def __init__(self, default: Path, formats: Sequence[Format], title: str) -> None:
        """`default` is the path without its suffix."""
        super().__init__()
        self._formats = formats
        self._title = title
        self._ending = formats[0].ending
        # Parts are held, not looked for: a message may come while they are taken down.
        options = [Option(Content(f"{known.key:<12} {known.title}")) for known in formats]
        self._list = Options(*options, compact=True)
        self._needs = Line(classes="dim")
        self._default = f"{default}{self._ending}"
        self._path = Input(select_on_focus=False)
        self._error = Line(classes="error")

    def compose(self) -> ComposeResult:
        """The formats, what the chosen one needs, and the path."""
        self._path.value = self._default  # Textual's field takes none before there is an app
        with Frame(self._title, "Enter write  ↑ ↓ format  Tab path  Esc cancel"):
            yield self._list
            yield self._needs
            yield self._path
            yield self._error

    def on_mount(self) -> None:
        """Letters go to the path."""
        self._list.highlighted = 0
        self._path.focus()

    def action_choose(self, step: int) -> None:
        """Another format, from the path's field."""
        at = (self._list.highlighted or 0) + step
        self._list.highlighted = at % len(self._formats)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """The path ends as the format's files do."""
        chosen, path = self._formats[event.option_index], self._path
        self._needs.update(Content(chosen.requirements))
        if path.value.endswith(self._ending):
            path.value = path.value.removesuffix(self._ending) + chosen.ending
            path.cursor_position = len(path.value)
        self._ending = chosen.ending

    def on_option_list_option_selected(self) -> None:
        """A click, or Enter in the list."""
        self._path.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Write it there."""
        text = event.value.strip()
        if not text:
            self._error.update("! a path is needed")
            return
        number = self._list.highlighted or 0
        self.dismiss(ExportRequest(self._formats[number].key, os.path.expanduser(text)))
