"""The strings a process defined, by the ids its records use."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gputui.base.sanitize import sanitize
from gputui.model.naming import NO_NAME
from gputui.ring.layout import FLAG_COLORED

MAX_STRINGS = 500_000
MAX_CHARACTERS = 64_000_000
"""Strings kept per process, and their total length."""

MAX_LABEL = 256

NO_STRING = 0

LOST_NAME = "(name lost)"
"""Stands for a string that never arrived (the ring was full) or exceeded the limit."""


class Attributes(NamedTuple):
    """The attributes of a range or mark. `category_id` is the program's number of the category,
    which may have no name.
    """

    name: str
    color: int | None = None
    category: str | None = None
    category_id: int | None = None


class Strings:
    """Id → text: NO_NAME for the empty one, LOST_NAME for a lost one."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._room = MAX_CHARACTERS

    def add(self, texts: dict[int, str]) -> None:
        """Add the strings a batch defined."""
        for number, text in texts.items():
            if len(self._texts) < MAX_STRINGS and len(text) <= self._room:
                self._room -= len(text)
                self._texts[number] = text

    def raw(self, number: int) -> str:
        """The text as the process wrote it."""
        return self._texts.get(number, LOST_NAME if number != NO_STRING else NO_NAME)

    def label(self, number: int) -> str:
        """The text sanitized, and cut to what a table can show."""
        return sanitize(self.raw(number), MAX_LABEL)

    def number(self, label: str) -> int:
        """The first id of a label; NO_STRING if there is none."""
        found = (number for number in self._texts if self.label(number) == label)
        return next(found, NO_STRING)

    def domain(self, number: int) -> str:
        """The name of a domain; id 0 is the default domain, whose name is empty."""
        return self.label(number) if number != NO_STRING else ""

    def range_attributes(self, record: np.void) -> Attributes:
        """The attributes in the record of a range or mark."""
        colored = int(record["sub"]) & FLAG_COLORED
        category = int(record["b"])
        return Attributes(
            self.label(int(record["name"])),
            int(record["c"]) & 0xFFFFFF if colored else None,
            self.label(category) if category != NO_STRING else None,
            int(record["e"]) or None,
        )
