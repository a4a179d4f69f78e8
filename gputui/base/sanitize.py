"""The one place where outside strings are made safe to draw and to store.

Control characters, escape sequences and characters that reorder text are replaced, texts are cut to
a width in cells, and what an encoding lacks gets an ASCII substitute.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

# ASCII substitutes for the other characters gputui prints.

_PAIRS = {
    "▁▂▃▄▅▆▇█": "_.:-=+*#",
    "▏▎▍▌▋▊▉▕": "|::=++##|",
    "░▒▓╱╲∙╳╌╬▚": ".:%/~,x;=&",
    "─│┤└├┬┴┼╭╮╰╯┌┐┘━┃": "-||+|---........-|",
    "▾▸●▶■✓✗›‹↑↓←→▼▲…×·•µ°±≤≥–—◆❚−": "v>*>#+x><^v<>v^~x.*u'~<>--*|-",
}
LIKENESS = str.maketrans(
    {
        special: plain
        for specials, plains in _PAIRS.items()
        for special, plain in zip(specials, plains, strict=False)
    }
)
"""For `str.translate`: one ASCII character for each that gputui draws with."""


def for_encoding(error: UnicodeError) -> tuple[str, int]:
    """A handler of codec errors: prints the substitute of a character that cannot be encoded, or
    "?".
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end].translate(LIKENESS)
    return "".join(c if c.isascii() else "?" for c in lacking), error.end


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
    becomes U+FFFD, so that its position stays visible. A truncated text ends in "…".
    """
    # Tabs expand, so replace them first, and only in the part that is kept.
    text = text[: limit + 1].replace("\t", "    ")
    if len(text) > limit:
        text = text[: max(0, limit - 1)] + "…"
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(REPLACEMENT, text)


def sanitize_document(value: Any) -> Any:
    """A decoded JSON value, with every string in it sanitized."""
    if isinstance(value, str):
        return sanitize(value)
    if isinstance(value, list):
        return [sanitize_document(item) for item in value]
    if isinstance(value, dict):
        return {sanitize(key, 200): sanitize_document(item) for key, item in value.items()}
    return value


def clean_output(line: str, limit: int = 2000) -> str:
    """One line of a program's output: terminal colours removed, then sanitized.

    Of a line redrawn with carriage returns (a progress bar) the last state is kept, as a terminal
    would show it.
    """
    line = _ESCAPE_SEQUENCE.sub("", line.rstrip("\r\n"))
    if "\r" in line:
        line = line.rsplit("\r", 1)[1]
    return sanitize(line, limit)


def cell_width(text: str) -> int:
    """Terminal columns occupied by `text`: wide East Asian characters take two."""
    if text.isascii() or max(text) < _FIRST_OTHER_WIDTH:
        return len(text)
    return sum(_character_width(character) for character in text)


# Characters before this one, Latin letters and signs such as µ, all take one column.
_FIRST_OTHER_WIDTH = "\u0300"

# Characters that are looked at for each column: combining ones take none of their own.
_MARKS = 4


def width_up_to(text: str, limit: int) -> int:
    """`cell_width` or `limit`, the lesser: of a long text only the beginning is measured."""
    if text.isascii():
        return min(len(text), limit)
    return min(limit, cell_width(text[: _MARKS * limit]))


def cut_to_width(text: str, width: int) -> str:
    """`text` in at most `width` columns of a terminal; what is cut ends in "…"."""
    start = text[: _MARKS * (width + 1)]
    if len(start) == len(text) and cell_width(text) <= width:
        return text
    columns = 0
    for place, character in enumerate(start):
        columns += _character_width(character)
        if columns >= width:
            return start[:place] + "…"
    return start + "…"


def _character_width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
