"""Facts beside the time tree: records that were lost, memory almost full, clocks held down."""

from __future__ import annotations

from collections.abc import Iterator

from gputui.model import units
from gputui.report.explain.finding import Finding, MachineRule, RunRule, gpu_names, percents
from gputui.report.explain.time_tree import time_tree
from gputui.report.losses import lost_count, why_lost
from gputui.state import Readings, Run, Session


def lost_records(_session: Session, run: Run) -> Iterator[Finding]:
    """Records lost because the ring or the library could not hold them."""
    dropped = lost_count(run)
    if dropped:
        why = f" ({reason})" if (reason := why_lost(run)) else ""
        yield Finding(
            "lost_records",
            f"{dropped} records lost",
            f"{dropped} records were lost{why}: counts and sums are too low.",
            "raise GPUTUI_RING_BYTES if the ring was full; ranges "
            "over 128 deep, 32 domains per thread or 100,000 open are always left out",
            dropped,
            0,
            "gputui's own count",
        )


LEAST_READINGS = 4
GROWS_BYTES = 1 << 30
"""Least growth over a run's steady time that is a finding."""


def memory_grows(session: Session, run: Run) -> Iterator[Finding]:
    """Memory that grows in steady state and never falls."""
    tree = time_tree(run)
    if tree is None or not tree.steps:
        return
    for index, gpu in sorted(session.gpus.items()):
        points = [
            (moment_ns, sample.memory_used_bytes)
            for moment_ns, sample in gpu.history
            if tree.first_ns <= moment_ns <= tree.last_ns and sample.memory_used_bytes is not None
        ]
        if len(points) < LEAST_READINGS or index not in run.devices:
            continue
        first, last = points[0][1], points[-1][1]
        highest = falls = 0
        for _, used in points:
            highest = max(highest, used)
            falls = max(falls, highest - used)
        still = last - points[(len(points) - 1) // 2][1] >= (last - first) / 4
        if last - first < GROWS_BYTES or falls > (last - first) / 10 or not still:
            continue
        a_second = (last - first) / ((points[-1][0] - points[0][0]) / 1e9)
        total = gpu.facts.memory_total_bytes
        full = f": full in {(total - last) / a_second:.0f} s" if total else ""
        yield Finding(
            "memory_grows",
            f"memory of GPU {index} grows",
            f"GPU {index}'s memory grows by {units.rate(a_second)} and never falls{full}.",
            "look for what is kept from step to step: outputs, losses with their graph, a cache",
            last - first,
            GROWS_BYTES,
            "NVML memory in use during the steady steps",
            leads=True,
        )


def memory_full(session: Session, readings: Readings) -> Iterator[Finding]:
    """A GPU whose memory is almost full."""
    for (index, name), spread in sorted(readings.gpu_spreads.items()):
        gpu = session.gpus.get(index)
        total = gpu.facts.memory_total_bytes if gpu else None
        if name == "memory_used_bytes" and total:
            used = 100.0 * spread.maximum / total
            if used > 90:
                yield Finding(
                    "memory_full",
                    f"memory of GPU {index} {used:.0f} % full",
                    f"GPU {index}'s memory was {used:.0f} % full.",
                    "a smaller batch, a shorter context, lower precision, checkpointing",
                    used,
                    90,
                    "PyTorch profiler's memory recommendation",
                )


_BENIGN = {"power cap", "clocks set by the user", "sync boost", "display clock setting"}
"""Reasons of collect.nvml.throttle that are no fault: at full load a power cap is expected."""


def throttled(_session: Session, readings: Readings) -> Iterator[Finding]:
    """Throttled clocks."""
    shares: dict[str, dict[int, float]] = {}
    for (index, reason), count in sorted(readings.throttle_samples.items()):
        spread = readings.gpu_spreads.get((index, "temperature_celsius"))
        samples = max(count, spread.count if spread else 0)
        shares.setdefault(reason, {})[index] = 100.0 * count / samples
    for reason, on_gpus in shares.items():
        if reason in _BENIGN:
            continue
        gpus, worst = gpu_names(on_gpus), max(on_gpus, key=lambda index: on_gpus[index])
        whose = f"{gpus}'s clocks" if len(on_gpus) == 1 else f"the clocks of {gpus}"
        most = "" if len(on_gpus) == 1 else f", most on GPU {worst}"
        yield Finding(
            "throttled",
            f"{gpus} throttled: {reason}",
            f"{whose} were throttled in {percents(list(on_gpus.values()))} of the samples"
            f"{most}: {reason}.",
            "power: expected at full load; thermal or hardware: look at cooling and supply",
            on_gpus[worst],
            0,
            "NVML clocks event reasons",
        )


RULES = (
    RunRule(0, lost_records),
    RunRule(20, memory_grows),
    MachineRule(0, memory_full),
    MachineRule(10, throttled),
)
