"""Standard output and errors: whose reader may be gone, and which may be narrow or plain."""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
import threading
from typing import BinaryIO, Literal, TextIO

from gputui.base.likeness import for_encoding
from gputui.base.sanitize import sanitize

_data: list[BinaryIO] = []

_unended: set[str] = set()
"""Streams on which a command's output, let through, stands amid a line."""

_drawn: set[str] = set()
_lock = threading.Lock()
"""Held by whoever writes or remembers what is on the terminal."""

_INVISIBLE = re.compile(rb"(?:\x1b\[[0-9;?]*[A-Za-z])+\Z")
"""Colours and the like, which leave the cursor where it is."""


def say(text: str) -> None:
    """One line of narration on stderr. `text` may hold what strangers named."""
    try:
        begin_line()
        print(f"gputui: {sanitize(text)}", file=sys.stderr)
    except OSError:
        release()


def let_through(name: Literal["stdout", "stderr"], data: bytes) -> None:
    """Write a command's output as it is. Raises OSError and ValueError where it cannot."""
    with _lock:
        _erase()
        stream = getattr(sys, name)
        stream.buffer.write(data)
        stream.buffer.flush()
        if seen := _INVISIBLE.sub(b"", data):
            (_unended.discard if seen.endswith(b"\n") else _unended.add)(name)


def draw(text: str) -> None:
    """Put one line on the terminal that stderr is, in place of the last one drawn, or take that
    away where `text` is empty. Leaves alone what a command wrote. Raises OSError."""
    with _lock:
        _erase()
        if text and not _amid_line():
            sys.stderr.write(text)
            _drawn.add("stderr")
        sys.stderr.flush()


def _erase() -> None:
    if _drawn:
        _drawn.clear()
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def begin_line() -> None:
    """End a command's line before gputui's own on stderr: one that is on stderr too, or on the
    same terminal. What else stdout is stays byte for byte the command's. Raises OSError."""
    with _lock:
        if _amid_line():
            sys.stderr.write("\n")
        _unended.clear()


def _amid_line() -> bool:
    if "stdout" in _unended and sys.stdout.isatty() and sys.stderr.isatty():
        return True
    return "stderr" in _unended


def tolerate() -> None:
    """Print a character that an encoding lacks by its likeness in ASCII instead of failing."""
    codecs.register_error("gputui.base.likeness", for_encoding)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="gputui.base.likeness")


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
