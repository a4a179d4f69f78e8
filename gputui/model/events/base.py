"""Shared by all events: schema numbers, bounds of numbers, the base classes, and the payloads that
programs attach to ranges and marks."""

from __future__ import annotations

import math
import struct
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from gputui.model.units import MISSING

SCHEMA_VERSION = 2
"""Schema of every JSON document gputui prints. Raised when a shape changes, which
docs/formats.md describes."""

JOURNAL_SCHEMA = 3
"""Schema of the events in a recording. Raised when a shape changes: recordings of any other number
are refused, so that no code has to know what earlier ones lacked."""

Moment = Annotated[int, Meta(ge=0, le=4_102_444_800_000_000_000)]
"""Nanoseconds since the epoch, before the year 2100: within what a calendar can show."""

Amount = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A count, a duration or a size that fits the arrays used to compute with it."""

Index = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""A number that the driver gives a GPU or a part of one."""

PHASE_STARTS = 1000
"""Starts of outermost ranges kept for the time axes, the newest."""

Step = Annotated[int, Meta(ge=-(2**63 - 1), le=2**63 - 1)]
"""An element of a distribution's values."""


_BOUNDS = Meta(ge=-(2**63), le=2**63 - 1)

Integer = Annotated[int, _BOUNDS]
"""Any other integer: Python's are unbounded, but what is computed from them is not."""


class Numbered(Enum):
    """What a number of a session refers to. Where recordings are merged into one session, the
    numbers of each are given anew (gputui.playback.job_recording). 0 is none."""

    RUN = "a run"
    PROCESS = "a traced process"
    RANGE = "a node of the range tree"
    MARK = "marks of a name"
    KERNEL = "the name of a kernel"
    SHAPE = "a launch shape"
    GPU = "a GPU, of which 0 is one"


RunNumber = Annotated[int, _BOUNDS, Numbered.RUN]
ProcessNumber = Annotated[int, _BOUNDS, Numbered.PROCESS]
RangeNumber = Annotated[int, _BOUNDS, Numbered.RANGE]
MarkNumber = Annotated[int, _BOUNDS, Numbered.MARK]
KernelNumber = Annotated[int, _BOUNDS, Numbered.KERNEL]
ShapeNumber = Annotated[int, _BOUNDS, Numbered.SHAPE]
GpuIndex = Annotated[int, Meta(ge=0, le=2**31 - 1), Numbered.GPU]


class Rule(Enum):
    """How a field of two parts that are about the same thing becomes one (gputui.model.merge).

    Written beside the field's type: `busy_ns: Annotated[Amount, Sum]`.
    """

    KEY = "says what the part is about"
    SUM = "added up"
    MIN = "the smaller"
    MAX = "the larger"
    NEWEST = "the newest that is not null"
    SKETCH = "distributions of all values together"
    PARTS = "parts that are about the same thing, merged"
    BLOCKS = "blocks of steps, in order; beyond a bound the smallest neighbours become one"


Key, Sum, Min, Max = Rule.KEY, Rule.SUM, Rule.MIN, Rule.MAX
Newest, Sketch, Parts = Rule.NEWEST, Rule.SKETCH, Rule.PARTS
Blocks = Rule.BLOCKS


class Reader(Enum):
    """Who reads a field of a delta, where not everyone does; written beside its rule."""

    TABLES = "rows of tables alone: a session that keeps no tables (an exporter's) drops it"


class OfProcess:
    """A part of a delta that leaves its process to the delta. What the session keeps of it is kept
    by process, and has `process` among its fields (gputui.model.merge.row_type)."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def process(self) -> int:
            """The traced process that the row is about; only rows of tables have it."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A part of an event. Fields at their default are left out of the journal.

    Immutable, so it cannot refer to itself: the garbage collector can skip it (`gc`).
    """


class About(Enum):
    """What an event is about. What folds it is called with this, found by the event's number."""

    SESSION = "what all runs of a session share: that a run began, the names of kernels"
    MACHINE = "the machine, or the link to it"
    GPU = "the GPU numbered `gpu`"
    RUN = "the run numbered `run`"
    PROCESS = "the traced process numbered `process`"


class Event(Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """Something a source observed at `time_ns`.

    A subclass declares beside its fields what the fold, rotated recordings, and the merging of
    several recordings need to know of its kind; none of them lists kinds.
    """

    about: ClassVar[About] = About.MACHINE
    defines: ClassVar[bool] = False
    """Whether later events refer to it, so that it has to be read whatever time is looked at."""
    repeated_for: ClassVar[tuple[str, ...] | None] = None
    """Every later file of a rotated recording begins with the newest event of each value of these
    fields, while the run that it belongs to goes on. None: it is not repeated."""

    time_ns: Annotated[Moment, Max]


# Payloads: the 8 bytes attached to a range or a mark in a record, and how to read them.


class PayloadType(IntEnum):
    """The type of a payload's 8 bytes, with NVTX's numbers. UINT32, INT32 and FLOAT are widened to
    UINT64, INT64 and DOUBLE; BYTES is the size of the program's own data.
    """

    UINT64 = 1
    INT64 = 2
    DOUBLE = 3
    UINT32 = 4
    INT32 = 5
    FLOAT = 6
    BYTES = 7


NO_PAYLOAD = 0
"""No payload."""

PayloadName = Literal["uint64", "int64", "double", "uint32", "int32", "float", "bytes"]

PAYLOAD_NAMES: dict[int, PayloadName] = {
    PayloadType.UINT64: "uint64",
    PayloadType.INT64: "int64",
    PayloadType.DOUBLE: "double",
    PayloadType.UINT32: "uint32",
    PayloadType.INT32: "int32",
    PayloadType.FLOAT: "float",
    PayloadType.BYTES: "bytes",
}
"""NVTX's names of the types."""

_SIGNED = {PayloadType.INT64, PayloadType.INT32}
_REAL = {PayloadType.DOUBLE, PayloadType.FLOAT}


class Payload(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The value a program attached to a range or a mark, by its NVTX type.

    JSON has no NaN and no infinity: those are text. For "bytes", the program's own data, the value
    is the number of bytes.
    """

    type: PayloadName
    value: int | float | Literal["nan", "inf", "-inf"]


def payload_number(kind: int, bits: int) -> int | float | None:
    """The number in the 8 bytes, None if there is no payload."""
    if kind not in PAYLOAD_NAMES:
        return None
    if kind in _REAL:
        value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
        return value
    return bits - (1 << 64) if kind in _SIGNED and bits >> 63 else bits


def payload_of(kind: int, bits: int) -> Payload | None:
    """The same as a part of an event."""
    value = payload_number(kind, bits)
    if value is None:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return Payload(
            PAYLOAD_NAMES[kind], "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        )
    return Payload(PAYLOAD_NAMES[kind], value)


def payload_text(payload: Payload | None) -> str:
    """The value a program attached to a range or mark: "42", "0.125", "64 bytes"."""
    if payload is None:
        return MISSING
    if payload.type == "bytes":
        return f"{payload.value} bytes"
    return f"{payload.value:.6g}" if isinstance(payload.value, float) else str(payload.value)
