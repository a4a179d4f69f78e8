"""One line of text to type: a name, a folder, a time."""

from __future__ import annotations

from collections.abc import Callable

from textual import events

from gputui.tui.dialogs.dialog import Dialog, key_hints
from gputui.tui.widgets.canvas import Row, wrap
from gputui.tui.widgets.field import TextField


class Prompt(Dialog[str | None]):
    """Returns the typed text, None if cancelled.

    `wrong` says why a text is invalid, "" if it is valid. As in forms, what is typed replaces the
    text that there was; after an arrow it changes it.
    """

    widest = 84

    def __init__(
        self,
        title: str,
        hint: str,
        does: str,
        text: str = "",
        wrong: Callable[[str], str] = lambda _: "",
    ) -> None:
        super().__init__()
        self._title = title
        self._hint = hint
        self._does = does
        self._wrong = wrong
        self._field = TextField.holding(text)
        self._is_fresh = True
        self._error = ""

    def rows(self, width: int) -> list[Row]:
        """The question, the field, and an error if there is one."""
        rows: list[Row] = [
            *wrap(self._title, width, "title"),
            *wrap(self._hint, width, "dim"),
            (),
            (*self._field.spans(width),),
        ]
        if self._error:
            rows += [(), *wrap(f"! {self._error}", width, "error")]
        return rows

    def footer(self, width: int) -> list[Row]:
        return key_hints(width, ("Enter", self._does), ("Esc", "cancel"))

    def key(self, key: str, character: str | None) -> None:
        self._error = ""
        if key == "escape":
            self.dismiss(None)
        elif key == "enter":
            self._error = self._wrong(self._field.text)
            if not self._error:
                self.dismiss(self._field.text)
                return
            self.draw()
        else:
            self._replace(character is not None and character.isprintable())
            self._field.key(key, character)
            self.draw()

    def on_paste(self, event: events.Paste) -> None:
        """Pasted text goes to the field."""
        self._replace(True)
        self._field.insert(event.text)
        self.draw()

    def _replace(self, is_text: bool) -> None:
        if self._is_fresh and is_text:
            self._field = TextField()
        self._is_fresh = False
