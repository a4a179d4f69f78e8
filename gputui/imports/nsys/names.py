"""Strings of a report, numbered from 1 like a process's strings in the capture library."""

from __future__ import annotations

import numpy as np

from gputui.attribute.arrays import Int64s
from gputui.imports.nsys.database import Database
from gputui.ring.layout import STRING_BYTES_MAX

MAX_NAMES = 400_000
"""Distinct strings kept; any further ones are lost."""


class Names:
    """Texts by number, and the numbers of the report's own string ids."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._numbers: dict[str, int] = {}
        self._of_ids: dict[int, int] = {}
        self.texts: dict[int, str] = {}

    def of_text(self, text: str) -> int:
        text = text[:STRING_BYTES_MAX]
        number = self._numbers.get(text)
        if number is None:
            if len(self._numbers) >= MAX_NAMES:
                return MAX_NAMES + 1
            number = len(self._numbers) + 1
            self._numbers[text] = number
            self.texts[number] = text
        return number

    def of_id(self, identifier: int) -> int:
        """The number of the text with this id in StringIds."""
        number = self._of_ids.get(identifier)
        if number is None:
            text = self._database.text("StringIds", "id", identifier, "value")
            number = self.of_text(text if text is not None else f"(string {identifier})")
            self._of_ids[identifier] = number
        return number

    def of_ids(self, identifiers: Int64s) -> Int64s:
        """The numbers of the texts with these ids."""
        different, inverse = np.unique(identifiers, return_inverse=True)
        numbers = np.array([self.of_id(identifier) for identifier in different.tolist()], np.int64)
        return numbers[inverse]
