"""The launches of one process in the order of their calls, which is where steps are found."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.operations import FIRST_KERNEL, Columns, Kernels
from gputui.attribute.accounting.repetition import Cues, Tokens
from gputui.attribute.arrays import Bools, Int64s, Slots

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

    def pick(self, rows: npt.NDArray[np.intp]) -> Launched:
        """Some of them."""
        return Launched._make(column.take(rows) for column in self)

    def with_kernels(self, newest_ns: int = 0) -> Launched:
        """No copy earlier than the newest kernel launched before, of those before these the one at
        `newest_ns`: copies of the next batches run ahead on a stream of their own, whole steps."""
        is_kernel = self.tokens >= FIRST_KERNEL
        if is_kernel.all():
            return self
        kernels = np.append(self.starts[is_kernel], newest_ns)
        before = np.cumsum(is_kernel) - 1
        starts = np.where(is_kernel, self.starts, np.maximum(self.starts, kernels[before]))
        return self._replace(starts=starts)


_NOTHING = Launched(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint32))


class LaunchOrder:
    """Launches in, in any order; sorted by their calls out."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._parts = [_NOTHING]
        self._new: list[Launched] = []
        self._newest_kernel_ns = 0

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
        if is_graph.any() and (graphs := np.flatnonzero(is_graph.take(calls["name"]))).size:
            tokens = launched.tokens.copy()
            tokens[graphs] = _GRAPH + (records["e"][graphs].astype(np.int64) & 0xFF_FFFF)
            launched = launched._replace(tokens=tokens)
        if not first.all():
            launched = launched.pick(np.flatnonzero(first))
        if len(launched.starts):
            self._new.append(launched)

    def starts_after(self, moments_ns: Int64s) -> list[int]:
        """When the first operation began that was launched at or after each moment."""
        moments_ns = np.sort(moments_ns)
        self._settle()
        late = [part for part in self._parts
                if len(part.starts) and part.called_ns[-1] >= moments_ns[0]]  # fmt: skip
        if not late:
            return []
        known = _joined(late).with_kernels()
        at = np.searchsorted(known.called_ns, moments_ns)
        found: list[int] = np.unique(known.starts[at[at < len(known.called_ns)]]).tolist()
        return found

    def keep_newest(self) -> None:
        """Steps come as ranges: the launches that they may begin with stay."""
        self._settle()
        newest = self._parts[-1].called_ns
        if not len(newest):
            return
        horizon_ns = int(newest[-1]) - HELD_NS
        surplus = sum(len(part.starts) for part in self._parts) - HELD_LAUNCHES
        while True:
            oldest = self._parts[0]
            first = max(int(np.searchsorted(oldest.called_ns, horizon_ns)), surplus)
            if first < len(oldest.starts):
                self._parts[0] = oldest.cut(first)
                return
            surplus -= len(oldest.starts)
            del self._parts[0]

    def take(self, until_ns: int | None) -> Launched:
        """Those that were called before, in the order of their calls."""
        self._settle()
        known = _joined(self._parts)
        ready = len(known.called_ns)
        if until_ns is not None:
            ready = int(np.searchsorted(known.called_ns, until_ns))
        self._parts = [known.cut(ready)]
        found = known.cut(0, ready).with_kernels(self._newest_kernel_ns)
        kernels = np.flatnonzero(found.tokens >= FIRST_KERNEL)
        if len(kernels):
            self._newest_kernel_ns = int(found.starts[kernels[-1]])
        return found

    def meanings(self, tokens: Tokens) -> tuple[Tokens, Cues]:
        """The tokens of their families, and what they say of where they stand in a step."""
        numbers = tokens.astype(np.int64) - FIRST_KERNEL
        families = self._kernels.families.take(numbers, mode="clip")
        cues = self._kernels.cues.take(numbers, mode="clip")
        others = np.flatnonzero((tokens < FIRST_KERNEL) | (tokens >= _GRAPH))
        families[others], cues[others] = tokens[others], 0
        return families, cues

    def _settle(self) -> None:
        """Take in what is new: parts in order, one after the other."""
        if not self._new:
            return
        new, self._new = self._new, []
        if 4 * len(self._parts[-1].starts) < sum(len(part.starts) for part in new):
            new.insert(0, self._parts.pop())  # little is left, as a rule
        part = _joined(new)
        if self._parts and part.called_ns.min() < self._parts[-1].called_ns[-1]:
            part, self._parts = _joined([*self._parts, part]), []
        if (part.called_ns[1:] < part.called_ns[:-1]).any():
            part = part.pick(np.argsort(part.called_ns, kind="stable"))
        self._parts.append(part)


def _joined(parts: list[Launched]) -> Launched:
    if len(parts) == 1:
        return parts[0]
    return Launched._make(np.concatenate(column) for column in zip(*parts, strict=True))
