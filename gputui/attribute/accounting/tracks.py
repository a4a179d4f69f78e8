"""Time by leaf along one device's time axis, until it is known where steps begin."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gputui.attribute.arrays import Int64s
from gputui.model.leaves import Leaf

LEAVES = len(Leaf)
WAITED = LEAVES
FETCHING = LEAVES + 1
"""Tracks beside those of the leaves, and the last columns: when the CPU waited for the GPU, busy or
idle; what of INPUT was fetching it."""

_Track = tuple[Int64s, Int64s, Int64s]
_NO_TRACK: _Track = (np.empty(0, np.int64),) * 3


class Tracks:
    """For each leaf a track: disjoint intervals in order, and how much of each is the leaf's.

    Tracks may lie over each other, since a gap has several causes; what all of them hold in an
    interval adds up to its length.
    """

    def __init__(self) -> None:
        self._tracks: dict[int, list[_Track]] = {}
        self._intervals = 0

    def __len__(self) -> int:
        """How many intervals are held."""
        return self._intervals

    @property
    def first_ns(self) -> int | None:
        """Where the first of them begins."""
        firsts = [int(parts[0][0][0]) for parts in self._tracks.values() if parts]
        return min(firsts, default=None)

    def add(self, leaf: int, starts: Int64s, ends: Int64s, amounts: Int64s) -> None:
        """More of a leaf, after what it has."""
        if len(starts):
            self._tracks.setdefault(leaf, []).append((starts, ends, amounts))
            self._intervals += len(starts)

    def take(self, boundaries: Int64s) -> npt.NDArray[np.int64]:
        """Time by leaf, and of the tracks beside, up to each boundary from the one before; the rest
        stays.

        Intervals that lie across a boundary are divided in proportion.
        """
        rows = np.zeros((len(boundaries), FETCHING + 1), np.int64)
        for leaf, parts in self._tracks.items():
            if not parts:
                continue
            kept: list[_Track] = []
            for part in parts:
                self._intervals -= len(part[0])
                left = _take_of(part, boundaries, rows[:, leaf])
                if len(left[0]):
                    kept.append(left)
                    self._intervals += len(left[0])
            self._tracks[leaf] = kept
        return rows

    def take_all(self) -> npt.NDArray[np.int64]:
        """Time by leaf, WAITED and FETCHING, of all that is held."""
        sums = np.zeros(FETCHING + 1, np.int64)
        for leaf, parts in self._tracks.items():
            sums[leaf] = sum(int(amounts.sum()) for _, _, amounts in parts)
        self._tracks.clear()
        self._intervals = 0
        return sums


def _take_of(part: _Track, boundaries: Int64s, sums: Int64s) -> _Track:
    """What is left of a part; what lies up to each boundary is added to `sums`."""
    starts, ends, amounts = part
    if starts[0] >= boundaries[-1]:
        return part
    if ends[-1] <= boundaries[0]:
        sums[0] += amounts.sum()
        return _NO_TRACK
    begun = np.searchsorted(starts, boundaries)
    sums += _sums_up_to(begun, amounts)
    last = np.maximum(begun - 1, 0)
    beyond = ends.take(last) - boundaries
    divided = np.flatnonzero((beyond > 0) & (begun > 0))
    first = int(begun[-1])
    if not len(divided):
        return starts[first:], ends[first:], amounts[first:]
    at, beyond = last.take(divided), beyond.take(divided)
    share = beyond / (ends.take(at) - starts.take(at))
    rest = np.zeros(len(boundaries) + 1, np.int64)
    rest[divided + 1] = np.rint(amounts.take(at) * share)
    sums -= rest[1:] - rest[:-1]
    if int(divided[-1]) < len(boundaries) - 1:
        return starts[first:], ends[first:], amounts[first:]
    # What goes on beyond the last boundary is kept from there on.
    first -= 1
    starts, amounts = starts[first:].copy(), amounts[first:].copy()
    starts[0], amounts[0] = boundaries[-1], rest[-1]
    return starts, ends[first:], amounts


def _sums_up_to(ends: npt.NDArray[np.intp], amounts: Int64s) -> Int64s:
    """The sum of the amounts before each end, from the one before on. Ends come in order."""
    sums = np.zeros(len(ends), np.int64)
    starts = np.concatenate(([0], ends[:-1]))
    some = np.flatnonzero(ends > starts)
    if len(some):
        sums[some] = np.add.reduceat(amounts[: ends[-1]], starts[some])
    return sums
