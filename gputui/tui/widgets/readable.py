"""Rows for screen readers: what only eyes read is left out, and marks are words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gputui.tui.widgets.canvas import Row, Span, row_width

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
        says = [role for text, role in spans if text.strip()]
        if says and not (is_of_chart and says in (["label"], ["value"])):
            found.append(tuple(spans))
    return found


def chosen_place(rows: Sequence[Row]) -> tuple[int, int] | None:
    """Where what is chosen begins: column and row. None where nothing is."""
    for y, row in enumerate(rows):
        for number, (_, role) in enumerate(row):
            if role in _CHOSEN:
                return row_width(row[:number]), y
    return None


def _said(text: str) -> str:
    for mark, word in _WORDS.items():
        text = text.replace(mark, word)
    return _GAP.sub("  ", _DRAWN.sub("", text))
