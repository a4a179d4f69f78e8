"""Shared by all events: schema numbers, bounds of numbers, and the base classes."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
from msgspec import Meta

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
