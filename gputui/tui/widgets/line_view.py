"""The widget that draws rows, and repaints only what changed of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from gputui.model.leaves import PALETTE
from gputui.tui.widgets.canvas import PHASE_COLORS, Row, Span, pad, row_width

# Rows for screen readers: what only eyes read is left out, and marks are words.


WIDTH = 96
"""Columns that views get: one panel below another, nothing beside it."""

_CHOSEN = ("cursor", "verdict")
_DRAWN = re.compile(r"[\u2500-\u25ff\u2800-\u28ff\u2219\u25cf\u275a\u2713\u2717]")
"""Rules, blocks, textures, marks."""

_BLOCKS = re.compile(r"[\u2580-\u2593]")
_AXIS = re.compile(r"┤|0 ?└|^\s*│\s")
_SCALE = re.compile(r"^ *to [\d.,]+ \S+(?=\s*$)")
_TICKS = re.compile(r"\s*0(?:\s+[\d.,]+ [a-zµ]+)+\s*|\s*[\d,]+ ─.*─ [\d,]+\s*")
"""An axis without its line."""

_SINGLE = re.compile("[│▲]")
"""Single steps in a chart of many, and where one is beyond it."""

_EMPTY = 8
"""Blanks from which they are a chart's."""
_WORDS = {"▾": "open", "▸": "closed", "▼": "sorted by "}
_GAP = re.compile(r" {3,}")


ACT = "→"
"""In a role: behind it stands the number of what a click on its span does."""


def look_of(role: str) -> str:
    """A role without what a click does."""
    return role.partition(ACT)[0]


def readable(rows: Sequence[Row]) -> list[Row]:
    """The rows that say something, in words: no charts, no textures, no blank rows."""
    found = []
    for row in rows:
        whole = "".join(text for text, _ in row)
        if _AXIS.search(whole) or _TICKS.fullmatch(whole):
            continue
        spans: list[Span] = []
        after_chart = is_of_chart = False
        for text, role in row:
            if after_chart and _SCALE.match(text):
                is_of_chart = True
                continue
            said = _said(text)
            blank = not said.strip()
            after_chart = bool(_BLOCKS.search(text)) or (
                blank and (after_chart or len(text) >= _EMPTY)
            )
            is_of_chart |= bool(_SINGLE.search(text))
            spans.append((said, role))
        says = [look_of(role) for text, role in spans if text.strip()]
        if says and not (is_of_chart and says in (["label"], ["value"])):
            found.append(tuple(spans))
    return found


def chosen_place(rows: Sequence[Row]) -> tuple[int, int] | None:
    """Where what is chosen begins: column and row. None where nothing is."""
    for y, row in enumerate(rows):
        for number, (_, role) in enumerate(row):
            if look_of(role) in _CHOSEN:
                return row_width(row[:number]), y
    return None


def _said(text: str) -> str:
    for mark, word in _WORDS.items():
        text = text.replace(mark, word)
    return _GAP.sub("  ", _DRAWN.sub("", text))


_BUSY = 7
"""Colors of PALETTE that are of busy time."""

ROLES = (
    *("text", "dim", "title", "rule", "label", "value", "accent", "good", "warn", "hot"),
    *("head", "cursor", "tab", "tab-active", "key", "input", "error"),
    *("verdict", "verdict-good", "verdict-bad"),
    *(f"cause-{name}" for name in PALETTE),
    *(f"fill-{name}" for name in [*PALETTE][:_BUSY]),
    *("utilization", "memory", "bandwidth", "power", "tensor", "occupancy", "host"),
    *(f"phase-{number}" for number in range(1, PHASE_COLORS + 1)),
    *(f"block-{number}" for number in range(1, PHASE_COLORS + 1)),
)
"""The possible roles of a span. `style.tcss` gives each its look, as `.line--ROLE`."""


FOR_READERS = "-for-readers"
"""The application's class where a screen reader reads it."""


def role_style(app: App[Any], role: str) -> Style:
    """The looks of a role, in the theme that is set: those of the main screen, which has them for
    dialogs and tables, too."""
    return app.screen_stack[0].get_component_rich_style(f"line--{role}", partial=True)


class LineView(Widget):
    """Draws rows; repaints only those that changed.

    The looks of the roles are component classes of the bottom screen, for all views: computed once,
    not once per widget, they take a tenth of the time to the first frame.
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._rows: list[Row] = []
        self._looks: dict[str, Style] = {}
        self.is_stale = True
        """Whether its rows must be made before it is painted: it was not in sight before."""

    @property
    def drawn(self) -> list[str]:
        """What is shown, as plain text."""
        return ["".join(text for text, _ in row) for row in self._rows]

    @property
    def is_read(self) -> bool:
        """Whether a screen reader reads it."""
        return self.app.has_class(FOR_READERS)

    def show(self, rows: Sequence[Row]) -> None:
        """Show `rows` from the top; the rest is blank."""
        width, height = self.size
        if self.is_read:
            rows = readable(rows)
            if (place := chosen_place(rows[:height])) is not None:
                self.app.cursor_position = self.content_region.offset + place
        before, self._rows = self._rows, [pad(row, width) for row in rows[:height]]
        lines = enumerate(zip_longest(before, self._rows))
        if changed := [Region(0, y, width, 1) for y, (was, now) in lines if was != now]:
            self.refresh(*changed)

    def draw(self) -> None:
        """Make the rows anew and show them."""

    def find_key_at(self, x: int, y: int) -> str:
        """What is drawn as a key, with what it does after it, in this place; "" for none.

        Not `key_at`: Textual calls that for the key @, whose name is "at".
        """
        start, key = 0, ""
        for text, role in self._rows[y] if y < len(self._rows) else ():
            key = text.strip() if role == "key" else key if role in ("dim", "text") else ""
            start += cell_len(text)
            if x < start:
                return key if text.strip() else ""
            key = key if role == "key" else ""
        return ""

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines in sight. Rows made only now, at the size there is, save a blank frame."""
        if self.is_stale:
            self.is_stale = False
            self.draw()
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        row = self._rows[y] if y < len(self._rows) else ()
        strip = Strip([Segment(text, self._look(role)) for text, role in row])
        return strip.adjust_cell_length(self.size.width, self._look("text"))

    def notify_style_update(self) -> None:
        """Drop the looks of the old theme."""
        self._looks.clear()
        super().notify_style_update()

    def _look(self, role: str) -> Style:
        role = look_of(role)
        if role not in self._looks:
            part = role_style(self.app, role)
            self._looks[role] = Style(bgcolor=self.rich_style.bgcolor) + part
        return self._looks[role]
