"""stdout, stderr and the terminal behind them: the reader may be gone, and the encoding limited.

Also the sequences that have a terminal notify its user.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
import threading
from typing import BinaryIO, Literal, TextIO, get_args

from gputui.base.sanitize import for_encoding, sanitize

# What has a terminal notify its user.

Way = Literal["bell", "osc9", "osc777"]
"""The bell and, with it, the message of iTerm2 (OSC 9) or of urxvt (OSC 777)."""

WAYS: tuple[str, ...] = get_args(Way)
# Of a notification: what a desktop shows of one is shorter.
_LONGEST = 200


def notify(way: str | None, text: str) -> None:
    """Have the terminal that standard error is announce a text, if there is one."""
    if way and sys.stderr.isatty():
        sys.stderr.write(notification(way, text))
        sys.stderr.flush()


def notification(way: str, text: str) -> str:
    """What to write to a terminal. A terminal that does not know a message shows nothing; in tmux
    only the bell arrives."""
    plain = sanitize(text, _LONGEST).replace(";", ",")
    start = {"osc9": "\x1b]9;gputui: ", "osc777": "\x1b]777;notify;gputui;"}.get(way)
    return f"{start}{plain}\x07\x07" if start else "\x07"


_data: list[BinaryIO] = []

# Streams on which a command's passed-through output stopped in the middle of a line.
_unended: set[str] = set()

_drawn: set[str] = set()
# Held while writing to the terminal or recording what is on it.
_lock = threading.Lock()

# Colours and other sequences that leave the cursor in place.
_INVISIBLE = re.compile(rb"(?:\x1b\[[0-9;?]*[A-Za-z])+\Z")


def say(text: str) -> None:
    """Write one line of narration to stderr. `text` may contain untrusted names."""
    try:
        begin_line()
        print(f"gputui: {sanitize(text)}", file=sys.stderr)
    except OSError:
        release_streams()


def let_through(name: Literal["stdout", "stderr"], data: bytes) -> None:
    """Write a command's output unchanged. Raises OSError and ValueError if that fails."""
    with _lock:
        _erase()
        stream = getattr(sys, name)
        stream.buffer.write(data)
        stream.buffer.flush()
        if seen := _INVISIBLE.sub(b"", data):
            (_unended.discard if seen.endswith(b"\n") else _unended.add)(name)


def draw(text: str) -> None:
    """Draw one line on the terminal behind stderr, replacing the last one drawn, or erase that if
    `text` is empty. Leaves a command's output alone. Raises OSError.
    """
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
    """Ends a command's unfinished line before gputui writes to stderr, if the command writes to
    stderr too, or to the same terminal, and erases one that was drawn. Otherwise the command's
    stdout stays as it is, byte for byte. Raises OSError."""
    with _lock:
        _erase()
        if _amid_line():
            sys.stderr.write("\n")
        _unended.clear()


def _amid_line() -> bool:
    if "stdout" in _unended and sys.stdout.isatty() and sys.stderr.isatty():
        return True
    return "stderr" in _unended


def complete_streams() -> None:
    """Opens the standard streams that this process was started without. Otherwise the next file
    opened would get the number of a stream, and printed text would end up in a recording. Writing
    to standard output then fails, as it does without a descriptor; narration on standard error is
    dropped."""
    missing = [number for number in range(3) if not _is_open(number)]
    for number in missing:
        mode = os.O_WRONLY if number == 2 else os.O_RDONLY
        # With the lowest free number, that of the stream: else the next file opened took it, and
        # what was printed went into a recording.
        opened = os.open(os.devnull, mode)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        # As a shell leaves them: children have them, too.
        os.set_inheritable(number, True)
        name = ("stdin", "stdout", "stderr")[number]
        stream = open(number, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def tolerate_encoding() -> None:
    """Print a character the encoding lacks as ASCII instead of failing."""
    codecs.register_error("gputui.base.sanitize", for_encoding)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="gputui.base.sanitize")


def release_streams() -> None:
    """Drop streams that nobody reads any more: flushing them at exit would change the exit
    status.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def columns(stream: TextIO) -> int | None:
    """The terminal's width; None if `stream` is a file or a pipe, or the width is unknown."""
    return os.get_terminal_size(stream.fileno()).columns or None if stream.isatty() else None


def standard_input() -> BinaryIO:
    # Where a recording is piped in, keys come from the terminal instead.
    return _data[0] if _data else sys.stdin.buffer


def read_keys_from_terminal() -> None:
    """Let a screen read keys while data is piped in: from now on `standard_input` has the data.

    Raises OSError if no terminal controls this process.
    """
    terminal = os.open("/dev/tty", os.O_RDWR)
    _data[:] = [os.fdopen(os.dup(0), "rb")]
    os.dup2(terminal, 0)
    os.close(terminal)


def has_colors() -> bool:
    """Whether the terminal has colours, as far as its description in terminfo says."""
    if os.environ.get("COLORTERM"):
        return True
    try:
        import curses
    except ImportError:  # Python was built without it
        return True
    try:
        curses.setupterm(fd=1)
    except curses.error:  # of terminals that are not described, most have some
        return True
    return curses.tigetnum("colors") >= 8
