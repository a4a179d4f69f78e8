"""The range tree of one process: a node for each name at each place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from gputui.attribute.arrays import Int64s, KeyTable
from gputui.attribute.numbering import Numbering
from gputui.attribute.range_stacks import NO_NODE
from gputui.attribute.records import Attributes
from gputui.model.events import RangeDefined
from gputui.model.naming import NOT_A_STEP, step_rank, without_numbers

MAX_NODES = 20_000
"""Nodes per process with names as they are; the numbers in any further ones are folded."""

MAX_FOLDED = 5_000
"""Nodes with folded names; any further ones share one node."""

MAX_CAPTURED_LEVEL = 500
"""Nodes of graphs lie no deeper."""

TOO_MANY = "(too many ranges)"

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
            if self._count > MAX_NODES:
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
        """A node and those around it, from the inside out; none of NO_NODE."""
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
