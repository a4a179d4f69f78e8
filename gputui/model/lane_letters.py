"""Rows of a step's parts as short text: a letter a part, repeated letters with their number.

"l12s3h" are twelve parts of l, three of s, one of h: what a thread did seldom changes often, and a
row of 48 parts takes 10 to 30 bytes of a recording.
"""

from __future__ import annotations

import re
from itertools import groupby

from gputui.model.leaves import LEAVES

ROW_PARTS = 48
"""Parts of a step in a row of a thread or a stream."""

DOING = {meaning.letter: leaf for leaf, meaning in LEAVES.items() if meaning.letter}
"""What a thread was at for most of a part, as what the GPU would idle for."""

LETTER_OF = {leaf: letter for letter, leaf in DOING.items()}

EIGHTHS = "abcdefghi"
"""How much of a part a stream was busy: none to all of it."""

_RUN = re.compile(r"([a-z])(\d{0,3})")


def pack(letters: str) -> str:
    """The short form."""
    runs = ((letter, len(list(run))) for letter, run in groupby(letters))
    return "".join(f"{letter}{count}" if count > 1 else letter for letter, count in runs)


def unpack(text: str, parts: int = ROW_PARTS) -> str:
    """At most `parts` letters of the short form; what is no such thing is left out."""
    letters = ""
    for letter, count in _RUN.findall(text):
        letters += letter * min(parts, int(count or 1))
        if len(letters) >= parts:
            break
    return letters[:parts]
