"""Rules about what is badly used or at its limit: tensor cores, memory, clocks, the capture."""

from __future__ import annotations

from collections.abc import Iterator

from gputui.model import units
from gputui.report.explain.insight import Insight, MachineRule, RunRule, gpu_names, percents
from gputui.report.losses import lost_count, why_lost
from gputui.report.memory import transfers
from gputui.report.statistics import category_rows, kernel_rows
from gputui.state import Readings, Run, Session

SMS_AT_WORK_PERCENT = 1.0
"""Below this the SMs were so idle that their tensor cores prove nothing."""


def lost_records(_session: Session, run: Run) -> Iterator[Insight]:
    """Records lost because the ring or the library could not hold them."""
    dropped = lost_count(run)
    if dropped:
        why = f" ({reason})" if (reason := why_lost(run)) else ""
        yield Insight(
            "lost_records",
            dropped,
            0,
            "gputui",
            f"{dropped} records lost",
            f"{dropped} records were lost{why}: counts and sums are too low",
            "raise GPUTUI_RING_BYTES if the ring was full; ranges "
            "over 128 deep, 32 domains per thread or 100,000 open are always left out",
        )


def no_tensor_cores(session: Session, run: Run) -> Iterator[Insight]:
    """Matrix products without tensor cores."""
    shares = {name: share for name, _, _, share in category_rows(kernel_rows(session, run))}
    matmul = shares.get("matmul", 0.0)
    if matmul <= 50:
        return
    for (index, name), spread in sorted(run.readings.gpu_spreads.items()):
        multiprocessors = run.readings.gpu_spreads.get((index, "sm_active_percent"))
        if name != "tensor_active_percent" or multiprocessors is None:
            continue
        # Both are shares of all the time: on a mostly idle GPU both are small.
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
                f"cores were active {units.percent(share)} of the time its SMs were",
                "bf16, fp16 or TF32; dimensions in multiples of 8",
            )


def pageable_copies(_session: Session, run: Run) -> Iterator[Insight]:
    """Copies that the driver makes twice."""
    busy_ns = sum(device.busy_ns for device in run.devices.values())
    pageable = [row for row in transfers(run) if row.is_pageable]
    moving_ns = sum(row.total_ns for row in pageable)
    share = 100.0 * moving_ns / busy_ns if busy_ns else 0.0
    if share > 5:
        moved = units.size(sum(row.total_bytes for row in pageable))
        yield Insight(
            "pageable_copies",
            share,
            5,
            "nsys's expert rule on asynchronous copies with pageable memory; the 5 % are ours",
            f"{share:.0f} % of the GPU's work is copies of pageable memory",
            f"copies from or to pageable host memory ({moved}) are {share:.0f} % of the "
            "GPUs' busy time: the driver copies each twice, and the host waits",
            "pin_memory=True for the DataLoader, non_blocking=True for the copy",
        )


def memory_full(session: Session, readings: Readings) -> Iterator[Insight]:
    """A GPU whose memory is almost full."""
    for (index, name), spread in sorted(readings.gpu_spreads.items()):
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


def throttled(_session: Session, readings: Readings) -> Iterator[Insight]:
    """Throttled clocks."""
    shares: dict[str, dict[int, float]] = {}
    for (index, reason), count in sorted(readings.throttle_samples.items()):
        spread = readings.gpu_spreads.get((index, "temperature_celsius"))
        samples = max(count, spread.count if spread else 0)
        shares.setdefault(reason, {})[index] = 100.0 * count / samples
    for reason, on_gpus in shares.items():
        gpus, worst = gpu_names(on_gpus), max(on_gpus, key=lambda index: on_gpus[index])
        whose = f"{gpus}'s clocks" if len(on_gpus) == 1 else f"the clocks of {gpus}"
        most = "" if len(on_gpus) == 1 else f", most on GPU {worst}"
        yield Insight(
            "throttled",
            on_gpus[worst],
            0,
            "NVML clocks event reasons",
            f"{gpus} throttled: {reason}",
            f"{whose} were throttled in {percents(list(on_gpus.values()))} of the samples"
            f"{most}: {reason}",
            "power: expected at full load; thermal or hardware: look at cooling and supply",
        )


RULES = (
    RunRule(0, lost_records),
    RunRule(70, no_tensor_cores),
    RunRule(80, pageable_copies),
    MachineRule(0, memory_full),
    MachineRule(10, throttled),
)
