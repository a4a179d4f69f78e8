"""The lines that a far end begins with. What stands before them is a shell's noise.

The near end makes up a token and passes it in the command, so that no noise can look like such a
line. After the first of a gputui comes a journal, which is the only protocol there is.
"""

from __future__ import annotations

import time
from typing import BinaryIO, TypeVar

import msgspec

from gputui.base.decoding import json_decoder
from gputui.base.version import VERSION
from gputui.collect.hosts.pipe import SilentError
from gputui.model.events import JOURNAL_SCHEMA

MOST_NOISE_BYTES = 64 << 10

_BEGINS = b"gputui "

T = TypeVar("T")


class Hello(msgspec.Struct, frozen=True):
    """What the far end is, and which schema of the journal it writes."""

    schema: int
    version: str
    recording: str = ""
    """The file there whose bytes follow; "" for readings of now."""
    error: str = ""
    """Why nothing follows."""


def hello_line(token: str, recording: str = "", error: str = "") -> bytes:
    """The line of this gputui."""
    hello = Hello(JOURNAL_SCHEMA, VERSION, recording, error)
    return _BEGINS + token.encode() + b" " + msgspec.json.encode(hello) + b"\n"


def read_line(stream: BinaryIO, token: str, kind: type[T], patience_s: float) -> T | None:
    """The next such line, after noise; None if there is none before the end, or only noise.

    A shell's unfinished prompt may stand before it. Raises SilentError after `patience_s`.
    """
    deadline_s = time.monotonic() + patience_s
    left = MOST_NOISE_BYTES
    while left > 0:
        line = stream.readline(left)
        _, found, document = line.partition(_BEGINS + token.encode() + b" ")
        if found:
            try:
                return json_decoder(kind).decode(document)
            except msgspec.MsgspecError:
                return None
        if time.monotonic() > deadline_s:
            raise SilentError
        left -= len(line)
        if not line:
            return None
    return None
