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
    """Where moments lie: one row each, and rows of `others` for further domains.

    `instances` and `nodes` belong to the innermost range of the default domain, else of the
    program's other domains. If the thread had none open they are the main thread's and `inherited`
    is set. `others` index a moment and give the innermost range in another domain of the same
    thread, libraries included.
    """

    instances: Int64s
    nodes: Int64s
    inherited: Bools
    others: Int64s
    other_instances: Int64s
    other_nodes: Int64s


def place(lanes: RangeStacks, main_thread: int, threads: Int64s, times_ns: Int64s) -> Placement:
    """Find the ranges around each moment of a thread."""
    count = len(threads)
    instances = np.full(count, NO_INSTANCE)
    nodes = np.full(count, NO_NODE)
    others: list[Int64s] = []
    other_instances: list[Int64s] = []
    other_nodes: list[Int64s] = []
    for thread, rows in _by_thread(lanes, threads):
        for lane in lanes.of_thread(thread):
            lane_instances, lane_nodes = lane.timeline.at(times_ns[rows])
            first = nodes[rows] == NO_NODE
            inside = lane_nodes != NO_NODE
            chosen = first & inside & (lane.priority < _LIBRARY)
            instances[rows[chosen]] = lane_instances[chosen]
            nodes[rows[chosen]] = lane_nodes[chosen]
            beside = inside & ~chosen
            if beside.any():
                others.append(rows[beside])
                other_instances.append(lane_instances[beside])
                other_nodes.append(lane_nodes[beside])
    inherited = _inherit(lanes.of_thread(main_thread), threads, main_thread, times_ns,
                         instances, nodes)  # fmt: skip
    return Placement(
        instances,
        nodes,
        inherited,
        join(others, np.int64),
        join(other_instances, np.int64),
        join(other_nodes, np.int64),
    )


def _by_thread(lanes: RangeStacks, threads: Int64s) -> list[tuple[int, Int64s]]:
    """The rows of each thread that has stacks."""
    first = int(threads[0])
    if (threads == first).all():
        return [(first, np.arange(len(threads)))]
    rows = np.flatnonzero(np.isin(threads, lanes.threads()))
    if not len(rows):
        return []
    rows = rows[np.argsort(threads[rows], kind="stable")]
    starts = run_starts(threads[rows])
    parts = np.split(rows, starts[1:])
    return [(int(threads[part[0]]), part) for part in parts]


def _inherit(
    lanes: list[RangeStack],
    threads: Int64s,
    main_thread: int,
    times_ns: Int64s,
    instances: Int64s,
    nodes: Int64s,
) -> Bools:
    inherited = np.zeros(len(threads), np.bool_)
    for lane in lanes:
        if lane.priority >= _LIBRARY:
            break
        rows = np.flatnonzero((nodes == NO_NODE) & (threads != main_thread))
        if not len(rows):
            break
        lane_instances, lane_nodes = lane.timeline.at(times_ns[rows])
        inside = lane_nodes != NO_NODE
        instances[rows[inside]] = lane_instances[inside]
        nodes[rows[inside]] = lane_nodes[inside]
        inherited[rows[inside]] = True
    return inherited
