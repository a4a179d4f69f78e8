"""Every action and view by name: typing filters, Enter does it."""

from __future__ import annotations

from typing import NamedTuple

from gputui.tui.dialogs.dialog import Dialog, key_hints
from gputui.tui.shell.keys import MOVE, keys_of
from gputui.tui.shell.views import GROUPS
from gputui.tui.widgets.canvas import Row, fit
from gputui.tui.widgets.field import TextField


class Entry(NamedTuple):
    """An action in words, and its key."""

    text: str
    key: str
    action: str


def entries(*, replays: bool) -> list[Entry]:
    """What can be done now: the tabs of all views, then every key that does not move."""
    tabs = [
        Entry(f"{group.title}: {tab.title}", group.key, f"view('{tab.name}')")
        for group in GROUPS
        for tab in group.tabs
    ]
    views = {f"views('{group.key}')" for group in GROUPS}
    return tabs + [
        Entry(key.help, key.shown.split()[0], key.action)
        for key in keys_of(replays)
        if key.group != MOVE and key.action not in views and key.action != "palette"
    ]


def matching(known: list[Entry], words: str) -> list[Entry]:
    """Those in which every typed word occurs, in any case."""
    wanted = words.lower().split()
    return [one for one in known if all(word in one.text.lower() for word in wanted)]


class Palette(Dialog[str]):
    """A list of actions; gives the chosen one."""

    widest = 90

    def __init__(self, *, replays: bool) -> None:
        super().__init__()
        self._known = entries(replays=replays)
        self._field = TextField.holding("")
        self._at = 0

    def rows(self, width: int) -> list[Row]:
        """What is typed, and what matches."""
        found = matching(self._known, self._field.text)
        self._at = max(0, min(self._at, len(found) - 1))
        self.focus_line = self._at + 2
        rows: list[Row] = [((": ", "key"), *self._field.spans(max(10, width - 2))), ()]
        for number, one in enumerate(found):
            text = f" {fit(one.text, width - 12)} {one.key:>8} "
            rows.append(((fit(text, width), "cursor" if number == self._at else "text"),))
        return rows if found else [*rows, (("  nothing matches", "dim"),)]

    def footer(self, width: int) -> list[Row]:
        return key_hints(width, ("Enter", "does it"), ("↑ ↓", "choose"), ("Esc", "closes"))

    def key(self, key: str, character: str | None) -> None:
        if key == "escape":
            self.dismiss(None)
        elif key == "enter":
            self._do(self._at)
        elif key in ("up", "down", "pageup", "pagedown"):
            self._at += {"up": -1, "down": 1, "pageup": -8, "pagedown": 8}[key]
            self.draw()
        elif self._field.key(key, character):
            self._at = 0
            self.draw()

    def clicked(self, line: int) -> None:
        """An action was clicked."""
        if line >= 2:
            self._do(line - 2)

    def _do(self, number: int) -> None:
        found = matching(self._known, self._field.text)
        if 0 <= number < len(found):
            self.dismiss(found[number].action)
