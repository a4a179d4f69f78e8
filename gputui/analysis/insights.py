"""Why is it slow: rules that compare one figure of a run with a threshold that has a source.

A rule speaks only where its figure exists; each says what it read, what it compares with, where
that comes from, and what to try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gputui.analysis import formats
from gputui.analysis.gpu_timing import range_path
from gputui.analysis.tables import category_rows, kernel_rows
from gputui.distributions import Accumulator
from gputui.naming import is_kernel_launch
from gputui.session import Run, Session

LAUNCH_GAP_NS = 1_000_000
"""Gaps in a GPU's work shorter than this are laid to launching."""

SMS_AT_WORK_PERCENT = 1.0
"""Below this the SMs were so idle in every sample that nothing follows from their tensor cores."""


@dataclass(frozen=True, slots=True)
class Insight:
    """One verdict. `value` and `threshold` share a unit, which the verdict names. `headline` is the
    verdict in half a line, for a screen that shows other things too.
    """

    rule: str
    value: float
    threshold: float
    source: str
    headline: str
    verdict: str
    advice: str


def insights(session: Session, run: Run) -> list[Insight]:
    """What the rules find, in the order of what to look at first."""
    return [found for rule in _RULES for found in rule(session, run)]


def _lost_records(_session: Session, run: Run) -> Iterator[Insight]:
    dropped = sum(process.dropped for process in run.processes.values())
    if dropped:
        yield Insight(
            "lost_records",
            dropped,
            0,
            "gputui",
            f"{dropped} records lost",
            f"{dropped} records were lost: counts and sums are too low",
            "set GPUTUI_RING_BYTES higher if the program tells faster than can be read; ranges "
            "over 128 deep, 32 domains a thread or 100,000 open are left out at any speed",
        )


def _gpu_idle(_session: Session, run: Run) -> Iterator[Insight]:
    if run.traced_share < 1.0:
        return  # what was not traced would count as idle
    for index, device in sorted(run.devices.items()):
        if device.first_start_ns is None or device.last_end_ns is None:
            continue
        span = device.last_end_ns - device.first_start_ns
        if span <= 0:
            continue
        busy = 100.0 * device.busy_ns / span
        if busy < 50:
            waited = _worst_range(run, index)
            most = why = ""
            if waited:
                most = f", most in {waited[1]}"
                why = f"; {waited[0]:.0f} % of its idle time it waited for {waited[1]}"
            yield Insight(
                "gpu_idle",
                busy,
                50,
                "PyTorch profiler's recommendation for low GPU utilization",
                f"GPU {index} idle {100 - busy:.0f} %{most}",
                f"GPU {index} ran something only {busy:.0f} % of the time between its first and "
                f"last operation: the host holds it back{why}",
                "CUDA graphs, larger batches, torch.compile, fewer synchronizations",
            )


def _worst_range(run: Run, device: int) -> tuple[float, str] | None:
    """The range open longest while the GPU idled, after its percent of the idle time."""
    shares: dict[str, int] = {}
    idle_ns = 0
    for (_, index), use in run.timing.devices.items():
        if index == device:
            idle_ns += use.idle.total
            for number, share in use.idle_ranges.items():
                if number:
                    path = range_path(run, number)
                    shares[path] = shares.get(path, 0) + share
    if not shares or not idle_ns:
        return None
    path, share = max(shares.items(), key=lambda item: item[1])
    return 100.0 * share / idle_ns, path


def _launch_gaps(_session: Session, run: Run) -> Iterator[Insight]:
    if run.traced_share < 1.0:
        return
    for (process, device), use in sorted(run.timing.devices.items()):
        short_ns = use.idle.total_below(LAUNCH_GAP_NS)
        lost = 100.0 * short_ns / use.span_ns if use.span_ns else 0.0
        if lost > 20:
            yield Insight(
                "launch_gaps",
                lost,
                20,
                "ours: gaps under 1 ms are too short for input or output, so they are what "
                "launching costs; a fifth of the time is more than a step's own spread",
                f"GPU {device} waits {lost:.0f} % for the next launch",
                f"GPU {device} waited {lost:.0f} % of the time of process "
                f"{run.processes[process].attached.pid} in gaps under 1 ms, for the next launch",
                "CUDA graphs or torch.compile: fewer launches; or more work in each",
            )


def _queue_growing(_session: Session, run: Run) -> Iterator[Insight]:
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
                "kernels wait ever longer in the queue",
                f"kernels of process {run.processes[process].attached.pid} waited "
                f"{formats.duration(first)} in the queue at first, {formats.duration(last)} at "
                "last: the host launches faster than the GPU works",
                "good for throughput; for latency synchronize once a step, or bound what is in "
                "flight",
            )


def _no_overlap(_session: Session, run: Run) -> Iterator[Insight]:
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
                f"{device} busy, and they ran together {overlap:.1f} % of the time they could have",
                "pinned memory and non_blocking copies; no work on the default stream between; "
                "kernels small enough to leave room",
            )


def _short_kernels(session: Session, run: Run) -> Iterator[Insight]:
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
            f"{short:.0f} % of kernels typically end sooner than their launch call takes "
            f"({launch_ns / 1e3:.1f} µs): the run is launch-bound",
            "CUDA graphs or torch.compile (fewer, longer kernels), a larger batch",
        )


def _launch_time(_session: Session, run: Run) -> Iterator[Insight]:
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


def _no_tensor_cores(session: Session, run: Run) -> Iterator[Insight]:
    shares = {name: share for name, _, _, share in category_rows(kernel_rows(session, run))}
    matmul = shares.get("matmul", 0.0)
    if matmul <= 50:
        return
    for (index, name), spread in sorted(run.gpu_spreads.items()):
        multiprocessors = run.gpu_spreads.get((index, "sm_active_percent"))
        if name != "tensor_active_percent" or multiprocessors is None:
            continue
        # Both are shares of all the time: on a GPU that mostly waits both are small.
        tensor, active = spread.average or 0.0, multiprocessors.average or 0.0
        if multiprocessors.maximum < SMS_AT_WORK_PERCENT or active <= 0:
            continue
        share = 100.0 * tensor / active
        if share < 1:
            yield Insight(
                "no_tensor_cores",
                share,
                1,
                "PyTorch profiler's tensor core recommendation; the 1 % is ours",
                f"tensor cores of GPU {index} hardly used",
                f"matrix products are {matmul:.0f} % of kernel time, and GPU {index}'s tensor "
                f"cores worked {formats.percent(share)} of the time that its SMs were active",
                "bf16, fp16 or TF32; dimensions in multiples of 8",
            )


def _memory_full(session: Session, run: Run) -> Iterator[Insight]:
    for (index, name), spread in sorted(run.gpu_spreads.items()):
        gpu = session.gpus.get(index)
        total = gpu.facts.memory_total_bytes if gpu else None
        if name == "memory_used_bytes" and total:
            used = 100.0 * spread.maximum / total
            if used > 90:
                yield Insight(
                    "memory_full",
                    used,
                    90,
                    "PyTorch profiler's memory recommendation",
                    f"memory of GPU {index} {used:.0f} % full",
                    f"GPU {index}'s memory was {used:.0f} % full",
                    "a smaller batch, a shorter context, lower precision, checkpointing",
                )


def _throttled(_session: Session, run: Run) -> Iterator[Insight]:
    for (index, reason), count in sorted(run.throttle_samples.items()):
        spread = run.gpu_spreads.get((index, "temperature_celsius"))
        samples = max(count, spread.count if spread else 0)
        share = 100.0 * count / samples
        yield Insight(
            "throttled",
            share,
            0,
            "NVML clocks event reasons",
            f"GPU {index} throttled: {reason}",
            f"GPU {index}'s clocks were held back in {share:.0f} % of the samples: {reason}",
            "power: expected at full load; thermal or hardware: look at cooling and supply",
        )


_RULES: tuple[Callable[[Session, Run], Iterator[Insight]], ...] = (
    _lost_records,
    _gpu_idle,
    _launch_gaps,
    _short_kernels,
    _launch_time,
    _no_overlap,
    _queue_growing,
    _no_tensor_cores,
    _memory_full,
    _throttled,
)
