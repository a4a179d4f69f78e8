"""The records of a batch, separated by use."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gputui.attribute.arrays import Bools, Slots, pick
from gputui.model.cuda_names import UNIFIED_COPIES
from gputui.ring.layout import RecordKind


class RecordsByUse(NamedTuple):
    """The records of each use, in order of arrival."""

    ranges: Slots
    start_ends: Slots
    marks: Slots
    operations: Slots
    calls: Slots
    flushes: Slots
    shapes: Slots
    threads: Slots
    resources: Slots
    devices: Slots
    refused: Slots
    graphs: Slots
    windows: Slots
    lost: Slots
    others: Slots
    """Records unknown to this gputui, or not needed."""


_KINDS = {
    "ranges": (RecordKind.RANGE_PUSH, RecordKind.RANGE_POP),
    "start_ends": (RecordKind.RANGE_START, RecordKind.RANGE_END),
    "marks": (RecordKind.MARK,),
    "operations": (
        RecordKind.KERNEL, RecordKind.MEMCPY, RecordKind.MEMSET, RecordKind.GRAPH,
    ),
    "calls": (RecordKind.API,),
    "flushes": (RecordKind.FLUSH,),
    "shapes": (RecordKind.LAUNCH_SHAPE,),
    "threads": (RecordKind.THREAD_NAME,),
    "resources": (RecordKind.RESOURCE_NAME,),
    "devices": (RecordKind.DEVICE,),
    "refused": (RecordKind.REFUSED,),
    "graphs": (RecordKind.GRAPH_PART,),
    "windows": (RecordKind.WINDOW,),
    "lost": (RecordKind.LOST,),
}  # fmt: skip

# NumPy compares with an enum three times as slowly.
_KERNEL, _MEMCPY, _GRAPH = map(int, (RecordKind.KERNEL, RecordKind.MEMCPY, RecordKind.GRAPH))

_USES = np.full(256, RecordsByUse._fields.index("others"), np.uint8)
for _use, _kinds in _KINDS.items():
    _USES[list(_kinds)] = RecordsByUse._fields.index(_use)


def separate_by_use(records: Slots) -> RecordsByUse:
    """A batch of records of any kind, separated by what takes them in."""
    uses = _USES[records["kind"]]
    records = pick(records, np.argsort(uses, kind="stable"))
    ends = np.cumsum(np.bincount(uses, minlength=len(RecordsByUse._fields)))
    return RecordsByUse(*np.split(records, ends[:-1]))


def are_kernels(records: Slots) -> Bools:
    """Which operations are kernels or graph launches."""
    kinds = records["kind"]
    are: Bools = (kinds == _KERNEL) | (kinds == _GRAPH)
    return are


def move_by_themselves(records: Slots) -> Bools:
    """Which operations are copies of unified memory, which no call launches."""
    moves: Bools = (records["kind"] == _MEMCPY) & (records["sub"] >= UNIFIED_COPIES)
    return moves
