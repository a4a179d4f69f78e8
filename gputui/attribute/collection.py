"""What one collection of a process covers, and how the parts that its collectors return become the
fields of one CaptureDelta.

For `traced_process`, which runs the collectors, and for every collector. It is a module of its own
because collectors must not import the process that runs them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from gputui.attribute.instances import Finalised
from gputui.attribute.range_stacks import Nodes
from gputui.attribute.records import LaunchedOperations
from gputui.ring.reader import RingHealth

DeltaParts = dict[str, Any]
"""Fields of a CaptureDelta by name: tuples of rows, or numbers to add."""


@dataclass(frozen=True, slots=True)
class Collection:
    """One collection of one process: everything since the collection before.

    `until_ns` is the moment before which everything that had ended has arrived; None at the end of
    the process, when everything has. From `known_until_ns` on it is not known which ranges launched
    what; None while it is. `ring` is what was added to the ring's counters, `unread` the records
    left in it, `unplaced` the range records that found no place in the tree so far.
    """

    process: int
    nodes: Nodes
    now_ns: int
    ended: bool
    until_ns: int | None
    finalised: Finalised
    launched: LaunchedOperations
    known_until_ns: int | None
    ring: RingHealth
    unread: int
    unplaced: int


class Collector(Protocol):
    """Sums up one kind of fact about a process between collections."""

    def collect_parts(self, collection: Collection) -> DeltaParts:
        """What is new since the collection before, by the field of CaptureDelta it goes to."""
        ...


def merge_parts(collected: Iterable[DeltaParts]) -> DeltaParts:
    """The parts of several collectors in one; what goes to the same field is added up in order."""
    merged: DeltaParts = {}
    for fields in collected:
        for name, value in fields.items():
            merged[name] = merged[name] + value if name in merged else value
    return merged


_SILENT = {
    "open_ranges", "standing_ppm", "callback_ns", "traced_ns", "paused_ns", "reader_cpu_ns",
    "core_run_ns", "core_wait_ns", "core_watched_ns",
}  # fmt: skip
"""Fields that a process has, too, in which nothing happens."""


def has_news(fields: DeltaParts) -> bool:
    """Whether anything happened, or became known of what happened before."""
    return any(value for name, value in fields.items() if name not in _SILENT)
