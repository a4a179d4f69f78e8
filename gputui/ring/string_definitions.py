"""Strings defined among a ring's records."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gputui.base.sanitize import sanitize
from gputui.ring.layout import SLOT, SLOT_BYTES, STRING_BYTES_MAX, STRING_BYTES_PER_SLOT, RecordKind
from gputui.ring.reader import Records


class StringDefinitions:
    """Separates string definitions from batches of records.

    Holds back a definition that ends in the next batch. `cleaner` makes each text safe to draw and
    store.
    """

    def __init__(self, cleaner: Callable[[str, int], str] = sanitize) -> None:
        self._clean = cleaner
        self._carried: Records = np.empty(0, SLOT)

    def split(self, records: Records) -> tuple[Records, dict[int, str]]:
        """The other records, and string id → text of the definitions among them.

        Batches must come in the order in which they were read. A definition precedes the first
        record that uses its id, except while records were dropped: then it may come later.
        """
        if len(self._carried):
            records = np.concatenate((self._carried, records))
            self._carried = self._carried[:0]
        candidates = np.flatnonzero(records["kind"] == RecordKind.STRING)
        if not len(candidates):
            return records, {}
        strings: dict[int, str] = {}
        keep = np.ones(len(records), np.bool_)
        numbers = records["published"]
        position = 0
        for start in candidates.tolist():
            if start < position:  # the bytes of a string may look like anything
                continue
            length = int(records["value"][start])
            keep[start] = False
            position = start + 1
            if length > STRING_BYTES_MAX:
                continue
            parts = -(-length // STRING_BYTES_PER_SLOT)
            position, whole = _end_of_string(numbers, start, parts)
            if not whole and position == len(records):
                self._carried = records[start:].copy()
                records, keep = records[:start], keep[:start]
                break
            keep[start:position] = False
            if whole:
                slots = records[start + 1 : position].view(np.uint8).reshape(parts, SLOT_BYTES)
                text = slots[:, :STRING_BYTES_PER_SLOT].tobytes()[:length]
                strings[int(records["name"][start])] = self._clean(
                    text.decode("utf-8", "replace"), STRING_BYTES_MAX
                )
        return records[keep], strings


def _end_of_string(numbers: npt.NDArray[np.uint32], start: int, parts: int) -> tuple[int, bool]:
    """Where the slots of the string at `start` end, and whether all of them are there.

    Slots are numbered, so a string whose writer was killed half-way swallows nothing else.
    """
    end = start + 1 + parts
    first = int(numbers[start])
    if end <= len(numbers) and int(numbers[end - 1]) == (first + parts) & 0xFFFFFFFF:
        return end, True
    behind = numbers[start + 1 : end] - np.uint32(first)  # wraps, as the numbers do
    return start + 1 + int(np.count_nonzero(behind <= parts)), False
