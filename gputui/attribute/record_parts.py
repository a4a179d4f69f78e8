"""The records of a batch, apart by what they are for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gputui.attribute.arrays import Slots, pick
from gputui.ring.layout import RecordKind


class Parts(NamedTuple):
    """Records of each use, in the order in which they came."""

    ranges: Slots
    start_ends: Slots
    marks: Slots
    operations: Slots
    calls: Slots
    flushes: Slots
    shapes: Slots
    threads: Slots
    resources: Slots
    refused: Slots
    others: Slots
    """What this gputui does not know, or does not need."""


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
    "refused": (RecordKind.REFUSED,),
}  # fmt: skip

_USES = np.full(256, Parts._fields.index("others"), np.uint8)
for _use, _kinds in _KINDS.items():
    _USES[list(_kinds)] = Parts._fields.index(_use)


def by_use(records: Slots) -> Parts:
    """Records by what they are for."""
    uses = _USES[records["kind"]]
    records = pick(records, np.argsort(uses, kind="stable"))
    ends = np.cumsum(np.bincount(uses, minlength=len(Parts._fields)))
    return Parts(*np.split(records, ends[:-1]))
