"""What all events share: schema numbers, bounds of numbers, and what an event is."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

SCHEMA_VERSION = 1
"""Of every JSON document the program prints. Raised when a shape changes."""

JOURNAL_SCHEMA = 2
"""Of the events, as the journal has them. Raised when a shape changes."""

Moment = Annotated[int, Meta(ge=0, le=4_102_444_800_000_000_000)]
"""Nanoseconds since the epoch, before the year 2100: what a calendar can show."""

Amount = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A count, a duration or a size that fits the arrays it is computed in."""

PHASE_STARTS = 1000
"""Starts of outermost ranges that are kept for the time axes, the newest."""

Step = Annotated[int, Meta(ge=-(2**63 - 1), le=2**63 - 1)]
"""A part of a distribution's values."""


Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""Any other whole number: Python's have no end, but what is computed with them has."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A part of an event. Fields at their default are left out of the journal.

    What cannot change cannot refer to itself: the collector need not look through it (`gc`).
    """


class Event(Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """Something a source saw. `time_ns` is when."""

    time_ns: Moment
