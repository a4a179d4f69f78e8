"""Strings of a report by the report's own string ids."""

from __future__ import annotations

import numpy as np

from gputui.attribute.arrays import Int64s
from gputui.imports.nsys.database import Database
from gputui.imports.texts import Texts


class Names(Texts):
    """Texts by number, and the numbers of the report's own string ids."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._of_ids: dict[int, int] = {}

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
