"""Where the program was while a device was idle.

A gap in a device's work ends with an operation. Its cause is what the thread that launched that
operation did meanwhile: each gap is divided, to the nanosecond, among the innermost ranges open
there. A thread without ranges takes the main thread's, as everywhere.
"""

from __future__ import annotations

import numpy as np

from gputui.attribute.arrays import Int64s, run_starts
from gputui.attribute.range_stacks import RangeStack, RangeStacks
from gputui.attribute.timeline import NO_NODE

_LIBRARY = 2


def idle_by_node(
    stacks: RangeStacks, main_thread: int, threads: Int64s, starts_ns: Int64s, ends_ns: Int64s
) -> dict[int, int]:
    """The idle time in each node.

    The gaps are those of one device, disjoint and in order of time; `threads` launched the
    operations that ended them.
    """
    shares: dict[int, int] = {}
    order = np.argsort(threads, kind="stable")
    firsts = run_starts(threads[order])
    for rows in np.split(order, firsts[1:]):
        thread = int(threads[rows[0]])
        of = _own(stacks.of_thread(thread)) or _own(stacks.of_thread(main_thread))
        for node, idle_ns in _shared_out(of, starts_ns[rows], ends_ns[rows]):
            shares[node] = shares.get(node, 0) + idle_ns
    return shares


def _own(stacks: list[RangeStack]) -> list[RangeStack]:
    return [stack for stack in stacks if stack.priority < _LIBRARY]


def _shared_out(
    stacks: list[RangeStack], starts_ns: Int64s, ends_ns: Int64s
) -> list[tuple[int, int]]:
    first_ns, last_ns = int(starts_ns[0]), int(ends_ns[-1])
    moments = [stack.timeline.moments(first_ns, last_ns) for stack in stacks]
    times = np.concatenate((np.array([first_ns]), *moments))
    if len(moments) > 1:
        times = np.sort(times)
    nodes = np.zeros(len(times), np.int64)
    for stack in stacks:  # the default domain comes first
        outside = nodes == NO_NODE
        if outside.any():
            nodes[outside] = stack.timeline.at(times[outside])[1]
    passed = _idle_before(np.append(times, last_ns), starts_ns, ends_ns)
    idle = np.bincount(nodes, np.diff(passed)).astype(np.int64)
    found = np.flatnonzero(idle)
    return list(zip(found.tolist(), idle[found].tolist(), strict=True))


def _idle_before(times: Int64s, starts_ns: Int64s, ends_ns: Int64s) -> Int64s:
    """The idle time before each moment."""
    lengths = ends_ns - starts_ns
    before = np.cumsum(lengths) - lengths
    gap = np.maximum(np.searchsorted(starts_ns, times, side="right") - 1, 0)
    inside: Int64s = before[gap] + np.clip(times - starts_ns[gap], 0, lengths[gap])
    return inside
