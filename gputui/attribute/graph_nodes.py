"""CUDA graphs: in which ranges each node was captured, and so where its replays count.

A node counts in the ranges that were open when the node was made but not yet when its graph was
begun: those that the program opened inside the capture. Below the range that launches the graph,
they form the path that an eager run would have.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gputui.attribute import Attributes
from gputui.attribute.arrays import Bools, Int64s, KeyTable, Slots, UInt32s, pick, times_ns
from gputui.attribute.range_stacks import NO_NODE, Nodes, RangeStacks, find_ranges
from gputui.ring import GraphPart, RecordKind

MAX_NODES = 1 << 20
"""Graph nodes that are remembered; then those of destroyed graphs make room, then those that were
cloned and do not run themselves, then the oldest."""

# Places in the tree of ranges at which nodes were captured, and graphs whose ids are remembered:
# bounds for a program that captures without end.
MAX_PATHS = 1 << 14
MAX_GRAPHS = 1 << 16
MAX_UNSEEN = 4096
"""Nodes of unseen captures with a name of their own."""

MAX_CLONES = 8
"""The most steps from clone to clone in one batch."""

UNSEEN = 0
NOTHING = 1
"""Numbers of paths: of a node whose capture was not seen, and of one captured outside ranges."""

FURTHER = "further graph nodes"

# A quarter is dropped at a time: sorting a million rows for each new node would take all the time.
_KEPT = MAX_NODES // 4 * 3
_NODE_BITS = np.uint64(32)
# A key of phases: the node of the launch | the path at which the graph's node was captured.
_PATH_BITS = 32

Ids = npt.NDArray[np.uint64]


class CapturedRange(NamedTuple):
    """A range of a path: its node in the tree, NO_NODE for what stands for an unseen node."""

    node: int
    attributes: Attributes
    domain: str = ""


class GraphNodes:
    """The graph nodes of one process."""

    def __init__(self, nodes: Nodes, stacks: RangeStacks, main_thread: int) -> None:
        self._nodes = nodes
        self._stacks = stacks
        self._main_thread = main_thread
        self._began_in: dict[int, int] = {}
        self._gone: dict[int, None] = {}
        # By id, sorted: ids of newer graphs are higher.
        self._ids: Ids = np.empty(0, np.uint64)
        self._path: npt.NDArray[np.int32] = np.empty(0, np.int32)
        self._cloned: Bools = np.empty(0, np.bool_)
        self._paths: list[tuple[CapturedRange, ...]] = [(), ()]
        self._numbers: dict[tuple[CapturedRange, ...], int] = {(): NOTHING}
        self._of_places = KeyTable(MAX_PATHS)
        self._unseen = 0
        self._phases = KeyTable(2 * MAX_PATHS)

    def __len__(self) -> int:
        """How many nodes are remembered."""
        return len(self._ids)

    def feed(self, records: Slots) -> None:
        """Add the GRAPH_PART records of a batch, after its ranges."""
        if not len(records):
            return
        kinds = records["sub"]
        made = pick(records, (kinds == GraphPart.GRAPH) | (kinds == GraphPart.NODE))
        if len(made):
            threads, times = made["thread"].astype(np.int64), times_ns(made["start"])
            around = find_ranges(self._stacks, self._main_thread, threads, times).nodes
            begun = made["sub"] == GraphPart.GRAPH
            self._began_in |= dict(
                zip(made["e"][begun].tolist(), around[begun].tolist(), strict=True)
            )
            _shorten(self._began_in)
            self._add_nodes(pick(made, ~begun), around[~begun])
        self._add_clones(pick(records, kinds == GraphPart.CLONE))
        self._gone |= dict.fromkeys(records["e"][kinds == GraphPart.GONE].tolist())
        _shorten(self._gone)
        self._make_room()

    def phases(self, records: Slots, launches: Int64s, threads: UInt32s, now_ns: int) -> Int64s:
        """The node of the range tree in which each operation counts: of a graph's, one below its
        launch; of others, `launches` itself, the node around the launch on its thread.
        """
        if not records["e"].any():  # graphs are numbered from 1
            return launches
        ids = node_ids(records)
        rows = np.flatnonzero(ids)
        if not len(rows):
            return launches
        paths = self._find(ids[rows])
        unseen = np.flatnonzero(paths == UNSEEN)
        if len(unseen):
            paths[unseen] = self._name_unseen(ids[rows[unseen]], records["e"][rows[unseen]])

        def define(key: int, first: int) -> int:
            launch = key >> _PATH_BITS
            thread = self._nodes.thread[launch] or int(threads[rows[first]])
            return self._phase(launch, self._paths[key & ((1 << _PATH_BITS) - 1)], thread, now_ns)

        numbers = self._phases.lookup(launches[rows] << _PATH_BITS | paths, define, lambda: -1)
        result = launches.copy()
        result[rows] = np.where(numbers < 0, launches[rows], numbers)
        return result

    def _add_nodes(self, made: Slots, around: Int64s) -> None:
        """Nodes that a program added or captured, and the range around each."""
        if not len(made):
            return
        graphs, graph_rows = np.unique(made["e"], return_inverse=True)
        began_in = np.array([self._began_in.get(graph, NO_NODE) for graph in graphs.tolist()])[
            graph_rows
        ]

        def define(key: int, _first: int) -> int:
            return self._number(self._below(key >> 32, self._chain(key & 0xFFFF_FFFF)))

        paths = self._of_places.lookup(began_in << 32 | around, define, lambda: NOTHING)
        self._define(made["value"], paths, cloned=False)

    def _add_clones(self, clones: Slots) -> None:
        ids, originals = clones["value"].copy(), clones["end"].copy()
        for _ in range(MAX_CLONES):
            if not len(ids):
                return
            ready = ~np.isin(originals, ids)
            self._define(ids[ready], self._find(originals[ready]), cloned=True)
            ids, originals = ids[~ready], originals[~ready]
        self._define(ids, np.full(len(ids), UNSEEN), cloned=True)

    def _define(self, ids: Ids, paths: Int64s, cloned: bool) -> None:
        """A clone does what its original does, whatever is open where it is made."""
        ids, last = np.unique(ids[::-1], return_index=True)
        paths = paths[::-1][last]
        places = np.searchsorted(self._ids, ids)
        is_defined = np.zeros(len(ids), np.bool_)
        inside = places < len(self._ids)
        is_defined[inside] = self._ids[places[inside]] == ids[inside]
        change = is_defined.copy()
        if not cloned:
            change[is_defined] = ~self._cloned[places[is_defined]]
        self._path[places[change]] = paths[change]
        self._cloned[places[change]] = cloned
        new = ~is_defined
        self._ids = np.insert(self._ids, places[new], ids[new])
        self._path = np.insert(self._path, places[new], paths[new].astype(np.int32))
        self._cloned = np.insert(self._cloned, places[new], cloned)

    def _find(self, ids: Ids) -> Int64s:
        paths = np.full(len(ids), UNSEEN, np.int64)
        if len(self._ids):
            places = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
            is_defined = self._ids[places] == ids
            paths[is_defined] = self._path[places[is_defined]]
        return paths

    def _make_room(self) -> None:
        if len(self._ids) <= MAX_NODES:
            return
        gone = np.isin(self._ids >> _NODE_BITS, np.array([*self._gone], np.uint64))
        rank = np.where(gone, 0, np.where(self._cloned, 2, 1))
        keep = np.sort(np.argsort(rank, kind="stable")[-_KEPT:])
        self._ids, self._path = self._ids[keep], self._path[keep]
        self._cloned = self._cloned[keep]

    def _name_unseen(self, ids: Ids, graphs: npt.NDArray[np.uint32]) -> Int64s:
        different, first, rows = np.unique(ids, return_index=True, return_inverse=True)
        paths = np.zeros(len(different), np.int64)
        for index in np.argsort(first).tolist():
            self._unseen += 1
            name = f"graph {int(graphs[first[index]])}, node {int(different[index]) & 0xFFFF_FFFF}"
            if self._unseen > MAX_UNSEEN:
                name = FURTHER
            paths[index] = self._number((CapturedRange(NO_NODE, Attributes(name)),))
        self._define(different, paths, cloned=True)
        self._make_room()
        return paths[rows]

    def _number(self, path: tuple[CapturedRange, ...]) -> int:
        number = self._numbers.setdefault(path, len(self._paths))
        if number == len(self._paths):
            self._paths.append(path)
        return number

    def _chain(self, node: int) -> tuple[CapturedRange, ...]:
        """A node of the tree and the nodes around it, the outermost first."""
        return tuple(
            CapturedRange(around, self._nodes.attributes[around], self._nodes.domain[around])
            for around in reversed(self._nodes.around(node))
        )

    def _below(self, node: int, chain: tuple[CapturedRange, ...]) -> tuple[CapturedRange, ...]:
        """The part of a path that is not around `node`, nor that node itself."""
        outside = {*self._nodes.around(node)}
        return tuple(part for part in chain if part.node not in outside)

    def _phase(self, launch: int, path: tuple[CapturedRange, ...], thread: int, now_ns: int) -> int:
        path = self._below(launch, path)
        names = [self._nodes.attributes[n].name for n in reversed(self._nodes.around(launch))]
        captured = [part.attributes.name for part in path]
        # A module that replays its own graph is open at both.
        both = next((n for n in range(len(captured), 0, -1) if names[-n:] == captured[:n]), 0)
        for part in path[both:]:
            is_seen = part.node != NO_NODE
            launch = self._nodes.captured(
                launch, part.attributes, part.domain, thread, is_seen, now_ns
            )
        return launch


def node_ids(records: Slots) -> Ids:
    """The graph node of each operation, 0 outside graphs."""
    kinds = records["kind"]
    halves = records["thread"].astype(np.uint64) << _NODE_BITS | records["d"]
    memory = (kinds == RecordKind.MEMCPY) | (kinds == RecordKind.MEMSET)
    ids: Ids = np.where(memory, halves, np.where(kinds == RecordKind.KERNEL, records["value"], 0))
    return ids


def _shorten(entries: dict[int, int] | dict[int, None]) -> None:
    """Forget the oldest of too many."""
    while len(entries) > MAX_GRAPHS:
        del entries[next(iter(entries))]
