"""The ring's layout: what the C library writes and the reader maps; `layout.h` mirrors it.

One file per process, in the session's private folder: a header page, then `capacity` slots of 64
bytes. Producers reserve slots with one atomic on `head`, fill them, then publish each slot by
storing `low 32 bits of (slot number + 1)` in its last word; the reader takes published slots in
order and moves `tail`. A full ring drops the record and counts it."""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

from gputui.model.events import NO_PAYLOAD

# "GUPRING1" as a number: of another byte order it would not match.
MAGIC = 0x4755_5052_494E_4731
HEADER_BYTES = 4096
# A cache line: two producers never write the same one.
SLOT_BYTES = 64
# The last word of every slot is its publication.
STRING_BYTES_PER_SLOT = 60
SAMPLE_EVERY = 61
"""The library times one in this many calls of a thread; odd, since pushes and pops alternate."""

SAMPLE_NS_MAX = 10_000
"""The most a timed call counts for: one that took longer waited for a core."""


GROWN, LEARNS = 4, 8
"""Flags in `source_kind` of a STEP record, beside the unit of its items."""

ENDS = 16
"""`source_kind` of a STEP record that ends a loop, and no turn of it."""


class RecordKind(enum.IntEnum):
    """First byte of a slot."""

    STRING = 1
    """`name` is the id being defined, `value` the length in bytes; the UTF-8 bytes follow in the
    next slots, 60 per slot, each still ending in its own publication word.
    """
    RANGE_PUSH = 2
    """`thread`, `start`, `name`, `a` domain (string id, 0 default), `b` category (string id, 0 if
    it has no name) and `e` its number, `c` colour (0xRRGGBB) if flag bit 0 is set, `end` the
    payload's 8 bytes if bit 1 is set and `source_kind` its type (see PayloadType), `d` the level:
    how many ranges of this thread and domain were open before it. If bit 2 is set, `value` is the
    id of an NCCL communicator, and `correlation` the peer, the root or the own rank plus 1 (0 if it
    names none); the payload is then the message's size, or the number of ranks.
    """
    RANGE_POP = 3
    """`thread`, `start` (the moment), `a` domain, `d` the level of the range it ends: a reader
    whose stack is deeper or shallower knows that records in between were dropped. `sub` bit 2,
    `value`, `end` and `correlation` as in RANGE_PUSH, where they were not known before.
    """
    RANGE_START = 4
    """As RANGE_PUSH without level; `value` is the range's id."""
    RANGE_END = 5
    """`thread`, `start` (the moment), `value` the range's id."""
    MARK = 6
    """A mark: as RANGE_PUSH, but of one instant."""
    THREAD_NAME = 7
    """`thread`, `name`; `sub` is NAMED_BY_SYSTEM if the program set no name: then the system's name
    of a thread at its first range or soon after its first CUDA call, and at its end if it made
    ranges and the name has changed.
    """
    RESOURCE_NAME = 8
    """`sub` is the kind (see Resource), `a` its CUPTI number, `b` its device as the process numbers
    them (UNKNOWN_DEVICE if unknown), `name`, `start` (the moment).
    """
    REFUSED = 9
    """Not tracked, `a` its domain: a push, because its `thread` had ranges open in too many other
    domains, or, if `sub` is REFUSED_DEFERRED, `value` deferred events.
    """
    STEP = 10
    """The program is at a boundary of its steps: `thread` and `start`. `sub` is the source (its
    place in STEP_SOURCES plus 1), `name` the site at that source, `value` the ordinal of the mark
    among those of this source and site, from 1. `end` is how many items the step had, in the unit
    `source_kind` (its place in ITEM_UNITS plus 1; 0 if neither is known; with GROWN if the step's
    input is one longer than that before, LEARNS if gradients are kept). For a loop, `end` is in how
    many other loops it lies, and `source_kind` ENDS once the program is past it."""
    KERNEL = 16
    """`start`, `end`, `correlation`, `name` (mangled), `a` device, `b` stream, `c` context,
    `d` launch shape (see LAUNCH_SHAPE, 0 unknown), `value` graph node id, `e` graph id."""
    MEMCPY = 17
    """As KERNEL with `value` bytes, `sub` CUPTI copy kind, `source_kind`, `destination_kind`
    CUPTI memory kinds; `c` the peer device where `sub` is 10 (peer to peer); `d` and `thread` the
    lower and upper half of the graph node id."""
    MEMSET = 18
    """As MEMCPY with only `destination_kind`, and no `sub`."""
    API = 19
    """`start`, `end`, `correlation`, `thread`, `name` (of the call), `sub` 0 runtime 1 driver,
    `a` return value, `b` 1 where that is not known."""
    DEVICE = 20
    """A CUDA device, soon after CUDA's start: `a` its number in the process, `value` its L2 cache's
    bytes."""
    GRAPH = 21
    """A whole graph launch: as KERNEL, without `name`; `e` graph id."""
    LAUNCH_SHAPE = 22
    """`d` the id being defined; `name` kernel; `start` = gridX | gridY << 32, `end` = gridZ |
    blockX << 32, `value` = blockY | blockZ << 32, `a` registers a thread, `b` static shared
    bytes, `c` dynamic shared bytes."""
    GRAPH_PART = 23
    """A CUDA graph is being made by `thread` at `start`, or is gone; `sub` says what (see
    GraphPart)."""
    WINDOW = 24
    """Tracing was switched at `start`; `sub` is what happened (WindowEdge). Only in runs whose
    kernels are traced part of the time."""
    LOST = 25
    """`value` records are missing here: they were written from `start` to `end` and found the ring
    full. If the header counts more dropped records than these sums, the others are missing after
    the last record."""
    FLUSH = 32
    """CUPTI was asked at `start` for all finished activity, and delivered it (a buffer that holds
    an unfinished operation comes later); `value` is the number of records CUPTI has dropped so far.
    """
    EXIT = 33
    """The process ended properly at `start`; nothing follows."""


SLOT = np.dtype(
    {
        "names": [
            "kind", "sub", "source_kind", "destination_kind", "thread", "start", "end",
            "correlation", "name", "value", "a", "b", "c", "d", "e", "published",
        ],
        "formats": [
            "u1", "u1", "u1", "u1", "<u4", "<u8", "<u8",
            "<u4", "<u4", "<u8", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4",
        ],
        "offsets": [0, 1, 2, 3, 4, 8, 16, 24, 28, 32, 40, 44, 48, 52, 56, 60],
        "itemsize": SLOT_BYTES,
    }
)  # fmt: skip
"""One slot. For ranges and marks `sub` is a set of flags: bit 0 coloured, bit 1 has a payload, bit
2 names a communicator."""

FLAG_COLORED = 1
FLAG_PAYLOAD = 2
FLAG_COMMUNICATOR = 4
NAMED_BY_SYSTEM = 1

STRING_BYTES_MAX = 32768
"""Longest string in a ring: range names are cut at 4096 bytes, kernel names here."""


class Resource(enum.IntEnum):
    """CUDA objects that can have a name."""

    DEVICE = 1
    CONTEXT = 2
    STREAM = 3


REFUSED_DEFERRED = 1


class GraphPart(enum.IntEnum):
    """What a GRAPH_PART record is of."""

    GRAPH = 1
    """A graph, `e` its id, that has no nodes yet: a capture begins."""
    NODE = 2
    """A node, `value` its id, of the graph `e`."""
    CLONE = 3
    """A node, `value` its id, that does what the node `end` does: in an executable graph, or in a
    copy of its graph."""
    GONE = 4
    """An executable graph with the id `e` is destroyed. Its operations may not have arrived yet."""


# CUPTI's own number where a context was not seen.
UNKNOWN_DEVICE = 0xFFFF_FFFF


class WindowEdge(enum.IntEnum):
    """What a window of tracing has come to."""

    OPENING = 1
    """Tracing is about to begin. What it costs begins here."""
    ON = 2
    """What is launched from here on is recorded."""
    OFF = 3
    """What is launched from here on is not."""
    CLOSED = 4
    """What it costs ends here."""


class CudaState(enum.IntEnum):
    """How far CUDA capture has come in a process; the header's `cuda_text` describes it in
    words.
    """

    NONE = 0
    """The process has not initialised CUDA."""
    TRACING = 1
    OFF = 2
    """The user did not ask for kernels, so CUDA is not traced."""
    FAILED = 3
    STARTING = 4


HEADER = np.dtype(
    {
        "names": [
            "magic", "layout_version", "header_bytes", "slot_bytes", "pid", "parent_pid",
            "rank", "local_rank", "cupti_version", "capacity", "start_ns", "start_ticks",
            "cuda_state", "exited", "heartbeat_ns", "dropped", "callback_ns", "cupti_dropped",
            "pid_namespace", "traced_ns", "paused_ns", "head", "tail",
            "visible_devices", "period_ns", "step_name", "launch_blocking", "unseen_forks",
            "cuda_text", "command",
        ],
        "formats": [
            "<u8", "<u4", "<u4", "<u4", "<u4", "<u4",
            "<i4", "<i4", "<u4", "<u8", "<u8", "<u8",
            "<u4", "<u4", "<u8", "<u8", "<u8", "<u8",
            "<u8", "<u8", "<u8", "<u8", "<u8", "S224", "<u8", "<u4", "<u4", "<u8",
            "S512", "S3072",
        ],
        "offsets": [
            0, 8, 12, 16, 20, 24,
            28, 32, 36, 40, 48, 56,
            64, 68, 72, 80, 88, 96,
            104, 112, 120, 128, 256, 264, 488, 496, 500, 504,
            512, 1024,
        ],
        "itemsize": HEADER_BYTES,
    }
)  # fmt: skip
"""The first page of a ring. `capacity` counts slots and is a power of two; `head` (next slot to
reserve, so also the number of slots written) and `tail` (next slot to read) never wrap. `start_ns`
is when capture began, `start_ticks` the process's start in clock ticks since boot (field 22 of
/proc/PID/stat, which exposes a reused pid); `pid_namespace` is the namespace (inode of
/proc/self/ns/pid) that `pid` belongs to. `rank` and `local_rank` are -1 if absent. `dropped` counts
records, `cupti_dropped` what CUPTI itself lost, `callback_ns` the time spent in the library (ranges
by sampling, see SAMPLE_EVERY; CUPTI's records by their thread's CPU time), `traced_ns` and
`paused_ns` how long kernels were and were not traced since CUDA's start (the latter at the user's
request), `heartbeat_ns` the last flush, 0 if CUDA is not traced. `period_ns` and `step_name` are
what the monitor wishes for windows under a budget. `visible_devices` is "=" and the value of
CUDA_VISIBLE_DEVICES when CUDA was initialised, empty if unset; `launch_blocking` is
CUDA_LAUNCH_BLOCKING's then. `unseen_forks` counts
forked processes that made ranges, which are not captured.
"""


# --- The type of payload a record carries.


def payload_types(records: npt.NDArray[np.void]) -> npt.NDArray[np.uint8]:
    """The payload type of each range or mark (layout.SLOT), NO_PAYLOAD if it has none."""
    has = records["sub"] & FLAG_PAYLOAD
    types: npt.NDArray[np.uint8] = np.where(has, records["source_kind"], NO_PAYLOAD)
    return types.astype(np.uint8)
