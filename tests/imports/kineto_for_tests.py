"""Small traces in Kineto's form, for tests that read them."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

PID = 500
EPOCH_NS = 1_750_000_000_000_000_000


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
