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
"""Schema of the events in a recording. Raised when a shape changes: recordings with any other
number are refused, so that no code has to deal with older shapes."""

Moment = Annotated[int, Meta(ge=0, le=4_102_444_800_000_000_000)]
"""Nanoseconds since the epoch, before the year 2100: within what a calendar can show."""

Amount = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A count, a duration or a size that fits the arrays used to compute with it."""

Index = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""A number that the driver gives a GPU or a part of one."""

PHASE_STARTS = 1000
"""How many starts of outermost ranges are kept for the time axes, the newest ones."""

Step = Annotated[int, Meta(ge=-(2**63 - 1), le=2**63 - 1)]
"""An element of a distribution's values."""


_BOUNDS = Meta(ge=-(2**63), le=2**63 - 1)

Integer = Annotated[int, _BOUNDS]
"""Any other integer. Python's integers have no bounds, but arrays made of them do."""


class Numbered(Enum):
    """What a number in an event refers to. Recordings that are merged into one session get new
    numbers for all of these (gputui.playback.job_recording). 0 stands for none."""

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
    """Who reads a field of a delta, if not everyone does; written beside the field's rule."""

    TABLES = "rows of tables alone: a session that keeps no tables (an exporter's) drops it"


class OfProcess:
    """A part of a delta whose process is that of the delta. The rows that the session makes of such
    parts are kept by process, and have `process` as a field (gputui.model.merge.row_type)."""

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
    """What an event is about. The fold finds that object by its number in the event, and is called
    with it."""

    SESSION = "what all runs of a session share: that a run began, the names of kernels"
    MACHINE = "the machine, or the link to it"
    GPU = "the GPU numbered `gpu`"
    RUN = "the run numbered `run`"
    PROCESS = "the traced process numbered `process`"


class Event(Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """Something a source observed at `time_ns`.

    A subclass declares with the class variables below how its kind is folded, repeated in rotated
    recordings, and merged. No other place lists the kinds of events.
    """

    about: ClassVar[About] = About.MACHINE
    defines: ClassVar[bool] = False
    """Whether later events refer to this kind of event. It is then read even if only a later time
    is looked at."""
    repeated_for: ClassVar[tuple[str, ...] | None] = None
    """Every later file of a rotated recording begins, as long as the run goes on, with the newest
    event for each value of these fields. None: events of this kind are not repeated."""

    time_ns: Annotated[Moment, Max]
