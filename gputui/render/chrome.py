"""A run as a trace for Perfetto, chrome://tracing and Holistic Trace Analysis: one file per
process.

As Kineto writes them: kernels are on one track per stream, with the ranges that launched them
around them; ranges and calls on one track per thread, a framework's operators as `cpu_op`; NVML's
readings are counters; all on one clock (`baseTimeNanoseconds`). What Holistic Trace Analysis needs
(version 0.5): `"rank": N` with a space, and on every call and operation a correlation that no other
call or operation has unless one launched the other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any, NamedTuple, TextIO

import numpy as np

from gputui.base.sanitize import sanitize
from gputui.model.events import (
    NO_PAYLOAD,
    GpuSample,
    LaunchShape,
    MachineSample,
    MarkDefined,
    ProcessAttached,
    RangeDefined,
    SampledCounters,
    payload_of,
)
from gputui.model.metrics import metrics_of
from gputui.model.naming import COPY_KINDS, MEMORY_KINDS, OPERATOR_CATEGORY, PROFILER_STEP
from gputui.state import Run, Session
from gputui.store.trace import Bools, Int64s, Slots, TraceKind, TraceReader, UInt32s

UNKNOWN = '"(unknown)"'
"""The name of what was never defined."""


def us(ns: int) -> str:
    """Nanoseconds as microseconds with three decimals, without rounding."""
    if ns < 0:
        return f"-{-ns // 1000}.{-ns % 1000:03d}"
    return f"{ns // 1000}.{ns % 1000:03d}"


def named(what: str, pid: int, tid: int, name: str) -> str:
    """The name of a process or a thread: a complete event, without what follows it."""
    return json.dumps(
        {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}
    )


# --- where ranges were on the GPU: on each stream, from the first operation that an instance


class Placed(NamedTuple):
    """An instance on a stream. `number` counts the trace's instances from 1."""

    number: int
    range: int
    device: int
    stream: int
    start_ns: int
    end_ns: int
    payload_kind: int
    payload: int


class _Launched(NamedTuple):
    """What a thread's calls launched on a stream, in order of the calls."""

    device: int
    stream: int
    called: Int64s
    starts: Int64s
    ends: Int64s


class OnStreams:
    """Calls and operations in; then instances, and where they were. Instances are not held: there
    may be many times as many as operations."""

    def __init__(self, threads: dict[int, int], joined: UInt32s) -> None:
        """`threads` are the ranges whose instances are placed, each with the thread it is of,
        `joined` the correlations shared by a call and an operation, ascending."""
        self._ranges = np.array(sorted(threads), np.uint32)
        self._thread_of = np.array([threads[number] for number in sorted(threads)], np.int64)
        self._joined = joined
        self._called = np.full(len(joined), -1, np.int64)
        """When the call of each correlation began."""
        self._callers = np.zeros(len(joined), np.uint32)
        self._operations: list[list[Any]] = [[] for _ in range(5)]
        self._launched: dict[int, list[_Launched]] | None = None
        self._count = 0

    def add(self, records: Slots) -> None:
        """Add calls and operations of one process."""
        kinds, correlations = records["kind"], records["correlation"]
        is_joined = are_joined(self._joined, correlations)
        calls = np.flatnonzero(is_joined & (kinds == TraceKind.CALL))[::-1]
        places = np.searchsorted(self._joined, correlations[calls])
        new = np.flatnonzero(self._called[places] < 0)
        # In reverse: of several, the first counts.
        self._called[places[new]] = records["start"][calls[new]]
        self._callers[places[new]] = records["thread"][calls[new]]
        on_gpu = (kinds >= TraceKind.KERNEL) & (kinds != TraceKind.MARK)
        rows = np.flatnonzero(is_joined & on_gpu & (records["start"] > 0))
        columns = (
            np.searchsorted(self._joined, correlations[rows]).astype(np.uint32),
            *(records[name][rows] for name in ("start", "end", "stream", "device")),
        )
        for batches, column in zip(self._operations, columns, strict=True):
            batches.append(column)

    def placed(self, records: Slots) -> Iterator[Placed]:
        """The instances among records, which come in the order of the trace. All calls and
        operations have been added."""
        if self._launched is None:
            self._launched = self._by_thread()
        instances = np.flatnonzero(records["kind"] == TraceKind.RANGE)
        first, self._count = self._count, self._count + len(instances)
        numbers = first + 1 + np.arange(len(instances))
        places = np.searchsorted(self._ranges, records["range"][instances])
        shown = np.flatnonzero(np.isin(records["range"][instances], self._ranges))
        threads = self._thread_of[places[shown]]
        for thread in np.unique(threads).tolist():
            theirs = shown[threads == thread]
            for launched in self._launched.get(thread, ()):
                yield from _placed(launched, records[instances[theirs]], numbers[theirs])

    def _by_thread(self) -> dict[int, list[_Launched]]:
        batches = self._operations
        places = np.concatenate(batches[0])
        if not len(places):
            return {}
        called, callers = self._called[places], self._callers[places]
        self._called, self._callers = self._called[:0], self._callers[:0]
        streams, devices = np.concatenate(batches[3]), np.concatenate(batches[4])
        order = np.lexsort((called, streams, devices, callers))
        called, callers = called[order], callers[order]
        streams, devices = streams[order], devices[order]
        starts, ends = (np.concatenate(batches[column])[order] for column in (1, 2))
        batches.clear()
        new = np.ones(len(order), np.bool_)
        new[1:] = callers[1:] != callers[:-1]
        for column in (devices, streams):
            new[1:] |= column[1:] != column[:-1]
        launched: dict[int, list[_Launched]] = {}
        for begin, end in pairwise([*np.flatnonzero(new).tolist(), len(order)]):
            some = slice(begin, end)
            launched.setdefault(int(callers[begin]), []).append(
                _Launched(int(devices[begin]), int(streams[begin]),
                          called[some], starts[some], ends[some])
            )  # fmt: skip
        return launched


def are_joined(joined: UInt32s, correlations: UInt32s) -> Bools:
    """Which correlations are among those shared by a call and an operation."""
    if not len(joined):
        return np.zeros(len(correlations), np.bool_)
    places = np.minimum(np.searchsorted(joined, correlations), len(joined) - 1)
    among: Bools = joined[places] == correlations
    return among


def _placed(launched: _Launched, instances: Slots, numbers: Int64s) -> Iterator[Placed]:
    first = np.searchsorted(launched.called, instances["start"], side="left")
    after = np.searchsorted(launched.called, instances["end"], side="right")
    some = np.flatnonzero(after > first)
    chosen = instances[some]
    columns = (
        numbers[some],
        chosen["range"],
        launched.starts[first[some]],
        launched.ends[after[some] - 1],
        chosen["source_kind"],
        chosen["bytes"],
    )
    for number, node, start_ns, end_ns, kind, payload in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        yield Placed(
            number, node, launched.device, launched.stream, start_ns, end_ns, kind, payload
        )


# --- what must be known about a process's records before the first of them is written


@dataclass(frozen=True, slots=True)
class Survey:
    """The first moment and the last, the devices, the correlations shared by a call and an
    operation, ascending, and the highest of all correlations.
    """

    first_ns: int
    last_ns: int
    joined: UInt32s
    devices: list[int]
    highest: int


def survey(trace: TraceReader, process: int) -> Survey:
    """Read the whole trace for one process."""
    first_ns: int | None = None
    last_ns = 0
    calls: list[UInt32s] = [np.empty(0, np.uint32)]
    operations: list[UInt32s] = [np.empty(0, np.uint32)]
    devices: set[int] = set()
    highest = 0
    for portion in trace.portions():
        mine = _of_process(portion, process)
        if not len(mine):
            continue
        least = int(mine["start"].min())
        first_ns = least if first_ns is None else min(first_ns, least)
        last_ns = max(last_ns, int(mine["end"].max()))
        highest = max(highest, int(mine["correlation"].max()))
        kinds = mine["kind"]
        on_gpu = mine[(kinds >= TraceKind.KERNEL) & (kinds != TraceKind.MARK)]
        calls.append(np.unique(mine["correlation"][kinds == TraceKind.CALL]))
        operations.append(np.unique(on_gpu["correlation"]))
        devices.update(np.unique(on_gpu["device"]).tolist())
    # Sorted in place: of 4 million calls, np.intersect1d took 160 MB.
    called, launched = np.concatenate(calls), np.concatenate(operations)
    for correlations in (called, launched):
        correlations.sort()
    different = np.append(True, launched[1:] != launched[:-1])[: len(launched)]
    launched = launched[different & (launched > 0)]
    joined = launched[are_joined(called, launched)]
    return Survey(first_ns or 0, last_ns, joined, sorted(devices), highest)


def _of_process(portion: Slots, process: int) -> Slots:
    """Its records; as a rule, all: copying them took as long as reading them."""
    mine = portion["process"] == process
    return portion if mine.all() else portion[mine]


def processes_of(trace: TraceReader) -> list[int]:
    """The processes that have records in the trace."""
    numbers: set[int] = set()
    for portion in trace.portions():
        numbers.update(np.unique(portion["process"]).tolist())
    return sorted(numbers)


# --- CUDA's work: calls on threads, kernels, copies and memsets on streams, an arrow in between


StreamNames = dict[tuple[int, int], str]
"""The names of named streams, by device and stream."""

_SHORT_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}


class OperationRows:
    """Writes the calls and operations of process `pid`, moments after `base_ns`.

    A correlation of 0 links nothing: it becomes one above `highest`, of its own.
    """

    def __init__(
        self,
        session: Session,
        call_names: dict[int, str],
        pid: int,
        base_ns: int,
        stream_names: StreamNames,
        highest: int,
    ) -> None:
        self._correlation = highest
        self._pid = pid
        self._base_ns = base_ns
        self._stream_names = stream_names
        self._kernels = {
            number: json.dumps(kernel.name) for number, kernel in session.kernel_names.items()
        }
        self._shapes = {number: _shape(shape) for number, shape in session.launch_shapes.items()}
        self._calls = {number: json.dumps(name) for number, name in call_names.items()}
        self._drivers = {
            number for number, name in call_names.items() if not name.startswith("cuda")
        }
        self._streams: set[tuple[int, int]] = set()

    def call(self, name: int, thread: int, start: int, end: int, correlation: int) -> str:
        """A CUDA call, and the arrow's tail if it has an operation."""
        category = "cuda_driver" if name in self._drivers else "cuda_runtime"
        time_us = us(start - self._base_ns)
        joins = f'"correlation":{correlation or self._own()}'
        text = (
            f'{{"ph":"X","cat":"{category}","name":{self._calls.get(name, UNKNOWN)},'
            f'"pid":{self._pid},"tid":{thread},"ts":{time_us},"dur":{us(max(0, end - start))},'
            f'"args":{{{joins}}}}},\n'
        )
        if correlation:
            text += (
                f'{{"ph":"s","id":{correlation},"pid":{self._pid},"tid":{thread},'
                f'"ts":{time_us},"cat":"ac2g","name":"ac2g"}},\n'
            )
        return text

    def _own(self) -> int:
        self._correlation += 1
        return self._correlation

    def kernel(self, name: int, shape: int, device: int, context: int, stream: int,
               start: int, end: int, correlation: int, captured_in: str = "") -> str:  # fmt: skip
        """A kernel, or a CUDA graph that was traced whole; `captured_in` is a further argument."""
        label, more = self._kernels.get(name, UNKNOWN), self._shapes.get(shape, "") + captured_in
        return self._on_gpu("kernel", label, device, context, stream, start, end, correlation, more)

    def memory(self, kind: int, sub: int, source: int, destination: int, size_bytes: int,
               device: int, context: int, stream: int, start: int, end: int,
               correlation: int, captured_in: str = "") -> str:  # fmt: skip
        """A copy or a memset; `sub` is CUPTI's kind of copy, both ends are kinds of memory."""
        what, label = _memory(kind, sub, source, destination)
        rate = f"{size_bytes / (end - start):.6g}" if end > start else "0"
        more = f',"bytes":{size_bytes},"memory bandwidth (GB/s)":{rate}{captured_in}'
        return self._on_gpu(what, label, device, context, stream, start, end, correlation, more)

    def _on_gpu(self, what: str, label: str, device: int, context: int, stream: int,
                start: int, end: int, correlation: int, more: str) -> str:  # fmt: skip
        time_us = us(start - self._base_ns)
        joins = f',"correlation":{correlation or self._own()}'
        text = (
            f'{{"ph":"X","cat":"{what}","name":{label},"pid":{device},"tid":{stream},'
            f'"ts":{time_us},"dur":{us(max(0, end - start))},'
            f'"args":{{"device":{device},"context":{context},"stream":{stream}'
            f"{joins}{more}}}}},\n"
        )
        if correlation:
            text += (
                f'{{"ph":"f","bp":"e","id":{correlation},"pid":{device},"tid":{stream},'
                f'"ts":{time_us},"cat":"ac2g","name":"ac2g"}},\n'
            )
        if (device, stream) not in self._streams:
            self._streams.add((device, stream))
            track = self._stream_names.get((device, stream), f"stream {stream}")
            text = named("thread_name", device, stream, track) + ",\n" + text
        return text


def _shape(shape: LaunchShape) -> str:
    """The arguments kineto gives a kernel."""
    return (
        f',"registers per thread":{shape.registers_per_thread},'
        f'"shared memory":{shape.static_shared_bytes + shape.dynamic_shared_bytes},'
        f'"grid":{list(shape.grid)},"block":{list(shape.block)}'
    )


def _memory(kind: int, sub: int, source: int, destination: int) -> tuple[str, str]:
    """Category and name, as kineto writes them."""
    to = MEMORY_KINDS.get(destination, "unknown").title()
    if kind == TraceKind.SET:
        return "gpu_memset", json.dumps(f"Memset ({to})")
    short = _SHORT_COPIES.get(sub, COPY_KINDS.get(sub, "Unknown"))
    from_ = MEMORY_KINDS.get(source, "unknown").title()
    return "gpu_memcpy", json.dumps(f"Memcpy {short} ({from_} -> {to})")


# --- the program's annotations: ranges, on the CPU and on the GPU, and marks


# Names of a framework's operators, as torch's profilers spell them.
_OPERATOR = re.compile(
    r"(aten|autograd|c10d\w*|_c10d_functional|prims|quantized|torch\w*|xformers|flash_attn\w*|vllm"
    r"|sgl_kernel|fbgemm|triton\w*)::|\w+Backward\d+\b"
)


class Annotations:
    """Writes the ranges and marks of process `pid`, moments after `base_ns`."""

    def __init__(self, run: Run, pid: int, base_ns: int) -> None:
        self._run = run
        self._pid = pid
        self._base_ns = base_ns
        self._ranges = {
            number: json.dumps(node.definition.name) for number, node in run.ranges.items()
        }
        self._marks = {
            number: json.dumps(definition.name)
            for number, definition in run.mark_definitions.items()
        }
        self._operators = {
            number for number, node in run.ranges.items() if _is_operator(node.definition)
        }
        self._spans = 0
        self._instances = 0

    def range(self, node: int, start: int, end: int, payload_kind: int, payload: int) -> str:
        """An instance of a range on the thread that opened it."""
        self._instances += 1
        of_range = self._run.ranges.get(node)
        thread = of_range.definition.thread if of_range else 0
        more = _arguments(
            of_range.definition if of_range else None, payload_kind, payload, self._instances
        )
        if of_range and of_range.definition.style == "StartEnd":
            return self._overlapping(node, "user_annotation", self._pid, thread, start, end, more)
        category = "cpu_op" if node in self._operators else "user_annotation"
        return (
            f'{{"ph":"X","cat":"{category}","name":{self._name(node, payload_kind, payload)},'
            f'"pid":{self._pid},"tid":{thread},"ts":{us(start - self._base_ns)},'
            f'"dur":{us(max(0, end - start))},"args":{more}}},\n'
        )

    def captured_in(self, node: int) -> str:
        """The argument of what a CUDA graph replayed: the path of the phase that captured it."""
        phase = self._run.ranges.get(node) if node else None
        return f',"captured in":{json.dumps(phase.path)}' if phase else ""

    def on_stream(self, placed: Placed) -> str:
        """An instance on a stream, as Kineto writes it."""
        of_range = self._run.ranges.get(placed.range)
        track = placed.device, placed.stream
        more = f'{{"External id":{placed.number}}}'
        if of_range and of_range.definition.style == "StartEnd":
            return self._overlapping(
                placed.range, "gpu_user_annotation", *track, placed.start_ns, placed.end_ns, more
            )
        name = self._name(placed.range, placed.payload_kind, placed.payload)
        took_ns = max(0, placed.end_ns - placed.start_ns)
        return (
            f'{{"ph":"X","cat":"gpu_user_annotation","name":{name},"pid":{placed.device},'
            f'"tid":{placed.stream},"ts":{us(placed.start_ns - self._base_ns)},'
            f'"dur":{us(took_ns)},"args":{more}}},\n'
        )

    def _name(self, node: int, payload_kind: int, payload: int) -> str:
        """As Kineto spells it: with its number, where it is a step of torch.profiler."""
        of_range = self._run.ranges.get(node)
        if of_range and of_range.definition.name == PROFILER_STEP and payload_kind != NO_PAYLOAD:
            return json.dumps(f"{PROFILER_STEP}#{payload}")
        return self._ranges.get(node, UNKNOWN)

    def mark(self, number: int, thread: int, time_ns: int, payload_kind: int, payload: int) -> str:
        """A moment on its thread."""
        more = _arguments(self._run.mark_definitions.get(number), payload_kind, payload, None)
        return (
            f'{{"ph":"i","s":"t","cat":"nvtx_mark","name":{self._marks.get(number, UNKNOWN)},'
            f'"pid":{self._pid},"tid":{thread},"ts":{us(time_ns - self._base_ns)},'
            f'"args":{more}}},\n'
        )

    def _overlapping(
        self, node: int, category: str, pid: int, tid: int, start: int, end: int, more: str = "{}"
    ) -> str:
        """A span of a range that need not nest with others of its track."""
        self._spans += 1
        same = (
            f'"cat":"{category}","id":{self._spans},"name":{self._ranges.get(node, UNKNOWN)},'
            f'"pid":{pid},"tid":{tid}'
        )
        return (
            f'{{"ph":"b",{same},"ts":{us(start - self._base_ns)},"args":{more}}},\n'
            f'{{"ph":"e",{same},"ts":{us(end - self._base_ns)}}},\n'
        )


def _is_operator(definition: RangeDefined) -> bool:
    if definition.style != "PushPop":
        return False
    return definition.category == OPERATOR_CATEGORY or bool(_OPERATOR.match(definition.name))


def _arguments(
    definition: RangeDefined | MarkDefined | None, kind: int, bits: int, external: int | None
) -> str:
    """What a range or mark has beside its name: domain, category, payload; and of a range the
    number that its projections share."""
    more: dict[str, str | int | float] = {} if external is None else {"External id": external}
    if definition is not None:
        if definition.domain:
            more["domain"] = definition.domain
        if definition.category_id is not None:
            more["category"] = definition.category or definition.category_id
    if kind != NO_PAYLOAD:
        payload = payload_of(kind, bits)
        if payload is not None:
            more["payload"] = payload.value
            more["payload type"] = payload.type
    return json.dumps(more)


# --- the trace's metadata: the GPUs, the rank, and the names of processes, threads and streams


class Metadata:
    """Of process number `process` of `run`, whose work was on `devices`."""

    def __init__(self, session: Session, run: Run, process: int, devices: list[int]) -> None:
        of_process = run.processes.get(process)
        self._session = session
        self._run = run
        self._process = process
        self._devices = devices
        self._attached: ProcessAttached | None = of_process.attached if of_process else None
        self._threads = of_process.threads if of_process else {}
        self._resources = list(of_process.resources.values()) if of_process else []
        self.pid = of_process.attached.pid if of_process else process

    def head(self, base_ns: int, dropped: int) -> str:
        """The document's own keys; the list of events follows."""
        ranks = _ranks(self._run)
        document = {
            "schemaVersion": 1,
            "deviceProperties": [self._device(index) for index in sorted(self._session.gpus)],
            "distributedInfo": {
                "backend": "nccl",
                "rank": ranks.get(self._process, 0),
                "world_size": self._world_size(ranks),
            },
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": base_ns,
            "gputui": {"run": self._run.started.name, "dropped_records": dropped},
        }
        return json.dumps(document)

    def _world_size(self, ranks: dict[int, int]) -> int:
        job = self._attached.job if self._attached else None
        return (job.world_size if job else None) or max(ranks.values(), default=0) + 1

    def names(self) -> str:
        """The names of the process, its threads and its GPUs."""
        name = self._attached.command if self._attached else self._run.started.name
        events = [named("process_name", self.pid, 0, name or self._run.started.name)]
        given = {
            resource.number: resource.name
            for resource in self._resources
            if resource.kind == "device"
        }
        for device in self._devices:
            words = f"GPU {device} {given[device]}" if device in given else f"GPU {device}"
            events.append(named("process_name", device, 0, words))
        events += [
            named("thread_name", self.pid, thread, resource.name)
            for thread, resource in sorted(self._threads.items())
        ]
        return "".join(event + ",\n" for event in events)

    def stream_names(self) -> StreamNames:
        """A stream named without its device has that name on every device."""
        return {
            (device, resource.number): f"{resource.name} (stream {resource.number})"
            for resource in self._resources
            if resource.kind == "stream"
            for device in (self._devices if resource.device is None else [resource.device])
        }

    def _device(self, index: int) -> dict[str, object]:
        facts = self._session.gpus[index].facts
        major, _, minor = (facts.compute_capability or "0.0").partition(".")
        return {
            "id": index,
            "name": facts.name,
            "totalGlobalMem": facts.memory_total_bytes or 0,
            "computeMajor": int(major) if major.isdecimal() else 0,
            "computeMinor": int(minor) if minor.isdecimal() else 0,
            "numSms": facts.sm_count or 0,
        }


def _ranks(run: Run) -> dict[int, int]:
    """Process → rank: of several processes without one, the one after those before it."""
    ranks = {
        number: process.attached.rank
        for number, process in sorted(run.processes.items())
        if process.attached.rank is not None
    }
    return ranks or {number: rank for rank, number in enumerate(sorted(run.processes))}


# --- NVML's readings as counter tracks


def counter_lines(
    run: Run, base_ns: int, samples: Iterable[MachineSample | SampledCounters], process: int
) -> Iterator[str]:
    """The readings during the run, and the sampled counters of the process's GPUs."""
    tracks = {
        field: json.dumps(f"{metric.title} ({metric.unit.symbol})")
        for field, metric in metrics_of(GpuSample).items()
        if metric.counter_track
    }
    first = run.started.time_ns
    last = first + run.duration_ns
    for sample in samples:
        if isinstance(sample, SampledCounters):
            if sample.process == process:
                yield from _sampled_lines(sample, base_ns)
            continue
        if not first <= sample.time_ns <= last:
            continue
        for gpu in sample.gpus:
            for field, label in tracks.items():
                value = getattr(gpu, field)
                if value is not None:
                    yield (
                        f'{{"ph":"C","name":{label},"pid":{gpu.index},"tid":0,'
                        f'"ts":{us(sample.time_ns - base_ns)},'
                        f'"args":{{"value":{json.dumps(value)}}}}},\n'
                    )


def _sampled_lines(event: SampledCounters, base_ns: int) -> Iterator[str]:
    """A track of each counter: its value from each sample's beginning on, rates a second."""
    for place, counter in enumerate(event.counters):
        is_share = counter.endswith("_percent")
        name = f"sampled {counter.removesuffix('_percent').replace('_', ' ')}"
        label = json.dumps(sanitize(f"{name} ({'%' if is_share else '1/s'})", 100))
        rows = zip(event.starts_ns, event.lengths_ns, event.values, strict=False)
        for before_ns, length_ns, values in rows:
            if place >= len(values):
                continue
            value = values[place] if is_share else values[place] * 1e9 / max(1, length_ns)
            if isfinite(value):
                yield (
                    f'{{"ph":"C","name":{label},"pid":{event.device},"tid":0,'
                    f'"ts":{us(event.time_ns - before_ns - base_ns)},'
                    f'"args":{{"value":{json.dumps(round(value, 3))}}}}},\n'
                )


# --- the file: its head, every record in turn, the counters, its end


# Plain numbers: an enumeration's members would cost millions of look-ups.
_CALL, _RANGE, _PROJECTION, _MARK = map(
    int, (TraceKind.CALL, TraceKind.RANGE, TraceKind.PROJECTION, TraceKind.MARK)
)
_KERNELS = frozenset((int(TraceKind.KERNEL), int(TraceKind.GRAPH)))


def write_chrome(
    out: TextIO,
    session: Session,
    run: Run,
    trace: TraceReader,
    process: int,
    samples: Iterable[MachineSample | SampledCounters] = (),
) -> int:
    """Write the trace of one process; how many records went in.

    Reads the trace a portion at a time, again and again: the first pass finds which calls have
    operations, the last two where ranges were on the streams.
    """
    threads = {
        number: node.definition.thread
        for number, node in run.ranges.items()
        if node.definition.process == process and not _is_operator(node.definition)
    }
    surveyed = survey(trace, process)
    base_ns = surveyed.first_ns
    metadata = Metadata(session, run, process, surveyed.devices)
    annotations = Annotations(run, metadata.pid, base_ns)
    operations = OperationRows(
        session, trace.call_names, metadata.pid, base_ns, metadata.stream_names(), surveyed.highest
    )
    # The list of events goes last, so that it can be written as it is read.
    out.write(
        metadata.head(base_ns, trace.dropped)[:-1] + ', "traceEvents": [\n' + metadata.names()
    )
    count = 0
    for portion in trace.portions():
        mine = _of_process(portion, process)
        count += len(mine)
        out.writelines(_lines(mine, surveyed, annotations, operations))
    if len(surveyed.joined):
        on_streams = OnStreams(threads, surveyed.joined)
        for portion in trace.portions():
            on_streams.add(_of_process(portion, process))
        for portion in trace.portions():
            placed = on_streams.placed(_of_process(portion, process))
            out.writelines(map(annotations.on_stream, placed))
    out.writelines(counter_lines(run, base_ns, samples, process))
    # Every event ends in a comma; a final one without closes the list.
    end_us = us(max(surveyed.last_ns, run.started.time_ns + run.duration_ns) - base_ns)
    out.write(
        f'{{"ph":"i","s":"g","name":"end","pid":{metadata.pid},"tid":0,"ts":{end_us}}}\n]}}\n'
    )
    return count


def _lines(
    records: Slots, surveyed: Survey, annotations: Annotations, operations: OperationRows
) -> Iterator[str]:
    """None to three lines per record."""
    if not len(records):
        return
    columns = zip(
        # The first pass found which calls have operations; the others get a correlation of their
        # own, which joins nothing.
        (records["correlation"] * are_joined(surveyed.joined, records["correlation"])).tolist(),
        *(
            records[name].tolist()
            for name in (
                "kind", "start", "end", "range", "name", "thread", "device", "stream", "context",
                "bytes", "sub", "source_kind", "destination_kind",
            )
        ),
        strict=True,
    )  # fmt: skip
    for (correlation, kind, start, end, node, name, thread, device, stream, context,
         size, sub, source, destination) in columns:  # fmt: skip
        if kind == _CALL:
            yield operations.call(name, thread, start, end, correlation)
        elif kind == _RANGE:
            # For ranges and marks these two fields hold the payload's kind and bits.
            yield annotations.range(node, start, end, source, size)
        elif kind == _MARK:
            yield annotations.mark(name, thread, start, source, size)
        elif kind == _PROJECTION:
            continue  # of all streams together: see OnStreams
        elif kind in _KERNELS:
            yield operations.kernel(name, size, device, context, stream, start, end, correlation,
                                    annotations.captured_in(thread))  # fmt: skip
        else:
            yield operations.memory(kind, sub, source, destination, size, device, context, stream,
                                    start, end, correlation,
                                    annotations.captured_in(thread))  # fmt: skip
