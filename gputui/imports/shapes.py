"""Launch shapes of a report, numbered like a process's shapes in the capture library."""

from __future__ import annotations

import numpy as np

from gputui.attribute.arrays import Int64s, Slots, UInt32s
from gputui.attribute.definitions import MOST
from gputui.ring.layout import SLOT, RecordKind

_LOW = 0xFFFF_FFFF


class LaunchShapes:
    """Numbers of the distinct shapes, and the records that define them."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}

    def of(self, names: UInt32s, rows: Int64s) -> Int64s:
        """The number of each kernel's shape, 0 if the report does not have it.

        `rows` has grid x y z, block x y z, registers, static and dynamic shared bytes.
        """
        numbers = np.zeros(len(rows), np.int64)
        told = np.flatnonzero(rows[:, 0] > 0)
        if len(told):
            whole = np.column_stack((names[told], np.clip(rows[told], 0, _LOW)))
            keys, places = np.unique(whole, axis=0, return_inverse=True)
            found = np.array([self._number(tuple(key)) for key in keys.tolist()], np.int64)
            numbers[told] = found[places.reshape(-1)]
        return numbers

    def _number(self, key: tuple[int, ...]) -> int:
        number = self._numbers.get(key, 0)
        if not number and len(self._numbers) < MOST - 1:
            number = self._numbers[key] = len(self._numbers) + 1
        return number

    def records(self, numbers: list[int]) -> Slots:
        """The records that define these shapes."""
        records = np.zeros(len(numbers), SLOT)
        if not numbers:
            return records
        keys = list(self._numbers)
        name, *geometry = np.array([keys[number - 1] for number in numbers], np.uint64).T
        records["kind"] = RecordKind.LAUNCH_SHAPE
        records["d"] = numbers
        records["name"] = name
        records["start"] = geometry[0] | geometry[1] << np.uint64(32)
        records["end"] = geometry[2] | geometry[3] << np.uint64(32)
        records["value"] = geometry[4] | geometry[5] << np.uint64(32)
        for field, column in zip("abc", geometry[6:], strict=True):
            records[field] = column
        return records
