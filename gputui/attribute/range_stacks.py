"""The stacks of a process: one per thread and domain, with its timeline."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from gputui.attribute.arrays import Int64s, KeyTable, Slots
from gputui.attribute.records import Strings
from gputui.attribute.timeline import Timeline
from gputui.model.naming import is_library_domain

MAX_STACKS = 4096
"""Stacks kept per process; the longest idle ones make room for new ones."""

OWN_BRANCHES = 256
"""Stacks with a branch of their own in the range tree. Further threads, which can be thousands with
one thread per request, share one per domain.
"""

NO_STACK = MAX_STACKS

WINDOW_NS = 60_000_000_000
WINDOW_MOMENTS = 1_000_000
"""Timelines reach back this far, or hold this many moments in total."""


@dataclass(slots=True)
class RangeStack:
    """One thread's ranges in one domain."""

    place: int
    branch: int
    """The place in the range tree; stacks with the same place share their nodes."""
    thread: int
    domain: str
    priority: int
    """0 the default domain, 1 the program's own, 2 a library's."""
    depth: int = 0
    open_ids: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    """Its open instances, the outermost first."""
    timeline: Timeline = field(default_factory=Timeline)


class RangeStacks:
    """Finds the stack of a record, and the stacks of a thread."""

    def __init__(self, strings: Strings) -> None:
        self._strings = strings
        self._table = KeyTable(2 * MAX_STACKS)
        self._stacks: dict[int, RangeStack] = {}
        self._by_name: dict[tuple[int, str], int] = {}
        self._of_thread: dict[int, list[RangeStack]] = {}
        self._shared_branches: dict[str, int] = {}
        self._places = 0

    def __getitem__(self, index: int) -> RangeStack:
        return self._stacks[index]

    def all(self) -> Collection[RangeStack]:
        return self._stacks.values()

    def of_thread(self, thread: int) -> list[RangeStack]:
        """A thread's stacks, the default domain first and libraries last."""
        return self._of_thread.get(thread, [])

    def threads(self) -> Int64s:
        """The threads that have stacks, sorted."""
        return np.array(sorted(self._of_thread), np.int64)

    def indices(self, records: Slots) -> Int64s:
        """The stack of each record, by its index; NO_STACK over the limit."""
        threads = records["thread"].astype(np.int64)
        domains = records["a"].astype(np.int64)

        def define(_key: int, first: int) -> int:
            thread = int(threads[first])
            domain = self._strings.domain(int(domains[first]))
            return self._number(thread, domain)

        # Thread ids are below 2³¹ on Linux; of a malicious one, keep the low bits.
        keys = ((threads & 0x7FFF_FFFF) << 32) | domains
        if len(self._table) >= MAX_STACKS:
            self._make_room()
        return self._table.lookup(keys, define, lambda: NO_STACK)

    def _number(self, thread: int, domain: str) -> int:
        index = self._by_name.get((thread, domain))
        if index is not None:
            return index
        if len(self._stacks) >= MAX_STACKS:
            return NO_STACK
        index = next(i for i in range(len(self._stacks), -1, -1) if i not in self._stacks)
        self._places += 1
        priority = 2 if is_library_domain(domain) else int(domain != "")
        stack = RangeStack(self._places, self._branch(domain), thread, domain, priority)
        self._stacks[index] = stack
        self._by_name[thread, domain] = index
        siblings = self._of_thread.setdefault(thread, [])
        siblings.append(stack)
        siblings.sort(key=lambda stack: (stack.priority, stack.place))
        return index

    def _branch(self, domain: str) -> int:
        if self._places <= OWN_BRANCHES:
            return self._places
        further = OWN_BRANCHES + 1 + len(self._shared_branches)
        return self._shared_branches.setdefault(domain, further)

    def _make_room(self) -> None:
        """Drop the longest idle stacks, until half of all are free."""
        idle = [
            (stack.timeline.last_ns, key)
            for key, index in self._by_name.items()
            if (stack := self._stacks[index]).depth == 0
        ]
        surplus = len(self._stacks) - MAX_STACKS // 2
        for _, key in sorted(idle)[: max(0, surplus)]:
            stack = self._stacks.pop(self._by_name.pop(key))
            self._of_thread[stack.thread].remove(stack)
            if not self._of_thread[stack.thread]:
                del self._of_thread[stack.thread]
        kept = np.array(sorted(self._stacks), np.int64)
        self._table.keep(lambda values: np.isin(values, kept))

    def forget(self) -> None:
        """Drop what is too old, or too much, from the timelines."""
        window_ns = WINDOW_NS
        stacks = self._stacks.values()
        newest = max((stack.timeline.last_ns for stack in stacks), default=0)
        while window_ns:
            for stack in stacks:
                stack.timeline.forget(newest - window_ns)
            if sum(len(stack.timeline) for stack in stacks) <= WINDOW_MOMENTS:
                return
            window_ns //= 2
