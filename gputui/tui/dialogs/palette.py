"""Every action and view by name, once something is typed also phases, kernels and runs: Enter does
it, or goes there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from gputui.tui.dialogs.dialog import Dialog, key_hints
from gputui.tui.shell.keys import MOVE, keys_of
from gputui.tui.shell.views import GROUPS
from gputui.tui.widgets.canvas import Row, fit
from gputui.tui.widgets.field import TextField
from gputui.tui.widgets.names import cut_middle, short_names
from gputui.tui.widgets.view import Lead

if TYPE_CHECKING:
    from gputui.tui.model import Tables

MOST_NAMED = 5000
"""Phases, and kernels, the longest, that are looked through."""

Action: TypeAlias = "str | Lead | Callable[[], None]"
"""What an entry does: a key's action by name, a view to show, or anything else."""

MOST_FOUND = 100
"""Of these that are listed."""


class Entry(NamedTuple):
    """An action in words, and its key; or a run, a phase or a kernel, and which it is."""

    text: str
    key: str
    action: Action


def entries(*, replays: bool) -> list[Entry]:
    """What can be done now: the tabs of all views, then every key that does not move."""
    tabs = [
        Entry(
            tab.title if tab.title == group.title else f"{group.title}: {tab.title}",
            group.key,
            f"view('{tab.name}')",
        )
        for group in GROUPS
        for tab in group.tabs
    ]
    views = {f"views('{group.key}')" for group in GROUPS}
    return tabs + [
        Entry(key.help, key.shown.split()[0], key.action)
        for key in keys_of(replays)
        if key.group != MOVE and key.action not in views and key.action != "palette"
    ]


def named(tables: Tables | None) -> list[Entry]:
    """The phases and the kernels of a run."""
    if tables is None:
        return []
    from gputui.report.phases import phase_rows
    from gputui.report.statistics import kernel_rows

    phases = phase_rows(tables.run)[:MOST_NAMED]
    kernels = kernel_rows(tables.session, tables.run)[:MOST_NAMED]
    return [
        *(Entry(row.path, "phase", Lead("phases", row.key)) for row in phases),
        *(Entry(row.name, "kernel", Lead("kernels", row.name)) for row in kernels),
    ]


def matching(known: Sequence[Entry], words: str) -> list[Entry]:
    """Those in which every typed word occurs, in any case."""
    wanted = words.lower().split()
    return [one for one in known if all(word in one.text.lower() for word in wanted)]


class Palette(Dialog[Action]):
    """A list of actions and, once something is typed, of what `places` gives; gives the chosen
    one."""

    widest = 90

    def __init__(self, *, replays: bool, places: Callable[[], list[Entry]] = list) -> None:
        super().__init__()
        self._known = entries(replays=replays)
        self._places = cache(places)
        self._runs: Sequence[Entry] = ()
        self._field = TextField.holding("")
        self._at = 0

    def offer(self, runs: Sequence[Entry]) -> None:
        """Find these too. What is chosen stays chosen."""
        found = self._found()
        self._runs = runs
        if self.is_mounted and not self._is_closed:
            chosen, now = found[self._at : self._at + 1], self._found()
            self._at = now.index(chosen[0]) if chosen and chosen[0] in now else self._at
            self.draw()

    def rows(self, width: int) -> list[Row]:
        """What is typed, and what matches."""
        found = self._found()
        self._at = max(0, min(self._at, len(found) - 1))
        self.focus_line = self._at + 2
        rows: list[Row] = [((": ", "key"), *self._field.spans(max(10, width - 2))), ()]
        room = width - 12
        kernels = [one.text for one in found if one.key == "kernel"]
        short = dict(zip(kernels, short_names(kernels, room), strict=True))
        for number, one in enumerate(found):
            name = short.get(one.text) or cut_middle(one.text, room)
            text = f" {fit(name, room)} {one.key:>8} "
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

    def _found(self) -> list[Entry]:
        words = self._field.text
        if not words.strip():
            return list(self._known)
        known, runs, places = (
            matching(each, words) for each in (self._known, self._runs, self._places())
        )
        return [*known, *runs[:MOST_FOUND], *places[:MOST_FOUND]]

    def _do(self, number: int) -> None:
        found = self._found()
        if 0 <= number < len(found):
            self.dismiss(found[number].action)
