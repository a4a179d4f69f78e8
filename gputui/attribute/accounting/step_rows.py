"""What the threads of a program and the streams of a device did in the parts of one step."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.host_threads import KEPT_NS, LEAF_OF_CALL, Doing, HostThreads
from gputui.attribute.accounting.operations import Columns
from gputui.attribute.accounting.thread_readings import AWAY_LEAVES
from gputui.attribute.arrays import Int64s, covered_before, distinct, exclusive
from gputui.model.events import StreamLane, ThreadLane
from gputui.model.leaves import EIGHTHS, LETTER_OF, ROW_PARTS, Leaf, pack

# Chosen, not measured.
MOST_THREADS = 4
MOST_STREAMS = 3

MOST_BYTES = 150
"""The most that the rows of one step take, beside their numbers: one is kept about once a
second."""

KEPT_OPERATIONS = 1 << 15

_LETTERS = "".join(LETTER_OF.values())
_ROW_OF = {leaf: row for row, leaf in enumerate(LETTER_OF)}


class StreamOperations:
    """The newest operations of a device, for the streams of the step that is kept next."""

    def __init__(self) -> None:
        self._parts: deque[tuple[Int64s, Int64s, npt.NDArray[np.uint32]]] = deque()
        self._reach_ns: deque[int] = deque()
        self._held = 0

    def add(self, operations: Columns, reach_ns: int) -> None:
        """Adds operations in order, later than those before, that run until a time."""
        self._parts.append((operations.starts, operations.ends, operations.streams))
        self._reach_ns.append(reach_ns)
        self._held += len(operations.starts)
        while len(self._parts) > 1 and self._held - len(self._parts[0][0]) >= KEPT_OPERATIONS:
            self._held -= len(self._parts.popleft()[0])
            self._reach_ns.popleft()

    def lanes(self, bounds: Int64s) -> list[StreamLane]:
        """How busy each stream was between the bounds, the busiest first; none where the device had
        only one, or where its beginning is forgotten."""
        if not self._parts or self._parts[0][0][0] > bounds[0]:
            return []
        near = [
            part
            for part, reach_ns in zip(self._parts, self._reach_ns, strict=True)
            if reach_ns > bounds[0] and part[0][0] < bounds[-1]
        ]
        if (
            len({stream for *_, streams_near in near for stream in distinct(streams_near).tolist()})
            < 2
        ):
            return []
        starts, ends, streams = map(np.concatenate, zip(*near, strict=True))
        inside = np.flatnonzero((ends > bounds[0]) & (starts < bounds[-1]))
        starts, ends, streams = starts[inside], ends[inside], streams[inside]
        present = distinct(streams).tolist()
        if len(present) < 2:
            return []
        lanes_of_streams = []
        for stream in present:
            its = np.flatnonzero(streams == stream)
            _, begins, finishes = exclusive(starts[its], ends[its])
            busy = np.diff(covered_before(bounds, begins, finishes))
            eighths = np.rint(8 * busy / np.maximum(1, np.diff(bounds))).clip(0, 8).astype(int)
            ink = "".join(EIGHTHS[level] for level in eighths.tolist())
            lanes_of_streams.append(StreamLane(int(stream), int(busy.sum()), pack(ink)))
        lanes_of_streams.sort(key=lambda lane: -lane.busy_ns)
        return lanes_of_streams[:MOST_STREAMS]


def bounds_of(start_ns: int, end_ns: int) -> Int64s:
    """The moments at which the parts of a row begin, and the end of the last."""
    return start_ns + (end_ns - start_ns) * np.arange(ROW_PARTS + 1, dtype=np.int64) // ROW_PARTS


def thread_lanes(
    threads: HostThreads, main_thread: int, bounds: Int64s, accounted_ns: int
) -> list[ThreadLane]:
    """What each thread did during a step: the main thread first, then the threads that launched,
    then those whose lines are read. None if the calls of that time are forgotten."""
    if bounds[0] < accounted_ns - KEPT_NS:
        return []
    starts, ends = bounds[:-1], bounds[1:]
    calls = {thread: threads.calls_in(thread, int(bounds[0]), int(bounds[-1]))
             for thread in threads.launching}  # fmt: skip
    launching = sorted((lane for lane in calls if calls[lane]), key=lambda lane: -calls[lane])
    silent = [lane for lane in threads.lines.threads if lane not in launching]
    ranked = sorted([*launching, *silent], key=lambda lane: lane != main_thread)
    return [
        ThreadLane(thread, pack(_doing(threads, thread, starts, ends)),
                   threads.lines.newest(thread, int(bounds[0]), int(bounds[-1])))
        for thread in ranked[:MOST_THREADS]
    ]  # fmt: skip


def _doing(threads: HostThreads, thread: int, starts: Int64s, ends: Int64s) -> str:
    pieces, _ = threads.during(thread, starts, ends)
    amounts = np.zeros((len(_LETTERS), len(starts)))
    amounts[_ROW_OF[Leaf.LAUNCH]] = ends - starts
    for kind, (rows, took) in pieces.items():
        amounts[_ROW_OF[Leaf.LAUNCH], rows] -= took
        if kind == Doing.AWAY:
            shares = threads.away(thread, starts[rows], ends[rows])
            for column, leaf in enumerate(AWAY_LEAVES):
                amounts[_ROW_OF[leaf], rows] += took * shares[:, column]
        elif kind in LEAF_OF_CALL:
            amounts[_ROW_OF[LEAF_OF_CALL[kind]], rows] += took
    return "".join([_LETTERS[doing] for doing in amounts.argmax(axis=0).tolist()])


def within_bytes(
    threads: list[ThreadLane], streams: list[StreamLane]
) -> tuple[tuple[ThreadLane, ...], tuple[StreamLane, ...]]:
    """As many rows as fit into MOST_BYTES: threads and streams in turn, in their order."""
    room = MOST_BYTES
    kept_threads: list[ThreadLane] = []
    kept_streams: list[StreamLane] = []
    for number in range(max(len(threads), len(streams))):
        if number < len(threads) and (size := len(threads[number].doing)) <= room:
            kept_threads.append(threads[number])
            room -= size
        if number < len(streams) and (size := len(streams[number].ink)) <= room:
            kept_streams.append(streams[number])
            room -= size
    return tuple(kept_threads), tuple(kept_streams)
