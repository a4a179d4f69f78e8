"""CUDA calls: the range they were made in, how long they took, and the recent ones, among which
operations find their launch.

For `traced_process` and `operations`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gputui.attribute import Strings
from gputui.attribute.accounting import Accounting
from gputui.attribute.arrays import (
    LATEST_NS,
    LONGEST_NS,
    Bools,
    Int64s,
    KeyTable,
    Slots,
    UInt32s,
    durations_ns,
    join,
    opaque,
    pick,
    stack,
    times_ns,
)
from gputui.attribute.collection import Collection, DeltaParts
from gputui.attribute.distributions import ValueSums, coarse_distributions
from gputui.attribute.instances import NO_INSTANCE, SETTLED_FLUSHES, RangeInstances
from gputui.attribute.range_stacks import NO_NODE, Placement, RangeStacks, find_ranges
from gputui.attribute.ranges import StartEndRanges
from gputui.model.events import ApiDelta, ThreadLaunches
from gputui.model.naming import api_name, is_kernel_launch, is_launch, launches_one_kernel

# --- A window of recent CUDA calls, in which a GPU operation finds its launch by correlation id.

WINDOW_NS = 60_000_000_000
WINDOW_CALLS = 1 << 20
"""Calls are kept this long, or this many. Kernels of a graph launch may arrive long after it."""

# Longer runs are not merged, so that old calls leave in small portions.
_RUN_CALLS = WINDOW_CALLS // 8

CALL = np.dtype([
    ("instance", "i8"), ("sequence", "i8"), ("start", "i8"), ("end", "i8"),
    ("correlation", "u4"), ("node", "u4"), ("name", "u4"), ("thread", "u4"), ("result", "u4"),
    ("has_result", "?"), ("inherited", "?"), ("awaits", "?"), ("answered", "?"), ("runtime", "?"),
    ("outside", "?"),
], align=True)  # fmt: skip
"""One CUDA call. `instance` and `node` are the range around it, `sequence` its number. `awaits`
says whether operations are expected of it, `answered` whether one has arrived, `outside` whether
its thread had no range open. The other columns are the call itself."""

NO_CALL = np.zeros(1, CALL)
NO_CALL["node"], NO_CALL["instance"], NO_CALL["sequence"] = NO_NODE, NO_INSTANCE, -1
NO_CALL["outside"] = True
"""What an operation gets if its call never arrived."""


@dataclass(slots=True)
class MatchedCalls:
    """The calls of operations: for each whether there is one, the call (zeros if not), and whether
    it is the first operation of that call. `answered` are the calls whose first operations these
    were.
    """

    is_known: Bools
    calls: Slots
    first: Bools
    answered: Slots


@dataclass(slots=True)
class _Run:
    """Calls sorted by correlation id; among equal ids the newest comes last."""

    calls: Slots
    correlations: UInt32s
    newest_ns: int
    oldest_sequence: int
    has_driver_calls: bool


class CallWindow:
    """Sorted runs, merged as they grow: most operations find their call in the newest run.

    Ids wrap at 2³², so an id can occur more than once in the window: the newest call counts.
    """

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    @property
    def oldest_sequence(self) -> int:
        """Calls with a lower number have been dropped."""
        return self._runs[0].oldest_sequence if self._runs else 0

    def add(self, calls: Slots, now_ns: int) -> None:
        """Add calls, in order of arrival."""
        if not len(calls):
            return
        self._push(calls, now_ns, int(calls["sequence"][0]))
        while len(self._runs) > 1:
            older, newer = self._runs[-2], self._runs[-1]
            total = len(older.calls) + len(newer.calls)
            if len(older.calls) > 2 * len(newer.calls) or total > _RUN_CALLS:
                break
            del self._runs[-2:]
            both = stack((older.calls, newer.calls))
            self._push(both, newer.newest_ns, older.oldest_sequence)
        total = sum(len(run.calls) for run in self._runs)
        while self._runs and (total > WINDOW_CALLS or self._runs[0].newest_ns < now_ns - WINDOW_NS):
            total -= len(self._runs.pop(0).calls)

    def find(self, correlations: UInt32s) -> MatchedCalls:
        """The newest call of each id."""
        is_known = np.zeros(len(correlations), np.bool_)
        first = np.zeros(len(correlations), np.bool_)
        calls = np.zeros(len(correlations), CALL)
        answered: list[Slots] = []
        rest = np.arange(len(correlations))
        for run in reversed(self._runs):
            if not len(rest):
                break
            hit, places = _search(run, correlations[rest])
            rows = rest[hit]
            is_known[rows] = True
            its = pick(run.calls, places)
            if len(rows) == len(calls):
                calls = its
            else:
                opaque(calls)[rows] = opaque(its)
            rest = rest[~hit]
            fresh = ~run.calls["answered"][places]
            if fresh.any():
                new, where = _firsts(places[fresh])
                first[rows[fresh][where]] = True
                run.calls["answered"][new] = True
                answered.append(pick(run.calls, new))
        return MatchedCalls(is_known, calls, first, stack(answered or [NO_CALL[:0]]))

    def runtime_calls(self, correlations: UInt32s) -> Bools:
        """Which of these correlation ids have a runtime call in the window."""
        matched = np.zeros(len(correlations), np.bool_)
        for run, places, rows in self._matches(correlations):
            matched[rows] = run.calls["runtime"][places]
        return matched

    def promote(self, calls: Slots) -> Bools:
        """Which of these runtime calls have their driver call in the window. From now on that
        record stands for the runtime call."""
        matched = np.zeros(len(calls), np.bool_)
        if not any(run.has_driver_calls for run in self._runs):
            return matched
        for run, places, rows in self._matches(np.ascontiguousarray(calls["correlation"])):
            is_driver = ~run.calls["runtime"][places] & calls["runtime"][rows]
            places, rows = places[is_driver], rows[is_driver]
            matched[rows] = True
            for field in ("runtime", "name", "thread", "start", "end"):
                run.calls[field][places] = calls[field][rows]
        return matched

    def _matches(self, correlations: UInt32s) -> Iterator[tuple[_Run, Int64s, Int64s]]:
        rest = np.arange(len(correlations))
        for run in reversed(self._runs):
            if not len(rest):
                return
            hit, places = _search(run, correlations[rest])
            yield run, places, rest[hit]
            rest = rest[~hit]

    def _push(self, calls: Slots, now_ns: int, oldest: int) -> None:
        correlations = calls["correlation"].copy()
        if (correlations[1:] < correlations[:-1]).any():
            order = np.argsort(correlations, kind="stable")
            calls, correlations = pick(calls, order), correlations.take(order)
        has_driver_calls = not calls["runtime"].all()
        self._runs.append(_Run(calls, correlations, now_ns, oldest, has_driver_calls))


def _firsts(places: Int64s) -> tuple[Int64s, Int64s]:
    """The distinct positions, and the first occurrence of each. Only graphs repeat a call."""
    if (places[1:] > places[:-1]).all():
        return places, np.arange(len(places))
    return np.unique(places, return_index=True)


def _search(run: _Run, correlations: UInt32s) -> tuple[Bools, Int64s]:
    places = np.searchsorted(run.correlations, correlations, side="right") - 1
    hit = (places >= 0) & (run.correlations[places] == correlations)
    return hit, places[hit]


# --- CUDA calls: the range they were made in, how long they took, and what they launched.

# Chosen, not measured.
NESTED_NS = 2_000_000_000
"""How long a driver call waits for the runtime call around it, which returns later."""

# Far fewer calls of CUDA have names: a bound for records that are not what they say.
MAX_NAMES = 4096
MAX_SECONDARY = 500_000
"""Ranges of other domains kept around calls for operations still to come."""

SECONDARY = np.dtype([
    ("instance", "i8"), ("node", "i8"), ("start_end", "?"), ("only_start_end", "?"),
    ("repeated", "?"),
], align=True)  # fmt: skip
"""The innermost range of another domain around a call, or a Start/End range. `only_start_end`: the
call lies only in Start/End ranges, and this is the first of them. `repeated`: an earlier range
around the call belongs to the same node."""


class SecondaryRanges:
    """The ranges around calls other than the one that each counts in, in order of the calls."""

    def __init__(self) -> None:
        self._sequences = np.empty(0, np.int64)
        self._rows = np.empty(0, SECONDARY)
        self._first = self._last = 0
        """The first and last row in use. There is room after the last: copying everything with each
        batch was a twentieth of the time that a report took."""

    def __len__(self) -> int:
        return self._last - self._first

    def around(self, sequences: Int64s) -> tuple[Slots, Int64s]:
        """The ranges around these calls, and which of `sequences` each belongs to."""
        kept = self._sequences[self._first : self._last]
        left = np.searchsorted(kept, sequences, side="left")
        counts = np.searchsorted(kept, sequences, side="right") - left
        rows = np.repeat(np.arange(len(sequences)), counts)
        offsets = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return pick(self._rows[self._first : self._last], np.repeat(left, counts) + offsets), rows

    def add(self, sequences: Int64s, rows: Slots, oldest: int) -> None:
        """Adds the ranges around newer calls, in the calls' order, and drops those around calls
        before `oldest`."""
        kept = slice(self._first, self._last)
        self._first += int(np.searchsorted(self._sequences[kept], oldest))
        if self._last + len(rows) > len(self._rows):
            kept = slice(max(self._first, self._last - MAX_SECONDARY), self._last)
            count = kept.stop - kept.start
            for name, dtype in (("_sequences", np.dtype(np.int64)), ("_rows", SECONDARY)):
                old = getattr(self, name)
                new = np.empty(2 * (count + len(rows)), dtype)
                new[:count] = old[kept]
                setattr(self, name, new)
            self._first, self._last = 0, count
        end = self._last + len(rows)
        self._sequences[self._last : end] = sequences
        self._rows[self._last : end] = rows
        self._first, self._last = max(self._first, end - MAX_SECONDARY), end


# A driver call that may have been made by a runtime call: when it was read, and how many flushes
# had ended by then.
_NESTED = np.dtype(
    [("correlation", "u4"), ("key", "i8"), ("duration", "i8"), ("read", "i8"), ("flushes", "i8")]
)

# A row's key: node | inherited | call. Its 16 bits are the width of MAX_NAMES with room above.
_NAME_BITS = 16
# `sub` of an API record: a call of the runtime; else of the driver.
_RUNTIME = 0


class LaunchIntervals:
    """The time between launch calls, per thread."""

    MAX_THREADS = 1024
    """Threads counted; the rest are left out."""

    def __init__(self) -> None:
        self._numbers = KeyTable(self.MAX_THREADS)
        self._threads: list[int] = []
        self._last_ns: list[int] = []
        self._parts: list[tuple[Int64s, Int64s]] = []
        self._counts = np.zeros(self.MAX_THREADS, np.int64)

    def add(self, threads: Int64s, starts_ns: Int64s) -> None:
        if not len(threads):
            return

        def define(thread: int, _first: int) -> int:
            self._threads.append(thread)
            self._last_ns.append(0)
            return len(self._threads) - 1

        numbers = self._numbers.lookup(threads, define, lambda: -1)
        if len(self._threads) > 1 or (starts_ns[1:] < starts_ns[:-1]).any():
            order = np.lexsort((starts_ns, numbers))
            numbers, starts_ns = numbers[order], starts_ns[order]
        first_known = int(np.searchsorted(numbers, 0))
        numbers, starts_ns = numbers[first_known:], starts_ns[first_known:]
        if not len(numbers):
            return
        firsts = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))
        lasts = np.append(firsts[1:], len(numbers)) - 1
        before = np.concatenate(([0], starts_ns[:-1]))
        before[firsts] = [self._last_ns[number] for number in numbers[firsts].tolist()]
        # A thread's calls can be delivered late: such a call has no interval of its own.
        follows = (before > 0) & (starts_ns >= before)
        self._parts.append((numbers[follows], (starts_ns - before)[follows]))
        self._counts += np.bincount(numbers, minlength=self.MAX_THREADS)
        for number, last_ns in zip(numbers[lasts].tolist(), starts_ns[lasts].tolist(), strict=True):
            self._last_ns[number] = max(self._last_ns[number], last_ns)

    def collect_parts(self, _: Collection) -> DeltaParts:
        """Launches of each thread, and the time between them."""
        pieces, self._parts = self._parts, []
        counts, self._counts = self._counts, np.zeros(self.MAX_THREADS, np.int64)
        intervals = coarse_distributions(
            join([part[0] for part in pieces], np.int64),
            np.minimum(join([part[1] for part in pieces], np.int64), LONGEST_NS),
        )
        return {
            "launching_threads": tuple(
                ThreadLaunches(self._threads[number], int(counts[number]), intervals.get(number))
                for number in np.flatnonzero(counts).tolist()
            )
        }


class CudaCalls:
    """The API records of one process."""

    def __init__(
        self,
        main_thread: int,
        stacks: RangeStacks,
        start_end: StartEndRanges,
        instances: RangeInstances,
        strings: Strings,
        nested_ns: int,
        accounting: Accounting,
    ) -> None:
        """`nested_ns` is the longest time a driver call waits for the runtime call around it."""
        self._start_end = start_end
        self._accounting = accounting
        self._nested_ns = nested_ns
        self._main_thread = main_thread
        self._stacks = stacks
        self._instances = instances
        self._strings = strings
        self._table = KeyTable(MAX_NAMES)
        self.names: list[str] = ["(other calls)"]
        """Names of calls, by the numbers that calls in the window carry."""
        self._numbers: dict[str, int] = {}
        self._launches = np.zeros(1, np.bool_)
        self._kernel_launches = np.zeros(1, np.bool_)
        self.single_launches = np.zeros(1, np.bool_)
        """Whether a call of each name launches one kernel."""
        self.intervals = LaunchIntervals()
        self._sequence = 0
        self.window = CallWindow()
        self.secondary = SecondaryRanges()
        self._done = ValueSums()
        self._nested = np.empty(0, _NESTED)

    def feed(self, records: Slots, now_ns: int) -> Slots:
        """Add the API records of a batch, in ring order.

        Returns the calls new in the window, for operations that arrived before their call.
        """
        new = self._drop_nested(records) if len(records) else records
        # After the batch's runtime calls have claimed theirs.
        self._release_driver_calls(now_ns - self._nested_ns)
        return self._add(new, new["sub"] == _RUNTIME, now_ns)

    def _drop_nested(self, records: Slots) -> Slots:
        """The records without driver calls that a runtime call made. Such a driver call has the
        runtime call's id, and nsys does not list it. Those held from earlier batches are removed,
        too."""
        is_runtime = records["sub"] == _RUNTIME
        correlations = np.ascontiguousarray(records["correlation"])
        runtime_ids = correlations[is_runtime]
        nested = np.zeros(len(records), np.bool_)
        if not is_runtime.all():
            # Whole records are copied, not field by field: the reader takes in twice as much.
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
        placement = find_ranges(self._stacks, self._main_thread, threads, starts)
        names = self._number_names(records["name"])
        keys = (
            (placement.nodes << (_NAME_BITS + 1))
            | (placement.inherited.astype(np.int64) << _NAME_BITS)
            | names
        )
        ends = np.maximum(starts, times_ns(records["end"]))
        durations = durations_ns(starts, ends)
        self._done.add(keys[is_runtime], durations[is_runtime])
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
        # Imported traces do not say what a call returned: `b` is then not 0.
        calls["result"], calls["has_result"] = records["a"], records["b"] == 0
        calls["name"] = names
        calls["thread"] = records["thread"]
        calls["start"] = starts
        calls["end"] = ends
        calls["outside"] = (placement.nodes == NO_NODE) | placement.inherited
        calls["outside"][placement.secondary] = False
        self._sequence += len(records)
        # The driver call already in the window stands in for its runtime call.
        new = ~self.window.promote(calls)
        self._keep_others(placement, calls, new)
        if not new.all():
            rows = np.flatnonzero(new)
            calls = pick(calls, rows)
            names, threads, starts, ends = (c.take(rows) for c in (names, threads, starts, ends))
        launches = np.flatnonzero(self._kernel_launches.take(names))
        self.intervals.add(threads.take(launches), starts.take(launches))
        self._await(calls, 1)
        self._accounting.add_calls(names, threads, starts, ends)
        self.window.add(calls, now_ns)
        return calls

    def _await(self, calls: Slots, change: int) -> None:
        """Make the ranges around these calls expect an operation of each, or stop expecting it."""
        own = np.flatnonzero(calls["awaits"] & ~calls["inherited"])
        self._instances.await_operations(calls["instance"][own], change)
        if len(self.secondary):
            secondary, _ = self.secondary.around(calls["sequence"][calls["awaits"]])
            self._instances.await_operations(secondary["instance"], change)

    def answer(self, calls: Slots) -> None:
        """The first operation of each of these calls has arrived: their ranges stop expecting
        it.
        """
        self._await(calls, -1)

    def collect_parts(self, collection: Collection) -> DeltaParts:
        """The calls that returned. At the end of the process also the driver calls that were held
        back, because a runtime call that has not returned might have made them."""
        if collection.ended:
            self._release_driver_calls(None)
        if not collection.due:
            return {}
        mask = (1 << _NAME_BITS) - 1
        deltas = tuple(
            ApiDelta(
                process=collection.process,
                range=int(collection.nodes.number[key >> (_NAME_BITS + 1)]),
                name=self.names[key & mask],
                inherited=bool(key >> _NAME_BITS & 1),
                time=time,
            )
            for key, time in self._done.drain(collection.exact_values)
        )
        return {"api": deltas}

    def _number_names(self, names: UInt32s) -> Int64s:
        def define(key: int, _first: int) -> int:
            name = api_name(self._strings.raw(key))
            number = self._numbers.setdefault(name, len(self.names))
            if number == len(self.names):
                self.names.append(name)
                self._accounting.define_call(name)
                self._launches = np.append(self._launches, is_launch(name))
                self._kernel_launches = np.append(self._kernel_launches, is_kernel_launch(name))
                self.single_launches = np.append(self.single_launches, launches_one_kernel(name))
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
        # A flush that began after the driver call arrived brings the runtime call around it.
        settled = self._instances.flushes - SETTLED_FLUSHES
        alone = (self._nested["read"] <= limit_ns) | (self._nested["flushes"] <= settled)
        done = pick(self._nested, np.flatnonzero(alone))
        if len(done):
            self._done.add(done["key"].copy(), done["duration"].copy())
            self._nested = self._nested[len(done) :]

    def _keep_others(self, placement: Placement, calls: Slots, new: Bools) -> None:
        """Keep the ranges around calls other than the one they count in; for the `new` calls."""
        threads, starts = calls["thread"].astype(np.int64), calls["start"].copy()
        rows, instances, nodes = self._start_end.around(threads, starts)
        total = len(placement.secondary) + len(rows)
        if not total:
            return
        around = np.zeros(total, SECONDARY)
        domains, ranges = np.split(around, [len(placement.secondary)])
        domains["instance"] = placement.secondary_instances
        domains["node"] = placement.secondary_nodes
        ranges["instance"] = instances
        ranges["node"] = nodes
        ranges["start_end"] = True
        _, first = np.unique(rows, return_index=True)
        ranges["only_start_end"][first] = calls["outside"][rows[first]]
        ranges["repeated"] = True
        _, first = np.unique(np.stack((rows, nodes)), axis=1, return_index=True)
        ranges["repeated"][first] = False
        calls["outside"][rows] = False
        of_calls = np.concatenate((placement.secondary, rows))
        kept = np.flatnonzero(new[of_calls])
        kept = kept[np.argsort(of_calls[kept], kind="stable")]
        sequences = calls["sequence"][of_calls[kept]]
        self.secondary.add(sequences, pick(around, kept), self.window.oldest_sequence)
