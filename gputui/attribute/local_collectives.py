"""The collectives of one process, as its records have them, in order; and whether the threads that
make them had a core.

For `accounting`, which passes ranges and kernels on; `matched_collectives` compares those of ranks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gputui.attribute import Strings, TimedOperations
from gputui.attribute.arrays import Int64s, KeyTable, Slots, distinct, times_ns
from gputui.attribute.collection import DeltaParts
from gputui.model.events import PayloadType
from gputui.model.kernel_categories import OTHER, kind_of, kind_of_kernel
from gputui.ring import FLAG_COMMUNICATOR, FLAG_PAYLOAD, RecordKind

# --- What a process did together with other ranks, as it is found in its records.


class RequestedOperation(NamedTuple):
    """What a rank asked for. `communicator` is empty where it is not known."""

    communicator: str
    kind: str
    size_bytes: int
    partner: int | None


class Collective(NamedTuple):
    """Operations that ran together. `own_ns` passed since the collective before had ended. `sent`
    are the ranks of the communicator to which a message went, with its bytes, `received` those from
    which one came."""

    communicator: str
    kind: str
    size_bytes: int
    start_ns: int
    end_ns: int
    own_ns: int
    operations: int
    sent: tuple[tuple[int, int], ...] = ()
    received: tuple[int, ...] = ()


class Entered(NamedTuple):
    """What a collective was called with, as it was begun."""

    communicator: str
    kind: str
    size_bytes: int
    time_ns: int


class CollectiveReport(NamedTuple):
    """The collectives of a process since the last report."""

    collectives: list[Collective]
    entered: list[Entered]
    ranks: dict[str, int]
    """By communicator, where the process said how many ranks it has."""
    own: dict[str, int]
    """The process's own rank in each of these."""


# --- The collectives of one process, in order: NCCL's operations with the kernels that ran them,
# and ranges of a domain "comm", with which a program marks those of other libraries.
#
# NCCL launches an operation's kernel inside the operation's range, or, of a group, inside the end
# of the group: so a kernel's operations are those whose range, or whose group's end, its launch
# lies in.

NCCL = "NCCL"
COMM = "comm"
"""Domains whose ranges are collectives."""

MAX_LAUNCHES = 20_000
"""Launches of a thread that wait for their kernels: those of captured graphs wait for ever."""

# Chosen, not measured: a bound for what a program can make up.
MAX_NAMED = 1024
_NEITHER, _NCCL, _COMM = 0, 1, 2
_BETWEEN_TWO = ("send", "recv", "send_recv")


class _Record(NamedTuple):
    """What is read of a range's record: see RANGE_PUSH in gputui.ring."""

    kind: int
    sub: int
    source_kind: int
    thread: int
    end: int
    correlation: int
    name: int
    value: int
    b: int
    d: int


_COLUMNS = _Record._fields


def _column(records: Slots, name: str, rows: Int64s) -> list[int]:
    values: list[int] = records[name].take(rows).tolist()
    return values


class _Launch(NamedTuple):
    start_ns: int
    end_ns: int
    groups: list[list[RequestedOperation]]
    """By communicator: one kernel each."""


class _Thread:
    """The NCCL ranges a thread has open, and its launches whose kernels have not arrived."""

    def __init__(self) -> None:
        self.stack: list[tuple[str, int, RequestedOperation | None]] = []
        self.depth = 0
        self.group: list[RequestedOperation] = []
        self.launches: deque[_Launch] = deque(maxlen=MAX_LAUNCHES)
        self.comm: list[tuple[RequestedOperation | None, int]] = []
        self.has_comm = False

    def launch(self, start_ns: int, end_ns: int, operations: list[RequestedOperation]) -> None:
        groups: dict[str, list[RequestedOperation]] = {}
        for operation in operations:
            groups.setdefault(operation.communicator, []).append(operation)
        if groups:
            self.launches.append(_Launch(start_ns, end_ns, list(groups.values())))


class LocalCollectives:
    """Records of ranges and kernels in, collectives out."""

    def __init__(self) -> None:
        self._domains = KeyTable(MAX_NAMED)
        self._threads: dict[int, _Thread] = defaultdict(_Thread)
        self._names: dict[int, tuple[str, str]] = {}
        self._kinds: list[str | None] = []
        self._is_nccl = np.zeros(256, np.bool_)
        self._has_nccl = False
        self._kernels: list[tuple[int, int, int, int, int]] = []
        self._done: list[Collective] = []
        self._entered: list[Entered] = []
        self._ranks: dict[str, int] = {}
        self._own: dict[str, int] = {}
        self._until_ns = 0

    @property
    def threads(self) -> list[int]:
        """The threads that make collectives on the CPU."""
        return [number for number, thread in self._threads.items() if thread.has_comm]

    def define_kernel(self, number: int, name: str) -> None:
        """Note a kernel's demangled name, which says whether it is one of NCCL's."""
        while number >= len(self._is_nccl):
            self._is_nccl = np.concatenate((self._is_nccl, np.zeros_like(self._is_nccl)))
        self._kinds += [None] * (number + 1 - len(self._kinds))
        self._kinds[number] = kind_of_kernel(name)
        self._is_nccl[number] = self._kinds[number] is not None
        self._has_nccl |= self._kinds[number] is not None

    def add_ranges(self, records: Slots, strings: Strings) -> None:
        """RANGE_PUSH and RANGE_POP records of a batch, in ring order."""
        if not len(records):
            return

        def define(key: int, _first: int) -> int:
            return {NCCL: _NCCL, COMM: _COMM}.get(strings.domain(key), _NEITHER)

        numbers = records["a"].astype(np.int64)
        if not self._domains.lookup(distinct(numbers), define, lambda: _NEITHER).any():
            return
        domains = self._domains.lookup(numbers, define, lambda: _NEITHER)
        rows = np.flatnonzero(domains)
        columns = (_column(records, name, rows) for name in _COLUMNS)
        moments = times_ns(records["start"].take(rows)).tolist()
        for record, domain, time_ns in zip(
            map(_Record._make, zip(*columns, strict=True)),
            domains[rows].tolist(),
            moments,
            strict=True,
        ):
            thread = self._threads[record.thread]
            if domain == _COMM:
                self._comm(thread, record, time_ns, strings)
            elif record.kind == RecordKind.RANGE_PUSH:
                self._push(thread, record, time_ns, strings)
            else:
                self._pop(thread, record, time_ns)

    def add_kernels(self, operations: TimedOperations) -> None:
        """Operations with their calls: the kernels among them."""
        if not self._has_nccl:
            return
        kernels = operations.kernels
        if len(rows := np.flatnonzero(self._is_nccl[kernels] & (kernels >= 0))):
            self._kernels += zip(
                operations.threads[rows].tolist(),
                operations.called_ns[rows].tolist(),
                kernels[rows].tolist(),
                operations.starts[rows].tolist(),
                operations.ends[rows].tolist(),
                strict=True,
            )

    def take_report(self) -> CollectiveReport:
        """Everything new, in order of its start."""
        kernels, self._kernels = sorted(self._kernels, key=lambda kernel: kernel[3]), []
        for thread, called_ns, kernel, start_ns, end_ns in kernels:
            operations = self._operations(thread, called_ns)
            kind = self._kinds[kernel] or OTHER
            self._done.append(_of_kernel(operations, kind, start_ns, end_ns, self._ranks))
        done, self._done = sorted(self._done, key=lambda collective: collective.start_ns), []
        entered, self._entered = self._entered, []
        collectives = []
        for collective in done:
            own_ns = max(0, collective.start_ns - self._until_ns) if self._until_ns else 0
            collectives.append(collective._replace(own_ns=own_ns))
            self._until_ns = max(self._until_ns, collective.end_ns)
        return CollectiveReport(collectives, entered, dict(self._ranks), dict(self._own))

    def _operations(self, thread: int, called_ns: int) -> list[RequestedOperation]:
        """The operations that a launch at `called_ns` ran; none if their ranges were not seen."""
        if thread not in self._threads:
            return []
        launches = self._threads[thread].launches
        place = bisect_right(launches, called_ns, key=lambda launch: launch.start_ns) - 1
        if place < 0:
            return []
        launch = launches[place]
        if called_ns > launch.end_ns or not launch.groups:
            return []
        oldest = launch.groups.pop(0)
        while launches and not launches[0].groups:
            launches.popleft()
        return oldest

    def _name(self, number: int, strings: Strings) -> tuple[str, str]:
        """A range's name, and the collective that it stands for."""
        name_and_kind = self._names.get(number)
        if name_and_kind is None:
            name = strings.label(number)
            name_and_kind = name, kind_of(name)
            if len(self._names) < MAX_NAMED:
                self._names[number] = name_and_kind
        return name_and_kind

    def _push(self, thread: _Thread, record: _Record, time_ns: int, strings: Strings) -> None:
        name, kind = self._name(record.name, strings)
        del thread.stack[record.d :]
        operation = None
        if kind != OTHER:
            operation = _operation(record, kind)
            self._enter(operation, time_ns)
        elif name == "ncclGroupStart":
            thread.depth += 1
        self._learn_ranks(record)
        thread.stack.append((name, time_ns, operation))

    def _pop(self, thread: _Thread, record: _Record, time_ns: int) -> None:
        self._learn_ranks(record)
        level = record.d
        if level >= len(thread.stack):
            return
        name, start_ns, operation = thread.stack[level]
        del thread.stack[level:]
        if operation is not None and thread.depth:
            thread.group.append(operation)
        elif operation is not None:
            thread.launch(start_ns, time_ns, [operation])
        elif name == "ncclGroupEnd":
            thread.depth = max(0, thread.depth - 1)
            if not thread.depth:
                thread.launch(start_ns, time_ns, thread.group)
                thread.group = []

    def _comm(self, thread: _Thread, record: _Record, time_ns: int, strings: Strings) -> None:
        level = record.d
        if record.kind == RecordKind.RANGE_PUSH:
            del thread.comm[level:]
            operation = None
            _, kind = self._name(record.name, strings)
            if kind != OTHER:
                name = strings.label(record.b) if record.b else "world"
                operation = _operation(record, kind)._replace(communicator=name)
                self._enter(operation, time_ns)
                thread.has_comm = True
            thread.comm.append((operation, time_ns))
        elif level < len(thread.comm):
            operation, start_ns = thread.comm[level]
            del thread.comm[level:]
            if operation is not None:
                self._done.append(
                    Collective(*operation[:3], start_ns, max(start_ns, time_ns), 0, 1)
                )

    def _enter(self, operation: RequestedOperation, time_ns: int) -> None:
        self._entered.append(Entered(*operation[:3], time_ns))

    def _learn_ranks(self, record: _Record) -> None:
        """How many ranks a communicator has, and which this is, from the range that made it."""
        made = record.sub & FLAG_COMMUNICATOR and record.source_kind == PayloadType.UINT64
        if made and len(self._ranks) < MAX_NAMED:
            self._ranks[_named(record.value)] = record.end
            if record.correlation:
                self._own[_named(record.value)] = record.correlation - 1


def _named(communicator: int) -> str:
    return f"{communicator:016x}"


_SIZES = {PayloadType.BYTES, PayloadType.UINT64, PayloadType.INT64}


def _operation(record: _Record, kind: str) -> RequestedOperation:
    is_described = record.sub & FLAG_COMMUNICATOR
    partner = record.correlation - 1 if is_described and record.correlation else None
    size = record.end if record.sub & FLAG_PAYLOAD and record.source_kind in _SIZES else 0
    communicator = _named(record.value) if is_described else ""
    return RequestedOperation(communicator, kind, size if size < 1 << 62 else 0, partner)


def _of_kernel(
    operations: list[RequestedOperation],
    kind: str,
    start_ns: int,
    end_ns: int,
    ranks: dict[str, int],
) -> Collective:
    """What one kernel did for all its operations."""
    if not operations:
        return Collective("", kind, 0, start_ns, end_ns, 0, 0)
    communicator = operations[0].communicator
    kinds = {operation.kind for operation in operations}
    size = sum(operation.size_bytes for operation in operations if operation.kind != "recv")
    if kinds == {"send", "recv"}:
        partners = {operation.partner for operation in operations if operation.kind == "send"}
        kind = "all_to_all" if len(partners) == ranks.get(communicator) else "send_recv"
        if kind == "all_to_all":  # its size is what each rank is sent, as that of ncclAlltoAll
            size //= len(partners)
    elif len(kinds) == 1:
        kind = kinds.pop()
    between_two = [
        asked for asked in operations if asked.partner is not None and kind in _BETWEEN_TWO
    ]
    return Collective(
        communicator,
        kind,
        size,
        start_ns,
        end_ns,
        0,
        len(operations),
        tuple(
            (asked.partner or 0, asked.size_bytes) for asked in between_two if asked.kind == "send"
        ),
        tuple(asked.partner or 0 for asked in between_two if asked.kind == "recv"),
    )


# --- How long the threads that make collectives on the CPU ran, and were ready and had no core.
#
# Without a GPU this distinguishes a rank that is late from one that the scheduler made late: with
# more threads than cores some rank is always the last, and it is another one each time.


class CoreTimes(NamedTuple):
    """How long threads ran, and were ready without a core, of the time they were watched.

    Run and wait are sums over threads; `watched_ns` is time that passed.
    """

    run_ns: int = 0
    wait_ns: int = 0
    watched_ns: int = 0


_NONE = CoreTimes()


class CoreTime:
    """Readings of the threads of one process in, sums out."""

    def __init__(self) -> None:
        self._readings: Mapping[int, tuple[int, int]] = {}
        self._read_ns: int | None = None
        self._new = _NONE
        self.kept = _NONE
        """What was read while there were collectives, since `forget`."""

    def add(self, now_ns: int, readings: Mapping[int, tuple[int, int]]) -> None:
        """For how long each thread has run, and had no core, since it began."""
        before = self._readings
        if self._read_ns is not None:
            pairs = [(new, before[thread]) for thread, new in readings.items() if thread in before]
            self._new = CoreTimes(
                self._new.run_ns + sum(max(0, new[0] - old[0]) for new, old in pairs),
                self._new.wait_ns + sum(max(0, new[1] - old[1]) for new, old in pairs),
                self._new.watched_ns + max(0, now_ns - self._read_ns),
            )
        self._readings = readings
        self._read_ns = now_ns if readings else None

    def keep(self, together: bool) -> None:
        """What was read since the last time counts if there were collectives meanwhile."""
        if together:
            self.kept = CoreTimes(*map(sum, zip(self.kept, self._new, strict=True)))
        self._new = _NONE

    def forget(self) -> None:
        """What was kept has been written down."""
        self.kept = _NONE

    @property
    def delta_parts(self) -> DeltaParts:
        """What was kept, by the field of CaptureDelta that it goes to."""
        return {
            "core_run_ns": self.kept.run_ns,
            "core_wait_ns": self.kept.wait_ns,
            "core_watched_ns": self.kept.watched_ns,
        }
