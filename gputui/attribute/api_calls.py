"""CUDA calls: where they were made, how long they took, and what they launched."""

from __future__ import annotations

import numpy as np

from gputui.attribute.arrays import (
    LATEST_NS,
    Bools,
    Int64s,
    KeyTable,
    Slots,
    UInt32s,
    durations_ns,
    grouped,
    join,
    pick,
    times_ns,
)
from gputui.attribute.correlation import CALL, CallWindow
from gputui.attribute.instances import SETTLED_FLUSHES, Instances
from gputui.attribute.range_lookup import Placement, place
from gputui.attribute.range_stacks import RangeStacks
from gputui.attribute.range_tree import Nodes
from gputui.attribute.startend import StartEndRanges
from gputui.attribute.streams import LaunchIntervals
from gputui.attribute.strings import Strings
from gputui.attribute.timeline import NO_NODE
from gputui.model.cuda_names import api_name, is_launch
from gputui.model.events import ApiDelta, ThreadLaunches
from gputui.model.naming import is_kernel_launch

NESTED_NS = 2_000_000_000
"""How long a driver call of a ring waits for the runtime call around it, which returns later."""

MAX_NAMES = 4096
MAX_OTHERS = 500_000
"""Ranges of further domains around calls that are kept for the operations to come."""

OTHER = np.dtype(
    [("sequence", "i8"), ("instance", "i8"), ("node", "i8"), ("start_end", "?"), ("alone", "?"),
     ("repeated", "?")]
)  # fmt: skip
"""A further domain's innermost range around a call, or a Start/End range: then whether the call
lies in ranges of that style alone and this is the first, and whether an earlier one around it is
of the same node."""

_NESTED = np.dtype(
    [("correlation", "u4"), ("key", "i8"), ("duration", "i8"), ("read", "i8"), ("flushes", "i8")]
)
"""A driver call of which it is not known yet whether a runtime call made it: when it was read,
and how many flushes had ended by then."""

_NAME_BITS = 16
_RUNTIME = 0


class Calls:
    """The API records of one process."""

    def __init__(
        self,
        main_thread: int,
        lanes: RangeStacks,
        start_end: StartEndRanges,
        instances: Instances,
        strings: Strings,
        nested_ns: int,
    ) -> None:
        """`nested_ns` is how long at most a driver call waits for the runtime call around it."""
        self._start_end = start_end
        self._nested_ns = nested_ns
        self._main_thread = main_thread
        self._lanes = lanes
        self._instances = instances
        self._strings = strings
        self._table = KeyTable(MAX_NAMES)
        self._names: list[str] = ["(other calls)"]
        self._numbers: dict[str, int] = {}
        self._launches = np.zeros(1, np.bool_)
        self._kernel_launches = np.zeros(1, np.bool_)
        self._intervals = LaunchIntervals()
        self._sequence = 0
        self.window = CallWindow()
        self.others = np.empty(0, OTHER)
        self._done: list[tuple[Int64s, Int64s]] = []
        self._nested = np.empty(0, _NESTED)

    @property
    def names(self) -> list[str]:
        """Names of calls, by the numbers that stand in `feed`'s answer."""
        return self._names

    def feed(self, records: Slots, now_ns: int) -> Slots:
        """Take in the API records of a batch, in ring order.

        Gives the calls that are new in the window, for operations that came before their call.
        """
        new = self._drop_nested(records) if len(records) else records
        # After the runtime calls of the batch have claimed theirs.
        self._release_driver_calls(now_ns - self._nested_ns)
        return self._add(new, new["sub"] == _RUNTIME, now_ns)

    def _drop_nested(self, records: Slots) -> Slots:
        """The records less the driver calls that a runtime call made: they have its id, and
        nsys does not list them. Those held from earlier batches go too."""
        is_runtime = records["sub"] == _RUNTIME
        correlations = np.ascontiguousarray(records["correlation"])
        runtime_ids = correlations[is_runtime]
        nested = np.zeros(len(records), np.bool_)
        if not is_runtime.all():
            driver_ids = correlations[~is_runtime]
            nested[~is_runtime] = np.isin(driver_ids, runtime_ids)
            nested[~is_runtime] |= self.window.runtime_calls(driver_ids)
        if len(self._nested):
            self._nested = pick(self._nested, ~np.isin(self._nested["correlation"], runtime_ids))
        return pick(records, ~nested) if nested.any() else records

    def _add(self, records: Slots, is_runtime: Bools, now_ns: int) -> Slots:
        if not len(records):
            return np.empty(0, CALL)
        starts = times_ns(records["start"])
        threads = records["thread"].astype(np.int64)
        placement = place(self._lanes, self._main_thread, threads, starts)
        names = self._number_names(records["name"])
        keys = (
            (placement.nodes << (_NAME_BITS + 1))
            | (placement.inherited.astype(np.int64) << _NAME_BITS)
            | names
        )
        ends = times_ns(records["end"])
        durations = durations_ns(starts, ends)
        self._done.append((keys[is_runtime], durations[is_runtime]))
        self._hold(
            records["correlation"][~is_runtime], keys[~is_runtime], durations[~is_runtime], now_ns
        )

        calls = np.zeros(len(records), CALL)
        calls["correlation"] = records["correlation"]
        calls["node"] = placement.nodes
        calls["instance"] = placement.instances
        calls["sequence"] = np.arange(self._sequence, self._sequence + len(records))
        calls["inherited"] = placement.inherited
        calls["runtime"] = is_runtime
        calls["awaits"] = self._launches[names] & (records["a"] == 0)
        calls["name"] = names
        calls["thread"] = records["thread"]
        calls["start"] = starts
        calls["end"] = ends
        calls["outside"] = (placement.nodes == NO_NODE) | placement.inherited
        calls["outside"][placement.others] = False
        self._sequence += len(records)
        # The driver call that is in the window already stands for its runtime call.
        new = ~self.window.promote(calls)
        self._keep_others(placement, calls, new)
        calls = pick(calls, new)
        launches = np.flatnonzero(self._kernel_launches[calls["name"]])
        self._intervals.add(calls["thread"][launches], calls["start"][launches])
        self._await(calls, 1)
        self.window.add(calls, now_ns)
        return calls

    def _await(self, calls: Slots, change: int) -> None:
        """The ranges around calls await an operation of each, or do so no more."""
        calls = pick(calls, calls["awaits"])
        self._instances.await_operations(calls["instance"][~calls["inherited"]], change)
        if len(self.others):
            beside, _ = self.beside(calls["sequence"])
            self._instances.await_operations(beside["instance"], change)

    def beside(self, sequences: Int64s) -> tuple[Slots, Int64s]:
        """What `others` hold of calls, and which of `sequences` each is of."""
        left = np.searchsorted(self.others["sequence"], sequences, side="left")
        counts = np.searchsorted(self.others["sequence"], sequences, side="right") - left
        rows = np.repeat(np.arange(len(sequences)), counts)
        offsets = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return pick(self.others, np.repeat(left, counts) + offsets), rows

    def answer(self, calls: Slots) -> None:
        """The first operation of each of these calls came: their ranges await it no more."""
        self._await(calls, -1)

    def launching_threads(self) -> tuple[ThreadLaunches, ...]:
        """Launches by thread since the last call."""
        return tuple(ThreadLaunches(*of_thread) for of_thread in self._intervals.collect())

    def collect(self, process: int, nodes: Nodes, everything: bool) -> tuple[ApiDelta, ...]:
        """What returned since the last call. `everything` waits for no enclosing call."""
        if everything:
            self._release_driver_calls(None)
        keys = join([keys for keys, _ in self._done], np.int64)
        durations = join([durations for _, durations in self._done], np.int64)
        self._done = []
        mask = (1 << _NAME_BITS) - 1
        return tuple(
            ApiDelta(
                process=process,
                range=int(nodes.number[key >> (_NAME_BITS + 1)]),
                name=self._names[key & mask],
                inherited=bool(key >> _NAME_BITS & 1),
                time=time,
            )
            for key, time in grouped(keys, durations)
        )

    def name(self, number: int) -> str:
        """The name that calls in the window carry by number."""
        return self._names[number]

    def _number_names(self, names: UInt32s) -> Int64s:
        def define(key: int, _first: int) -> int:
            name = api_name(self._strings.raw(key))
            number = self._numbers.setdefault(name, len(self._names))
            if number == len(self._names):
                self._names.append(name)
                self._launches = np.append(self._launches, is_launch(name))
                self._kernel_launches = np.append(self._kernel_launches, is_kernel_launch(name))
            return number

        return self._table.lookup(names.astype(np.int64), define, lambda: 0)

    def _hold(self, ids: UInt32s, keys: Int64s, durations: Int64s, now_ns: int) -> None:
        if len(ids):
            held = np.empty(len(ids), _NESTED)
            held["correlation"] = ids
            held["key"] = keys
            held["duration"] = durations
            held["read"] = now_ns
            held["flushes"] = self._instances.flushes
            self._nested = np.concatenate((self._nested, held))

    def _release_driver_calls(self, before_ns: int | None) -> None:
        if not len(self._nested):
            return
        limit_ns = before_ns if before_ns is not None else LATEST_NS
        # A flush that began after the driver call had come brings the runtime call around it.
        settled = self._instances.flushes - SETTLED_FLUSHES
        alone = (self._nested["read"] <= limit_ns) | (self._nested["flushes"] <= settled)
        done = pick(self._nested, np.flatnonzero(alone))
        if len(done):
            self._done.append((done["key"].copy(), done["duration"].copy()))
            self._nested = self._nested[len(done) :]

    def _keep_others(self, placement: Placement, calls: Slots, new: Bools) -> None:
        """Keep what is around calls beside the range they count in; of those that are `new`."""
        threads, starts = calls["thread"].astype(np.int64), calls["start"].copy()
        rows, instances, nodes = self._start_end.around(threads, starts)
        total = len(placement.others) + len(rows)
        if not total:
            return
        others = np.zeros(total, OTHER)
        domains, ranges = others[: len(placement.others)], others[len(placement.others) :]
        domains["sequence"] = calls["sequence"][placement.others]
        domains["instance"] = placement.other_instances
        domains["node"] = placement.other_nodes
        ranges["sequence"] = calls["sequence"][rows]
        ranges["instance"] = instances
        ranges["node"] = nodes
        ranges["start_end"] = True
        _, first = np.unique(rows, return_index=True)
        ranges["alone"][first] = calls["outside"][rows[first]]
        ranges["repeated"] = True
        _, first = np.unique(np.stack((rows, nodes)), axis=1, return_index=True)
        ranges["repeated"][first] = False
        calls["outside"][rows] = False
        others = others[np.concatenate((new[placement.others], new[rows]))]
        others = others[np.argsort(others["sequence"], kind="stable")]
        kept = self.others[self.others["sequence"] >= self.window.oldest_sequence]
        self.others = np.concatenate((kept, others))[-MAX_OTHERS:]
