"""Capture events held back, undecoded, until a sum makes them unnecessary."""

from __future__ import annotations

import re
from collections.abc import Iterator

HELD_BYTES = 64 << 20
"""The most lines to hold; then they are handed out, and their sums are ignored."""

_LINE_BYTES = 200
"""The memory of a line beside its own bytes."""

_PREFIX = re.compile(rb'\{"event":"(capture|capture_sum)","time_ns":\d+,"process":(\d+)[,}]')
SUM_BEGINS = b'{"event":"capture_sum",'

Line = tuple[int, bytes]
"""Its number in the file, and the line."""


class HeldLines:
    """Lines of capture events by process, since the newest sum."""

    def __init__(self) -> None:
        self._lines: dict[bytes, list[Line]] = {}
        self._handed_out: set[bytes] = set()
        self._bytes = 0

    def take(self, number: int, line: bytes) -> bool:
        """Whether the line need not be handed out now: it is held, or is a sum that comes too
        late.
        """
        found = _PREFIX.match(line)
        if found is None:
            return False
        kind, process = found.groups()
        is_sum = kind == b"capture_sum"
        if process in self._handed_out:
            return is_sum
        if is_sum:
            before = self._lines.pop(process, [])
            self._bytes -= sum(len(text) + _LINE_BYTES for _, text in before)
        self._lines.setdefault(process, []).append((number, line))
        self._bytes += len(line) + _LINE_BYTES
        return True

    @property
    def is_full(self) -> bool:
        """Whether the lines have to be handed out."""
        return self._bytes > HELD_BYTES

    def hand_out(self) -> Iterator[Line]:
        """The lines, in order; later lines of their processes are no longer held."""
        lines = sorted(line for held in self._lines.values() for line in held)
        self._handed_out.update(self._lines)
        self._lines = {}
        self._bytes = 0
        return iter(lines)
