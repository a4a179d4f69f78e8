"""A run as a trace for Perfetto, chrome://tracing and Holistic Trace Analysis: one file a process.

Kernels are on one track a stream, ranges and calls on one track a thread, what ranges cost on the
GPU on tracks of their own, NVML's readings as counters, all on one clock (`baseTimeNanoseconds`).
What Holistic Trace Analysis needs (version 0.5): `"rank": N` with a space, a call for each GPU
operation that names a correlation, and no launch without its operation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TextIO

import numpy as np

from gputui.capture.payloads import NO_PAYLOAD, payload_of
from gputui.events import LaunchShape, MachineSample, MarkDefined, RangeDefined
from gputui.session import Run, Session
from gputui.sources.capture.names import COPY_KINDS, MEMORY_KINDS
from gputui.sources.trace import TraceKind, TraceReader
from gputui.sources.trace.layout import Bools, Slots, UInt32s

COUNTERS = {
    "GPU utilization (%)": "utilization_percent",
    "SM active (%)": "sm_active_percent",
    "Tensor active (%)": "tensor_active_percent",
    "Memory used (bytes)": "memory_used_bytes",
    "Memory bandwidth (bytes/s)": "memory_bandwidth_bytes_per_s",
    "Power (W)": "power_watts",
    "Temperature (C)": "temperature_celsius",
    "SM clock (MHz)": "sm_clock_mhz",
}
"""Counter tracks, and the field of GpuSample that each shows."""

_RANGES_ON_GPU = 1_000_000
"""The track of ranges on a GPU, above those of streams."""

# Plain numbers: an enumeration's members cost a look-up each of millions of times.
_CALL, _RANGE, _PROJECTION, _MARK = map(
    int, (TraceKind.CALL, TraceKind.RANGE, TraceKind.PROJECTION, TraceKind.MARK)
)
_KERNELS = frozenset((int(TraceKind.KERNEL), int(TraceKind.GRAPH)))

_SHORT_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}


def processes_of(trace: TraceReader) -> list[int]:
    """The processes that the trace has records of."""
    found: set[int] = set()
    for portion in trace.portions():
        found.update(np.unique(portion["process"]).tolist())
    return sorted(found)


def write_chrome(
    out: TextIO,
    session: Session,
    run: Run,
    trace: TraceReader,
    process: int,
    samples: Iterable[MachineSample] = (),
) -> int:
    """Write the trace of one process; how many records went in.

    Reads the trace twice, a portion at a time: the first pass finds which calls have operations.
    """
    writer = _Writer(session, run, trace, process)
    out.write(writer.head())
    count = 0
    for portion in trace.portions():
        mine = portion[portion["process"] == process]
        count += len(mine)
        out.writelines(writer.lines(mine))
    out.writelines(writer.counters(samples))
    out.write(writer.tail())
    return count


class _Writer:
    def __init__(self, session: Session, run: Run, trace: TraceReader, process: int) -> None:
        self._session = session
        self._run = run
        self._process = run.processes[process].attached if process in run.processes else None
        self._pid = self._process.pid if self._process else process
        self._threads = run.processes[process].threads if self._process else {}
        self._ranks = [
            other.attached.rank
            for other in run.processes.values()
            if other.attached.rank is not None
        ]
        self._base_ns, last_ns, self._joined, self._devices = _survey(trace, process)
        self._end_ns = max(last_ns, run.started.time_ns + run.duration_ns)
        self._kernels = {
            number: json.dumps(kernel.name) for number, kernel in session.kernel_names.items()
        }
        self._calls = {number: json.dumps(name) for number, name in trace.call_names.items()}
        self._drivers = {
            number for number, name in trace.call_names.items() if not name.startswith("cuda")
        }
        self._ranges = {
            number: json.dumps(node.definition.name) for number, node in run.ranges.items()
        }
        self._marks = {
            number: json.dumps(known.name) for number, known in run.mark_definitions.items()
        }
        self._shapes = {number: _shape(shape) for number, shape in session.launch_shapes.items()}
        self._dropped = trace.dropped
        self._streams: set[tuple[int, int]] = set()
        resources = run.processes[process].resources.values() if self._process else ()
        self._device_names = {r.number: r.name for r in resources if r.kind == "device"}
        self._stream_names = {
            (named.number, device): f"{named.name} (stream {named.number})"
            for named in resources
            if named.kind == "stream"
            for device in (self._devices if named.device is None else [named.device])
        }
        self._spans = 0

    def head(self) -> str:
        rank = self._process.rank if self._process else None
        document = {
            "schemaVersion": 1,
            "deviceProperties": [self._device(index) for index in sorted(self._session.gpus)],
            "distributedInfo": {
                "backend": "nccl",
                "rank": rank or 0,
                "world_size": max(self._ranks, default=0) + 1,
            },
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": self._base_ns,
            "gputui": {"run": self._run.started.name, "dropped_records": self._dropped},
        }
        # The list of events goes in last, so that it can be written as it is read.
        return json.dumps(document)[:-1] + ', "traceEvents": [\n' + self._metadata()

    def tail(self) -> str:
        # Every event ends in a comma; a last one without closes the list.
        at = _us(self._end_ns - self._base_ns)
        return f'{{"ph":"i","s":"g","name":"end","pid":{self._pid},"tid":0,"ts":{at}}}\n]}}\n'

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

    def _metadata(self) -> str:
        name = self._process.command if self._process else self._run.started.name
        events = [_named("process_name", self._pid, 0, name or self._run.started.name)]
        events += [
            _named("process_name", device, 0, " ".join(("GPU", str(device), *name)))
            for device in self._devices
            for name in [[self._device_names[device]] if device in self._device_names else []]
        ]
        events += [
            _named("thread_name", device, _RANGES_ON_GPU, "ranges, from first start to last end")
            for device in self._devices[:1]
        ]
        events += [
            _named("thread_name", self._pid, thread, named.name)
            for thread, named in sorted(self._threads.items())
        ]
        return "".join(event + ",\n" for event in events)

    def lines(self, records: Slots) -> Iterator[str]:
        """One to three lines a record."""
        if not len(records):
            return
        joined = self._is_joined(records["correlation"]).tolist()
        columns = zip(
            joined,
            *(
                records[name].tolist()
                for name in (
                    "kind", "start", "end", "range", "name", "correlation", "thread", "device",
                    "stream", "context", "bytes", "sub", "source_kind", "destination_kind",
                )
            ),
            strict=True,
        )  # fmt: skip
        base_ns = self._base_ns
        for (is_joined, kind, start, end, node, name, correlation, thread, device, stream,
             context, size, sub, source, destination) in columns:  # fmt: skip
            duration = max(0, end - start)
            at = _us(start - base_ns)
            when = f'"ts":{at},"dur":{_us(duration)}'
            if kind == _CALL:
                category = "cuda_driver" if name in self._drivers else "cuda_runtime"
                joins = f'"correlation":{correlation}' if is_joined else ""
                yield (
                    f'{{"ph":"X","cat":"{category}","name":{self._calls.get(name, _UNKNOWN)},'
                    f'"pid":{self._pid},"tid":{thread},{when},"args":{{{joins}}}}},\n'
                )
                if is_joined:
                    yield (
                        f'{{"ph":"s","id":{correlation},"pid":{self._pid},"tid":{thread},'
                        f'"ts":{at},"cat":"ac2g","name":"ac2g"}},\n'
                    )
            elif kind == _RANGE:
                known = self._run.ranges.get(node)
                thread = known.definition.thread if known else 0
                more = _arguments(known.definition if known else None, source, size)
                if known and known.definition.style == "StartEnd":
                    track = self._pid, thread
                    yield self._overlapping(node, "user_annotation", *track, start, end, more)
                else:
                    yield (
                        f'{{"ph":"X","cat":"user_annotation",'
                        f'"name":{self._ranges.get(node, _UNKNOWN)},'
                        f'"pid":{self._pid},"tid":{thread},{when},"args":{more}}},\n'
                    )
            elif kind == _MARK:
                more = _arguments(self._run.mark_definitions.get(name), source, size)
                label = self._marks.get(name, _UNKNOWN)
                yield (
                    f'{{"ph":"i","s":"t","cat":"nvtx_mark","name":{label},'
                    f'"pid":{self._pid},"tid":{thread},"ts":{at},"args":{more}}},\n'
                )
            elif kind == _PROJECTION:
                if len(self._devices) == 1:
                    track = self._devices[0], _RANGES_ON_GPU
                    yield self._overlapping(node, "gpu_user_annotation", *track, start, end)
            else:
                if (device, stream) not in self._streams:
                    self._streams.add((device, stream))
                    label = self._stream_names.get((stream, device), f"stream {stream}")
                    yield _named("thread_name", device, stream, label) + ",\n"
                if kind in _KERNELS:
                    what, label = "kernel", self._kernels.get(name, _UNKNOWN)
                    more = self._shapes.get(size, "")
                else:
                    what, label = _memory(kind, sub, source, destination)
                    rate = f"{size / duration:.6g}" if duration else "0"
                    more = f',"bytes":{size},"memory bandwidth (GB/s)":{rate}'
                joins = f',"correlation":{correlation}' if is_joined else ""
                yield (
                    f'{{"ph":"X","cat":"{what}","name":{label},"pid":{device},"tid":{stream},'
                    f'{when},"args":{{"device":{device},"context":{context},"stream":{stream}'
                    f"{joins}{more}}}}},\n"
                )
                if is_joined:
                    yield (
                        f'{{"ph":"f","bp":"e","id":{correlation},"pid":{device},"tid":{stream},'
                        f'"ts":{at},"cat":"ac2g","name":"ac2g"}},\n'
                    )

    def _is_joined(self, correlations: UInt32s) -> Bools:
        if not len(self._joined):
            return np.zeros(len(correlations), np.bool_)
        places = np.minimum(np.searchsorted(self._joined, correlations), len(self._joined) - 1)
        joined: Bools = self._joined[places] == correlations
        return joined

    def _overlapping(
        self, node: int, category: str, pid: int, tid: int, start: int, end: int, more: str = "{}"
    ) -> str:
        """A span of a range that need not nest in others of its track."""
        self._spans += 1
        same = (
            f'"cat":"{category}","id":{self._spans},"name":{self._ranges.get(node, _UNKNOWN)},'
            f'"pid":{pid},"tid":{tid}'
        )
        return (
            f'{{"ph":"b",{same},"ts":{_us(start - self._base_ns)},"args":{more}}},\n'
            f'{{"ph":"e",{same},"ts":{_us(end - self._base_ns)}}},\n'
        )

    def counters(self, samples: Iterable[MachineSample]) -> Iterator[str]:
        """NVML's readings during the run."""
        first = self._run.started.time_ns
        last = first + self._run.duration_ns
        for sample in samples:
            if not first <= sample.time_ns <= last:
                continue
            for gpu in sample.gpus:
                for label, field in COUNTERS.items():
                    value = getattr(gpu, field)
                    if value is not None:
                        yield (
                            f'{{"ph":"C","name":{json.dumps(label)},"pid":{gpu.index},"tid":0,'
                            f'"ts":{_us(sample.time_ns - self._base_ns)},'
                            f'"args":{{"value":{json.dumps(value)}}}}},\n'
                        )


_UNKNOWN = '"(unknown)"'


def _survey(trace: TraceReader, process: int) -> tuple[int, int, UInt32s, list[int]]:
    """The first moment and the last, the correlations that a call and an operation share, and the
    devices."""
    first_ns: int | None = None
    last_ns = 0
    calls: list[UInt32s] = [np.empty(0, np.uint32)]
    operations: list[UInt32s] = [np.empty(0, np.uint32)]
    devices: set[int] = set()
    for portion in trace.portions():
        mine = portion[portion["process"] == process]
        if not len(mine):
            continue
        least = int(mine["start"].min())
        first_ns = least if first_ns is None else min(first_ns, least)
        last_ns = max(last_ns, int(mine["end"].max()))
        kinds = mine["kind"]
        on_gpu = mine[(kinds >= TraceKind.KERNEL) & (kinds != TraceKind.MARK)]
        calls.append(np.unique(mine["correlation"][kinds == TraceKind.CALL]))
        operations.append(np.unique(on_gpu["correlation"]))
        devices.update(np.unique(on_gpu["device"]).tolist())
    joined = np.intersect1d(np.concatenate(calls), np.concatenate(operations))
    return first_ns or 0, last_ns, joined[joined > 0], sorted(devices)


def _us(ns: int) -> str:
    """Nanoseconds as microseconds with three decimals, without rounding."""
    if ns < 0:
        return f"-{-ns // 1000}.{-ns % 1000:03d}"
    return f"{ns // 1000}.{ns % 1000:03d}"


def _arguments(known: RangeDefined | MarkDefined | None, kind: int, bits: int) -> str:
    """What a range or mark has beside its name: domain, category, payload."""
    if kind == NO_PAYLOAD and (known is None or not (known.domain or known.category_id)):
        return "{}"
    more: dict[str, str | int | float] = {}
    if known is not None:
        if known.domain:
            more["domain"] = known.domain
        if known.category_id is not None:
            more["category"] = known.category or known.category_id
    payload = payload_of(kind, bits)
    if payload is not None:
        more["payload"] = payload.value
        more["payload type"] = payload.type
    return json.dumps(more)


def _shape(shape: LaunchShape) -> str:
    """The arguments that kineto gives a kernel."""
    return (
        f',"registers per thread":{shape.registers_per_thread},'
        f'"shared memory":{shape.static_shared_bytes + shape.dynamic_shared_bytes},'
        f'"grid":{list(shape.grid)},"block":{list(shape.block)}'
    )


def _named(what: str, pid: int, tid: int, name: str) -> str:
    return json.dumps(
        {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}
    )


def _memory(kind: int, sub: int, source: int, destination: int) -> tuple[str, str]:
    """Category and name, as kineto writes them."""
    to = MEMORY_KINDS.get(destination, "unknown").title()
    if kind == TraceKind.SET:
        return "gpu_memset", json.dumps(f"Memset ({to})")
    short = _SHORT_COPIES.get(sub, COPY_KINDS.get(sub, "Unknown"))
    from_ = MEMORY_KINDS.get(source, "unknown").title()
    return "gpu_memcpy", json.dumps(f"Memcpy {short} ({from_} -> {to})")
