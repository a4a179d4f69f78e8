"""The one place where strings from outside are made safe to draw and to store."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL and C1 controls: escape sequences start here
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional controls reorder a line
    "\u2028\u2029\ufeff"  # line and paragraph separators, byte-order mark
    "\ud800-\udfff]"  # lone surrogates cannot be encoded
)
_ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
)


def sanitize(text: str, limit: int = 4096) -> str:
    """`text` without control characters, at most `limit` characters long.

    Tabs become spaces; every other control character, bidirectional override and lone surrogate
    becomes U+FFFD, so that what was there stays visible as something odd. A cut text ends in "…".
    """
    # A tab becomes more characters than it is: it goes first, and of no more than is kept.
    text = text[: limit + 1].replace("\t", "    ")
    if len(text) > limit:
        text = text[: max(0, limit - 1)] + "…"
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(REPLACEMENT, text)


def sanitize_document(value: Any) -> Any:
    """What JSON decodes to, with every string in it cleaned."""
    if isinstance(value, str):
        return sanitize(value)
    if isinstance(value, list):
        return [sanitize_document(item) for item in value]
    if isinstance(value, dict):
        return {sanitize(key, 200): sanitize_document(item) for key, item in value.items()}
    return value


def clean_output(line: str, limit: int = 2000) -> str:
    """A line that a program printed: its terminal colours are dropped, then it is cleaned.

    Of a line redrawn with carriage returns (progress bars) the last state is kept, as a
    terminal would show it.
    """
    line = _ESCAPE_SEQUENCE.sub("", line.rstrip("\r\n"))
    if "\r" in line:
        line = line.rsplit("\r", 1)[1]
    return sanitize(line, limit)


def cell_width(text: str) -> int:
    """Columns that `text` takes in a terminal: wide East Asian characters take two."""
    if text.isascii():
        return len(text)
    return sum(_character_width(character) for character in text)


def _character_width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
