"""Which lines of the program its threads were at: what the start-up hook wrote, read as it grows.

The file is written by the program that is looked at: anything may stand in it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from gputui.base.sanitize import sanitize
from gputui.model.leaves import Leaf

MOST_A_READ = 1 << 20
MOST_LINES = 20_000
MOST_FUNCTIONS = 32

LEAF_OF_KIND = {
    "c": Leaf.COMPILE, "i": Leaf.INPUT, "q": Leaf.INPUT, "r": Leaf.RANK, "w": Leaf.WAIT,
}  # fmt: skip
"""What a frame on the stack says of a thread that is away from CUDA."""

RECOMPUTES = "k"
"""The kind of autograd's threads while they compute a forward pass again."""

FETCHES = "i"
"""The kind that fetches its input by itself: of a queue that is read nobody knows."""


class Line(NamedTuple):
    """A line of a program."""

    path: str
    line: int
    function: str


class Sample(NamedTuple):
    """Where one thread was. `kind` is c, i, k, q, r, w or -; `inside` are the libraries' functions
    that the line is in, the outermost first."""

    time_ns: int
    thread: int
    line: int
    kind: str
    inside: tuple[int, ...] = ()


class PythonLines:
    """The lines of one process."""

    def __init__(self, folder: Path, pid: int) -> None:
        self._path = folder / f"lines-{pid}"
        self._at = 0
        self._rest = b""
        self.lines: dict[int, Line] = {}

    def read(self) -> list[Sample]:
        """What is new."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return []
        try:
            data = os.pread(descriptor, MOST_A_READ, self._at)
        except OSError:
            return []
        finally:
            os.close(descriptor)
        self._at += len(data)
        whole, _, self._rest = (self._rest + data).rpartition(b"\n")
        self._rest = self._rest[-4096:]
        found: list[Sample] = []
        for text in whole.decode("utf-8", "replace").split("\n"):
            try:
                self._parse(text, found)
            except ValueError:
                continue
        return found

    def _parse(self, text: str, found: list[Sample]) -> None:
        if text.startswith("d "):
            _, number, line, function, path = text.split(" ", 4)
            if len(self.lines) < MOST_LINES:
                self.lines[int(number)] = Line(
                    sanitize(path, 512), int(line), sanitize(function, 128)
                )
        elif text.startswith("s "):
            _, moment, *entries = text.split(" ")
            for entry in entries:
                thread, number, kind, functions = entry.split(":")
                inside = functions.split(".", MOST_FUNCTIONS)[:MOST_FUNCTIONS] if functions else ()
                found.append(
                    Sample(int(moment), int(thread), int(number), kind, tuple(map(int, inside)))
                )
