"""The strings a process defined, by the ids its records use."""

from __future__ import annotations

import numpy as np

from gputui.capture.layout import FLAG_COLORED
from gputui.text import clean

MAX_STRINGS = 500_000
MAX_CHARACTERS = 64_000_000
"""Strings kept a process, and their length together."""

MAX_LABEL = 256

NO_STRING = 0


class Strings:
    """Id → text. An id that never was defined, or came too late to be kept, reads "(unknown)"."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._room = MAX_CHARACTERS

    def add(self, texts: dict[int, str]) -> None:
        """Take in what a batch defined."""
        for number, text in texts.items():
            if len(self._texts) < MAX_STRINGS and len(text) <= self._room:
                self._room -= len(text)
                self._texts[number] = text

    def raw(self, number: int) -> str:
        """As the process wrote it."""
        return self._texts.get(number, "(unknown)")

    def label(self, number: int) -> str:
        """Cleaned, and cut to what a table can show."""
        return clean(self.raw(number), MAX_LABEL)

    def domain(self, number: int) -> str:
        """The name of a domain; id 0 is the default domain, whose name is empty."""
        return self.label(number) if number != NO_STRING else ""

    def range_attributes(self, record: np.void) -> tuple[str, int | None, str | None]:
        """Name, colour and category of a range or mark."""
        colored = int(record["sub"]) & FLAG_COLORED
        category = int(record["b"])
        return (
            self.label(int(record["name"])),
            int(record["c"]) & 0xFFFFFF if colored else None,
            self.label(category) if category != NO_STRING else None,
        )
