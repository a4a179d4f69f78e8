"""The time of a repeated operation, by the host's clock and by the GPU's."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .devices import is_out_of_memory, synchronize

SHORT_MS = 0.4
"""A pass that takes less between events is timed in a graph, too: an event and a launch cost the
host some 10 µs (recorded on one H100: a product of 1,024 in bf16 took 5.7 µs and 48 µs between
events). No longer ones: a copy of 1 GiB within the GPU took 0.52 ms, and 0.85 as a graph's node."""

GRAPH_MS = 2.0
"""Of passes in one graph: the launch of the graph itself, some 10 µs, is 0.5 % of it. No longer:
where another program uses the GPU, they take turns every 2 ms or so (recorded on one H200)."""

_MOST_GRAPH_PASSES = 1000
_REPLAYS, _FEWEST_REPLAYS, _REPLAYED_MS = 20, 3, 60.0
"""How many at most, at least, and for how long."""


# Kernels on average longer than this are 20 and more times the gaps between them.
_GAP_MATTERS_MS = 0.1

_FEW_NODES = 30
"""Of a pass, up to which the gaps are taken to be those of empty kernels. Among a training step's
2,000 to 4,000 kernels they are shorter: steps came out up to 14 % below them (one H200)."""

# What CUPTI records of a kernel that does nothing (median of 6,000 on one H100).
_EMPTY_KERNEL_MS = 0.00083


@dataclass(frozen=True)
class Times:
    """Of `passes` passes. Milliseconds per pass.

    `wall_ms` is the total time over the passes, including the wait for the device. `host_ms` is how
    long the host took to submit a pass: the length of a range around it. `gpu_ms` lies between two
    events on the stream around a pass: its kernels and the gaps between them, and where the host
    submits slower than the GPU computes, its wait for the host. It is None on the CPU.
    `graph_ms` is a pass among many that one CUDA graph holds, which the GPU starts by itself; None
    where no graph was timed.
    """

    passes: int
    wall_ms: float
    host_ms: float
    gpu_ms: float | None
    pass_ms: Sequence[float]
    """Each pass: on the GPU between its events, on the CPU by the host's clock."""
    graph_ms: float | None = None

    @property
    def best_ms(self) -> float:
        """The device's time of a pass if it has a clock, else the host's: of a graph's passes where
        there is a graph, since events around a short pass measure the host's launch instead.
        """
        if self.graph_ms is not None:
            return self.graph_ms
        return self.wall_ms if self.gpu_ms is None else self.gpu_ms

    @property
    def is_hosts(self) -> bool:
        """Whether events around a pass time the host's launches, and only a graph times the GPU."""
        if self.gpu_ms is None:
            return False
        # Of many kernels the host may take as long to launch a pass.
        return self.gpu_ms < SHORT_MS or self.host_ms > self.gpu_ms / 2

    @property
    def gpu_only_ms(self) -> float | None:
        """A pass on the GPU without its waits for the host; None where that was not measured."""
        if self.graph_ms is not None:
            return self.graph_ms
        return None if self.is_hosts else self.gpu_ms

    @property
    def timed_by(self) -> str:
        """The clock of `best_ms`: "graph", "events" or "host"."""
        if self.graph_ms is not None:
            return "graph"
        return "host" if self.gpu_ms is None else "events"

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


def measure_in_graph(
    once: Callable[[], object], device: torch.device, expected_ms: float
) -> float | None:
    """GPU milliseconds of a pass, from replays of one CUDA graph that holds many passes: of passes
    of many kernels with the gaps between these, about a microsecond each.

    The gap after a kernel is longer than that after an empty one, which is subtracted: passes of 1
    to 6 µs came out up to 0.7 µs too long (28 rows recorded on one H200).

    `once` must have run before, on static tensors; `expected_ms` sets how many passes fill
    GRAPH_MS. None where the passes cannot be captured, as those that wait for the GPU cannot.
    """
    passes = max(1, min(_MOST_GRAPH_PASSES, round(GRAPH_MS / max(expected_ms, 1e-3))))
    timed = _replayed(once, device, passes)
    if timed is None:
        return None
    whole_ms, nodes = timed
    if nodes is None or whole_ms / nodes > _GAP_MATTERS_MS or nodes > _FEW_NODES * passes:
        return whole_ms / passes
    # The same number of kernels that do nothing: what is over their own time lies between them.
    empty = _replayed(lambda: torch.cuda._sleep(0), device, nodes)  # type: ignore[no-untyped-call]
    gaps_ms = 0.0 if empty is None else max(0.0, empty[0] - nodes * _EMPTY_KERNEL_MS)
    return (whole_ms - gaps_ms) / passes


def _replayed(
    once: Callable[[], object], device: torch.device, passes: int
) -> tuple[float, int | None] | None:
    """Milliseconds of the fastest replay of a graph of `passes` passes, and its nodes, None where
    torch does not show them. None for passes that cannot be captured. The fastest: whatever else
    happens on the GPU or the host only makes one longer.
    """
    synchronize(device)
    try:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
    except TypeError:  # before torch 2.8
        graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(passes):
                once()
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        return None
    replays_ms: list[float] = []
    # Of a graph as long as a training step a few say as much.
    while len(replays_ms) <= _FEWEST_REPLAYS or (
        len(replays_ms) <= _REPLAYS and sum(replays_ms) < _REPLAYED_MS
    ):
        before, after = _event(), _event()
        before.record()
        graph.replay()
        after.record()
        synchronize(device)
        replays_ms.append(before.elapsed_time(after))
    # The first replay uploads the graph to the GPU.
    return min(replays_ms[1:]), _nodes_of(graph)


def _nodes_of(graph: torch.cuda.CUDAGraph) -> int | None:
    """How many nodes a captured graph has: kernels, and a few copies and fills."""
    raw = getattr(graph, "raw_cuda_graph", None)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_size_t()
        if raw is None or driver.cuGraphGetNodes(ctypes.c_void_p(raw()), None, ctypes.byref(count)):
            return None
    except (OSError, AttributeError, RuntimeError, TypeError):
        return None
    return count.value or None


def repeat(once: Callable[[], object], times: int, device: torch.device) -> None:
    """Warm up: `times` calls, then wait for the device."""
    for _ in range(times):
        once()
    synchronize(device)


def _event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event
