"""The child that leads to another host: its output with a time limit, its errors kept short."""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import IO, Any

from gputui.base.errors import GputuiError

_CHECK_S = 1.0
_ENDING_S = 2.0
_ERROR_BYTES = 4096
_SENT_BYTES = 4096
"""What a pipe that is ready takes without waiting (PIPE_BUF)."""


class SilentError(GputuiError):
    """Nothing came for as long as is allowed."""


class Pipe(io.RawIOBase):
    """A child's standard output as a stream. Its errors' beginning and end are kept.

    Reading raises SilentError if nothing comes for `patience_s`; closing ends the child, which is
    this machine's half of the link: the other half ends with its standard input.
    """

    def __init__(self, argv: Sequence[str], patience_s: float) -> None:
        """Raises OSError if the command cannot be started."""
        # In a session of its own it has no terminal to ask on, and gets no Ctrl-C.
        try:
            self._child = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError:
            super().close()  # there is nothing else to close: Python does when this is dropped
            raise
        streams = self._child.stdin, self._child.stdout, self._child.stderr
        self._in, self._out, self._err = (stream for stream in streams if stream is not None)
        self._errors = b""
        self._errors_are_open = True
        self._is_ending = False
        self.patience_s = patience_s
        self.is_at_end = False
        """Whether the other end has closed it."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        heard_s = time.monotonic()
        while not self._is_ending:
            streams = [self._out, self._err] if self._errors_are_open else [self._out]
            ready = _ready(streams, _CHECK_S)
            if self._err.fileno() in ready:
                self._keep_errors()
            if self._out.fileno() in ready:
                data = os.read(self._out.fileno(), len(buffer))
                buffer[: len(data)] = data
                self.is_at_end = not data
                return len(data)
            if time.monotonic() - heard_s > self.patience_s:
                raise SilentError
        return 0

    def ask(self, line: bytes) -> None:
        """Write a line to the other end; one that takes none is as good as gone."""
        with contextlib.suppress(OSError, ValueError):
            # Never waits: a full pipe loses the question.
            if _ready([self._in], 0.0, select.POLLOUT):
                os.write(self._in.fileno(), line)

    def send(self, data: bytes) -> None:
        """Write all of it. Raises SilentError, and OSError if the other end is closed."""
        while data:
            if not _ready([self._in], self.patience_s, select.POLLOUT):
                raise SilentError
            data = data[os.write(self._in.fileno(), data[:_SENT_BYTES]) :]

    def end(self) -> None:
        """From any thread: have reading end, and the other end know."""
        self._is_ending = True
        with contextlib.suppress(OSError):
            self._in.close()

    def status(self) -> tuple[int | None, bytes]:
        """The child's exit status, None if it had to be ended, and what it printed on standard
        error.
        """
        self.end()
        status: int | None = None
        try:
            status = self._child.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGTERM)
            try:
                self._child.wait(_ENDING_S)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                self._child.wait()
        while self._errors_are_open and _ready([self._err], 0.0):
            self._keep_errors()
        return status, self._errors

    def close(self) -> None:
        if not self.closed:
            self.status()
            for stream in (self._out, self._err):
                stream.close()
            self._errors_are_open = False  # whoever else has them open, as a jump's ssh may
        super().close()

    def _keep_errors(self) -> None:
        data = os.read(self._err.fileno(), 4096)
        self._errors_are_open = bool(data)
        kept = self._errors + data
        if len(kept) > 2 * _ERROR_BYTES:
            kept = kept[:_ERROR_BYTES] + kept[-_ERROR_BYTES:]
        self._errors = kept

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, number)


def _ready(streams: Sequence[IO[bytes]], seconds: float, what: int = select.POLLIN) -> set[int]:
    poll = select.poll()
    for stream in streams:
        poll.register(stream.fileno(), what)
    return {number for number, _ in poll.poll(seconds * 1000)}
