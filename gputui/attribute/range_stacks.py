"""Where ranges are: the stack of each thread, which range was innermost at a time, and the tree of
all ranges of a process. `ranges` fills these; `calls` and `operations` look up the range in which
they happened."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from gputui.attribute import Attributes, Strings
from gputui.attribute.arrays import Bools, Int64s, KeyTable, Slots, join, run_starts
from gputui.attribute.instances import NO_INSTANCE
from gputui.model.events import RangeDefined
from gputui.model.hub import Numbering
from gputui.model.naming import (
    NOT_A_STEP,
    TOO_MANY,
    XLA_COMPILES,
    is_library_domain,
    step_rank,
    without_numbers,
)

# --- Which instance was innermost at any moment of the last minute, per thread and domain.

NO_NODE = 0


class Timeline:
    """Moments in order, each with the innermost instance and its node from then on."""

    __slots__ = ("_begin", "_end", "_instances", "_nodes", "_times_ns")

    def __init__(self) -> None:
        self._begin = 0
        self._end = 0
        self._times_ns = np.empty(0, np.int64)
        self._instances = np.empty(0, np.int64)
        self._nodes = np.empty(0, np.int32)

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def last_ns(self) -> int:
        """The newest moment, 0 when there is none."""
        return int(self._times_ns[self._end - 1]) if self._end > self._begin else 0

    def append(self, times_ns: Int64s, instances: Int64s, nodes: Int64s) -> None:
        """Append later moments; earlier ones (the clock stepped) are clamped to the newest."""
        count = len(times_ns)
        if not count:
            return
        if self._end + count > len(self._times_ns):
            self._make_room(count)
        new = slice(self._end, self._end + count)
        np.maximum.accumulate(np.maximum(times_ns, self.last_ns), out=self._times_ns[new])
        self._instances[new] = instances
        self._nodes[new] = nodes
        self._end += count

    def innermost_at(self, times_ns: Int64s) -> tuple[Int64s, Int64s]:
        """The innermost instance and its node at each moment, boundaries included.

        NO_INSTANCE and NO_NODE if nothing was open, or the moment is too old.
        """
        live = slice(self._begin, self._end)
        places = np.searchsorted(self._times_ns[live], times_ns, side="right") - 1
        if self._begin == self._end:
            nothing = np.full(len(times_ns), NO_INSTANCE)
            return nothing, np.zeros(len(times_ns), np.int64)
        before = places < 0
        places[before] = 0
        instances = self._instances[live][places]
        nodes = self._nodes[live][places].astype(np.int64)
        instances[before] = NO_INSTANCE
        nodes[before] = NO_NODE
        return instances, nodes

    def between(self, after_ns: int, before_ns: int) -> tuple[Int64s, Int64s]:
        """The moments strictly between two times; the innermost node from `after_ns` on, then that
        from each of them on."""
        live = self._times_ns[self._begin : self._end]
        first = int(np.searchsorted(live, after_ns, side="right"))
        last = max(first, int(np.searchsorted(live, before_ns, side="left")))
        nodes = self._nodes[self._begin + first : self._begin + last]
        before = self.innermost_at(np.array([after_ns]))[1]
        return live[first:last], np.concatenate((before, nodes)).astype(np.int64)

    def forget(self, before_ns: int) -> None:
        """Drop earlier moments, but never the newest: its state still holds."""
        live = self._times_ns[self._begin : self._end]
        # The moment just before the limit gives the innermost range at the limit.
        drop = int(np.searchsorted(live, before_ns)) - 1
        self._begin += max(0, min(drop, len(live) - 1))

    def _make_room(self, count: int) -> None:
        length = len(self)
        size = max(256, 3 * (length + count) // 2)
        for name in ("_times_ns", "_instances", "_nodes"):
            old = getattr(self, name)
            new = np.empty(size, old.dtype)
            new[:length] = old[self._begin : self._end]
            setattr(self, name, new)
        self._begin, self._end = 0, length


# --- The stacks of a process: one per thread and domain, with its timeline.

MAX_STACKS = 4096
"""Stacks kept per process; the longest idle ones make room for new ones."""

OWN_BRANCHES = 256
"""Stacks with a branch of their own in the range tree. Further threads, which can be thousands with
one thread per request, share one per domain.
"""

NO_STACK = MAX_STACKS

# As long as a launch may wait for its operation (calls.WINDOW_NS): older moments are asked for no
# more.
WINDOW_NS = 60_000_000_000
WINDOW_MOMENTS = 1_000_000
"""Timelines reach back this far, or hold this many moments in total."""

UNNEEDED_MOMENTS = 1 << 18
"""How many entries are kept although nothing asks for them any more; a million took 48 MB."""


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
    """The stack's open instances, the outermost first."""
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

    def forget(self, needed_ns: int = 0) -> None:
        """Drops what is too old, or too much, from the timelines. Nothing before `needed_ns` is
        asked for any more; it is dropped once there is much of it."""
        window_ns = WINDOW_NS
        stacks = self._stacks.values()
        newest = max((stack.timeline.last_ns for stack in stacks), default=0)
        while window_ns:
            for stack in stacks:
                stack.timeline.forget(newest - window_ns)
            moments = sum(len(stack.timeline) for stack in stacks)
            if moments > UNNEEDED_MOMENTS and needed_ns > newest - window_ns:
                for stack in stacks:
                    stack.timeline.forget(needed_ns)
            if moments <= WINDOW_MOMENTS:
                return
            window_ns //= 2


# --- In which range a moment of a thread lies.

# Priorities of stacks: domains of the program come before those of libraries.
_LIBRARY = 2


@dataclass(slots=True)
class Placement:
    """The ranges around each of many times, one row each.

    `instances` and `nodes` belong to the innermost range of the default domain or, if none was
    open, of the program's other domains. If the thread had no range open, they are the main
    thread's, and `inherited` is set. `secondary` has rows for further domains: the row of the time,
    and the innermost range of the same thread in another domain, libraries included.
    """

    instances: Int64s
    nodes: Int64s
    inherited: Bools
    secondary: Int64s
    secondary_instances: Int64s
    secondary_nodes: Int64s


def find_ranges(
    stacks: RangeStacks, main_thread: int, threads: Int64s, times_ns: Int64s
) -> Placement:
    """Find the ranges around each moment of a thread."""
    count = len(threads)
    instances = np.full(count, NO_INSTANCE)
    nodes = np.full(count, NO_NODE)
    secondary: list[Int64s] = []
    secondary_instances: list[Int64s] = []
    secondary_nodes: list[Int64s] = []
    for thread, rows in _by_thread(stacks, threads):
        for stack in stacks.of_thread(thread):
            stack_instances, stack_nodes = stack.timeline.innermost_at(times_ns[rows])
            first = nodes[rows] == NO_NODE
            inside = stack_nodes != NO_NODE
            chosen = first & inside & (stack.priority < _LIBRARY)
            instances[rows[chosen]] = stack_instances[chosen]
            nodes[rows[chosen]] = stack_nodes[chosen]
            also = inside & ~chosen
            if also.any():
                secondary.append(rows[also])
                secondary_instances.append(stack_instances[also])
                secondary_nodes.append(stack_nodes[also])
    inherited = _inherit(stacks.of_thread(main_thread), threads, main_thread, times_ns,
                         instances, nodes)  # fmt: skip
    return Placement(
        instances,
        nodes,
        inherited,
        join(secondary, np.int64),
        join(secondary_instances, np.int64),
        join(secondary_nodes, np.int64),
    )


def _by_thread(stacks: RangeStacks, threads: Int64s) -> list[tuple[int, Int64s]]:
    """The rows of each thread that has stacks."""
    first = int(threads[0])
    if (threads == first).all():
        return [(first, np.arange(len(threads)))]
    rows = np.flatnonzero(np.isin(threads, stacks.threads()))
    if not len(rows):
        return []
    rows = rows[np.argsort(threads[rows], kind="stable")]
    starts = run_starts(threads[rows])
    pieces = np.split(rows, starts[1:])
    return [(int(threads[part[0]]), part) for part in pieces]


def _inherit(
    stacks: list[RangeStack],
    threads: Int64s,
    main_thread: int,
    times_ns: Int64s,
    instances: Int64s,
    nodes: Int64s,
) -> Bools:
    inherited = np.zeros(len(threads), np.bool_)
    for stack in stacks:
        if stack.priority >= _LIBRARY:
            break
        rows = np.flatnonzero((nodes == NO_NODE) & (threads != main_thread))
        if not len(rows):
            break
        stack_instances, stack_nodes = stack.timeline.innermost_at(times_ns[rows])
        inside = stack_nodes != NO_NODE
        instances[rows[inside]] = stack_instances[inside]
        nodes[rows[inside]] = stack_nodes[inside]
        inherited[rows[inside]] = True
    return inherited


# --- The range tree of one process: a node for each name at each place.


MAX_NODES = 20_000
"""Nodes per process with names as they are; the numbers in any further ones are folded."""

MAX_FOLDED = 5_000
"""Nodes with folded names; any further ones share one node."""

MAX_CAPTURED_LEVEL = 500
"""Nodes of graphs lie no deeper."""

_NOT_KEPT = -1

Style = Literal["PushPop", "StartEnd"]
Describe = Callable[[int], Attributes]
"""Index of a record → the attributes of its range."""


class Nodes:
    """Numbers nodes 1, 2, … within the process; 0 is outside every range.

    Arrays are indexed by that number. `number` holds each node's number in the session.
    """

    def __init__(self, process: int, pid: int, numbering: Numbering, step: str | None) -> None:
        self._process = process
        self._pid = pid
        self._numbering = numbering
        self._step = step
        self._table = KeyTable(2 * MAX_NODES)
        self._by_name: dict[tuple[int, str], int] = {}
        self._too_many: int | None = None
        self._count = 1
        self.number = np.zeros(256, np.int64)
        self.parent = np.zeros(256, np.int64)
        self.level = np.zeros(256, np.int64)
        self.thread: list[int] = [0]
        self.attributes: list[Attributes] = [Attributes("")]
        self.domain: list[str] = [""]
        self.launched_in = np.zeros(256, np.int64)
        """The node around the launch of what counts in each: itself, or of what a graph captured
        the nearest one around it that is a range of the program."""
        self._captured: dict[tuple[int, str], int] = {}
        self.step_rank = np.full(256, NOT_A_STEP)
        # A declared step is waited for: sought in the launches until then, the kernels that
        # load a model would become steps (10 of 2 ms before the 12 of 88 ms of a training run).
        self.likeliest_step = NOT_A_STEP if step is None else 0
        self.defined: list[RangeDefined] = []
        """Definitions that have not been reported; the reader clears the list."""

    def __len__(self) -> int:
        return self._count

    def resolve(
        self,
        parents: Int64s,
        names: Int64s,
        indices: Int64s,
        place: Callable[[int], tuple[int, str]],
        describe: Describe,
        now_ns: int,
        style: Style = "PushPop",
    ) -> Int64s:
        """The node of each (parent, name id), defined if new.

        The parent of a top-level range is the negative number of its place (thread and domain).
        `indices` are passed to `describe`, and to `place`, which returns thread and domain.
        """

        def define(key: int, first: int) -> int:
            attributes = describe(int(indices[first]))
            parent = key >> 32
            node_before = self._by_name.get((parent, attributes.name))
            if node_before is not None:
                return node_before
            # XLA compiles each candidate that it tunes with some 450 passes, a program id in each
            # name: they alone were more than MAX_NODES.
            is_compiling = XLA_COMPILES.match(attributes.name)
            if is_compiling or self._count > MAX_NODES:
                attributes = attributes._replace(name=without_numbers(attributes.name))
                node_before = self._by_name.get((parent, attributes.name))
                if node_before is not None:
                    return node_before
            if self._count > MAX_NODES + MAX_FOLDED or parent == self._too_many:
                return self._overflow(now_ns)
            thread, domain = place(int(indices[first]))
            node = self._add(max(parent, NO_NODE), thread, domain, attributes, style, now_ns)
            self._by_name[parent, attributes.name] = node
            return node

        keys = (parents << 32) | names
        nodes = self._table.lookup(keys, define, lambda: _NOT_KEPT)
        # Programs make names without end: those of which there is no record are looked up again.
        lost = np.flatnonzero(nodes == _NOT_KEPT)
        if len(lost):
            different, first, place_of = np.unique(
                keys[lost], return_index=True, return_inverse=True
            )
            found_nodes = map(define, different.tolist(), lost[first].tolist())
            nodes[lost] = np.fromiter(found_nodes, np.int64, len(different))[place_of]
        return nodes

    def captured(
        self,
        parent: int,
        attributes: Attributes,
        domain: str,
        thread: int,
        is_seen: bool,
        now_ns: int,
    ) -> int:
        """The node below `parent` for what a CUDA graph does, defined if new; `parent` itself where
        there are too many. What the program did there itself has another node of that name.
        """
        node_before = self._captured.get((parent, attributes.name))
        if node_before is not None:
            return node_before
        if self._count > MAX_NODES + MAX_FOLDED or self.level[parent] >= MAX_CAPTURED_LEVEL:
            return parent
        graph: Literal["captured", "unseen"] = "captured" if is_seen else "unseen"
        node = self._add(parent, thread, domain, attributes, "PushPop", now_ns, graph)
        self._captured[parent, attributes.name] = node
        return node

    def around(self, node: int) -> list[int]:
        """A node and the nodes around it, from the inside out; nothing for NO_NODE."""
        path = []
        while node != NO_NODE:
            path.append(node)
            node = int(self.parent[node])
        return path

    def _overflow(self, now_ns: int) -> int:
        if self._too_many is None:
            self._too_many = self._add(
                NO_NODE, self._pid, "", Attributes(TOO_MANY), "PushPop", now_ns
            )
        return self._too_many

    def _add(
        self,
        parent: int,
        thread: int,
        domain: str,
        attributes: Attributes,
        style: Style,
        now_ns: int,
        graph: Literal["captured", "unseen"] | None = None,
    ) -> int:
        node = self._count
        self._count += 1
        if node == len(self.number):
            for column in ("number", "parent", "level", "step_rank", "launched_in"):
                old = getattr(self, column)
                setattr(self, column, np.concatenate((old, np.zeros_like(old))))
        self.thread.append(thread)
        self.attributes.append(attributes)
        self.domain.append(domain)
        self.launched_in[node] = self.launched_in[parent] if graph else node
        self.number[node] = self._numbering.range()
        self.parent[node] = parent
        self.level[node] = self.level[parent] + 1
        # Start/End ranges overlap: one named like a step does not contain other ranges.
        is_stacked = style == "PushPop" and graph is None
        self.step_rank[node] = step_rank(attributes.name, self._step) if is_stacked else NOT_A_STEP
        self.likeliest_step = min(self.likeliest_step, int(self.step_rank[node]))
        self.defined.append(
            RangeDefined(
                time_ns=now_ns,
                range=int(self.number[node]),
                process=self._process,
                thread=thread,
                parent=int(self.number[parent]),
                domain=domain,
                name=attributes.name,
                style=style,
                color=attributes.color,
                category=attributes.category,
                category_id=attributes.category_id,
                graph=graph,
            )
        )
        return node
