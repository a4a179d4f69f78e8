"""Ranges of threads as pushes and pops where they nest, as starts and ends where they do not.

Traces in whole microseconds end a range up to a microsecond after the one around it; operators that
begin on one thread and end on another overlap by more.
"""

from __future__ import annotations

import numpy as np

from gputui.attribute.arrays import Bools, Int64s, run_starts
from gputui.imports.kineto.table import Ranges
from gputui.imports.ranges import ABSENT, RangeRows
from gputui.ring.layout import RecordKind

ROUNDING_NS = 1_000


def as_rows(ranges: Ranges) -> RangeRows:
    """The ranges in order of time, of which those that overlap are Start/End ranges."""
    start, end, thread, name, payload, payload_type, category = ranges.columns()
    order = np.lexsort((-end, start, thread))
    start, end, thread = start[order], end[order], thread[order]
    overlaps = np.zeros(len(start), np.bool_)
    if len(start):
        firsts = run_starts(thread)
        for first, after in zip(firsts, np.append(firsts[1:], len(start)), strict=True):
            end[first:after], overlaps[first:after] = _mended(start[first:after], end[first:after])
    kind = np.where(overlaps, RecordKind.RANGE_START, RecordKind.RANGE_PUSH)
    zero = np.broadcast_to(np.int64(0), len(start))
    return RangeRows(
        start=start,
        end=end,
        kind=kind,
        category=category[order],
        color=np.broadcast_to(np.int64(ABSENT), len(start)),
        name=name[order],
        task=thread,
        domain=zero,
        end_task=thread,
        category_id=zero,
        payload_type=payload_type[order],
        payload=payload[order],
    )


def _mended(start: Int64s, end: Int64s) -> tuple[Int64s, Bools]:
    """The ends of one thread's ranges, and which ranges overlap others without nesting."""
    overlaps = np.zeros(len(start), np.bool_)
    if _nest(start, end):
        return end, overlaps
    mended = end.copy()
    open_until: list[int] = []
    for row, (begin, until) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while open_until and open_until[-1] <= begin:
            open_until.pop()
        if open_until and until > open_until[-1]:
            if until - open_until[-1] > ROUNDING_NS:
                overlaps[row] = True
                continue
            until = mended[row] = open_until[-1]
        open_until.append(until)
    return mended, overlaps


def _nest(start: Int64s, end: Int64s) -> bool:
    """Whether each range lies within those that are open where it begins."""
    # With both ends in order, the n-th opening at a level is closed by the n-th closing there.
    every = np.arange(len(start))
    time = np.concatenate((start, end))
    is_end = np.arange(len(time)) >= len(start)
    row = np.concatenate((every, every))
    # Ends before starts at one moment, inner ones first; a range without length stays whole.
    empty = (end <= start)[row]
    inner = np.where(is_end & ~empty, -row, 2 * row + is_end)
    order = np.lexsort((inner, ~is_end | empty, time))
    row, is_end = row[order], is_end[order]
    depth = np.cumsum(np.where(is_end, -1, 1))
    level = np.where(is_end, depth + 1, depth)
    opened = np.empty(len(start), np.int64)
    opened[row[~is_end]] = level[~is_end]
    return bool((opened[row[is_end]] == level[is_end]).all())
