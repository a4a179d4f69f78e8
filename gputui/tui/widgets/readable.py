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
_SCALE = re.compile(r"^ *to \S+( \S+)?$")
_WORDS = {"▾": "open", "▸": "closed", "▼": "sorted by "}
_GAP = re.compile(r" {3,}")


def readable(rows: Sequence[Row]) -> list[Row]:
    """The rows that say something, in words: no charts, no textures, no blank rows."""
    found = []
    for row in rows:
        if _AXIS.search("".join(text for text, _ in row)):
            continue
        spans: list[Span] = []
        after_chart = False
        for text, role in row:
            if after_chart and _SCALE.match(text):
                continue
            said = _said(text)
            after_chart = bool(_BLOCKS.search(text)) or (after_chart and not said.strip())
            spans.append((said, role))
        if any(text.strip() for text, _ in spans):
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
