"""What a device did and why it idled, by phase.

What runs counts in the innermost range that launched it. A gap is the work of the thread that
launched what ends it: each of its causes is divided, in proportion to time, among the innermost
ranges that were open there. A thread without ranges takes the main thread's, as everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.host import Rows
from gputui.attribute.accounting.tracks import LEAVES
from gputui.attribute.arrays import Int64s, UInt32s, distinct
from gputui.attribute.range_stacks import RangeStack, RangeStacks
from gputui.attribute.timeline import NO_NODE

_LIBRARY = 2
_FEW_NODES = 4096


class PhaseLeaves:
    """Time of one device by range and leaf."""

    def __init__(self, stacks: RangeStacks, main_thread: int) -> None:
        self._stacks = stacks
        self._main_thread = main_thread
        self._busy: dict[tuple[int, int], int] = defaultdict(int)
        self._idle: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        self._idle_ns: dict[int, int] = defaultdict(int)

    def take(self) -> dict[tuple[int, int], int]:
        """Node and leaf → ns since the last call; nothing as long as there are no ranges."""
        if not self._stacks.all():
            return {}
        found = dict(self._busy)
        for node, causes in self._idle.items():
            # To the nanosecond: what rounding leaves is the largest cause's.
            rounded = {leaf: round(ns) for leaf, ns in causes.items()}
            largest = max(rounded, key=lambda leaf: rounded[leaf])
            rounded[largest] += self._idle_ns[node] - sum(rounded.values())
            found |= {(node, leaf): ns for leaf, ns in rounded.items() if ns}
        for sums in (self._busy, self._idle, self._idle_ns):
            sums.clear()
        return found

    def add_busy(self, nodes: Int64s, leaves: npt.NDArray[np.uint8], exposed: Int64s) -> None:
        """Operations by the innermost range that launched them, as far as they count."""
        if len(nodes):
            for key, ns in _sums(nodes * LEAVES + leaves, exposed):
                self._busy[divmod(key, LEAVES)] += round(ns)

    def add_idle(
        self,
        parts: Iterable[tuple[int, Rows, Int64s]],
        starts_ns: Int64s,
        ends_ns: Int64s,
        threads: UInt32s,
    ) -> None:
        """Gaps, disjoint and in order, that end with what `threads` launched; `parts` are their
        causes: leaf, gaps, amounts."""
        lengths = ends_ns - starts_ns
        if not self._stacks.all():
            self._idle_ns[NO_NODE] += int(lengths.sum())
            for leaf, _, amounts in parts:
                self._idle[NO_NODE][int(leaf)] += int(amounts.sum())
            return
        shares = [
            (leaf, np.bincount(rows, amounts, len(lengths)) / lengths)
            for leaf, rows, amounts in parts
        ]
        present = distinct(threads)
        for thread in present.tolist():
            of: Rows | slice = slice(None)
            if len(present) > 1:
                of = np.flatnonzero(threads == thread)
            its = [(leaf, share[of]) for leaf, share in shares]
            self._share_out(thread, starts_ns[of], lengths[of], its)

    def _share_out(
        self,
        thread: int,
        starts_ns: Int64s,
        lengths: Int64s,
        shares: list[tuple[int, npt.NDArray[np.float64]]],
    ) -> None:
        stacks = _own(self._stacks.of_thread(thread)) or _own(
            self._stacks.of_thread(self._main_thread)
        )
        first_ns, last_ns = int(starts_ns[0]), int(starts_ns[-1] + lengths[-1])
        moments = [stack.timeline.moments(first_ns, last_ns) for stack in stacks]
        times = np.concatenate((np.array([first_ns]), *moments))
        if len(moments) > 1:
            times = np.sort(times)
        nodes = np.zeros(len(times), np.int64)
        for stack in stacks:  # the default domain comes first
            outside = nodes == NO_NODE
            if outside.any():
                nodes[outside] = stack.timeline.at(times[outside])[1]
        bounds = np.append(times, last_ns)
        gap = np.maximum(np.searchsorted(starts_ns, bounds, side="right") - 1, 0)
        inside = np.clip(bounds - starts_ns[gap], 0, lengths[gap])
        passed = np.diff((np.cumsum(lengths) - lengths)[gap] + inside)
        for node, ns in _sums(nodes, passed):
            self._idle_ns[node] += round(ns)
        for leaf, share in shares:
            amounts = share * lengths
            before = np.cumsum(amounts) - amounts
            for node, ns in _sums(nodes, np.diff(before[gap] + inside * share[gap])):
                self._idle[node][int(leaf)] += ns


def _sums(
    keys: Int64s, amounts: npt.NDArray[np.int64] | npt.NDArray[np.float64]
) -> Iterator[tuple[int, float]]:
    """The sum of each key that has one."""
    if int(keys.max()) < _FEW_NODES * LEAVES:
        sums = np.bincount(keys, amounts)
        found = np.flatnonzero(sums)
        sums = sums[found]
    else:
        found, places = np.unique(keys, return_inverse=True)
        sums = np.bincount(places, amounts)
    return zip(found.tolist(), sums.tolist(), strict=True)


def _own(stacks: list[RangeStack]) -> list[RangeStack]:
    return [stack for stack in stacks if stack.priority < _LIBRARY]
