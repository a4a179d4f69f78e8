"""Files written by other tools, as the events of a session.

Here is what importers of every format share. The records of a file go, in order of time, through
the attribution that live capture goes through: a kernel belongs to the range around its launch.
Ranges come as pushes and pops, strings and launch shapes by number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gputui.attribute.arrays import (
    LATEST_NS,
    Bools,
    Int64s,
    Integers,
    Slots,
    UInt32s,
    distinct,
    pick,
    stack,
)
from gputui.base import JournalError
from gputui.model.events import NO_PAYLOAD, AnyEvent, ProcessAttached, ProcessDetached
from gputui.model.hub import Numbering
from gputui.ring import FLAG_COLORED, FLAG_PAYLOAD, SLOT, STRING_BYTES_MAX, RecordKind
from gputui.store.trace import TraceWriter

if TYPE_CHECKING:
    from gputui.attribute.traced_process import TracedProcess


# Distinct combinations of columns.

# Odd constants whose bits are spread: multiples of the golden ratio's (Knuth, TAOCP 6.4).
_SPREAD = np.arange(1, 64, dtype=np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15) | np.uint64(1)


def number_distinct(columns: Sequence[Integers], number: Callable[..., int]) -> Int64s:
    """`number` of each row's values, asked once for each distinct combination of them, the lowest
    first. Sorting one hash takes a twelfth of the time of `np.unique` over rows of ten columns."""
    columns = [column.astype(np.int64) for column in columns]
    if not len(columns[0]):
        return np.empty(0, np.int64)
    hashes = np.zeros(len(columns[0]), np.uint64)
    for column, spread in zip(columns, _SPREAD, strict=False):
        hashes = (hashes ^ (hashes >> np.uint64(29))) * _SPREAD[0] + column.view(np.uint64) * spread
    _, firsts, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    keys = np.array([column[firsts] for column in columns])
    if any((column != key[inverse]).any() for column, key in zip(columns, keys, strict=True)):
        # Two combinations have one hash, in a file that was made so.
        keys, inverse = np.unique(np.array(columns), axis=1, return_inverse=True)
    order = np.lexsort(keys[::-1])
    numbers = np.empty(len(order), np.int64)
    numbers[order] = [number(*key) for key in keys[:, order].T.tolist()]
    result: Int64s = numbers[inverse.reshape(-1)]
    return result


# Launch shapes of a report, numbered like a process's shapes in the capture library.

_LOW = 0xFFFF_FFFF


class LaunchShapes:
    """Numbers of the distinct shapes, and the records that define them."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def number_shapes(self, names: UInt32s, rows: Int64s) -> Int64s:
        """The number of each kernel's shape, 0 if the report does not have it.

        `rows` has grid x y z, block x y z, registers, static and dynamic shared bytes.
        """
        numbers = np.zeros(len(rows), np.int64)
        launched = np.flatnonzero(rows[:, 0] > 0)
        if len(launched):
            shapes = np.clip(rows[launched], 0, _LOW)
            numbers[launched] = number_distinct((names[launched], *shapes.T), self._number)
        return numbers

    def _number(self, *key: int) -> int:
        number = self._numbers.get(key, 0)
        from gputui.attribute.definitions import MOST

        if not number and len(self._numbers) < MOST - 1:
            number = self._numbers[key] = len(self._numbers) + 1
        return number

    def records(self, numbers: list[int]) -> Slots:
        """The records that define these shapes."""
        records = np.zeros(len(numbers), SLOT)
        if not numbers:
            return records
        keys = list(self._numbers)
        name, *geometry = np.array([keys[number - 1] for number in numbers], np.uint64).T
        records["kind"] = RecordKind.LAUNCH_SHAPE
        records["d"] = numbers
        records["name"] = name
        records["start"] = geometry[0] | geometry[1] << np.uint64(32)
        records["end"] = geometry[2] | geometry[3] << np.uint64(32)
        records["value"] = geometry[4] | geometry[5] << np.uint64(32)
        for name, column in zip("abc", geometry[6:], strict=True):
            records[name] = column
        return records


# Strings of an imported file, numbered from 1 like a process's strings in the capture library.

MAX_TEXTS = 400_000
"""Distinct strings kept; any further ones are lost."""


class Texts:
    """Texts by the numbers that records name them by."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.texts: dict[int, str] = {}

    def of_text(self, text: str) -> int:
        """The number of a text, which is new if it was not seen before."""
        number = self._numbers.get(text)
        if number is not None:
            return number
        text = text[:STRING_BYTES_MAX]
        number = self._numbers.get(text)
        if number is None:
            if len(self._numbers) >= MAX_TEXTS:
                return MAX_TEXTS + 1
            number = len(self._numbers) + 1
            self._numbers[text] = number
            self.texts[number] = text
        return number


# Ranges with both ends as the pushes, pops, starts, ends and marks behind them.
#
# Files store a range as one row. Rows of a thread and domain nest, so sorting both ends restores
# the order of pushes and pops, and counting them gives the levels.

ABSENT = -(1 << 63)
"""Represents a missing number in a column of integers."""

THREAD = 0xFFFFFF
"""The bits of a task that are its thread: tids end at 2²²."""

_RGB = 0xFFFFFF

_U32 = 0xFFFF_FFFF


class RangeRows(NamedTuple):
    """Columns of rows that are ranges or marks, with the names they refer to."""

    number: Int64s
    """The row's place in the file: of ranges that begin and end at once the lower is outside."""
    start: Int64s
    end: Int64s
    kind: Int64s
    category: Int64s
    color: Int64s
    name: Int64s
    task: Int64s
    """The thread; above its lowest bits, the process as the file numbers it."""
    domain: Int64s
    """The number of the domain's name, 0 for the default one."""
    end_task: Int64s
    """The thread that ended it."""
    category_id: Int64s
    payload_type: Int64s
    payload: Int64s
    """As in a ring record, but signed."""

    @classmethod
    def empty(cls) -> RangeRows:
        """A block without rows, for what a report has no table of."""
        return cls._make([np.empty(0, np.int64)] * len(cls._fields))

    def pick(self, rows: Int64s | Bools | slice) -> RangeRows:
        """The rows at these places, in this order."""
        return RangeRows._make(column[rows] for column in self)


class RangeRecords:
    """Rows of ranges in, records in order of time out: those that are open are carried."""

    def __init__(self, base_ns: int) -> None:
        """`base_ns` is where the file's clock begins, since the epoch."""
        self._base_ns = base_ns
        self._open = RangeRows.empty()
        self._depths: dict[tuple[int, int], int] = {}
        """How many ranges each stack, a task and a domain, has open."""
        self.last_ns = 0
        """The last moment of any range or mark until now, of any process, since the epoch."""

    def records_until(self, until: int, begun: RangeRows) -> tuple[Slots, Int64s]:
        """The records up to a moment of the file's clock, and the task of each. `begun` are the
        rows, in any order, that begin since the moment of the last call and not after this one."""
        rows = RangeRows._make(map(np.concatenate, zip(self._open, begun, strict=True)))
        ends = np.maximum(rows.start, rows.end)
        closes = (rows.kind != RecordKind.MARK) & (rows.end != ABSENT)
        closing = np.flatnonzero(closes & (ends <= until))
        row = np.concatenate((np.arange(len(self._open.start), len(rows.start)), closing))
        is_end = np.arange(len(row)) >= len(row) - len(closing)
        self._open = rows.pick(np.flatnonzero(closes & (ends > until)))
        start, end, number = rows.start[row], ends[row], rows.number[row]
        time = np.where(is_end, end, start)
        if len(time):
            latest_ns = int(time.max()) + self._base_ns
            self.last_ns = max(self.last_ns, min(max(0, latest_ns), LATEST_NS))
        empty = (end == start) & (rows.end[row] != ABSENT)
        # At the same moment: first ends of earlier ranges, innermost first; then starts, outermost
        # first; a range of zero length ends before the next begins.
        phase = ~is_end | empty
        first = np.where(phase, -end, -start)
        second = np.where(is_end & ~empty, -number, 2 * number + is_end)
        order = np.argsort(time, kind="stable")
        ordered = time[order]
        is_same = np.flatnonzero(ordered[1:] == ordered[:-1])
        ties = np.union1d(is_same, is_same + 1)
        at_once = order[ties]
        keys = (second[at_once], first[at_once], phase[at_once], time[at_once])
        order[ties] = at_once[np.lexsort(keys)]
        return self._as_records(rows.pick(row[order]), time[order], is_end[order])

    def _as_records(self, rows: RangeRows, time: Int64s, is_end: Bools) -> tuple[Slots, Int64s]:
        """The records of these beginnings and ends, which are in order."""
        ends = np.where(
            rows.kind == RecordKind.RANGE_PUSH, RecordKind.RANGE_POP, RecordKind.RANGE_END
        )
        kind = np.where(is_end, ends, rows.kind)
        records = np.zeros(len(kind), SLOT)
        records["kind"] = kind
        tasks = np.where(kind == RecordKind.RANGE_END, rows.end_task, rows.task)
        records["thread"] = tasks & THREAD
        records["start"] = np.clip(time + self._base_ns, 0, LATEST_NS)
        records["a"] = rows.domain
        records["d"] = self._levels(rows, kind)
        records["value"] = rows.number
        opens = ~is_end
        records["name"] = np.where(opens, rows.name, 0)
        records["b"] = np.where(opens, rows.category, 0)
        colored = opens & (rows.color != ABSENT)
        records["sub"][colored] = FLAG_COLORED
        records["c"] = np.where(colored, rows.color & _RGB, 0)
        records["e"] = np.where(opens, np.maximum(rows.category_id, 0) & _U32, 0)
        with_payload = opens & (rows.payload_type != NO_PAYLOAD)
        if with_payload.any():
            records["sub"][with_payload] |= FLAG_PAYLOAD
            records["source_kind"][with_payload] = rows.payload_type[with_payload]
            records["end"][with_payload] = rows.payload[with_payload].view(np.uint64)
        return records, rows.task

    def _levels(self, rows: RangeRows, kind: Int64s) -> Int64s:
        """How many ranges of the same stack are open around each push, and around each pop's
        range."""
        level = np.zeros(len(kind), np.int64)
        nests = np.flatnonzero((kind == RecordKind.RANGE_PUSH) | (kind == RecordKind.RANGE_POP))
        if not len(nests):
            return level
        order = nests[np.lexsort((rows.domain[nests], rows.task[nests]))]
        task, domain = rows.task[order], rows.domain[order]
        pushes = kind[order] == RecordKind.RANGE_PUSH
        depth = np.cumsum(np.where(pushes, 1, -1))
        new = np.flatnonzero(np.r_[True, (task[1:] != task[:-1]) | (domain[1:] != domain[:-1])])
        stacks = list(zip(task[new].tolist(), domain[new].tolist(), strict=True))
        before = np.r_[0, depth[:-1]][new] - [self._depths.get(stack, 0) for stack in stacks]
        depth = depth - np.repeat(before, np.diff(np.r_[new, len(order)]))
        self._depths.update(zip(stacks, depth[np.r_[new[1:] - 1, -1]].tolist(), strict=True))
        level[order] = np.where(pushes, depth - 1, depth)
        return level


# The records of a file, in order of time, through the attribution that live capture goes through:
# a kernel belongs to the range around its launch.

MAX_PROCESSES = 1024

TICKS = 600

SHORTEST_TICK_NS = 100_000_000
"""A file is divided into at most this many ticks, none shorter than this."""

FINE_TICKS = 64
"""Ticks of that length with which a file that is only summed up begins: set-up ends, and steps are
recognised, at a tick."""

COARSE_TICKS = 16
"""Ticks in which the rest of it is summed up. A tick costs 12 ms, whatever happened in it: of a
report with 0.7 million rows, 600 ticks were 7 of 11 s."""

MOST_FED = 1 << 18
"""Records after which a file that is summed up is collected within a tick, too: what is open and
what waits for its operations is held until then."""

SETTLED_NS = 1_000_000_000
"""How often what was read counts as complete. After two such moments without another operation, a
range whose launches were all answered is summed up, as after two flushes of the capture library;
without them each waited ten seconds, in which 260,000 ranges gathered."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The time that a file covers, on its own clock, and where that begins since the epoch."""

    first: int
    last: int
    base_ns: int

    def epoch_ns(self, time: int) -> int:
        """A moment of the file's clock as nanoseconds since the epoch."""
        return min(max(0, time + self.base_ns), 4_102_444_800_000_000_000)

    @property
    def tick_ns(self) -> int:
        """How much of the file one tick covers."""
        return max(SHORTEST_TICK_NS, -(-(self.last - self.first) // TICKS))

    def ticks(self, *, summed: bool) -> Iterator[int]:
        """The ends of the ticks, on the file's clock; `summed` ones are fewer."""
        tick, number = self.first, 0
        tick_ns = self.tick_ns
        while tick < self.last:
            if summed and number == FINE_TICKS:
                tick_ns = max(tick_ns, -(-(self.last - tick) // COARSE_TICKS))
            tick, number = min(self.last, tick + tick_ns), number + 1
            yield tick


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What a file says of one of its processes."""

    pid: int
    command: str
    cuda_status: str
    rank: int | None = None


@dataclass(slots=True)
class _Process:
    """A process of the file, and the strings and launch shapes already defined for it."""

    traced: TracedProcess
    strings: _Defined = field(default_factory=lambda: _Defined())
    shapes: _Defined = field(default_factory=lambda: _Defined())


class _Defined:
    """Which of the numbers from 1 on have been defined."""

    def __init__(self) -> None:
        self._are = np.ones(1, np.bool_)

    def new_among(self, numbers: Integers, count: int) -> list[int]:
        """Those that are asked for the first time, of `count` numbers that there are."""
        if count >= len(self._are):
            more = np.zeros(2 * count + 1, np.bool_)
            more[: len(self._are)] = self._are
            self._are = more
        new = numbers[~self._are.take(numbers, mode="clip")]
        asked = [number for number in distinct(new).tolist() if number <= count]
        self._are[asked] = True
        return asked


class ImportedReading(ABC):
    """One pass over a file in order of time."""

    def __init__(
        self,
        clock: Clock,
        texts: Texts,
        trace: TraceWriter | None,
        shapes: LaunchShapes,
        *,
        summed: bool = False,
    ) -> None:
        """With `trace`, every record also goes there. `summed` is for callers that look only at
        what all events come to: these are fewer then."""
        self.skipped = 0
        """Records of processes beyond the limit."""
        self._clock = clock
        self._texts = texts
        self._trace = trace
        self._numbering = Numbering()
        self._processes: dict[int, _Process] = {}
        self._shapes = shapes
        self._summed = summed
        self._read_until = clock.first
        self._fed = 0
        """Records since the last collection."""
        self._stopped = False

    @abstractmethod
    def _horizon(self, tick: int) -> int:
        """Up to which moment, `tick` at the latest, every record is at hand."""

    @abstractmethod
    def _records_until(self, until: int) -> Sequence[tuple[Slots, Int64s]]:
        """The records up to a moment, and which process each is of: ranges, then calls, then
        operations, as they stand where they begin at once."""

    @abstractmethod
    def _facts(self, owner: int) -> ProcessFacts:
        """What is known of a process."""

    @abstractmethod
    def _thread_name(self, owner: int, thread: int) -> str | None:
        """The name of a thread."""

    def _thread_priority(self, _owner: int, _thread: int) -> int | None:
        """Its priority to the scheduler; None where the file does not say."""
        return None

    def _last_range_ns(self) -> int:
        """When the last range ended, since the epoch."""
        return 0

    def _mended(self, events: list[AnyEvent]) -> Iterator[AnyEvent]:
        """What came of a process, with what only the file knows."""
        yield from events

    def _beside(self, _until: int) -> Iterator[AnyEvent]:
        """What the file holds beside what processes did, up to a moment."""
        yield from ()

    @property
    def share_read(self) -> float:
        """How much of the file's time has been read, from 0 to 1."""
        covered = self._clock.last - self._clock.first
        return (self._read_until - self._clock.first) / covered if covered > 0 else 1.0

    def stop(self) -> None:
        """Read no further than to the end of this tick; from any thread."""
        self._stopped = True

    def events(self) -> Iterator[AnyEvent]:
        """The events between the run's start and its end. Raises JournalError."""
        try:
            yield from self._ticks()
        except JournalError:
            yield from self._held_back()
            raise
        if self._stopped:
            yield from self._held_back()
            return
        end_ns = self._clock.epoch_ns(self._clock.last)
        yield from self._collected(end_ns, ended=True, open_until_ns=self._last_range_ns())
        yield from self._beside(self._clock.last)
        for process in self._processes.values():
            yield ProcessDetached(time_ns=end_ns, process=process.traced.number, clean=True)

    def _held_back(self) -> Iterator[AnyEvent]:
        """What would have come at the end of a file that is read no further."""
        if self._summed:
            yield from self._collected(self._clock.epoch_ns(self._read_until), due=True)

    def _ticks(self) -> Iterator[AnyEvent]:
        """The events of all ticks but the last, whose records are fed."""
        clock = self._clock
        settled = clock.first
        for tick in clock.ticks(summed=self._summed):
            until = clock.first
            while until < tick:
                if self._stopped:
                    return
                until = min(tick, self._horizon(tick))
                yield from self._feed(until)
                self._read_until = until
                if until < tick and not (self._summed and self._fed >= MOST_FED):
                    continue
                if until - settled >= SETTLED_NS:
                    settled = until
                    for process in self._processes.values():
                        process.traced.complete()
                if until == clock.last:
                    break  # what ends with the file and what it leaves open end together
                yield from self._collected(clock.epoch_ns(until))
                self._fed = 0
            yield from self._beside(tick) if tick < clock.last else ()

    def _collected(
        self, now_ns: int, *, due: bool = False, ended: bool = False, open_until_ns: int = 0
    ) -> Iterator[AnyEvent]:
        """What came of each process since the last tick; the arguments as in `collect`."""
        for process in self._processes.values():
            yield from self._mended(
                process.traced.collect(now_ns, due=due, ended=ended, open_until_ns=open_until_ns)
            )

    def _feed(self, until: int) -> Iterator[AnyEvent]:
        pieces = self._records_until(until)
        records = stack([piece for piece, _ in pieces])
        owners = np.concatenate([owner for _, owner in pieces])
        if not len(records):
            return
        self._fed += len(records)
        # Ranges before the calls inside them, calls before what they launched: the pieces are
        # in that order, and the sort is stable.
        order = np.argsort(records["start"], kind="stable")
        owners = owners[order]
        now_ns = self._clock.epoch_ns(until)
        for owner in distinct(owners).tolist():
            process = self._processes.get(owner)
            if process is None:
                if len(self._processes) >= MAX_PROCESSES:
                    self.skipped += int(np.count_nonzero(owners == owner))
                    continue
                process, attached = self._attach(owner, now_ns)
                yield attached
            self._give(process, pick(records, order[owners == owner]), now_ns)

    def _give(self, process: _Process, records: Slots, now_ns: int) -> None:
        texts = self._texts.texts
        strings = {
            number: texts[number]
            for column in ("name", "a", "b")
            for number in process.strings.new_among(records[column], len(texts))
        }
        kernels = np.flatnonzero(records["kind"] == RecordKind.KERNEL)
        shapes = process.shapes.new_among(records["d"][kernels], len(self._shapes))
        definitions = self._shapes.records(shapes)
        process.traced.feed(stack((definitions, records)) if shapes else records, strings, now_ns)

    def _attach(self, owner: int, now_ns: int) -> tuple[_Process, ProcessAttached]:
        # Loaded where rows are attributed: a table of sums is there before this is.
        from gputui.attribute.traced_process import TracedProcess

        facts = self._facts(owner)
        traced = TracedProcess(
            self._numbering.process(),
            facts.pid,
            self._numbering,
            trace=self._trace,
            thread_name=lambda thread: self._thread_name(owner, thread),
            thread_priority=lambda thread: self._thread_priority(owner, thread),
            nested_ns=0,
            summed=self._summed,
        )
        process = _Process(traced)
        self._processes[owner] = process
        return process, ProcessAttached(
            time_ns=now_ns,
            run=1,
            process=traced.number,
            pid=facts.pid,
            parent_pid=0,
            rank=facts.rank,
            command=facts.command,
            cuda_status=facts.cuda_status,
        )
