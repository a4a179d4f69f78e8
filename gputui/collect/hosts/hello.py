"""The line that a far end begins with. What stands before it is a shell's noise.

The near end makes up a token and passes it in the command, so that no noise can look like the
line. After it comes a journal, which is the only protocol there is.
"""

from __future__ import annotations

import msgspec

import gputui
from gputui.model.events import JOURNAL_SCHEMA

_BEGINS = b"gputui "


class Hello(msgspec.Struct, frozen=True):
    """What the far end is, and which schema of the journal it writes."""

    schema: int
    version: str
    recording: str = ""
    """The file there whose bytes follow; "" for readings of now."""


def hello_line(token: str, recording: str = "") -> bytes:
    """The line of this gputui."""
    hello = Hello(JOURNAL_SCHEMA, gputui.__version__, recording)
    return _BEGINS + token.encode() + b" " + msgspec.json.encode(hello) + b"\n"


def read_hello(line: bytes, token: str) -> Hello | None:
    """The far end's, None if the line is none. A shell's unfinished prompt may stand before it."""
    _, found, document = line.partition(_BEGINS + token.encode() + b" ")
    if not found:
        return None
    try:
        return msgspec.json.decode(document, type=Hello)
    except msgspec.MsgspecError:
        return None
