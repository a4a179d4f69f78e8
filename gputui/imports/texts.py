"""Strings of an imported file, numbered from 1 like a process's strings in the capture library."""

from __future__ import annotations

from gputui.ring.layout import STRING_BYTES_MAX

MAX_TEXTS = 400_000
"""Distinct strings kept; any further ones are lost."""


class Texts:
    """Texts by number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.texts: dict[int, str] = {}

    def of_text(self, text: str) -> int:
        """The number of a text, which is new if it was not seen before."""
        number = self._numbers.get(text)
        if number is not None:
            return number
        text = text[:STRING_BYTES_MAX]
        number = self._numbers.get(text)
        if number is None:
            if len(self._numbers) >= MAX_TEXTS:
                return MAX_TEXTS + 1
            number = len(self._numbers) + 1
            self._numbers[text] = number
            self.texts[number] = text
        return number
