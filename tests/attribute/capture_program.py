"""A program written down as ring records, and a slow and obvious account of what it did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gputui.attribute.traced_process import TracedProcess
from gputui.model.events import LAUNCH_UNKNOWN, AnyEvent, ProcessAttached, RunStarted
from gputui.model.hub import Numbering
from gputui.ring import FLAG_COLORED, SLOT, GraphPart, RecordKind
from gputui.state import Run, Session
from gputui.store.trace import TraceWriter

MAIN = 100
START_NS = 1_700_000_000_000_000_000

Place = tuple[int, str, str]
"""Thread, domain and path of a range; None stands for outside every range."""


class Program:
    """Makes slots; times are nanoseconds from START_NS.

    Pushes and pops are numbered with their level as they are made, as the library does.
    """

    def __init__(self) -> None:
        self.strings: dict[int, str] = {}
        self._ids: dict[str, int] = {}
        self._depths: dict[tuple[int, str], int] = defaultdict(int)

    def id(self, text: str) -> int:
        number = self._ids.setdefault(text, len(self._ids) + 1)
        self.strings[number] = text
        return number

    def slot(self, kind: RecordKind, **fields: Any) -> np.void:
        slot = np.zeros((), SLOT)
        slot["kind"] = kind
        for name, value in fields.items():
            slot[name] = START_NS + value if name in {"start", "end"} else value
        return slot[()]

    def domain(self, name: str) -> int:
        return self.id(name) if name else 0

    def push(
        self,
        time: int,
        name: str,
        thread: int = MAIN,
        domain: str = "",
        color: int | None = None,
        category: str | None = None,
    ) -> np.void:
        level = self._depths[thread, domain]
        self._depths[thread, domain] += 1
        return self.slot(
            RecordKind.RANGE_PUSH,
            start=time,
            d=level,
            name=self.id(name),
            thread=thread,
            a=self.domain(domain),
            sub=FLAG_COLORED if color is not None else 0,
            c=color or 0,
            b=self.id(category) if category else 0,
        )

    def pop(self, time: int, thread: int = MAIN, domain: str = "") -> np.void:
        level = max(0, self._depths[thread, domain] - 1)
        self._depths[thread, domain] = level
        return self.slot(
            RecordKind.RANGE_POP, start=time, thread=thread, a=self.domain(domain), d=level
        )

    def start(
        self, time: int, name: str, number: int, thread: int = MAIN, domain: str = ""
    ) -> np.void:
        return self.slot(
            RecordKind.RANGE_START,
            start=time,
            name=self.id(name),
            thread=thread,
            a=self.domain(domain),
            value=number,
        )

    def end(self, time: int, number: int, thread: int = MAIN) -> np.void:
        return self.slot(RecordKind.RANGE_END, start=time, thread=thread, value=number)

    def call(
        self,
        start: int,
        end: int,
        correlation: int,
        thread: int = MAIN,
        name: str = "cudaLaunchKernel_v7000",
        driver: bool = False,
    ) -> np.void:
        return self.slot(
            RecordKind.API,
            start=start,
            end=end,
            correlation=correlation,
            thread=thread,
            name=self.id(name),
            sub=int(driver),
        )

    def shape(
        self, number: int, grid: tuple[int, int, int], block: tuple[int, int, int],
        registers: int = 32, static: int = 0, dynamic: int = 0, name: str = "gemm",
    ) -> np.void:  # fmt: skip
        slot = np.zeros((), SLOT)
        slot["kind"], slot["d"], slot["name"] = RecordKind.LAUNCH_SHAPE, number, self.id(name)
        slot["start"] = grid[0] | grid[1] << 32
        slot["end"] = grid[2] | block[0] << 32
        slot["value"] = block[1] | block[2] << 32
        slot["a"], slot["b"], slot["c"] = registers, static, dynamic
        return slot[()]

    def kernel(
        self,
        start: int,
        end: int,
        correlation: int,
        name: str = "gemm",
        device: int = 0,
        shape: int = 0,
        node: int = 0,
    ) -> np.void:
        return self.slot(
            RecordKind.KERNEL,
            value=node,
            e=node >> 32,
            start=start,
            end=end,
            correlation=correlation,
            name=self.id(name),
            a=device,
            d=shape,
        )

    def copy(
        self,
        start: int,
        end: int,
        correlation: int,
        size: int = 64,
        kind: int = 1,
        source: int = 2,
        destination: int = 3,
        node: int = 0,
    ) -> np.void:
        return self.slot(
            RecordKind.MEMCPY,
            thread=node >> 32,
            d=node & 0xFFFF_FFFF,
            e=node >> 32,
            start=start,
            end=end,
            correlation=correlation,
            value=size,
            sub=kind,
            source_kind=source,
            destination_kind=destination,
        )

    def graph(self, time: int, graph: int, thread: int = MAIN) -> np.void:
        """A graph begins to be made."""
        return self._part(GraphPart.GRAPH, start=time, e=graph, thread=thread)

    def node(self, time: int, node: int, thread: int = MAIN) -> np.void:
        """A node of the graph that the upper half of its id names."""
        return self._part(GraphPart.NODE, start=time, value=node, e=node >> 32, thread=thread)

    def clone(self, time: int, node: int, original: int) -> np.void:
        slot = self._part(GraphPart.CLONE, start=time, value=node, thread=MAIN)
        slot["end"] = original
        return slot

    def gone(self, time: int, graph: int) -> np.void:
        return self._part(GraphPart.GONE, start=time, e=graph, thread=MAIN)

    def _part(self, what: GraphPart, **fields: int) -> np.void:
        return self.slot(RecordKind.GRAPH_PART, sub=what, **fields)

    def flush(self, time: int) -> np.void:
        return self.slot(RecordKind.FLUSH, start=time)


class Traced:
    """A process under test, folded into a session."""

    def __init__(
        self, program: Program, step_range: str | None = None, trace: TraceWriter | None = None
    ) -> None:
        self.program = program
        self.process = TracedProcess(1, MAIN, Numbering(), step_range, trace)
        self.session = Session()
        self.events: list[AnyEvent] = []
        self.session.apply(
            [
                RunStarted(time_ns=0, run=1, kind="command", name="p", arguments=(), pid=MAIN),
                ProcessAttached(
                    time_ns=0,
                    run=1,
                    process=1,
                    pid=MAIN,
                    parent_pid=1,
                    command="p",
                    cuda_status="tracing",
                ),
            ]
        )

    def feed(self, records: Iterable[np.void], seconds: float = 0) -> None:
        batch = np.array(list(records), SLOT)
        self.process.feed(batch, self.program.strings, START_NS + int(seconds * 1e9))

    def collect(self, seconds: float = 0, ended: bool = False) -> list[AnyEvent]:
        events = self.process.collect(START_NS + int(seconds * 1e9), ended=ended)
        self.session.apply(events)
        self.events += events
        assert self.session.unknown_references == 0
        return events

    def finish(self, *records: np.void, seconds: float = 0) -> Run:
        self.feed(records, seconds)
        self.collect(seconds, ended=True)
        return self.run

    @property
    def run(self) -> Run:
        assert self.session.run is not None
        return self.session.run

    def place(self, number: int) -> Place | None:
        if not number:
            return None
        node = self.run.ranges[number]
        path = f"<{node.path}>" if node.definition.style == "StartEnd" else node.path
        return node.definition.thread, node.definition.domain, path

    def account(self) -> Account:
        """The session's state in the terms of the reference."""
        run, result = self.run, Account()
        for counted in run.kernels.values():
            part = counted.time
            name = self.session.kernel_names[counted.kernel].mangled
            place = self.place(counted.range)
            kernel = place, counted.inherited, name, counted.device
            count, total = result.kernels.get(kernel, (0, 0))
            result.kernels[kernel] = count + part.count, total + part.total
            if counted.thread:
                outside = counted.thread, name
                result.outside[outside] = result.outside.get(outside, 0) + part.count
        for counted in run.secondary_domain_kernels.values():
            part = counted.time
            if counted.thread:
                outside = counted.thread, self.session.kernel_names[counted.kernel].mangled
                result.outside[outside] = result.outside.get(outside, 0) + part.count
                continue
            result.repeats += counted.repeats
            kernel = self.place(counted.range), self.session.kernel_names[counted.kernel].mangled
            count, total = result.beside.get(kernel, (0, 0))
            result.beside[kernel] = count + part.count, total + part.total
        for instances in run.range_kernels.values():
            mangled = self.session.kernel_names[instances.kernel].mangled
            kernel = self.place(instances.range), mangled
            result.kernel_instances[kernel] = instances.instances
        for times in run.launches.values():
            name = self.session.kernel_names[times.kernel].mangled
            launched = times.thread, times.device, name
            count, total = result.launches.get(launched, (0, 0))
            result.launches[launched] = count + times.total.count, total + times.kernel_time.total
        for both in run.memory_operations.values():
            result.copies[self.place(both.range), both.inherited, both.operation] = (
                both.time.count,
                both.time.total,
                both.size.total,
            )
        for part in run.api.values():
            result.calls[self.place(part.range), part.inherited, part.name] = (
                part.time.count,
                part.time.total,
            )
        for number, node in run.ranges.items():
            place = self.place(number)
            assert place is not None
            if node.cpu.count:
                result.host[place] = (node.cpu.count, node.cpu.total)
            if node.gpu_total_ns:
                result.gpu_total[place] = node.gpu_total_ns
                result.gpu_busy[place] = node.gpu_busy_ns
            if node.projected.count:
                result.projected[place] = (
                    node.projected.count,
                    node.projected.total,
                    node.gpu_operations,
                    node.levels,
                    node.children_with_work,
                )
        result.devices = {number: d.busy_ns for number, d in run.devices.items()}
        result.unattributed = run.processes[1].unattributed
        return result


@dataclass
class Account:
    """What a program did, by place."""

    kernels: dict[Any, tuple[int, int]] = field(default_factory=dict)
    copies: dict[Any, tuple[int, int, int]] = field(default_factory=dict)
    calls: dict[Any, tuple[int, int]] = field(default_factory=dict)
    host: dict[Place, tuple[int, int]] = field(default_factory=dict)
    gpu_total: dict[Place, int] = field(default_factory=dict)
    gpu_busy: dict[Place, int] = field(default_factory=dict)
    projected: dict[Place, tuple[int, ...]] = field(default_factory=dict)
    outside: dict[tuple[int, str], int] = field(default_factory=dict)
    beside: dict[Any, tuple[int, int]] = field(default_factory=dict)
    kernel_instances: dict[Any, int] = field(default_factory=dict)
    launches: dict[Any, tuple[int, int]] = field(default_factory=dict)
    devices: dict[int, int] = field(default_factory=dict)
    unattributed: int = 0
    repeats: int = 0


@dataclass(eq=False)
class _Instance:
    place: Place
    start: int
    parent: _Instance | None = None
    """Below it on its stack."""
    end: int | None = None
    elsewhere: bool = False
    """Whether another thread ended it: nsys then leaves it out."""
    operations: list[tuple[int, int]] = field(default_factory=list)
    calls: set[int] = field(default_factory=set)
    kernels: set[str] = field(default_factory=set)

    @property
    def is_start_end(self) -> bool:
        return self.place[2].startswith("<")

    @property
    def length(self) -> int:
        return (self.end or 0) - self.start

    def chain(self) -> list[_Instance]:
        return [self, *(self.parent.chain() if self.parent else [])]

    def around(self, instances: list[_Instance]) -> _Instance | None:
        """The parent as nsys has it: the shortest range of the thread that encloses this one."""
        enclosing = [
            other
            for other in instances
            if other is not self
            and not other.elsewhere
            and other.place[0] == self.place[0]
            and other.start <= self.start
            and (other.end or 0) >= (self.end or 0)
        ]
        return min(enclosing, key=lambda other: (other.length, -other.start), default=None)


def reference(records: list[np.void], strings: dict[int, str]) -> Account:
    """The account of a whole program, a record at a time."""
    stacks: dict[tuple[int, str], list[_Instance]] = defaultdict(list)
    moments: dict[tuple[int, str], list[tuple[int, _Instance | None]]] = defaultdict(list)
    started: dict[int, _Instance] = {}
    instances: list[_Instance] = []
    last = 0
    for record in records:
        if record["kind"] > RecordKind.RANGE_END:
            continue
        lane = int(record["thread"]), strings.get(int(record["a"]), "")
        stack, time = stacks[lane], int(record["start"])
        last = max(last, time)
        if record["kind"] == RecordKind.RANGE_START:
            instance = _Instance((*lane, f"<{strings[int(record['name'])]}>"), time)
            started[int(record["value"])] = instance
            instances.append(instance)
            continue
        if record["kind"] == RecordKind.RANGE_END:
            instance = started.pop(int(record["value"]))
            instance.end, instance.elsewhere = time, lane[0] != instance.place[0]
            continue
        if record["kind"] == RecordKind.RANGE_PUSH:
            parent = stack[-1] if stack else None
            name = strings[int(record["name"])]
            path = f"{parent.place[2]}/{name}" if parent else name
            stack.append(_Instance((*lane, path), time, parent))
            instances.append(stack[-1])
        elif stack:
            stack.pop().end = time
        moments[lane].append((time, stack[-1] if stack else None))
    unended = [instance for instance in instances if instance.end is None]
    for instance in unended:
        instance.end = last

    def innermost(thread: int, domain: str, time: int) -> _Instance | None:
        before = [instance for when, instance in moments[thread, domain] if when <= time]
        return before[-1] if before else None

    def row(thread: int, time: int) -> _Instance | None:
        return innermost(thread, "", time) or innermost(thread, "app", time)

    def overlapping(thread: int, time: int) -> list[_Instance]:
        return [
            instance
            for instance in instances
            if instance.is_start_end
            and instance.place[0] == thread
            and instance.start <= time
            and (instance in unended or time <= (instance.end or 0))
        ]

    result = Account()
    of_correlation = {}
    sums: dict[Any, list[int]] = defaultdict(list)
    runtime = {
        int(r["correlation"]) for r in records if r["kind"] == RecordKind.API and not r["sub"]
    }
    for record in records:
        correlation = int(record["correlation"])
        if record["kind"] != RecordKind.API or (record["sub"] and correlation in runtime):
            continue
        thread, time = int(record["thread"]), int(record["start"])
        own = row(thread, time)
        main = row(MAIN, time) if own is None and thread != MAIN else None
        beside = [innermost(thread, domain, time) for domain in ("", "app", "NCCL")]
        direct = [instance for instance in beside if instance]
        of_correlation[correlation] = own, main, direct, overlapping(thread, time), record
        counted = own or main
        name = strings[int(record["name"])].removesuffix("_v7000")
        key = counted.place if counted else None, counted is not own, name
        sums[key].append(int(record["end"]) - time)
    result.calls = {key: (len(values), sum(values)) for key, values in sums.items()}

    kernels: dict[Any, list[int]] = defaultdict(list)
    beside: dict[Any, list[int]] = defaultdict(list)
    launches: dict[Any, list[int]] = defaultdict(list)
    outside: dict[tuple[int, str], int] = defaultdict(int)
    copies: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    inside: dict[Place, list[tuple[int, int]]] = defaultdict(list)
    devices: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for record in records:
        if record["kind"] not in {RecordKind.KERNEL, RecordKind.MEMCPY}:
            continue
        found = of_correlation.get(int(record["correlation"]))
        own, main, direct, spans, call = found or (None, None, [], [], None)
        result.unattributed += found is None
        counted = own or main
        place = counted.place if counted else None
        interval = int(record["start"]), int(record["end"])
        duration = interval[1] - interval[0]
        if record["kind"] == RecordKind.KERNEL:
            name = strings[int(record["name"])]
            kernels[place, counted is not own, name, int(record["a"])].append(duration)
            if call is not None and not direct and (not spans or spans[0].elsewhere):
                outside[int(call["thread"]), name] += 1
            if call is None:
                outside[LAUNCH_UNKNOWN, name] += 1
            for instance in direct:
                if instance is not own:
                    beside[instance.place, name].append(duration)
                for ancestor in instance.chain():
                    ancestor.kernels.add(name)
            counting: set[Place] = set()
            for instance in spans:
                repeated = instance.place in counting
                counting.add(instance.place)
                if not instance.elsewhere:
                    beside[instance.place, name].append(duration)
                    result.repeats += repeated
                    instance.kernels.add(name)
            if call is not None:
                launches[int(call["thread"]), int(record["a"]), name].append(duration)
        else:
            name = "[CUDA memcpy Host-to-Device]"
            copies[place, counted is not own, name].append((duration, int(record["value"])))
        devices[int(record["a"])].append(interval)
        for instance in (*direct, *spans):
            for ancestor in instance.chain():
                ancestor.operations.append(interval)
                ancestor.calls.add(int(record["correlation"]))
                inside[ancestor.place].append(interval)
        if counted is not None and counted is not own:  # the main thread's range
            for ancestor in counted.chain():
                inside[ancestor.place].append(interval)
    result.kernels = {key: (len(values), sum(values)) for key, values in kernels.items()}
    result.beside = {key: (len(values), sum(values)) for key, values in beside.items()}
    result.outside = dict(outside)
    result.launches = {key: (len(values), sum(values)) for key, values in launches.items()}
    for instance in instances:
        for name in instance.kernels:
            entry = instance.place, name
            result.kernel_instances[entry] = result.kernel_instances.get(entry, 0) + 1
    result.copies = {
        key: (len(values), sum(t for t, _ in values), sum(s for _, s in values))
        for key, values in copies.items()
    }
    result.gpu_busy = {place: union(parts) for place, parts in inside.items()}
    result.gpu_total = {place: sum(b - a for a, b in parts) for place, parts in inside.items()}
    result.devices = {device: union(parts) for device, parts in devices.items()}
    host: dict[Place, list[int]] = defaultdict(list)
    projected: dict[Place, list[tuple[int, ...]]] = defaultdict(list)
    busy_children: dict[int, int] = defaultdict(int)
    levels: dict[int, int] = {}
    for instance in instances:
        around = instance.around(instances)
        if instance.operations and not instance.elsewhere and around:
            busy_children[id(around)] += 1
        level = 0
        while around:
            level, around = level + 1, around.around(instances)
        levels[id(instance)] = level
    for instance in instances:
        host[instance.place].append(instance.length)
        if instance.operations and not instance.elsewhere:
            span = max(b for _, b in instance.operations) - min(a for a, _ in instance.operations)
            operations = len(instance.calls)  # as nsys counts them
            children = busy_children[id(instance)]
            level = levels[id(instance)]
            projected[instance.place].append((span, operations, level, children))
    result.host = {place: (len(values), sum(values)) for place, values in host.items()}
    result.projected = {
        place: (len(rows), *(sum(column) for column in zip(*rows, strict=True)))
        for place, rows in projected.items()
    }
    return result


def union(intervals: list[tuple[int, int]]) -> int:
    """Time covered by at least one interval."""
    covered = reach = 0
    for start, end in sorted(intervals):
        covered += max(0, end - max(start, reach))
        reach = max(reach, end)
    return covered
