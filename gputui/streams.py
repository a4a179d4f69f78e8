"""Standard output and errors: whose reader may be gone, and which may be narrow or plain."""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import BinaryIO, TextIO

from gputui.likeness import for_encoding
from gputui.text import clean

_data: list[BinaryIO] = []


def say(text: str) -> None:
    """One line of narration on stderr. `text` may hold what strangers named."""
    try:
        print(f"gputui: {clean(text)}", file=sys.stderr)
    except OSError:
        release()


def tolerate() -> None:
    """Print a character that an encoding lacks by its likeness in ASCII instead of failing."""
    codecs.register_error("gputui.likeness", for_encoding)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="gputui.likeness")


def release() -> None:
    """Let go of the streams that nobody reads any more: a flush at exit would change the status."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def columns(stream: TextIO) -> int | None:
    """The terminal's width; None where `stream` is a file or a pipe, or the width is not known."""
    return os.get_terminal_size(stream.fileno()).columns or None if stream.isatty() else None


def standard_input() -> BinaryIO:
    """What is piped in."""
    return _data[0] if _data else sys.stdin.buffer


def read_keys_from_terminal() -> None:
    """Let a screen read keys where data is piped in: `standard_input` has the data from now on.

    Raises OSError where no terminal controls this process.
    """
    terminal = os.open("/dev/tty", os.O_RDWR)
    _data[:] = [os.fdopen(os.dup(0), "rb")]
    os.dup2(terminal, 0)
    os.close(terminal)
