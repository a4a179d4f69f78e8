"""The time of a repeated operation, by the host's clock and by the GPU's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .devices import synchronize


@dataclass(frozen=True)
class Times:
    """Of `passes` passes. Milliseconds per pass.

    `wall_ms` is the total time over the passes, including the wait for the device. `host_ms` is how
    long the host took to submit a pass: the length of a range around it. `gpu_ms` lies between two
    events on the stream around a pass: its kernels and the gaps between them. It is None on the
    CPU.
    """

    passes: int
    wall_ms: float
    host_ms: float
    gpu_ms: float | None
    pass_ms: Sequence[float]
    """Each pass: on the GPU between its events, on the CPU by the host's clock."""

    @property
    def best_ms(self) -> float:
        """The device's time of a pass if it has a clock, else the host's."""
        return self.wall_ms if self.gpu_ms is None else self.gpu_ms

    def percentile(self, q: float) -> float:
        """The q-th percentile of the passes, in milliseconds."""
        return float(np.percentile(np.asarray(self.pass_ms), q))


def measure(
    once: Callable[[], object],
    device: torch.device,
    passes: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> Times:
    """Time `passes` calls of `once`, submitted to the device one after another without waiting.

    Ends early, after at least one pass, if `should_stop` says so. Waits for the device before and
    after. Raises whatever `once` raises.
    """
    on_gpu = device.type == "cuda"
    events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
    host_ns: list[int] = []
    if on_gpu:
        pairs = range(passes)
        events = [(_event(), _event()) for _ in pairs]
    synchronize(device)
    started_ns = time.perf_counter_ns()
    for number in range(passes):
        if on_gpu:
            events[number][0].record()
        before_ns = time.perf_counter_ns()
        once()
        host_ns.append(time.perf_counter_ns() - before_ns)
        if on_gpu:
            events[number][1].record()
        if should_stop():
            break
    synchronize(device)
    wall_ns = time.perf_counter_ns() - started_ns
    done = len(host_ns)
    pass_ms = (
        [before.elapsed_time(after) for before, after in events[:done]]
        if on_gpu
        else [ns / 1e6 for ns in host_ns]
    )
    return Times(
        passes=done,
        wall_ms=wall_ns / done / 1e6,
        host_ms=sum(host_ns) / done / 1e6,
        gpu_ms=sum(pass_ms) / done if on_gpu else None,
        pass_ms=pass_ms,
    )


def repeat(once: Callable[[], object], times: int, device: torch.device) -> None:
    """Warm up: `times` calls, then wait for the device."""
    for _ in range(times):
        once()
    synchronize(device)


def _event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event
