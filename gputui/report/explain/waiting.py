"""Rules about an idle GPU: waiting for launches, for the host, for another stream."""

from __future__ import annotations

from collections.abc import Iterator

from gputui.model import units
from gputui.model.naming import is_kernel_launch
from gputui.model.sketch import Accumulator
from gputui.report.explain.insight import Insight, RunRule, gpu_names, percents
from gputui.report.statistics import kernel_rows
from gputui.report.tables.timing import range_path
from gputui.state import Run, Session

LAUNCH_GAP_NS = 1_000_000
"""Shorter gaps in a GPU's work are attributed to launching."""


def gpu_idle(_session: Session, run: Run) -> Iterator[Insight]:
    """A GPU that was busy less than half the time, and the range that waited longest."""
    if run.traced_share < 1.0:
        return  # untraced work would count as idle
    shares: dict[int, float] = {}
    for index, device in sorted(run.devices.items()):
        if device.first_start_ns is None or device.last_end_ns is None:
            continue
        span = device.last_end_ns - device.first_start_ns
        busy = 100.0 * device.busy_ns / span if span > 0 else 100.0
        if busy < 50:
            shares[index] = busy
    if not shares:
        return
    least = min(shares, key=lambda index: shares[index])
    waited = _worst_range(run, least)
    most = f", most in {waited[1]}" if waited else ""
    if len(shares) == 1:
        was, where, fed, who = "was", "", "it", "its"
    else:
        was, where, fed, who = "were", f", least on GPU {least}", "them", f"GPU {least}'s"
    why = f"; {waited[0]:.0f} % of {who} idle time is in {waited[1]}" if waited else ""
    yield Insight(
        "gpu_idle",
        shares[least],
        50,
        "PyTorch profiler's recommendation for low GPU utilization",
        f"{gpu_names(shares)} idle {percents([100 - busy for busy in shares.values()])}{most}",
        f"{gpu_names(shares)} {was} busy {percents(list(shares.values()))} of the time{where}: "
        f"the CPU cannot feed {fed}{why}",
        "CUDA graphs, larger batches, torch.compile, fewer synchronizations",
    )


def _worst_range(run: Run, device: int) -> tuple[float, str] | None:
    """The range open longest while the GPU was idle, after its percentage of the idle time."""
    shares: dict[str, int] = {}
    idle_ns = 0
    for (process, index), use in run.timing.devices.items():
        if index == device:
            idle_ns += use.idle.total
            for number, share in run.timing.idle_by_range(process, index).items():
                if number:
                    path = range_path(run, number)
                    shares[path] = shares.get(path, 0) + share
    if not shares or not idle_ns:
        return None
    path, share = max(shares.items(), key=lambda item: item[1])
    return 100.0 * share / idle_ns, path


def launch_gaps(_session: Session, run: Run) -> Iterator[Insight]:
    """Short gaps between operations, as a share of the time."""
    if run.traced_share < 1.0:
        return
    losses: dict[tuple[int, int], float] = {}
    for key, use in sorted(run.timing.devices.items()):
        short_ns = use.idle.total_below(LAUNCH_GAP_NS)
        lost = 100.0 * short_ns / use.span_ns if use.span_ns else 0.0
        if lost > 20:
            losses[key] = lost
    if not losses:
        return
    worst = max(losses, key=lambda key: losses[key])
    pid = run.processes[worst[0]].attached.pid
    gpus, shares = gpu_names(device for _, device in losses), percents(list(losses.values()))
    was, where = "was", f" (process {pid})"
    if len(losses) > 1:
        was, where = "were", f", most on GPU {worst[1]} in process {pid}"
    yield Insight(
        "launch_gaps",
        losses[worst],
        20,
        "ours: gaps under 1 ms are too short for input or output, so they are the "
        "cost of launching; a fifth of the time is more than a step's own spread",
        f"{gpus} {'waits' if len(losses) == 1 else 'wait'} {shares} for the next launch",
        f"{gpus} {was} idle {shares} of the time in sub-millisecond gaps between launches{where}",
        "CUDA graphs or torch.compile: fewer launches; or more work in each",
    )


def short_kernels(session: Session, run: Run) -> Iterator[Insight]:
    """Kernels shorter than the call that launches them."""
    launches = [times for key, times in run.api.items() if is_kernel_launch(key.name)]
    calls = sum(times.count for times in launches)
    kernels = kernel_rows(session, run)
    instances = sum(row.instances for row in kernels)
    if not calls or not instances:
        return
    launch_ns = sum(times.total for times in launches) / calls
    queue = Accumulator.of(times.queue for times in run.timing.streams.values())
    if (queue.median or 0.0) > launch_ns:
        return  # kernels wait for the GPU, not the GPU for them
    short = 100.0 * sum(row.instances for row in kernels if row.median < launch_ns) / instances
    if short > 30:
        yield Insight(
            "short_kernels",
            short,
            30,
            "Holistic Trace Analysis's short kernels; the 30 % are ours",
            f"launch-bound: {short:.0f} % of kernels are shorter than a launch",
            f"{short:.0f} % of kernels are shorter than their launch call "
            f"({launch_ns / 1e3:.1f} µs): the run is launch-bound",
            "CUDA graphs or torch.compile (fewer, longer kernels), a larger batch",
        )


def launch_time(_session: Session, run: Run) -> Iterator[Insight]:
    """Launch calls that take unusually long."""
    launches = [times for key, times in run.api.items() if is_kernel_launch(key.name)]
    calls = sum(times.count for times in launches)
    if not calls:
        return
    mean_us = sum(times.total for times in launches) / calls / 1e3
    if mean_us > 10:
        yield Insight(
            "slow_launches",
            mean_us,
            10,
            "the usual target for launch latency; 5 to 20 µs are common",
            f"slow launches: {mean_us:.1f} µs each",
            f"a launch call takes {mean_us:.1f} µs on average",
            "look for a full launch queue (synchronize less often) or a busy CPU",
        )


def no_overlap(_session: Session, run: Run) -> Iterator[Insight]:
    """Several busy streams that hardly overlapped."""
    for (process, device), use in sorted(run.timing.devices.items()):
        busy = sorted(
            times.busy_ns
            for key, times in run.timing.streams.items()
            if (key.process, key.device) == (process, device)
            and times.busy_ns >= 0.05 * use.busy_ns
        )
        if len(busy) < 2 or not busy[-2]:
            continue
        overlap = 100.0 * use.overlap_ns / busy[-2]
        if overlap < 5:
            yield Insight(
                "no_stream_overlap",
                overlap,
                5,
                "CUDA C++ Best Practices Guide, Asynchronous and Overlapping Transfers with "
                "Computation; the 5 % are ours",
                f"{len(busy)} streams of GPU {device} run one after another",
                f"process {run.processes[process].attached.pid} kept {len(busy)} streams of GPU "
                f"{device} busy, but only {overlap:.1f} % of the possible overlap was used",
                "pinned memory and non_blocking copies; no work on the default stream between; "
                "kernels small enough to leave room",
            )


def queue_growing(_session: Session, run: Run) -> Iterator[Insight]:
    """Kernels that wait longer and longer after their launch."""
    for process in run.processes:
        moments = [(count, ns) for owner, count, ns in run.timing.queue if owner == process]
        third = len(moments) // 3
        if third < 3:
            continue
        first, last = (
            sum(ns for _, ns in part) / sum(count for count, _ in part)
            for part in (moments[:third], moments[-third:])
        )
        if last > 1e6 and last > 2 * first:
            yield Insight(
                "queue_growing",
                last / first if first else float(len(moments)),
                2,
                "ours: twice as long in the last third as in the first, and over 1 ms",
                "kernels wait longer and longer in the queue",
                f"kernels of process {run.processes[process].attached.pid} waited "
                f"{units.duration(first)} in the queue at first, {units.duration(last)} at "
                "last: the host launches faster than the GPU works",
                "good for throughput; for latency synchronize once per step, or bound what is in "
                "flight",
            )


RULES = (
    RunRule(10, gpu_idle),
    RunRule(20, launch_gaps),
    RunRule(30, short_kernels),
    RunRule(40, launch_time),
    RunRule(50, no_overlap),
    RunRule(60, queue_growing),
)
