"""The launches of one process in the order of their calls, which is where steps are found."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gputui.attribute.accounting.operations import FIRST_KERNEL, Columns, Kernels
from gputui.attribute.accounting.repetition import Cues, Tokens
from gputui.attribute.arrays import Bools, Int64s, Slots, pick

HELD_NS = 10_000_000_000
HELD_LAUNCHES = 1 << 17
"""How long, and how many, launches wait until it is clear where steps begin."""

_GRAPH = 1 << 24


class Launched(NamedTuple):
    """Launches: when each was called, when its first operation began on the device, its token."""

    called_ns: Int64s
    starts: Int64s
    tokens: Tokens

    def cut(self, first: int, last: int | None = None) -> Launched:
        """Those from `first` to before `last`."""
        return Launched._make(column[first:last] for column in self)


_NOTHING = Launched(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint32))


class LaunchOrder:
    """Launches in, in any order; sorted by their calls out."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._sorted = _NOTHING
        self._new: list[Launched] = []

    def add(
        self,
        operations: Columns,
        records: Slots,
        calls: Slots,
        first: Bools,
        is_graph: Bools,
    ) -> None:
        """The operations that are the `first` of their call, which is known, of those that
        `columns` made of the others; `is_graph` by the call's name."""
        launched = Launched(operations.called_ns, operations.starts, operations.codes)
        if not first.all():
            records, calls = pick(records, first), pick(calls, first)
            launched = Launched._make(column[first] for column in launched)
        if not len(records):
            return
        if is_graph.any() and (graphs := np.flatnonzero(is_graph.take(calls["name"]))).size:
            tokens = launched.tokens.copy()
            tokens[graphs] = _GRAPH + (records["e"][graphs].astype(np.int64) & 0xFF_FFFF)
            launched = launched._replace(tokens=tokens)
        self._new.append(launched)

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

    def take(self, until_ns: int | None) -> Launched:
        """Those that were called before, in the order of their calls."""
        known = self._all()
        ready = len(known.called_ns)
        if until_ns is not None:
            ready = int(np.searchsorted(known.called_ns, until_ns))
        self._sorted = known.cut(ready)
        return known.cut(0, ready)

    def meanings(self, tokens: Tokens) -> tuple[Tokens, Cues]:
        """The tokens of their families, and what they say of where they stand in a step."""
        numbers = tokens.astype(np.int64) - FIRST_KERNEL
        families = self._kernels.families.take(numbers, mode="clip")
        cues = self._kernels.cues.take(numbers, mode="clip")
        others = np.flatnonzero((tokens < FIRST_KERNEL) | (tokens >= _GRAPH))
        families[others], cues[others] = tokens[others], 0
        return families, cues

    def _all(self) -> Launched:
        if self._new:
            joined = Launched._make(
                np.concatenate(column) for column in zip(self._sorted, *self._new, strict=True)
            )
            self._new.clear()
            called = joined.called_ns
            if (called[1:] < called[:-1]).any():
                order = np.argsort(called, kind="stable")
                joined = Launched._make(column.take(order) for column in joined)
            self._sorted = joined
        return self._sorted
