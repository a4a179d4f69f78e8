"""The rows of an nsys report, block by block in order of time, as records of the capture library.

For `NsysReport`, which says what was run and opens the file. NVTX rows have both ends of a range;
what a row refers to by a number is resolved once for each number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from gputui.attribute import NO_STRING
from gputui.attribute.arrays import LATEST_NS, Int64s, KeyTable, Slots
from gputui.base.sanitize import sanitize
from gputui.imports import (
    ABSENT,
    MAX_TEXTS,
    Clock,
    ImportedReading,
    LaunchShapes,
    ProcessFacts,
    RangeRecords,
    RangeRows,
    Texts,
    number_distinct,
)
from gputui.imports.nsys.database import Database, Selection, Stream
from gputui.imports.nsys.table_pages import RowChoice, Rows
from gputui.model.events import NO_PAYLOAD, AnyEvent, KernelDefined, PayloadType
from gputui.ring import SLOT, RecordKind
from gputui.store.trace import TraceWriter

# Strings of a report by the report's own string ids.


class Names(Texts):
    """Texts by number, and the numbers of the report's own string ids."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._of_ids: dict[int, int] = {}
        self._ids = KeyTable(MAX_TEXTS)

    def of_id(self, identifier: int) -> int:
        """The number of the text with this id in StringIds."""
        number = self._of_ids.get(identifier)
        if number is None:
            text = self._database.text("StringIds", "id", identifier, "value")
            number = self.of_text(text if text is not None else f"(string {identifier})")
            self._of_ids[identifier] = number
        return number

    def of_ids(self, identifiers: Int64s) -> Int64s:
        """The numbers of the texts with these ids."""
        return self._ids.lookup(
            identifiers, lambda identifier, _: self.of_id(identifier), lambda: MAX_TEXTS + 1
        )


# The ranges and marks of NVTX_EVENTS.

CATEGORY, MARK, PUSH_POP, START_END, DOMAIN_CREATE = 33, 34, 59, 60, 75
"""Values of `eventType` in NVTX_EVENTS, by the report's table ENUM_NSYS_EVENT_TYPE."""

RANGES_AND_MARKS = RowChoice(("start", "globalTid"), "eventType", (MARK, PUSH_POP, START_END))
"""Program events that say when and where; definitions have times of their own."""

_COLUMNS = ("start", "end", "eventType", "category", "color", "text", "textId", "globalTid",
            "domainId", "endGlobalTid")  # fmt: skip

_PAYLOADS = {
    "int64Value": PayloadType.INT64, "uint64Value": PayloadType.UINT64,
    "doubleValue": PayloadType.DOUBLE, "int32Value": PayloadType.INT32,
    "uint32Value": PayloadType.UINT32, "floatValue": PayloadType.FLOAT,
}  # fmt: skip

_KINDS = {MARK: RecordKind.MARK, PUSH_POP: RecordKind.RANGE_PUSH, START_END: RecordKind.RANGE_START}

WHOLE = {"start": 0, "rowid": 0, "end": ABSENT, "eventType": 0, "category": 0, "color": ABSENT,
          "textId": ABSENT, "globalTid": 0, "domainId": 0, "endGlobalTid": ABSENT}  # fmt: skip
"""The columns of integers, in the order in which they are read, and what stands for anything else
in them."""


class RangeNames:
    """What ranges are called by: texts or ids of texts, domains and categories by number."""

    def __init__(self, database: Database, names: Names) -> None:
        self._names = names
        self._domains, self._categories = _definitions(database, names)

    def names(self, texts: Int64s, text_ids: Int64s) -> Int64s:
        """The numbers of the ranges' names: of their own text, else of a text of the report."""
        by_id = (texts == NO_STRING) & (text_ids != ABSENT)
        if by_id.any():
            texts = texts.copy()
            texts[by_id] = self._names.of_ids(text_ids[by_id])
        return texts

    def domains(self, process: Int64s, domain: Int64s) -> Int64s:
        """The numbers of the domains' names, 0 for the default one."""
        return number_distinct((process, domain), self._domain)

    def categories(self, process: Int64s, domain: Int64s, category: Int64s) -> Int64s:
        """The numbers of the categories' names, 0 for those without one."""
        if not self._categories:
            return np.zeros(len(process), np.int64)
        return number_distinct(
            (process, domain, category), lambda *key: self._categories.get(key, 0)
        )

    def _domain(self, process: int, domain: int) -> int:
        number = self._domains.get((process, domain))
        if number is None:
            number = self._names.of_text(f"domain {domain}") if domain else 0
            self._domains[process, domain] = number
        return number


def range_selection(database: Database, names: Names) -> Selection | None:
    """The rows of NVTX_EVENTS that are ranges or marks: the integers of WHOLE, then the number of
    the row's own text, the kind of its payload and its bits. None where they cannot be told."""
    present = database.columns("NVTX_EVENTS") | {"rowid"}
    if not {"eventType", "start", "globalTid"} <= present:
        return None
    numbers = TextNumbers(names, database.encoding)
    payloads = {name: int(kind) for name, kind in _PAYLOADS.items()}

    def as_array(rows: list[tuple[Any, ...]]) -> Int64s:
        *whole, texts, payload_types, payload_values = zip(*rows, strict=True)
        count = len(rows)
        return np.column_stack(
            [
                *map(_integers, whole, WHOLE.values()),
                np.fromiter(map(numbers.__getitem__, texts), np.int64, count),
                np.fromiter(payload_types, np.int64, count),
                _payload_bits(payload_values),
            ]
        )

    def decode(rows: Rows) -> Int64s:
        whole = [rows.numbers if name == "rowid" else rows.integers(name, default)
                 for name, default in WHOLE.items()]  # fmt: skip
        texts = rows.texts("text", numbers)
        return np.column_stack((*whole, texts, *rows.payloads(payloads, int(NO_PAYLOAD))))

    return Selection(
        table="NVTX_EVENTS",
        columns=tuple(name for name in WHOLE if name != "rowid"),
        decode=decode,
        sql=_range_columns(present),
        as_array=as_array,
        choice=RANGES_AND_MARKS,
        is_strict=False,
    )


class RangeStream:
    """The rows of NVTX_EVENTS that are ranges or marks, in order of time."""

    def __init__(self, database: Database, names: Names) -> None:
        self._naming = RangeNames(database, names)
        selection = range_selection(database, names)
        blocks = database.in_order(selection) if selection is not None else iter(())
        self._stream = Stream(blocks, len(WHOLE) + 3)

    def read_ahead(self, until: int) -> int | None:
        """Reads up to this start, or until enough rows wait: the horizon from there on."""
        return self._stream.read_ahead(until)

    def rows_until(self, until: int) -> RangeRows:
        """The rows that start no later than `until`."""
        columns = self._stream.rows_until(until).T
        (start, number, end, event_type, category, color, text_id, task, domain, end_task,
         name, payload_type, payload) = columns  # fmt: skip
        if not len(start):
            return RangeRows.empty()
        process = task >> 24
        kinds = np.zeros(START_END + 1, np.int64)
        kinds[list(_KINDS)] = list(_KINDS.values())
        return RangeRows(
            number=number,
            start=start,
            end=end,
            kind=kinds[event_type],
            category=self._naming.categories(process, domain, category),
            color=color,
            name=self._naming.names(name, text_id),
            task=task,
            domain=self._naming.domains(process, domain),
            end_task=np.where(end_task == ABSENT, task, end_task),
            category_id=category,
            payload_type=payload_type,
            payload=payload,
        )


class TextNumbers(dict[bytes | None, int]):
    """The number of each text that is given as bytes; NO_STRING of what is none. Decoding that of
    every row was a twelfth of the time of reading them."""

    def __init__(self, names: Names, encoding: str) -> None:
        super().__init__({None: NO_STRING, b"": NO_STRING})
        self._names = names
        self._encoding = encoding

    def __missing__(self, text: bytes | None) -> int:
        assert text is not None
        number = self._names.of_text(text.decode(self._encoding, "replace"))
        if number in self._names.texts:  # those beyond the limit are not kept
            self[text] = number
        return number


def _text_bytes(present: frozenset[str]) -> str:
    """In SQL, the bytes of a row's own text, NULL where it has none."""
    if "text" not in present:
        return "NULL"
    return """CASE typeof("text") WHEN 'text' THEN CAST("text" AS BLOB) END"""


def _or_default(name: str, present: frozenset[str]) -> str:
    """In SQL, a column of NVTX_EVENTS, and what stands for none where it is null."""
    default = WHOLE[name]
    return f'COALESCE("{name}", {default})' if name in present else str(default)


def _integers(column: Sequence[Any], default: int) -> Int64s:
    """A column of which anything but an integer counts as none. SQL that tests each value took
    half as long again as reading them."""
    try:
        # Nothing else adds up to an integer.
        are_integers = type(sum(column)) is int
    except TypeError:
        are_integers = False
    if not are_integers:
        column = [value if isinstance(value, int) else default for value in column]
    return np.fromiter(column, np.int64, len(column))


def _range_columns(present: frozenset[str]) -> list[str]:
    """What is read of a row, in SQL."""
    selected = [_or_default(name, present) for name in WHOLE]
    selected.append(_text_bytes(present))
    payloads = {name: kind for name, kind in _PAYLOADS.items() if name in present}
    kind, value = str(int(NO_PAYLOAD)), "0"
    if payloads:
        # Most ranges have none: one test.
        values = ", ".join(f'"{name}"' for name in payloads)
        any_value = f"COALESCE({values}, NULL)"
        cases = [(f"typeof(\"{name}\") IN ('integer', 'real')", name) for name in payloads]
        kinds = " ".join(f"WHEN {test} THEN {int(payloads[name])}" for test, name in cases)
        shown = " ".join(f'WHEN {test} THEN "{name}"' for test, name in cases)
        kind = f"CASE WHEN {any_value} IS NULL THEN {kind} {kinds} ELSE {kind} END"
        value = f"CASE WHEN {any_value} IS NULL THEN 0 {shown} ELSE 0 END"
    return [*selected, kind, value]


def _payload_bits(values: tuple[object, ...]) -> Int64s:
    """The bits of numbers of Python, as a signed integer has them or a double."""
    if set(map(type, values)) <= {int}:
        return np.fromiter(values, np.int64, len(values))
    bits = np.zeros(len(values), np.int64)
    for row, value in enumerate(values):
        packed = struct.pack("<q", value) if isinstance(value, int) else struct.pack("<d", value)
        bits[row] = struct.unpack("<q", packed)[0]
    return bits


def _definitions(
    database: Database, names: Names
) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int, int], int]]:
    """Names of domains and of categories, by process and id."""
    domains: dict[tuple[int, int], int] = {}
    categories: dict[tuple[int, int, int], int] = {}
    where = f'WHERE "eventType" IN ({CATEGORY}, {DOMAIN_CREATE})'
    if not {"eventType", "globalTid"} <= database.columns("NVTX_EVENTS"):
        return domains, categories
    for row in database.rows("NVTX_EVENTS", *_COLUMNS, where=where):
        _, _, event_type, category, _, text, text_id, task, domain, _ = row
        process, domain = _int(task) >> 24, _int(domain)
        number = (
            names.of_text(sanitize(text, 256))
            if isinstance(text, str)
            else names.of_id(_int(text_id))
        )
        if event_type == DOMAIN_CREATE and domain:
            domains[process, domain] = number
        elif event_type == CATEGORY:
            categories[process, domain, _int(category)] = number
    return domains, categories


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


# The rows of an nsys report, in order of time, as records of the capture library.

MOST = 100_000
"""Names of threads that are read at most: a report is untrusted, and each name is kept."""

_CALLS = ("start", "end", "correlationId", "globalTid", "nameId", "eventClass", "returnValue")

_KERNELS = ("start", "end", "correlationId", "globalPid", "demangledName", "deviceId", "streamId",
            "contextId", "mangledName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
            "registersPerThread", "staticSharedMemory", "dynamicSharedMemory")  # fmt: skip

_SHAPE = slice(9, 18)

_COPIES = ("start", "end", "correlationId", "globalPid", "bytes", "deviceId", "streamId",
           "contextId", "copyKind", "srcKind", "dstKind")  # fmt: skip

_SETS = ("start", "end", "correlationId", "globalPid", "bytes", "deviceId", "streamId",
         "contextId", "memKind")  # fmt: skip

_GRAPHS = ("start", "end", "correlationId", "globalPid", "graphId", "deviceId", "streamId",
           "contextId")  # fmt: skip

CUDA_TABLES = (
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
)
"""Where nsys keeps CUPTI's records."""

# CUPTI's kind of memory (CUpti_ActivityMemoryKind) for each value of ENUM_CUDA_MEM_KIND.
_MEMORY_KINDS = np.array([1, 2, 3, 4, 5, 6, 7, 0])

_U32 = 0xFFFF_FFFF


class NsysReading(ImportedReading):
    """One pass over the rows in order of time."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        names: Names,
        trace: TraceWriter | None,
        *,
        summed: bool,
    ) -> None:
        super().__init__(clock, names, trace, LaunchShapes(), summed=summed)
        self._names = names
        self._ranges = RangeStream(database, names)
        self._nvtx = RangeRecords(clock.base_ns)
        self._calls = database.stream("CUPTI_ACTIVITY_KIND_RUNTIME", _CALLS)
        self._kernels = database.stream("CUPTI_ACTIVITY_KIND_KERNEL", _KERNELS)
        self._copies = database.stream("CUPTI_ACTIVITY_KIND_MEMCPY", _COPIES)
        self._sets = database.stream("CUPTI_ACTIVITY_KIND_MEMSET", _SETS)
        self._graphs = database.stream("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _GRAPHS)
        self._mangled: dict[str, str] = {}
        self._commands = {
            key >> 24: sanitize(name, 500)
            for key, name in database.rows("PROCESSES", "globalPid", "name")
            if isinstance(key, int) and isinstance(name, str)
        }
        self._threads = {
            task: names.texts[names.of_id(name)]
            for name, task in islice(database.rows("ThreadNames", "nameId", "globalTid"), MOST)
            if isinstance(name, int) and isinstance(task, int)
        }
        self._priorities = {
            task: priority
            for priority, task in islice(
                database.rows("ThreadNames", "priority", "globalTid"), MOST
            )
            if isinstance(priority, int) and isinstance(task, int) and abs(priority) <= 1000
        }
        self._traced_cuda = any(database.columns(table) for table in CUDA_TABLES)

    def _horizon(self, tick: int) -> int:
        streams = (self._ranges, self._calls, self._kernels, self._copies, self._sets, self._graphs)
        at_hand = [stream.read_ahead(tick) for stream in streams]
        return min([tick, *(moment for moment in at_hand if moment is not None)])

    def _records_until(self, until: int) -> Sequence[tuple[Slots, Int64s]]:
        nvtx, tasks = self._nvtx.records_until(until, self._ranges.rows_until(until))
        return [
            (nvtx, tasks >> 24),
            self._call_records(self._calls.rows_until(until)),
            self._kernel_records(self._kernels.rows_until(until)),
            self._memory_records(self._copies.rows_until(until), RecordKind.MEMCPY),
            self._memory_records(self._sets.rows_until(until), RecordKind.MEMSET),
            self._graph_records(self._graphs.rows_until(until)),
        ]

    def _last_range_ns(self) -> int:
        return self._nvtx.last_ns

    def _facts(self, owner: int) -> ProcessFacts:
        return ProcessFacts(
            owner & 0xFFFFFF,
            self._commands.get(owner, ""),
            "tracing" if self._traced_cuda else "the report holds no CUDA activity",
        )

    def _thread_name(self, owner: int, thread: int) -> str | None:
        return self._threads.get(owner << 24 | thread)

    def _thread_priority(self, owner: int, thread: int) -> int | None:
        return self._priorities.get(owner << 24 | thread)

    def _mended(self, events: list[AnyEvent]) -> Iterator[AnyEvent]:
        """Kernels are identified by nsys's demangled names; the mangled ones are kept with them."""
        for event in events:
            if isinstance(event, KernelDefined) and event.mangled in self._mangled:
                event = msgspec.structs.replace(event, mangled=self._mangled[event.mangled])
            yield event

    # --- rows as records

    def _records(self, rows: Int64s, kind: RecordKind) -> Slots:
        records = np.zeros(len(rows), SLOT)
        records["kind"] = kind
        base_ns = self._clock.base_ns
        records["start"] = np.clip(rows[:, 0] + base_ns, 0, LATEST_NS)
        records["end"] = np.clip(rows[:, 1] + base_ns, 0, LATEST_NS)
        records["correlation"] = rows[:, 2] & _U32
        return records

    def _call_records(self, rows: Int64s) -> tuple[Slots, Int64s]:
        records = self._records(rows, RecordKind.API)
        records["thread"] = rows[:, 3] & 0xFFFFFF
        records["name"] = self._names.of_ids(rows[:, 4])
        records["sub"] = rows[:, 5] == 1
        records["a"] = rows[:, 6] & _U32
        return records, rows[:, 3] >> 24

    def _operation_records(self, rows: Int64s, kind: RecordKind) -> Slots:
        records = self._records(rows, kind)
        records["a"] = np.clip(rows[:, 5], 0, 255)
        records["b"] = rows[:, 6] & _U32
        records["c"] = rows[:, 7] & _U32
        return records

    def _kernel_records(self, rows: Int64s) -> tuple[Slots, Int64s]:
        records = self._operation_records(rows, RecordKind.KERNEL)
        records["name"] = self._names.of_ids(rows[:, 4])
        records["d"] = self._shapes.number_shapes(records["name"], rows[:, _SHAPE])
        number_distinct((rows[:, 4], rows[:, 8]), self._mangle)
        return records, rows[:, 3] >> 24

    def _mangle(self, demangled: int, mangled: int) -> int:
        texts = self._names.texts
        name = texts.get(self._names.of_id(demangled))
        raw = texts.get(self._names.of_id(mangled)) if mangled else None
        if name and raw and name not in self._mangled:
            self._mangled[name] = sanitize(raw)
        return 0

    def _memory_records(self, rows: Int64s, kind: RecordKind) -> tuple[Slots, Int64s]:
        records = self._operation_records(rows, kind)
        records["value"] = np.maximum(rows[:, 4], 0)
        kinds = _MEMORY_KINDS[np.clip(rows[:, 8:], 0, 7)]
        if kind == RecordKind.MEMCPY:
            records["sub"] = np.clip(rows[:, 8], 0, 255)
            records["source_kind"] = kinds[:, 1]
            records["destination_kind"] = kinds[:, 2]
        else:
            records["destination_kind"] = kinds[:, 0]
        return records, rows[:, 3] >> 24

    def _graph_records(self, rows: Int64s) -> tuple[Slots, Int64s]:
        records = self._operation_records(rows, RecordKind.GRAPH)
        records["e"] = rows[:, 4] & _U32
        return records, rows[:, 3] >> 24
