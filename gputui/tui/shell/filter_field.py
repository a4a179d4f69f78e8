"""Where a filter is typed: Textual's field, in the place of the keys."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input


class FilterField(Input):
    """Tells what is typed at each letter; Enter keeps it, Escape clears it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "clear", show=False),
        Binding("tab,shift+tab", "submit", show=False, priority=True),
    ]

    class Typed(Message):
        """A text to filter by; the last one where the field is left."""

        def __init__(self, text: str, *, is_last: bool = False) -> None:
            super().__init__()
            self.text = text
            self.is_last = is_last

    def __init__(self, text: str) -> None:
        super().__init__(
            text,
            placeholder="filter by text: Enter keeps it, Esc clears it",
            compact=True,
            select_on_focus=False,
        )

    def on_input_changed(self, event: Input.Changed) -> None:
        """Another text."""
        event.stop()
        self.post_message(self.Typed(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter."""
        event.stop()
        self.post_message(self.Typed(event.value, is_last=True))

    def on_blur(self) -> None:
        """A click elsewhere is as Enter."""
        if self.is_attached:
            self.post_message(self.Typed(self.value, is_last=True))

    def action_clear(self) -> None:
        """Escape."""
        self.post_message(self.Typed("", is_last=True))
