"""A one-line text field."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len

from gputui.base.sanitize import sanitize
from gputui.tui.widgets.canvas import Span, fit

_LIMIT = 4096


@dataclass(slots=True)
class TextField:
    """Text and cursor position."""

    text: str = ""
    at: int = 0

    @classmethod
    def holding(cls, text: str) -> TextField:
        """A field with the cursor after `text`."""
        return cls(text, len(text))

    def key(self, key: str, character: str | None) -> bool:
        """Handle a key; whether it was one for a text field."""
        match key:
            case "left":
                self.at = max(0, self.at - 1)
            case "right":
                self.at = min(len(self.text), self.at + 1)
            case "home" | "ctrl+a":
                self.at = 0
            case "end" | "ctrl+e":
                self.at = len(self.text)
            case "backspace" | "ctrl+h":
                if self.at:
                    self.text = self.text[: self.at - 1] + self.text[self.at :]
                    self.at -= 1
            case "delete":
                self.text = self.text[: self.at] + self.text[self.at + 1 :]
            case "ctrl+u":
                self.text, self.at = self.text[self.at :], 0
            case _:
                if character is None or not character.isprintable():
                    return False
                self.insert(character)
        return True

    def insert(self, text: str) -> None:
        """Insert `text`, sanitized, at the cursor."""
        text = sanitize(text)[: max(0, _LIMIT - len(self.text))]
        self.text = self.text[: self.at] + text + self.text[self.at :]
        self.at += len(text)

    def spans(self, width: int) -> tuple[Span, ...]:
        """The field in `width` cells, scrolled so that the cursor is visible; … is what is cut."""
        before = _end_of(self.text[: self.at], width - 1)
        under = self.text[self.at : self.at + 1] or " "
        room = width - cell_len(before) - cell_len(under)
        after = self.text[self.at + 1 :]
        return ((before, "input"), (under, "cursor"), (fit(after, max(0, room)), "input"))


def _end_of(text: str, width: int) -> str:
    """The end of a text that fits in `width` cells, behind a … if it is cut; "" without room.

    From its end, as only that is drawn: from the beginning, each key in 4,096 wide characters took
    1.0 s, and a width below one cell was looked for without end.
    """
    if cell_len(text) <= max(0, width):
        return text
    start, used = len(text), 1
    while start > 0 and used + cell_len(text[start - 1]) <= width:
        start -= 1
        used += cell_len(text[start])
    return "…" + text[start:] if width > 0 else ""
