"""The far end: this machine's events as a journal on standard output.

Lines on standard input ask: `t NS` for the time, which is answered in the journal. Its end, or a
near end that asks nothing any more, ends the program: nothing is left behind.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
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
    """Write events until the near end is gone; the exit status."""
    end = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: end.set())
    os.write(1, hello_line(token))
    journal = JournalWriter(None, like=Path("far.zst" if zstandard else "far.gz"))
    news = threading.Event()
    hub = Hub(news.set, journal)
    sampler = Sampler(interval_s, only)
    sampler.start(hub.emit)
    asked = _Asked(hub, end)
    asked.start()
    while not end.wait(min(1.0, interval_s)):
        hub.take()  # written when they were emitted
        if journal.failure is not None or asked.silent_s > SILENCE_S:
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


def has_zstandard() -> bool:
    """Whether the package is there."""
    from importlib.util import find_spec

    return find_spec("zstandard") is not None


class _Asked(threading.Thread):
    """Reads what the near end asks. `end` is set at the end of standard input."""

    def __init__(self, hub: Hub, end: threading.Event) -> None:
        super().__init__(name="asked", daemon=True)
        self._hub = hub
        self._end = end
        self._heard_s = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since the near end was last heard of."""
        return time.monotonic() - self._heard_s

    def run(self) -> None:
        rest = b""
        while data := os.read(0, 4096):
            self._heard_s = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[:_LINE_BYTES]
            for line in lines:
                self._answer(line)
        self._end.set()

    def _answer(self, line: bytes) -> None:
        word, _, number = line[:_LINE_BYTES].partition(b" ")
        if word == b"t" and number.isdigit() and len(number) < 20:
            self._hub.emit([ClockRead(time_ns=time.time_ns(), asked_ns=int(number))])
