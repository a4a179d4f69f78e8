"""What a device did and why it idled, by phase.

What runs counts in the innermost range that launched it. A gap is the work of the thread that
launched what ends it: each of its causes is divided, in proportion to time, among the innermost
ranges that were open there. A thread without ranges takes the main thread's, as everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.host_threads import Rows, spread
from gputui.attribute.arrays import Int64s, UInt32s, distinct
from gputui.attribute.range_stacks import NO_NODE, RangeStack, RangeStacks

Share = tuple[int, Rows, Int64s]
"""A leaf, the gaps that it has a part of, in order, and how much of each."""

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

    def add_busy(self, parts: Sequence[tuple[int, Int64s, Int64s]]) -> None:
        """Operations by leaf: the innermost ranges that launched them, and how much counts."""
        sums = [
            (node, leaf, round(ns))
            for leaf, nodes, exposed in parts
            for node, ns in _by_node(nodes, exposed)
        ]
        for node, leaf, ns in sorted(sums):
            self._busy[node, leaf] += ns

    def add_idle(
        self,
        parts: Sequence[Share],
        starts_ns: Int64s,
        lengths: Int64s,
        threads: UInt32s,
    ) -> None:
        """Gaps, disjoint and in order, that end with what `threads` launched; `parts` are their
        causes, which add up to the gaps."""
        if not self._stacks.all():
            self._idle_ns[NO_NODE] += int(lengths.sum())
            for leaf, _, amounts in parts:
                self._idle[NO_NODE][int(leaf)] += int(amounts.sum())
            return
        launched_by = distinct(threads).tolist()
        if len(launched_by) == 1:
            self._share_out(launched_by[0], starts_ns, lengths, list(parts))
            return
        for thread in launched_by:
            its = threads == thread
            of = np.flatnonzero(its)
            place = np.cumsum(its) - 1
            shares: list[Share] = []
            for leaf, rows, amounts in parts:
                own = np.flatnonzero(its.take(rows))
                shares.append((leaf, place.take(rows.take(own)), amounts.take(own)))
            self._share_out(thread, starts_ns.take(of), lengths.take(of), shares)

    def _share_out(
        self, thread: int, starts_ns: Int64s, lengths: Int64s, shares: list[Share]
    ) -> None:
        stacks = _own(self._stacks.of_thread(thread)) or _own(
            self._stacks.of_thread(self._main_thread)
        )
        bounds, nodes = _innermost(stacks, int(starts_ns[0]), int(starts_ns[-1] + lengths[-1]))
        gap = np.maximum(np.searchsorted(starts_ns, bounds, side="right") - 1, 0)
        inside = np.minimum(np.maximum(bounds - starts_ns.take(gap), 0), lengths.take(gap))
        before = np.zeros(len(lengths), np.int64)
        np.cumsum(lengths[:-1], out=before[1:])
        inside += before.take(gap)
        passed = inside[1:] - inside[:-1]
        left = dict(_sums(nodes, passed))
        for node, ns in left.items():
            self._idle_ns[node] += round(ns)
        # The cause of the most gaps, launching as a rule, has what the others leave.
        most = max(range(len(shares)), key=lambda at: len(shares[at][1]))
        found = [_overlaps(bounds, nodes, starts_ns, lengths, *amounts) if at != most else {}
                 for at, (_, *amounts) in enumerate(shares)]  # fmt: skip
        for sums in found:
            for node, ns in sums.items():
                left[node] -= ns
        found[most] = left
        for (leaf, *_), sums in zip(shares, found, strict=True):
            for node, ns in sums.items():
                self._idle[node][int(leaf)] += ns


def _innermost(stacks: list[RangeStack], first_ns: int, last_ns: int) -> tuple[Int64s, Int64s]:
    """The moments from `first_ns` to `last_ns`, both among them, between which one range stays the
    innermost, and its node; the default domain comes first."""
    ends = np.array([first_ns]), np.array([last_ns])
    if len(stacks) == 1:
        times, nodes = stacks[0].timeline.between(first_ns, last_ns)
        return np.concatenate((ends[0], times, ends[1])), nodes
    moments = [stack.timeline.between(first_ns, last_ns)[0] for stack in stacks]
    times = np.sort(np.concatenate((ends[0], *moments)))
    nodes = np.zeros(len(times), np.int64)
    for stack in stacks:
        outside = np.flatnonzero(nodes == NO_NODE)
        if len(outside):
            nodes[outside] = stack.timeline.at(times[outside])[1]
    return np.concatenate((times, ends[1])), nodes


def _overlaps(
    bounds: Int64s,
    nodes: Int64s,
    starts_ns: Int64s,
    lengths: Int64s,
    rows: Rows,
    amounts: Int64s,
) -> dict[int, float]:
    """Amounts of the gaps at these rows by node, in proportion to the time that each has in
    them."""
    if not len(rows):
        return {}
    begins, lengths = starts_ns.take(rows), lengths.take(rows)
    ends = begins + lengths
    of, at = spread(
        np.searchsorted(bounds, begins, side="right") - 1, np.searchsorted(bounds, ends)
    )
    shared = np.minimum(bounds.take(at + 1), ends.take(of))
    shared -= np.maximum(bounds.take(at), begins.take(of))
    return dict(_sums(nodes.take(at), amounts.take(of) * (shared / lengths.take(of))))


def _by_node(nodes: Int64s, amounts: Int64s) -> Iterable[tuple[int, float]]:
    if not len(nodes):
        return ()
    if (nodes == nodes[0]).all():
        return [(int(nodes[0]), int(amounts.sum()))]
    return _sums(nodes, amounts)


def _sums(
    keys: Int64s, amounts: npt.NDArray[np.int64] | npt.NDArray[np.float64]
) -> Iterator[tuple[int, float]]:
    found, places = None, keys
    if int(keys.max()) >= _FEW_NODES:
        found, places = np.unique(keys, return_inverse=True)
    sums = np.bincount(places, amounts)
    some = np.flatnonzero(sums)
    found = some if found is None else found[some]
    return zip(found.tolist(), sums[some].tolist(), strict=True)


def _own(stacks: list[RangeStack]) -> list[RangeStack]:
    return [stack for stack in stacks if stack.priority < _LIBRARY]
