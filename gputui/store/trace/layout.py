"""The file `NAME.gputui-trace`: a head page, names of calls, then records of 64 bytes.

Records form a ring: when the file is full the oldest are overwritten. `reserved` is raised before
records are written and `written` after, so that a reader of a file whose writer was killed knows
which records may be torn: valid are those from `reserved - capacity` to `written`.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]
Slots = npt.NDArray[np.void]

MAGIC = b"GPUTRACE"
VERSION = 2
MARKS_SINCE = 2
"""The first version with marks, and with payloads."""

RECORD_BYTES = 64
NAMES_AT = 4096
NAMES_BYTES = 256 << 10
"""Room for the names of CUDA calls, one per line, numbered from 1."""

RECORDS_AT = NAMES_AT + NAMES_BYTES

HEAD = np.dtype(
    [("magic", "S8"), ("version", "<u4"), ("record_bytes", "<u4"), ("capacity", "<u8"),
     ("reserved", "<u8"), ("written", "<u8"), ("names_bytes", "<u8")]
)  # fmt: skip


class TraceKind(enum.IntEnum):
    """What a record is. Numbers of processes, ranges and kernels are those of the recording."""

    RANGE = 1
    """An instance of `range`: its time on the CPU. `thread` is set if another thread than the one
    that began it ended it; `sub` is 1 if the program never did. `bytes` is the payload if
    `source_kind` is its type (ring.layout.PayloadType); 0 is no type.
    """
    PROJECTION = 2
    """An instance of `range`: first start to last end of what it launched on the GPU."""
    CALL = 3
    """A CUDA call of `thread` in `range`; `name` numbers its name in this file."""
    KERNEL = 4
    """`name` is the kernel's number, `bytes` that of its launch shape (0 unknown); launched in
    `range`. Of a CUDA graph's kernels, copies and memsets `thread` is the number of the range that
    stands for where it was captured, as in KernelDelta.
    """
    COPY = 5
    """`bytes`, `sub` CUPTI's kind of copy, `source_kind` and `destination_kind` of memory."""
    SET = 6
    """`bytes` and `destination_kind`."""
    GRAPH = 7
    """A whole graph launch; `name` is the number of the kernel that represents it."""
    MARK = 8
    """An instant of `thread`; `name` is the number of its definition, payload as for a range."""


TRACE = np.dtype(
    [("start", "<i8"), ("end", "<i8"), ("bytes", "<u8"), ("kind", "u1"), ("inherited", "u1"),
     ("source_kind", "u1"), ("destination_kind", "u1"), ("process", "<u4"), ("range", "<u4"),
     ("name", "<u4"), ("correlation", "<u4"), ("thread", "<u4"), ("stream", "<u4"),
     ("context", "<u4"), ("device", "<u2"), ("sub", "<u2"), ("graph", "<u4")]
)  # fmt: skip
"""One record. `inherited` as in KernelDelta; `correlation` links a call to its operations."""

assert TRACE.itemsize == RECORD_BYTES
