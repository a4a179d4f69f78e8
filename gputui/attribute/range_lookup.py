"""In which range a moment of a thread lies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputui.attribute.arrays import Bools, Int64s, join, run_starts
from gputui.attribute.instances import NO_INSTANCE
from gputui.attribute.range_stacks import RangeStack, RangeStacks
from gputui.attribute.timeline import NO_NODE

_LIBRARY = 2


@dataclass(slots=True)
class Placement:
    """Where moments lie: one row each, and rows of `secondary` for further domains.

    `instances` and `nodes` belong to the innermost range of the default domain, else of the
    program's other domains. If the thread had none open they are the main thread's and `inherited`
    is set. `secondary` index a moment and give the innermost range in another domain of the same
    thread, libraries included.
    """

    instances: Int64s
    nodes: Int64s
    inherited: Bools
    secondary: Int64s
    secondary_instances: Int64s
    secondary_nodes: Int64s


def place(stacks: RangeStacks, main_thread: int, threads: Int64s, times_ns: Int64s) -> Placement:
    """Find the ranges around each moment of a thread."""
    count = len(threads)
    instances = np.full(count, NO_INSTANCE)
    nodes = np.full(count, NO_NODE)
    secondary: list[Int64s] = []
    secondary_instances: list[Int64s] = []
    secondary_nodes: list[Int64s] = []
    for thread, rows in _by_thread(stacks, threads):
        for stack in stacks.of_thread(thread):
            stack_instances, stack_nodes = stack.timeline.at(times_ns[rows])
            first = nodes[rows] == NO_NODE
            inside = stack_nodes != NO_NODE
            chosen = first & inside & (stack.priority < _LIBRARY)
            instances[rows[chosen]] = stack_instances[chosen]
            nodes[rows[chosen]] = stack_nodes[chosen]
            also = inside & ~chosen
            if also.any():
                secondary.append(rows[also])
                secondary_instances.append(stack_instances[also])
                secondary_nodes.append(stack_nodes[also])
    inherited = _inherit(stacks.of_thread(main_thread), threads, main_thread, times_ns,
                         instances, nodes)  # fmt: skip
    return Placement(
        instances,
        nodes,
        inherited,
        join(secondary, np.int64),
        join(secondary_instances, np.int64),
        join(secondary_nodes, np.int64),
    )


def _by_thread(stacks: RangeStacks, threads: Int64s) -> list[tuple[int, Int64s]]:
    """The rows of each thread that has stacks."""
    first = int(threads[0])
    if (threads == first).all():
        return [(first, np.arange(len(threads)))]
    rows = np.flatnonzero(np.isin(threads, stacks.threads()))
    if not len(rows):
        return []
    rows = rows[np.argsort(threads[rows], kind="stable")]
    starts = run_starts(threads[rows])
    parts = np.split(rows, starts[1:])
    return [(int(threads[part[0]]), part) for part in parts]


def _inherit(
    stacks: list[RangeStack],
    threads: Int64s,
    main_thread: int,
    times_ns: Int64s,
    instances: Int64s,
    nodes: Int64s,
) -> Bools:
    inherited = np.zeros(len(threads), np.bool_)
    for stack in stacks:
        if stack.priority >= _LIBRARY:
            break
        rows = np.flatnonzero((nodes == NO_NODE) & (threads != main_thread))
        if not len(rows):
            break
        stack_instances, stack_nodes = stack.timeline.at(times_ns[rows])
        inside = stack_nodes != NO_NODE
        instances[rows[inside]] = stack_instances[inside]
        nodes[rows[inside]] = stack_nodes[inside]
        inherited[rows[inside]] = True
    return inherited
