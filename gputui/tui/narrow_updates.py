"""Send only the cells that changed, and of their looks only what differs from the cell before.

Textual repaints a line from its left edge to the last cell that changed: a flat chart that moves
on by a column changes a cell at either end of what is known, and each of its rows would be sent
anew, 5 kB of an idle machine's screen. It also sets every span's colours and takes them back, 40
bytes for a word of five.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from textual._compositor import ChopsUpdate, Compositor, LayoutUpdate
from textual.geometry import Region
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
        self._system = console._color_system or ColorSystem.TRUECOLOR
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
        """All that was written."""
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
        style.without_color._make_ansi_codes(system),
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


class Sent:
    """The whole lines that went to the terminal, and when."""

    def __init__(self) -> None:
        self._lines: dict[int, tuple[list[Strip], float]] = {}

    def forget(self) -> None:
        """Something else was drawn."""
        self._lines = {}

    def is_there(self, y: int, line: Sequence[Strip | None] | None) -> bool:
        """Whether a line, which is sent now, was sent just before; None is a part of one."""
        now_s = time.monotonic()
        there, sent_s = self._lines.pop(y, ([], 0.0))
        if line is None or None in line:
            return False
        whole = [strip for strip in line if strip is not None]
        self._lines[y] = whole, now_s
        # A line counts as sent where it is sent: pictures taken at once lacked lines.
        return whole == there and now_s - sent_s <= _SAME_S


def _by_column(span: tuple[int, int, int]) -> tuple[int, int]:
    y, start, end = span
    return (start, y) if end - start == 1 else (-1, y)


class NarrowUpdate(ChopsUpdate):
    """The changed spans of lines, cut at both ends."""

    def __init__(self, update: ChopsUpdate, width: int, sent: Sent) -> None:
        super().__init__(update.chops, update.spans, update.chop_ends)
        self._width = width
        self._sent = sent

    def render_segments(self, console: Console) -> str:
        """The sequences for the terminal."""
        pen = Pen(console, self._width)
        # Charts beside one another each move on by a column: down one, then down the next, instead
        # of across both in each line, which would cost a move and a colour a cell.
        for y, start, end in sorted(self.spans, key=_by_column):
            line = self.chops[y]
            is_whole = end - start >= self._width
            if self._sent.is_there(y, list(line.values()) if is_whole else None):
                continue
            for stop, (x, strip) in zip(self.chop_ends[y], line.items(), strict=False):
                if strip is None or x >= end or stop <= start:
                    continue
                first, last = max(x, start), min(stop, end)
                pen.move_to(first, y)
                pen.write(strip, first - x, last - x)
        return pen.text()


class FullUpdate(LayoutUpdate):
    """All lines; those that are there already are not sent."""

    def __init__(self, update: LayoutUpdate, sent: Sent) -> None:
        super().__init__([list(line) for line in update.strips], update.region)
        self._sent = sent

    def render_segments(self, console: Console) -> str:
        """The sequences for the terminal."""
        pen = Pen(console, self.region.right)
        for y, line in enumerate(map(list, self.strips), self.region.y):
            if not self._sent.is_there(y, line):
                pen.move_to(self.region.x, y)
                for strip in line:
                    pen.write(strip, 0, strip.cell_length)
        return pen.text()


class NarrowCompositor(Compositor):
    """Textual's, with such updates, and no line twice: a new view is laid out two times, the first
    screen four times.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent = Sent()

    def _get_renders(
        self, crop: Region | None = None
    ) -> Iterable[tuple[Region, Region, list[Strip]]]:
        # Textual's paints what lies wholly under others too: each container, and the screen.
        covered: set[int] = set()
        for widget, (region, clip) in self.visible_widgets.items():
            shown = region.intersection(clip)
            lines = shown if crop is None else shown.intersection(crop)
            if lines and not covered.issuperset(lines.line_range):
                yield region, clip, widget.render_lines(shown.translate(-region.offset))
                if shown.width >= self.size.width:
                    covered.update(lines.line_range)

    def render_partial_update(self) -> ChopsUpdate | None:
        """What changed since the last one."""
        update = super().render_partial_update()
        return None if update is None else NarrowUpdate(update, self.size.width, self.sent)

    def render_full_update(self, simplify: bool = False) -> LayoutUpdate:
        """Everything."""
        return FullUpdate(super().render_full_update(simplify), self.sent)
