"""The launches of one process in the order of their calls, which is where steps are found."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.operations import FIRST_KERNEL, Columns, Kernels
from gputui.attribute.arrays import Bools, Int64s, Slots, pick
from gputui.attribute.range_kernels import NO_KERNEL
from gputui.ring.layout import RecordKind

HELD_NS = 10_000_000_000
HELD_LAUNCHES = 1 << 17
"""How long, and how many, launches wait until it is clear where steps begin."""

_MEMSET = 32
_GRAPH = 1 << 24


class Sequence(NamedTuple):
    """Launches in the order of their calls: when each one's first operation began on the device,
    its token, its family's and what it says of where it stands in a step."""

    starts: Int64s
    tokens: npt.NDArray[np.uint32]
    families: npt.NDArray[np.uint32]
    cues: npt.NDArray[np.uint8]


class _Launched(NamedTuple):
    """Launches: when each was called, when its first operation began on the device, its token."""

    called_ns: Int64s
    starts: Int64s
    tokens: npt.NDArray[np.uint32]

    def cut(self, first: int, last: int | None = None) -> _Launched:
        """Those from `first` to before `last`."""
        return _Launched._make(column[first:last] for column in self)


_NOTHING = _Launched(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint32))


class LaunchOrder:
    """Launches in, in any order; sorted by their calls out."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._sorted = _NOTHING
        self._new: list[_Launched] = []

    def add(
        self,
        operations: Columns,
        records: Slots,
        calls: Slots,
        kernels: Int64s,
        first: Bools,
        is_graph: Bools,
    ) -> None:
        """The operations that are the `first` of their call, of those that `columns` made of the
        others; `is_graph` by the call's name."""
        starts, called = operations.starts, operations.called_ns
        known = first & (calls["sequence"] >= 0)
        if not known.all():
            records, calls = pick(records, known), pick(calls, known)
            kernels, starts, called = kernels[known], starts[known], called[known]
        if not len(records):
            return
        tokens = (FIRST_KERNEL + kernels).astype(np.uint32)
        others = np.flatnonzero(kernels == NO_KERNEL)
        if len(others):
            copied = pick(records, others)
            tokens[others] = np.where(
                copied["kind"] == RecordKind.MEMCPY, copied["sub"], np.uint32(_MEMSET)
            )
        if is_graph.any() and (graphs := np.flatnonzero(is_graph.take(calls["name"]))).size:
            tokens[graphs] = _GRAPH + (records["e"][graphs].astype(np.int64) & 0xFF_FFFF)
        self._new.append(_Launched(called, starts, tokens))

    def starts_after(self, moments_ns: Int64s) -> list[int]:
        """When the first operation began that was launched at or after each moment."""
        known = self._all()
        at = np.searchsorted(known.called_ns, np.sort(moments_ns))
        found: list[int] = np.unique(known.starts[at[at < len(known.called_ns)]]).tolist()
        return found

    def keep_newest(self) -> None:
        """Steps come as ranges: the launches that they may begin with stay."""
        known = self._all()
        if len(known.called_ns):
            horizon_ns = int(known.called_ns[-1]) - HELD_NS
            first = int(np.searchsorted(known.called_ns, horizon_ns))
            self._sorted = known.cut(max(first, len(known.called_ns) - HELD_LAUNCHES))

    def take(self, until_ns: int | None) -> Sequence:
        """Those that were called before."""
        known = self._all()
        ready = len(known.called_ns)
        if until_ns is not None:
            ready = int(np.searchsorted(known.called_ns, until_ns))
        self._sorted = known.cut(ready)
        tokens = known.tokens[:ready]
        numbers = tokens.astype(np.int64) - FIRST_KERNEL
        families = self._kernels.families.take(numbers, mode="clip")
        cues = self._kernels.cues.take(numbers, mode="clip")
        others = np.flatnonzero((tokens < FIRST_KERNEL) | (tokens >= _GRAPH))
        families[others], cues[others] = tokens[others], 0
        return Sequence(known.starts[:ready], tokens, families, cues)

    def _all(self) -> _Launched:
        if self._new:
            joined = _Launched._make(
                np.concatenate(column) for column in zip(self._sorted, *self._new, strict=True)
            )
            self._new.clear()
            called = joined.called_ns
            if (called[1:] < called[:-1]).any():
                order = np.argsort(called, kind="stable")
                joined = _Launched._make(column.take(order) for column in joined)
            self._sorted = joined
        return self._sorted
