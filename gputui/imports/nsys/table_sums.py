"""Tables of sums of an nsys report, from the columns of its own rows, for callers that want no
others.

Their events come to the same sums as those of all rows, without what these tables do not show: the
tree of ranges, when a GPU was idle and why. For what ranges come to on the GPU, operations, their
calls and the ranges around these are joined as whole columns. Where rows are not as usual, the
tables are made of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, pairwise, permutations
from typing import Any

import numpy as np

from gputui.attribute import Strings
from gputui.attribute.arrays import (
    LATEST_NS,
    Bools,
    Int64s,
    KeyTable,
    are_among,
    durations_ns,
    run_starts,
)
from gputui.attribute.distributions import ValueSums
from gputui.base.sanitize import sanitize
from gputui.imports import Clock, number_distinct
from gputui.imports.nsys.database import Database
from gputui.imports.nsys.rows import (
    CUDA_TABLES,
    MARK,
    PUSH_POP,
    START_END,
    Names,
    RangeNames,
    range_selection,
)
from gputui.imports.nsys.table_pages import UnusualTable
from gputui.model.events import (
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    KernelDefined,
    KernelDelta,
    MemoryOperationDelta,
    ProcessAttached,
    ProcessDetached,
    RangeDefined,
    RangeDelta,
)
from gputui.model.hub import Numbering
from gputui.model.naming import COPY_KINDS, MEMSET, api_name, copy_name, demangle

RUNTIME, KERNELS, COPIES, SETS, GRAPHS = CUDA_TABLES

MOST_NAMES = 4096
"""Distinct names up to which a table is made this way: all rows together keep no more of some."""

MOST_CALLS = 5_000_000
"""Where some are of the driver: of each its id is held, as one of the runtime may have made it."""

# ENUM_NSYS_EVENT_CLASS of calls of the driver; those of the runtime are 0.
_DRIVER = 1

_MOST_BYTES = 1 << 62


class TableSums:
    """The events of some tables: definitions, and deltas of the whole time."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._names = Names(database)
        self._end_ns = clock.epoch_ns(clock.last)

    def events(self, tables: Sequence[str]) -> list[AnyEvent] | None:
        """The events between the run's start and its end; None for tables, or of a report, that
        need all rows. Raises JournalError."""
        wanted: set[str] = set()
        for table in tables:
            report, _, style = table.partition(":")
            if report not in _SHOWN or style not in _STYLES.get(report, {""}):
                return None
            wanted.add(_SHOWN[report])
        traced_cuda = any(self._database.columns(name) for name in CUDA_TABLES)
        attached = ProcessAttached(
            time_ns=self._clock.epoch_ns(self._clock.first),
            run=1,
            process=1,
            pid=0,
            parent_pid=0,
            command="",
            cuda_status="tracing" if traced_cuda else "the report holds no CUDA activity",
        )
        try:
            events = self._sums(wanted)
        except UnusualTable:
            return None
        if events is None:
            return None
        return [
            attached, *events, ProcessDetached(time_ns=self._end_ns, process=1, clean=True)
        ]  # fmt: skip

    def _sums(self, wanted: set[str]) -> list[AnyEvent] | None:
        projections = None
        if "projections" in wanted:
            operations = sum(map(self._database.most_rows, (KERNELS, COPIES, SETS)))
            projections = Projections(operations, self._database.most_rows("NVTX_EVENTS"))
        reads: list[Callable[[], list[AnyEvent] | None]] = []
        if "kernels" in wanted:
            reads.append(self._kernels)
        if "memory" in wanted:
            reads.append(self._memory)
        if projections is not None:
            reads.append(partial(self._operations, projections))
        if projections is not None or "ranges" in wanted:
            reads.append(partial(self._ranges, projections, is_shown="ranges" in wanted))
        if projections is not None or "calls" in wanted:
            reads.append(partial(self._calls, projections, is_shown="calls" in wanted))
        if projections is not None:
            reads.append(partial(self._projected, projections))
        events: list[AnyEvent] = []
        for read in reads:
            some = read()
            if some is None:
                return None
            events += some
        return events

    def _durations_ns(self, rows: Int64s) -> Int64s:
        """How long each row lasted, of start and end in the first two columns."""
        starts, ends = np.clip(rows[:, :2].T + self._clock.base_ns, 0, LATEST_NS)
        return durations_ns(starts, ends)

    def _kernels(self) -> list[AnyEvent] | None:
        if self._database.has_rows(GRAPHS, "1"):
            return None  # whole graphs count among the kernels
        sums = ValueSums()
        mangled: dict[int, int] = {}

        def mangle(name: int, symbol: int) -> int:
            if symbol:
                mangled.setdefault(name, symbol)
            return name

        columns = ("start", "end", "demangledName", "mangledName")
        for rows in self._database.arrays(KERNELS, columns):
            keys = number_distinct((rows[:, 2], rows[:, 3]), mangle)
            sums.add(keys, self._durations_ns(rows))
            if sums.counted_keys > MOST_NAMES:
                return None
        by_name = [*sums.drain()]
        if len(by_name) > MOST_NAMES:
            return None
        numbering = Numbering()
        events: list[AnyEvent] = []
        deltas = []
        for key, time in by_name:
            text = self._text(key)
            number, text, is_new = numbering.kernel(text)
            if is_new:
                symbol = sanitize(self._text(mangled[key])) if key in mangled else text
                events.append(
                    KernelDefined(
                        time_ns=self._end_ns, kernel=number, name=demangle(text), mangled=symbol
                    )
                )
            deltas.append(KernelDelta(process=1, range=0, kernel=number, device=0, time=time))
        delta = CaptureDelta(time_ns=self._end_ns, process=1, kernels=tuple(deltas))
        return [*events, delta]

    def _operations(self, projections: Projections) -> list[AnyEvent] | None:
        if self._database.has_rows(GRAPHS, "1"):
            return None
        for table in (KERNELS, COPIES, SETS):
            columns = ("start", "end", "correlationId", "globalPid")
            for rows in self._database.arrays(table, columns):
                projections.add_operations(_launch_keys(rows[:, 3], rows[:, 2]), rows[:, :2])
        return [] if projections.have_distinct_calls() else None

    def _calls(self, projections: Projections | None, *, is_shown: bool) -> list[AnyEvent] | None:
        sums = ValueSums()
        runtime_ids: list[Int64s] = []
        driver: list[Int64s] = []
        has_driver = self._database.has_rows(RUNTIME, f'"eventClass" = {_DRIVER}')
        if has_driver and self._database.most_rows(RUNTIME) > MOST_CALLS:
            return None
        has_ids = has_driver or projections is not None
        columns = ("start", "end", "nameId", *("correlationId", "globalTid") * has_ids,
                   *("eventClass",) * has_driver)  # fmt: skip
        for rows in self._database.arrays(RUNTIME, columns):
            is_driver = rows[:, -1] == _DRIVER if has_driver else np.zeros(len(rows), np.bool_)
            if has_ids:
                ids = _launch_keys(rows[:, 4], rows[:, 3])
            if projections is not None:
                projections.add_calls(ids, rows[:, 0], rows[:, 4], is_driver)
            if not is_shown:
                continue
            names, durations = rows[:, 2], self._durations_ns(rows)
            if has_driver:
                runtime_ids.append(ids[~is_driver])
                driver.append(np.array((ids, names, durations))[:, is_driver])
                names, durations = names[~is_driver], durations[~is_driver]
            if len(names):
                sums.add(names.copy(), durations)
            if sums.counted_keys > MOST_NAMES:
                return None
        if not is_shown:
            return []
        if has_driver:
            # A driver call that a runtime call made has its id, and is not listed.
            ids, names, durations = np.concatenate(driver, axis=1)
            # Ids rise with time: sorting them so takes a tenth of hashing them.
            alone = ~are_among(np.sort(np.concatenate(runtime_ids), kind="stable"), ids)
            sums.add(names[alone], durations[alone])
        deltas = tuple(
            ApiDelta(process=1, range=0, name=api_name(self._text(key)), time=time)
            for key, time in sums.drain()
        )
        if len(deltas) > MOST_NAMES:
            return None
        return [CaptureDelta(time_ns=self._end_ns, process=1, api=deltas)]

    def _memory(self) -> list[AnyEvent] | None:
        times, sizes = ValueSums(), ValueSums()
        unknown, memset = 0, -1
        for table, kind in ((COPIES, "copyKind"), (SETS, "")):
            columns = ("start", "end", "bytes", *((kind,) if kind else ()))
            for rows in self._database.arrays(table, columns):
                keys = np.full(len(rows), memset)
                if kind:
                    kinds = np.clip(rows[:, 3], 0, 255)
                    keys = np.where(kinds <= max(COPY_KINDS), kinds, unknown)
                times.add(keys, self._durations_ns(rows))
                sizes.add(keys, np.clip(rows[:, 2], 0, _MOST_BYTES))
        deltas = tuple(
            MemoryOperationDelta(
                process=1,
                range=0,
                operation=MEMSET if key == memset else copy_name(key),
                device=0,
                time=time,
                size=size,
            )
            for (key, time), (_, size) in zip(times.drain(), sizes.drain(), strict=True)
        )
        return [CaptureDelta(time_ns=self._end_ns, process=1, memory_operations=deltas)]

    def _ranges(self, projections: Projections | None, *, is_shown: bool) -> list[AnyEvent] | None:
        present = self._database.columns("NVTX_EVENTS")
        if not {"eventType", "start", "end", "globalTid"} <= present:
            return None
        if self._database.has_rows(
            "NVTX_EVENTS",
            f'"eventType" IN ({PUSH_POP}, {START_END}) AND typeof("end") <> \'integer\'',
        ):
            return None  # one that never ended lasts as long as its process
        naming = RangeNames(self._database, self._names)
        selection = range_selection(self._database, self._names)
        if selection is None:
            return None
        sums = ValueSums()
        keys: dict[tuple[int, int, int], int] = {}

        def number(style: int, domain: int, name: int) -> int:
            return keys.setdefault((style, domain, name), len(keys))

        for rows in self._database.decoded(selection):
            rows = rows[rows[:, 3] != MARK]
            start, _, end, style, _, _, text_id, task, domain, _, text, _, _ = rows.T
            name = naming.names(text, text_id)
            ranges = number_distinct((style, naming.domains(task >> 24, domain), name), number)
            if is_shown:
                sums.add(ranges, self._durations_ns(rows[:, [0, 2]]))
            if len(keys) > MOST_NAMES:
                return None
            if projections is not None:
                if (style != PUSH_POP).any():
                    return None  # which ranges lie in which is found as they go on
                projections.add_ranges(task, domain, start, end, ranges)
        strings = Strings()
        strings.add(self._names.texts)
        events: list[AnyEvent] = [
            RangeDefined(
                time_ns=self._end_ns,
                range=place + 1,
                process=1,
                thread=0,
                parent=0,
                domain=strings.domain(domain_name),
                name=strings.label(range_name),
                style="PushPop" if kind == PUSH_POP else "StartEnd",
            )
            for (kind, domain_name, range_name), place in keys.items()
        ]
        ranges_of = tuple(RangeDelta(range=key + 1, cpu=time) for key, time in sums.drain())
        return [*events, CaptureDelta(time_ns=self._end_ns, process=1, ranges=ranges_of)]

    def _projected(self, projections: Projections) -> list[AnyEvent] | None:
        deltas = projections.deltas()
        if deltas is None:
            return None
        return [CaptureDelta(time_ns=self._end_ns, process=1, ranges=deltas)]

    def _text(self, identifier: int) -> str:
        return self._names.texts.get(self._names.of_id(identifier), "")


_SHOWN = {
    "cuda_gpu_kern_sum": "kernels",
    "cuda_api_sum": "calls",
    "cuda_gpu_mem_time_sum": "memory",
    "cuda_gpu_mem_size_sum": "memory",
    "nvtx_sum": "ranges",
    "nvtx_pushpop_sum": "ranges",
    "nvtx_startend_sum": "ranges",
    "nvtx_gpu_proj_sum": "projections",
}
"""Which sums each of nsys's reports shows; other reports need all rows."""

_STYLES = {"cuda_gpu_kern_sum": {"", "base", "mangled"}}


def _launch_keys(tasks: Int64s, correlations: Int64s) -> Int64s:
    """A process and an id of CUPTI in one number, which a call and what it launched share."""
    keys: Int64s = (tasks >> 24 << 32) | (correlations & 0xFFFF_FFFF)
    return keys


# --- Ranges on the GPU: from the first to the last operation whose call began in the range.
#
# Only where each operation has a call of its own, soon before it, and ranges are pushed and popped.
# What lies in one is then a stretch of its thread's calls, in order of time.

MOST_OPERATIONS, MOST_RANGES = 2_500_000, 1_000_000
"""Up to which they are joined this way: at most 80 bytes of each operation are held, and 150 of
each range."""

MOST_THREADS = 4096
_DEEPEST = 256

_CLOCKS_NS = 1_000_000
_SOON_NS = 10_000_000_000
"""How much earlier than its call, and how long after it, an operation may begin: beyond, all rows
together do not take it for one of the ranges around the call (see WrongCalls, HORIZON_NS)."""


class _Columns:
    """Columns to which rows are added, as many as there is room for: only what is filled takes
    memory."""

    def __init__(self, room: int, *kinds: type[np.generic]) -> None:
        self._columns: list[Any] = [np.empty(room, kind) for kind in kinds]
        self._count = 0

    def add(self, *columns: Int64s | Bools) -> None:
        """Add rows. Raises UnusualTable where there is no room."""
        first, self._count = self._count, self._count + len(columns[0])
        if self._count > len(self._columns[0]):
            raise UnusualTable
        for own, column in zip(self._columns, columns, strict=True):
            own[first : self._count] = column

    def drain(self) -> list[Int64s]:
        """The columns, of integers that may be narrower; none are left."""
        columns, self._columns = self._columns, []
        return [column[: self._count] for column in columns]


class Projections:
    """Operations, then ranges and calls of a report; at last what ranges come to on the GPU."""

    def __init__(self, operations: int, ranges: int) -> None:
        """There are at most so many. Raises UnusualTable where they are too many."""
        if operations > MOST_OPERATIONS or ranges > MOST_RANGES:
            raise UnusualTable
        self._operations = _Columns(operations, np.int64, np.int64, np.int64)
        # Of an operation there are a call of the runtime and one of the driver.
        self._calls = _Columns(2 * operations, np.int32, np.int64, np.int32, np.bool_)
        self._ranges = _Columns(ranges, np.int32, np.int64, np.int64, np.int64, np.int32)
        self._tasks, self._next_task = KeyTable(MOST_THREADS), count()
        self._keys = self._starts = self._ends = np.empty(0, np.int64)

    def add_operations(self, keys: Int64s, times: Int64s) -> None:
        """Operations by the keys of their calls, with start and end."""
        self._operations.add(keys, times[:, 0], times[:, 1])

    def have_distinct_calls(self) -> bool:
        """Whether each operation has a call of its own. Call when all operations are added."""
        keys, starts, ends = self._operations.drain()
        if (keys[1:] < keys[:-1]).any():
            order = np.argsort(keys, kind="stable")
            keys, starts, ends = (column[order] for column in (keys, starts, ends))
        self._keys, self._starts, self._ends = keys, starts, ends
        return bool((keys[1:] != keys[:-1]).all())

    def add_calls(self, keys: Int64s, starts: Int64s, tasks: Int64s, is_driver: Bools) -> None:
        """Calls, of which those without an operation are not kept."""
        if not len(self._keys):
            return
        places = np.searchsorted(self._keys, keys)
        places[places == len(self._keys)] = 0
        kept = np.flatnonzero(self._keys[places] == keys)
        self._calls.add(places[kept], starts[kept], self._numbers(tasks[kept]), is_driver[kept])

    def add_ranges(
        self, tasks: Int64s, domains: Int64s, starts: Int64s, ends: Int64s, names: Int64s
    ) -> None:
        """Ranges of threads, as they stand in the file; `names` are small numbers."""
        # One that ends at once has nothing in it, and is in nothing.
        lasts = np.flatnonzero(ends > starts)
        self._ranges.add(
            self._numbers(tasks[lasts]), domains[lasts], starts[lasts], ends[lasts], names[lasts]
        )

    def _numbers(self, tasks: Int64s) -> Int64s:
        def refuse() -> int:
            raise UnusualTable

        return self._tasks.lookup(tasks, lambda _task, _first: next(self._next_task), refuse)

    def deltas(self) -> tuple[RangeDelta, ...] | None:
        """One for each name that has operations; None where rows are not as said above."""
        calls = self._matched_calls()
        if calls is None:
            return None
        task, domain, start, end, name = self._ranges.drain()
        if not len(task) or not len(calls[0]):
            return ()
        # Of ranges that begin and end at once the first is outside: the sort keeps their order.
        order = np.lexsort((-end, start, domain, task))
        task, domain, start, end, name = (c[order] for c in (task, domain, start, end, name))
        parents = _parents(task, domain, start, end)
        if parents is None:
            return None
        low, high = (np.empty(len(task), np.int64) for _ in range(2))
        call_tasks, call_starts, firsts, lasts = calls
        for begin, stop in pairwise([*run_starts(task).tolist(), len(task)]):
            first, last = (int(np.searchsorted(call_tasks, task[begin], side))
                           for side in ("left", "right"))  # fmt: skip
            for bounds, moments in ((low, start), (high, end)):
                within = np.searchsorted(call_starts[first:last], moments[begin:stop])
                bounds[begin:stop] = first + within
        levels, around = np.zeros(len(task), np.int64), parents
        while (around >= 0).any():
            levels += around >= 0
            around = np.where(around >= 0, parents[around], -1)
        busy = np.flatnonzero(low < high)
        children = np.zeros(len(levels), np.int64)
        inside = parents[busy]
        np.add.at(children, inside[inside >= 0], 1)
        stretches = np.column_stack((low[busy], high[busy])).ravel()
        least = np.minimum.reduceat(np.append(firsts, LATEST_NS), stretches)[::2]
        most = np.maximum.reduceat(np.append(lasts, 0), stretches)[::2]
        names = name[busy].astype(np.int64)
        projected = ValueSums()
        projected.add(names, most - least)
        columns = (end - start)[busy], (high - low)[busy], levels[busy], children[busy]
        sums = np.zeros((4, int(names.max(initial=0)) + 1), np.int64)
        for amounts, column in zip(sums, columns, strict=True):
            np.add.at(amounts, names, column)
        return tuple(
            RangeDelta(
                range=key + 1,
                projected=time,
                projected_range_ns=int(sums[0, key]),
                gpu_operations=int(sums[1, key]),
                levels=int(sums[2, key]),
                children_with_work=int(sums[3, key]),
            )
            for key, time in projected.drain()
        )

    def _matched_calls(self) -> tuple[Int64s, ...] | None:
        """Task, start, and start and end of its operation of each call, by task and start; None
        where calls share an operation or are not soon before it."""
        places, starts, tasks, is_driver = self._calls.drain()
        if is_driver.any():
            # A driver call that a runtime call made has its id.
            made = np.zeros(len(self._keys), np.bool_)
            made[places[is_driver == 0]] = True
            kept = np.flatnonzero((is_driver == 0) | ~made[places])
            places, starts, tasks = places[kept], starts[kept], tasks[kept]
        self._keys = self._keys[:0]
        waits = self._starts[places] - starts
        if len(waits) and (waits.min() < -_CLOCKS_NS or waits.max() > _SOON_NS):
            return None
        if np.bincount(places, minlength=1).max() > 1:
            return None
        order = np.lexsort((starts, tasks))
        places = places[order]
        first, last = self._starts[places], self._ends[places]
        self._starts = self._ends = self._keys
        return tasks[order], starts[order], first, np.maximum(first, last, out=last)


def _parents(task: Int64s, domain: Int64s, start: Int64s, end: Int64s) -> Int64s | None:
    """The place of the shortest range of its thread around each, −1 without one, of ranges in
    order of thread, domain and beginning; None where those of a domain do not nest, or where two of
    different domains begin at once."""
    new = np.ones(len(task), np.bool_)
    new[1:] = (task[1:] != task[:-1]) | (domain[1:] != domain[:-1])
    stacks = [slice(*ends) for ends in pairwise([*np.flatnonzero(new).tolist(), len(task)])]
    levels, parents = np.zeros(len(task), np.int64), np.full(len(task), -1)
    for stack in stacks:
        # Of those that began before it, what has not ended is around it.
        ended = np.searchsorted(np.sort(end[stack]), start[stack], side="right")
        levels[stack] = np.arange(stack.stop - stack.start) - ended
    if levels.max() >= _DEEPEST:
        return None
    around = np.flatnonzero(levels == 0)
    for level in range(1, int(levels.max()) + 1):
        here = np.flatnonzero(levels == level)
        parents[here] = around[np.searchsorted(around, here) - 1]
        around = here
    inside = np.flatnonzero(parents >= 0)
    if (end[inside] > end[parents[inside]]).any():
        return None
    shortest = parents.copy()
    for inner, outer in permutations(stacks, 2):
        if task[inner.start] != task[outer.start]:
            continue
        before, after = (np.searchsorted(start[outer], start[inner], side)
                         for side in ("left", "right"))  # fmt: skip
        if (before != after).any():
            return None
        others = np.where(before > 0, outer.start + before - 1, -1)
        while (left := np.flatnonzero((others >= 0) & (end[others] < end[inner]))).size:
            others[left] = parents[others[left]]
        chosen = np.flatnonzero(others >= 0)
        of_other, own = others[chosen], shortest[inner][chosen]
        longer = (end - start)[of_other] - (end - start)[own]
        is_shorter = (own < 0) | (longer < 0) | ((longer == 0) & (start[of_other] > start[own]))
        shortest[inner.start + chosen[is_shorter]] = of_other[is_shorter]
    return shortest
