"""Plain ASCII, for terminals and fonts limited to it."""

from __future__ import annotations

from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color

from gputui.base.sanitize import LIKENESS
from gputui.tui.widgets.line_view import TextFilter


@lru_cache(4096)
def plain(text: str) -> str:
    """`text` in ASCII and in as many cells: what has no substitute becomes "?"."""
    if text.isascii():
        return text
    text = text.translate(LIKENESS)
    if text.isascii():
        return text
    return "".join(c if c.isascii() else "?" * cell_len(c) for c in text)


class AsciiFilter(TextFilter):
    """Turns every drawn line into ASCII."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        del background
        return [
            segment if segment.control else Segment(plain(segment.text), segment.style)
            for segment in segments
        ]
