"""Figures of a GPU in words, each with the role it is to be seen in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from gputui.model.cards import HARMLESS_THROTTLING
from gputui.model.events import GpuSample, GpuStatus
from gputui.model.metrics import metrics_of
from gputui.model.units import (
    MISSING,
    celsius,
    duration,
    percent,
    quantity,
    rate,
    size,
    times_by_reason,
    watt_hours,
)
from gputui.state import Gpu, Run
from gputui.tui.widgets.canvas import Row

_STALE_INTERVALS = 3.5
"""A card silent for this many intervals is marked."""


def trouble(gpu: Gpu, now_ns: int, interval_s: float) -> str:
    """Why the card's figures are not of now: it is lost or does not answer. "" while they are."""
    age_ns = now_ns - gpu.sample_ns if gpu.sample_ns else 0
    reason = gpu.unavailable.get("device", "")
    if not reason and age_ns <= max(2.0, _STALE_INTERVALS * interval_s) * 1e9:
        return ""
    age = f"figures are {duration(age_ns // 10**9 * 10**9)} old" if age_ns >= 1e9 else ""
    return ": ".join(part for part in (reason or "no answer", age) if part)


def temperature(gpu: Gpu) -> tuple[str, str]:
    """The temperature and how it is to be seen: hot only near the slowdown threshold."""
    sample = gpu.sample
    value = sample.temperature_celsius if sample else None
    if sample is None or value is None:
        return MISSING, "dim"
    slowdown = gpu.facts.temperature_slowdown_celsius
    margin = gpu.status.temperature_margin_celsius if gpu.status else None
    if margin is None and slowdown is not None:
        margin = slowdown - value
    text = celsius(value)
    if margin is None:
        return text, "value"
    limit = f"slows at {value + margin:.0f}"
    if margin <= 3:
        return f"{text} (HOT: {limit})", "hot"
    return f"{text} ({limit})", "warn" if margin <= 8 else "value"


def throttling(gpu: Gpu) -> tuple[str, str]:
    """Why clocks are held down, in words; hot only if one of the reasons is a fault."""
    reasons = gpu.sample.throttle_reasons if gpu.sample else None
    if reasons is None:
        return MISSING, "dim"
    if faults := [reason for reason in reasons if reason not in HARMLESS_THROTTLING]:
        return f"THROTTLED: {', '.join(faults)}", "hot"
    return (", ".join(reasons), "dim") if reasons else ("none", "good")


def throttled_in(run: Run | None, index: int) -> list[str]:
    """What held the clocks of a GPU down in a run that has ended, and in how many of its readings:
    what the card says now is of a GPU that rests."""
    if run is None or run.is_active:
        return []
    known = run.readings.series(index, "memory_used_bytes")
    whole = known.count if known is not None else run.readings.samples
    counts = {
        reason: count
        for (gpu, reason), count in run.readings.throttle_samples.items()
        if gpu == index and reason not in HARMLESS_THROTTLING
    }
    return [
        f"{reason} {percent(100 * min(1.0, count / max(1, whole)))} of the run"
        for reason, count in sorted(counts.items(), key=lambda item: -item[1])
    ]


def health(gpu: Gpu) -> list[tuple[str, str, str]]:
    """(label, figure, role) of what is wrong with the card; empty for a sound one."""
    status = gpu.status
    if status is None:
        return []
    rows = (status.remapped_rows_corrected or 0) + (status.remapped_rows_uncorrected or 0)
    found = [
        ("Xid errors", _xid(status), "hot", bool(status.xid_count)),
        ("row remapping", "FAILED", "hot", bool(status.row_remapping_failed)),
        ("row remapping", "pending: reset the GPU", "warn", bool(status.row_remapping_pending)),
        ("page retirement", "pending: reset the GPU", "warn", bool(status.page_retirement_pending)),
        (
            "ECC uncorrected",
            quantity(status.ecc_uncorrected or status.ecc_uncorrected_lifetime),
            "hot" if status.ecc_uncorrected else "warn",
            bool(status.ecc_uncorrected or status.ecc_uncorrected_lifetime),
        ),
        ("ECC corrected", quantity(status.ecc_corrected), "warn", bool(status.ecc_corrected)),
        ("remapped rows", quantity(rows), "warn", bool(rows)),
        ("retired pages", quantity(status.retired_pages), "warn", bool(status.retired_pages)),
    ]
    return [(label, text, role) for label, text, role, holds in found if holds]


def _xid(status: GpuStatus) -> str:
    last = "" if status.last_xid is None else f" (last {status.last_xid})"
    return f"{quantity(status.xid_count)}{last}"


def memory_role(sample: GpuSample | None) -> str:
    """Red only where memory is about to run out."""
    fraction = memory_fraction(sample)
    if fraction is None:
        return "dim"
    return "hot" if fraction >= 0.97 else "warn" if fraction >= 0.9 else "value"


def memory_fraction(sample: GpuSample | None) -> float | None:
    """Used memory over all of it."""
    if sample is None or sample.memory_used_bytes is None or not sample.memory_total_bytes:
        return None
    return sample.memory_used_bytes / sample.memory_total_bytes


def memory_text(sample: GpuSample | None) -> str:
    """ "45.2 GiB of 141 GiB"."""
    if sample is None or sample.memory_used_bytes is None:
        return MISSING
    if not sample.memory_total_bytes:
        return size(sample.memory_used_bytes)
    return f"{size(sample.memory_used_bytes)} of {size(sample.memory_total_bytes)}"


def busy(sample: GpuSample | None) -> float | None:
    """How much of the GPU works: SM active where it is known."""
    if sample is None:
        return None
    active = sample.sm_active_percent
    return active if active is not None else sample.utilization_percent


_RECENT = 10
_LITTLE, _MUCH = 10.0, 50.0
_HELD_BYTES = 1 << 30


def out_of_line(gpus: Sequence[Gpu]) -> list[str]:
    """GPUs that do little while the others work, and idle ones that hold memory, by their mean load
    of the last ten readings."""
    loads = {gpu.facts.index: load for gpu in gpus if (load := recent_load(gpu)) is not None}
    found = []
    for gpu in gpus:
        load = loads.get(gpu.facts.index)
        others = sorted(other for index, other in loads.items() if index != gpu.facts.index)
        if load is None or not others or load >= _LITTLE:
            continue
        usual = others[len(others) // 2]
        held = gpu.sample.memory_used_bytes if gpu.sample else None
        if usual >= _MUCH:
            found.append(
                f"GPU {gpu.facts.index} is {percent(load)} busy, the others {percent(usual)}"
            )
        elif load < 1 and held is not None and held >= _HELD_BYTES:
            found.append(f"GPU {gpu.facts.index} is idle and holds {size(held)}")
    return found


def recent_load(gpu: Gpu) -> float | None:
    loads = []
    for _, sample in islice(reversed(gpu.samples.history), _RECENT):
        load = busy(sample)
        if load is not None:
            loads.append(load)
    return sum(loads) / len(loads) if loads else None


def figures(gpu: Gpu, run: Run | None = None) -> list[Row]:
    """The figures beside the charts, the most telling first; what is not there is left out."""
    sample, facts, status = gpu.sample, gpu.facts, gpu.status
    if sample is None:
        return [(("no reading yet", "dim"),)]
    result: list[Row] = []

    def add(label: str, value: str, role: str = "value") -> None:
        if value != MISSING:
            result.append(((f"{label} ", "label"), (value, role)))

    for label, text, role in health(gpu):
        add(label, text, role)
    state, state_role = throttling(gpu)
    add("throttling", state, state_role)
    add("throttled in the run", ", ".join(throttled_in(run, facts.index)) or MISSING, "warn")
    add("temperature", *temperature(gpu))
    if sample.sm_active_percent is not None:
        add("utilization", percent(sample.utilization_percent))
    add("SM clock", clock(sample.sm_clock_mhz, facts.max_sm_clock_mhz))
    add("PCIe", _both(sample.pcie_rx_bytes_per_s, sample.pcie_tx_bytes_per_s))
    add("NVLink", _both(sample.nvlink_rx_bytes_per_s, sample.nvlink_tx_bytes_per_s))
    if gpu.unavailable:
        result.append(((f"{len(gpu.unavailable)} figures n/a: Enter says why", "dim"),))
    add("memory clock", clock(sample.memory_clock_mhz, facts.max_memory_clock_mhz))
    add("reserved", size(sample.memory_reserved_bytes))
    add("state", MISSING if sample.performance_state is None else f"P{sample.performance_state}")
    add("memory temperature", celsius(sample.memory_temperature_celsius))
    if status is not None and status.throttle_seconds and any(status.throttle_seconds.values()):
        text = times_by_reason(status.throttle_seconds)
        add("throttled so far", text, "warn" if state_role == "hot" else "value")
    add("links", _links(status))
    if status is not None and status.energy_joules is not None:
        add("energy", watt_hours(status.energy_joules))
    add("fan", percent(status.fan_percent if status else None))
    for field, metric in metrics_of(GpuSample).items():
        if metric.card and (value := getattr(sample, field)):
            add(metric.card, metric.unit.show(value))
    return result


def _links(status: GpuStatus | None) -> str:
    if status is None or status.pcie_link_generation is None or status.pcie_link_width is None:
        return MISSING
    nvlinks = f", {status.nvlink_active_count} NVLinks" if status.nvlink_active_count else ""
    return f"PCIe {status.pcie_link_generation} ×{status.pcie_link_width}{nvlinks}"


def clock(value: int | None, maximum: int | None) -> str:
    """ "1410 of 1980 MHz"."""
    if value is None:
        return MISSING
    return f"{value} of {maximum} MHz" if maximum else f"{value} MHz"


def _both(received: float | None, sent: float | None) -> str:
    if received is None and sent is None:
        return MISSING
    # An idle link's kB/s only flicker: they are not shown.
    return f"in {_link_rate(received)} out {_link_rate(sent)}"


def _link_rate(bytes_per_s: float | None) -> str:
    """An idle link carries what asks for the readings, tens to hundreds of kB/s that change at each
    tick and say nothing."""
    if bytes_per_s is not None and 0 < bytes_per_s < 1e6:
        return "<1 MB/s"
    return rate(bytes_per_s)
