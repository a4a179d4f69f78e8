"""CUDA's work: calls on threads, kernels, copies and memsets on streams, an arrow in between."""

from __future__ import annotations

import json

from gputui.model.cuda_names import COPY_KINDS, MEMORY_KINDS
from gputui.model.events import LaunchShape
from gputui.render.chrome.notation import UNKNOWN, named, us
from gputui.state import Session
from gputui.store.trace import TraceKind

StreamNames = dict[tuple[int, int], str]
"""The names of named streams, by device and stream."""

_SHORT_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}


class Operations:
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
        at = us(start - self._base_ns)
        joins = f'"correlation":{correlation or self._own()}'
        text = (
            f'{{"ph":"X","cat":"{category}","name":{self._calls.get(name, UNKNOWN)},'
            f'"pid":{self._pid},"tid":{thread},"ts":{at},"dur":{us(max(0, end - start))},'
            f'"args":{{{joins}}}}},\n'
        )
        if correlation:
            text += (
                f'{{"ph":"s","id":{correlation},"pid":{self._pid},"tid":{thread},'
                f'"ts":{at},"cat":"ac2g","name":"ac2g"}},\n'
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
        at = us(start - self._base_ns)
        joins = f',"correlation":{correlation or self._own()}'
        text = (
            f'{{"ph":"X","cat":"{what}","name":{label},"pid":{device},"tid":{stream},'
            f'"ts":{at},"dur":{us(max(0, end - start))},'
            f'"args":{{"device":{device},"context":{context},"stream":{stream}'
            f"{joins}{more}}}}},\n"
        )
        if correlation:
            text += (
                f'{{"ph":"f","bp":"e","id":{correlation},"pid":{device},"tid":{stream},'
                f'"ts":{at},"cat":"ac2g","name":"ac2g"}},\n'
            )
        if (device, stream) not in self._streams:
            self._streams.add((device, stream))
            known = self._stream_names.get((device, stream), f"stream {stream}")
            text = named("thread_name", device, stream, known) + ",\n" + text
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
