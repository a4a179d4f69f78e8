"""Small traces in Kineto's form, for tests that read them."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

PID = 500
EPOCH_NS = 1_750_000_000_000_000_000
US = 1_000


class Trace:
    """Events in the order they were added; `write` makes the file. Times are in ns."""

    def __init__(self, **beside: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.beside = {"schemaVersion": 1, "baseTimeNanoseconds": EPOCH_NS, **beside}

    def add(self, category: str, name: str, start: int, end: int, **more: Any) -> None:
        """A complete event of the main thread."""
        event = {"ph": "X", "cat": category, "name": name, "pid": PID, "tid": PID}
        self.events.append(
            {**event, "ts": Decimal(start) / 1000, "dur": Decimal(end - start) / 1000, **more}
        )

    def kernel(
        self,
        name: str,
        call: tuple[int, int],
        ran: tuple[int, int],
        number: int,
        category: str = "kernel",
        *,
        thread: int = PID,
        stream: int = 7,
        **more: Any,
    ) -> None:
        """A launch, and what it started."""
        launches = {"kernel": "cudaLaunchKernel", "gpu_memcpy": "cudaMemcpyAsync"}
        self.add("cuda_runtime", launches.get(category, "cudaMemsetAsync"), *call, tid=thread,
                 args={"cbid": 211, "correlation": number})  # fmt: skip
        arguments = {"device": 0, "context": 1, "stream": stream, "correlation": number, **more}
        self.add(category, name, *ran, pid=0, tid=stream, args=arguments)

    def memory(self, time: int, allocated: int, reserved: int, kind: int = 1) -> None:
        """A change of what torch's allocator holds."""
        self.events.append(
            {
                "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": PID,
                "tid": PID, "ts": Decimal(time) / 1000,
                "args": {"Total Reserved": reserved, "Total Allocated": allocated, "Bytes": 1,
                         "Addr": 1 << 47, "Device Id": 0, "Device Type": kind},
            }
        )  # fmt: skip

    def text(self) -> str:
        """The document."""
        return json.dumps({**self.beside, "traceEvents": self.events}, default=_number)

    def write(self, path: Path) -> Path:
        """The file, compressed where its name says so."""
        data = self.text().encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path


def _number(value: object) -> float:
    assert isinstance(value, Decimal)
    return float(value)


def training(**beside: Any) -> Trace:
    """Two steps on the main thread, with their backward pass on another."""
    trace = Trace(**beside)
    for step in (1, 2):
        at = step * 1000 * US
        trace.add("user_annotation", f"ProfilerStep#{step}", at, at + 900 * US)
        trace.add("user_annotation", "forward", at + 10 * US, at + 300 * US)
        trace.add("cpu_op", "aten::linear", at + 20 * US, at + 200 * US)
        trace.add("cpu_op", "aten::addmm", at + 30 * US, at + 190 * US + 7)
        trace.kernel("gemm", (at + 40 * US, at + 50 * US), (at + 60 * US, at + 160 * US + 5),
                     10 * step, grid=[128, 1, 1], block=[256, 1, 1],
                     **{"registers per thread": 40, "shared memory": 1024})  # fmt: skip
        trace.add("cpu_op", "AddmmBackward0", at + 310 * US, at + 400 * US, tid=PID + 1)
        trace.kernel("gemm", (at + 320 * US, at + 330 * US), (at + 340 * US, at + 390 * US),
                     10 * step + 1, thread=PID + 1)  # fmt: skip
        trace.kernel("Memcpy HtoD (Pageable -> Device)", (at + 410 * US, at + 480 * US),
                     (at + 420 * US, at + 470 * US), 10 * step + 2, "gpu_memcpy",
                     bytes=4096)  # fmt: skip
        trace.kernel("Memset (Device)", (at + 500 * US, at + 510 * US),
                     (at + 520 * US, at + 530 * US), 10 * step + 3, "gpu_memset",
                     bytes=64)  # fmt: skip
        trace.add("python_function", "train.py(1): step", at, at + 900 * US)
        trace.add("gpu_user_annotation", "forward", at, at + 900 * US, pid=0, tid=7)
    return trace
