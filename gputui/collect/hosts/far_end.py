"""The far end: this machine's events as a journal on standard output.

Lines on standard input ask: `t NS` for the time, which is answered in the journal; `stop` ends the
run being followed. The end of standard input, or a near end that asks nothing any more, ends the
program: nothing is left behind.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gputui.collect.hosts.hello import hello_line
from gputui.collect.sampler import Sampler
from gputui.model.events import ClockRead
from gputui.model.hub import Hub
from gputui.store.journal import JournalWriter

SILENCE_S = 60.0
"""A near end asks for the time every few seconds: one that did not for so long is gone."""

_CLOSING_S = 4.0
_LINE_BYTES = 64


def serve(
    token: str, interval_s: float, only: Sequence[int] | None, *, zstandard: bool = False
) -> int:
    """Write readings of this machine until the near end is gone; the exit status."""
    os.write(1, hello_line(token))
    journal = JournalWriter(None, like=like(zstandard=zstandard))
    hub = Hub(lambda: None, journal)
    sampler = Sampler(interval_s, only)
    sampler.start(hub.emit)
    near = NearEnd(lambda event: hub.emit([event]))
    while not near.is_gone(min(1.0, interval_s)):
        hub.take()  # written when they were emitted
        if journal.failure is not None:
            break

    def close() -> None:
        sampler.stop()
        journal.close()

    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(_CLOSING_S)
    if closing.is_alive():
        os._exit(0)  # the reader has stopped reading, and nobody else waits for the rest
    return 0


def like(*, zstandard: bool) -> Path:
    """A name that compresses as the near end asked for, with what there is."""
    has_it = zstandard and has_zstandard()
    return Path("far.gputui.zst" if has_it else "far.gputui.gz")


def has_zstandard() -> bool:
    """Whether the package is there."""
    from importlib.util import find_spec

    return find_spec("zstandard") is not None


class NearEnd:
    """What the near end asks on standard input: `answer` gets the answer to the question for the
    time, `stop` is called when it wants the run ended.
    """

    def __init__(
        self, answer: Callable[[ClockRead], None], stop: Callable[[], None] = lambda: None
    ) -> None:
        self._answer = answer
        self._stop = stop
        self._heard = threading.Event()
        self._has_ended = False
        self._heard_s = time.monotonic()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self._end())
        threading.Thread(target=self._listen, name="near end", daemon=True).start()

    def is_gone(self, wait_s: float) -> bool:
        """Whether nobody listens any more, after waiting so long, or until something was asked: the
        answer's delay counts as the error of a clock.
        """
        if self._heard.wait(wait_s):
            self._heard.clear()
        return self._has_ended or time.monotonic() - self._heard_s > SILENCE_S

    def _end(self) -> None:
        self._has_ended = True
        self._heard.set()

    def _listen(self) -> None:
        rest = b""
        while data := os.read(0, 4096):
            self._heard_s = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[:_LINE_BYTES]
            for line in lines:
                self._do(line)
            self._heard.set()
        self._end()

    def _do(self, line: bytes) -> None:
        word, _, number = line[:_LINE_BYTES].partition(b" ")
        if word == b"t" and number.isdigit() and len(number) < 20:
            self._answer(ClockRead(time_ns=time.time_ns(), asked_ns=int(number)))
        elif line == b"stop":
            self._stop()
