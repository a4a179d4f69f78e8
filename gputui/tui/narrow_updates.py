"""Send only the cells that changed, and of their looks only what differs from the cell before.

Textual sends what a widget painted anew, whether or not it differs from what stands there: a table
of which one cell changed is sent whole, and a new view, which is laid out twice, twice. Here what
was sent last is kept, and only the cells that differ are sent: of a table of 40 rows and 12 columns
in which a cell in twenty changes 0.3 kB instead of 3.1. Textual also sets every span's colours and
takes them back, 40 bytes for a word of five.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import chain, repeat

from rich.color import ColorSystem
from rich.console import COLOR_SYSTEMS, Console
from rich.style import Style
from textual.strip import Strip

from gputui.tui.widgets.canvas import is_narrow

_SAME_S = 0.3
"""For so long nobody else is taken to have drawn on the terminal."""

_BARE = Style.null()

_Look = tuple[str, str, str, bool]
"""Sequences for attributes, colour and background; whether a blank in it is only background."""


class Pen:
    """Text in looks, as sequences that a terminal obeys; it ends as it began, without any."""

    def __init__(self, console: Console, width: int) -> None:
        self._system = COLOR_SYSTEMS[console.color_system or "truecolor"]
        self._width = width
        self._plain: _Look = ("", "39", "49", True)
        self._at = self._plain
        self._place = (-1, -1)
        self._strip: Strip | None = None
        self._is_narrow = False
        """Whether each character of that strip takes one cell."""
        self._written: list[str] = []

    def move_to(self, x: int, y: int) -> None:
        """Go on at a cell."""
        at_x, at_y = self._place
        if (x, y) == self._place:
            return
        if y == at_y and x > at_x:
            move = f"\x1b[{x - at_x}C"
        elif (x, y) == (at_x - 1, at_y + 1) and at_x < self._width:
            move = "\x1b[B\b"  # the next cell of a chart's column
        else:
            move = f"\x1b[{y + 1};{x + 1}H"
        self._written.append(move)
        self._place = (x, y)

    def write(self, strip: Strip, start: int, end: int) -> None:
        """Go on with the cells of a strip from `start` to `end`."""
        self._place = (self._place[0] + end - start, self._place[1])
        if strip is not self._strip:
            self._strip = strip
            self._is_narrow = is_narrow("".join([text for text, _, _ in strip]))
        if not self._is_narrow:
            strip, start, end = strip.crop(start, end), 0, sys.maxsize
        for text, style, _ in strip:
            if end <= 0:
                break
            cut = text[max(0, start) : end]
            start -= len(text)
            end -= len(text)
            if cut:
                self._turn(_look(style or _BARE, self._system), cut)
                self._written.append(cut)

    def text(self) -> str:
        if self._at != self._plain:
            self._written.append("\x1b[0m")
            self._at = self._plain
        return "".join(self._written)

    def _turn(self, look: _Look, text: str) -> None:
        attributes, color, background, bare = look
        if bare and self._at[3] and text.isspace():
            # A blank has no foreground: it keeps that of the text before it.
            attributes, color = self._at[:2]
        codes = []
        if attributes != self._at[0]:
            if self._at[0]:  # only all of them can be taken back
                codes.append("0")
                self._at = self._plain
            codes.append(attributes)
        codes += [color] * (color != self._at[1]) + [background] * (background != self._at[2])
        if codes:
            self._written.append(f"\x1b[{';'.join(filter(None, codes))}m")
        self._at = (attributes, color, background, bare)


_looks: dict[int, tuple[Style, ColorSystem, _Look]] = {}
"""By the style's identity: Rich hashes one in Python, several times a line."""
_MOST_LOOKS = 1024


def _look(style: Style, system: ColorSystem) -> _Look:
    known = _looks.get(id(style))
    if known is not None and known[1] is system:
        return known[2]
    color, background = style.color, style.bgcolor
    look = (
        # Rich gives the codes of a style only around a text.
        style.clear_meta_and_links()
        .without_color.render("x", color_system=system)
        .partition("x")[0][2:-1],
        ";".join(color.downgrade(system).get_ansi_codes()) if color else "39",
        ";".join(background.downgrade(system).get_ansi_codes(foreground=False))
        if background
        else "49",
        not (style.underline or style.reverse or style.strike),
    )
    if len(_looks) >= _MOST_LOOKS:
        _looks.clear()
    _looks[id(style)] = style, system, look  # which holds the style, so that its identity stays its
    return look


_NEAR = 12
"""Cells between two changes that cost less than moving the cursor past them."""


def changed_runs(old: Strip, new: Strip) -> list[tuple[int, int]]:
    """The cells that differ between two strips of one width, as (start, end)."""
    was, now = old.text, new.text
    # A strip's own word of its width may be wrong, at terminals of a few cells: its text counts.
    if len(was) != len(now) or not (is_narrow(was) and is_narrow(now)):
        return [] if old == new else [(0, new.cell_length)]
    runs: list[tuple[int, int]] = []
    for cell in _changed_cells(old, new):
        if runs and cell - runs[-1][1] < _NEAR:
            runs[-1] = (runs[-1][0], cell + 1)
        else:
            runs.append((cell, cell + 1))
    return runs


def _changed_cells(old: Strip, new: Strip) -> list[int]:
    """The places of characters that differ in themselves or in their style: found segment by
    segment where these are as long as before, as most are."""
    if [len(text) for text, _, _ in old] != [len(text) for text, _, _ in new]:
        cells = enumerate(zip(_characters(old), _characters(new), strict=True))
        return [
            cell
            for cell, ((was, was_in), (now, now_in)) in cells
            if was != now or not (was_in is now_in or was_in == now_in)
        ]
    changed: list[int] = []
    start = 0
    for (was_text, was_style, _), (text, style, _) in zip(old, new, strict=True):
        if not (was_style is style or was_style == style):
            changed += range(start, start + len(text))
        elif was_text != text:
            pairs = enumerate(zip(was_text, text, strict=True), start)
            changed += [cell for cell, (was, now) in pairs if was != now]
        start += len(text)
    return changed


def _characters(strip: Strip) -> Iterator[tuple[str, Style | None]]:
    return chain.from_iterable([zip(text, repeat(style)) for text, style, _ in strip])


class SentCells:
    """What stands on the terminal: by line, its pieces by the column they begin in."""

    def __init__(self) -> None:
        self._lines: dict[int, dict[int, Strip]] = {}
        self._whole_s = 0.0

    def forget(self) -> None:
        """Something else was drawn."""
        self._lines = {}

    def begin_whole(self) -> None:
        """All lines are drawn: those just sent stand there, of others nobody knows."""
        now_s = time.monotonic()
        if now_s - self._whole_s > _SAME_S:
            self.forget()
        self._whole_s = now_s

    def changed(self, x: int, y: int, strip: Strip) -> list[tuple[int, int]]:
        """The cells of a piece that are not there yet; from now on they are."""
        line = self._lines.setdefault(y, {})
        before, width = line.get(x), strip.cell_length
        if before is None or before.cell_length != width:
            overlaps = [start for start, piece in line.items()
                        if start < x + width and x < start + piece.cell_length]  # fmt: skip
            for start in overlaps:
                del line[start]
            runs = [(0, width)] if width else []
        else:
            runs = [] if before is strip else changed_runs(before, strip)
        line[x] = strip
        return runs
