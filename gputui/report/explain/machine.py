"""Facts about the machine and its memory beside the time tree: records that were lost, clocks held
down, a slow link; memory that grows, is almost full, or is allocated anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from gputui.model import units
from gputui.model.cards import HARMLESS_THROTTLING
from gputui.model.events import GpuSample
from gputui.model.leaves import LEAVES, Leaf
from gputui.report.explain.analysis import Analysis, MachineAnalysis, MachineRule, RunRule
from gputui.report.explain.finding import (
    Finding,
    capital,
    gain_of,
    gpu_names,
    percents,
)
from gputui.report.explain.habits import KEEP_BLOCKS, allocations
from gputui.report.explain.leaves import used_by_strangers
from gputui.report.explain.lines import recomputed
from gputui.report.explain.time_tree import TimeTree
from gputui.report.explain.verdict import SPEAKS
from gputui.report.schema import lost_count, why_lost
from gputui.state import Gpu, Readings


def lost_records(analysis: Analysis) -> Iterator[Finding]:
    """Records lost because the ring or the library could not hold them."""
    run = analysis.run
    dropped = lost_count(run)
    if dropped:
        why = f" ({reason})" if (reason := why_lost(run)) else ""
        lost = "1 record was lost" if dropped == 1 else f"{dropped:,} records were lost"
        yield Finding(
            cause="lost_records",
            word=lost.replace(" was", "").replace(" were", ""),
            sentence=f"{lost}{why}: counts and sums are too low.",
            advice=(
                "raise GPUTUI_RING_BYTES if the ring was full; ranges "
                "over 128 deep, 32 domains per thread or 100,000 open are always left out"
            ),
            value=dropped,
            threshold=0,
            source="gputui's own count",
        )


HELD = 0.9
"""Share of its highest clock below which a busy GPU is held back (a card at its power limit runs at
70 to 95 %, and says so)."""


def throttled(analysis: MachineAnalysis) -> Iterator[Finding]:
    """Clocks held down by heat or by a fault; a reason that left the clock where it was is none."""
    by_key: dict[tuple[str, ...], dict[int, float]] = {}
    clocks: dict[tuple[str, ...], list[float]] = {}
    for index, reasons in _reasons(analysis.readings).items():
        clock = _clock_share(analysis, index, set(reasons))
        # A reason that leaves the clock where it was costs nothing. Cards at 88 °C and 570 to 1,140
        # of 1,980 MHz once read as healthy, with throttling beside.
        if clock is not None and clock >= HELD:
            continue
        if clock is not None:
            clocks.setdefault(tuple(reasons), []).append(clock)
        spread = analysis.readings.series(index, "temperature_celsius")
        most = max(reasons.values())
        samples = max(most, spread.count if spread else 0)
        by_key.setdefault(tuple(reasons), {})[index] = 100.0 * most / samples
    for why, on_gpus in by_key.items():
        gpus, worst = gpu_names(on_gpus), max(on_gpus, key=lambda index: on_gpus[index])
        # One line for all: eight throttled GPUs were eight like lines.
        whose = f"{gpus}'s clocks" if len(on_gpus) == 1 else f"the clocks of {gpus}"
        most_on = "" if len(on_gpus) == 1 else f", most on GPU {worst}"
        low = min(clocks.get(why, ()), default=None)
        down = f", down to {100 * low:.0f} % of the highest" if low is not None else ""
        yield Finding(
            cause="throttled",
            view="devices",
            word=f"{gpus} throttled",
            sentence=(
                f"{capital(whose)} were throttled in "
                f"{percents(list(on_gpus.values()))} of the samples{most_on}{down}: "
                f"{', '.join(why)}."
            ),
            advice="look at cooling and power supply: air, fans, dust, neighbours",
            value=on_gpus[worst],
            threshold=0,
            source="NVML clocks event reasons, median SM clock under them",
            leads=low is not None,
        )


def _reasons(readings: Readings) -> dict[int, dict[str, int]]:
    """By GPU: the reasons that are faults, and in how many samples."""
    by_key: dict[int, dict[str, int]] = {}
    for (index, reason), count in sorted(readings.throttle_samples.items()):
        if reason not in HARMLESS_THROTTLING:
            by_key.setdefault(index, {})[reason] = count
    return by_key


def _clock_share(analysis: MachineAnalysis, index: int, reasons: set[str]) -> float | None:
    """The median clock of a GPU while one of the reasons held it, of its highest."""
    readings = analysis.readings
    gpu = analysis.session.gpus.get(index)
    highest = gpu.facts.max_sm_clock_mhz if gpu is not None else None
    if gpu is None or not highest:
        return None
    held = [
        sample.sm_clock_mhz
        for moment_ns, sample in gpu.samples.history
        if readings.first_ns <= moment_ns <= readings.last_ns
        and sample.sm_clock_mhz is not None
        and reasons.intersection(sample.throttle_reasons or ())
    ]
    return median(held) / highest if held else None


BUSY = 0.5
LEAST_READINGS = 3


def held_clock(analysis: Analysis) -> Iterator[Finding]:
    """A clock below the card's highest in steady steps, for a reason that can be changed."""
    tree = analysis.tree
    if tree is None or tree.share(tree.idle_ns) > 1 - BUSY:
        return
    for index, gpu in sorted(analysis.session.gpus.items()):
        samples = [
            sample
            for moment_ns, sample in gpu.samples.history
            if tree.first_ns <= moment_ns <= tree.last_ns
        ]
        clocks = [sample.sm_clock_mhz for sample in samples if sample.sm_clock_mhz is not None]
        highest = gpu.facts.max_sm_clock_mhz
        if index not in analysis.devices or len(clocks) < LEAST_READINGS or not highest:
            continue
        clock = median(clocks)
        if clock >= HELD * highest:
            continue
        held = _why_held(gpu, samples)
        if held is None:
            continue
        why, advice = held
        yield Finding(
            cause="held_clock",
            view="devices",
            word=f"GPU {index} at {clock:.0f} of {highest} MHz",
            sentence=f"GPU {index} runs at {clock:.0f} of {highest} MHz while it works: {why}.",
            advice=advice,
            value=100 * clock / highest,
            threshold=100 * HELD,
            source="median SM clock of the steady steps, nvmlDeviceGetMaxClockInfo",
        )


def _why_held(gpu: Gpu, samples: list[GpuSample]) -> tuple[str, str] | None:
    """Why and what to do; None where nothing can be done, where `throttled` speaks of it, or where
    the driver does not say why."""
    readable = [s.throttle_reasons for s in samples if s.throttle_reasons is not None]
    reasons = {reason for each in readable for reason in each}
    limit = next((s.power_limit_watts for s in reversed(samples) if s.power_limit_watts), None)
    default = gpu.facts.power_limit_default_watts
    # A limit within a hundredth of the default is the default, read with the driver's rounding.
    if "power cap" in reasons and limit and default and limit < 0.99 * default:
        return (
            f"its power limit is {limit:.0f} W, by default {default:.0f}",
            f"nvidia-smi -i {gpu.facts.index} -pl {default:.0f}, if you may",
        )
    if "clocks set by the user" in reasons:
        return "its clocks are set", f"nvidia-smi -i {gpu.facts.index} -rgc resets them"
    # A driver that gives no reasons (None) has not said that there are none.
    if not reasons and len(readable) >= LEAST_READINGS:
        return (
            "nothing throttles it: it has not sped up yet",
            "measure longer, and warm the GPU up first",
        )
    return None


COPIES = 0.05
"""Share of the wall time in copies over the bus from which its link matters."""


def slow_link(analysis: Analysis) -> Iterator[Finding]:
    """A PCIe link that is narrower or slower than card and slot allow, where copies wait for it."""
    tree = analysis.tree
    if tree is None:
        return
    share = tree.share(sum(tree.leaves.get(leaf, 0) for leaf in _OVER_THE_BUS))
    if share < COPIES:
        return
    for index, gpu in sorted(analysis.session.gpus.items()):
        facts, status = gpu.facts, gpu.status
        if index not in analysis.devices or status is None:
            continue
        # An idle link falls back to a lower generation, but keeps its lanes.
        in_use = tree.first_ns <= status.time_ns <= tree.last_ns
        lanes = _below(status.pcie_link_width, facts.pcie_width)
        speed = _below(status.pcie_link_generation, facts.pcie_generation) if in_use else None
        if lanes is None and speed is None:
            continue
        clauses = [f"{lanes} lanes"] if lanes else []
        clauses += [f"generation {speed}"] if speed else []
        yield Finding(
            cause="slow_link",
            view="devices",
            word=f"PCIe link of GPU {index} slow",
            sentence=(
                f"GPU {index}'s PCIe link runs at {' and '.join(clauses)}, and copies over it take "
                f"{100 * share:.0f} % of the time."
            ),
            advice="look at the slot, the riser and the BIOS; other devices may share the lanes",
            value=100 * share,
            threshold=100 * COPIES,
            source="nvmlDeviceGetCurrPcieLinkWidth and -Generation against their maximum",
        )


_OVER_THE_BUS = (Leaf.COPY_PAGEABLE, Leaf.COPY_PINNED)


def _below(now: int | None, most: int | None) -> str | None:
    return f"{now} of {most}" if now and most and now < most else None


_USED = "memory_used_bytes"

GROWS_BYTES = 1 << 30
"""Least growth over a run's steady time that is a finding."""

SOON_S = 60.0
"""From memory that is full this soon a run must be saved, whatever else could make it faster."""


def memory_grows(analysis: Analysis) -> Iterator[Finding]:
    """Memory that grows in steady state and never falls, but for rows of a benchmark, which are
    larger and larger."""
    tree = analysis.tree
    if tree is None or not tree.steps or tree.benchmark_rows:
        return
    for index, gpu in sorted(analysis.session.gpus.items()):
        used_bytes = analysis.readings.series(index, _USED)
        if used_bytes is None or index not in analysis.devices:
            continue
        # The driver counts what all programs on the GPU hold: one beside that started anew each 15
        # s was a leak of 53 GiB/s, full within a second.
        if used_by_strangers(analysis.run, index):
            continue
        # Means of up to 256 stretches: this is asked every second, for each GPU.
        stretches = used_bytes.integral.rates(tree.first_ns, tree.last_ns)
        points = [(until_ns, mean) for _, until_ns, mean in stretches]
        if len(points) < LEAST_READINGS:
            continue
        first, last = points[0][1], points[-1][1]
        highest = falls = 0.0
        for _, used in points:
            highest = max(highest, used)
            falls = max(falls, highest - used)
        rises = sum(after > before for (_, before), (_, after) in pairwise(points))
        still = last - points[(len(points) - 1) // 2][1] >= (last - first) / 4
        # A jump is another part of the program: what leaks grows from reading to reading.
        still = still and rises >= (len(points) - 1) / 2
        if last - first < GROWS_BYTES or falls > (last - first) / 10 or not still:
            continue
        a_second = (last - first) / ((points[-1][0] - points[0][0]) / 1e9)
        total = gpu.facts.memory_total_bytes
        full, urgent = "", False
        if total:
            left_s = (total - last) / a_second
            # Memory that is full within a minute leads over what only takes time.
            left, urgent = f"{left_s:.0f} s", left_s < SOON_S
            in_use = f"{units.size(last)} of {units.size(total)}"
            full = (
                f": full in {left}"
                if analysis.run.is_active
                else f": {in_use} when the run ended, full after another {left}"
            )
        with_steps = _steps_grew(tree)
        yield Finding(
            cause="memory_grows",
            view="memory",
            word=f"memory of GPU {index} grows",
            sentence=(
                f"GPU {index}'s memory grows by {units.size(a_second)}/s and never falls{full}."
                + (" So do its steps: their sizes may grow." if with_steps else "")
            ),
            advice=(
                "look for what is kept from step to step: outputs, losses with their graph, a cache"
            ),
            value=last - first,
            threshold=GROWS_BYTES,
            source="NVML memory in use during the steady steps",
            leads=not with_steps,
            urgent=urgent and not with_steps,
        )


def _steps_grew(tree: TimeTree) -> bool:
    """Whether the last quarter of the steps took SIZES times as long as the first: what goes
    through larger and larger sizes needs more and more memory, and leaks none."""
    blocks = [block for block in max(tree.blocks, key=len, default=()) if block.steps]
    if len(blocks) < 2:
        return False
    count = max(1, len(blocks) // 4)
    first, last = (
        sum(block.ns for block in part) / sum(block.steps for block in part)
        for part in (blocks[:count], blocks[-count:])
    )
    return last >= SIZES * first


SIZES = 2.0


def memory_full(analysis: MachineAnalysis) -> Iterator[Finding]:
    """A GPU whose memory is almost full."""
    for index, name, series in analysis.readings.gpu_series():
        gpu = analysis.session.gpus.get(index)
        total = gpu.facts.memory_total_bytes if gpu else None
        if name == _USED and total:
            used = 100.0 * series.maximum / total
            if used > 90:
                yield Finding(
                    cause="memory_full",
                    view="memory",
                    word=f"memory of GPU {index} {used:.0f} % full",
                    sentence=f"GPU {index}'s memory was {used:.0f} % full.",
                    advice="a smaller batch, a shorter context, lower precision, checkpointing",
                    value=used,
                    threshold=90,
                    source="NVML memory in use; the threshold is PyTorch profiler's",
                )


THRASH_CALLS = 1.0
THRASH_SHARE = 0.05
"""Calls a step, and share of the wall time, from which allocating in each step is worth knowing."""


def allocator_thrash(analysis: Analysis) -> Iterator[Finding]:
    """Steps that allocate and free, where that is no finding of the time tree."""
    tree = analysis.tree
    if tree is None or not tree.has_steps or tree.benchmark_rows:
        return
    counted = tree.share(tree.leaves.get(Leaf.ALLOCATION, 0))
    steps = analysis.all_steps
    calls, called = allocations(analysis)
    # Short ones between launches are counted as launching.
    share = max(counted, min(called, tree.share(tree.idle_ns)))
    if share < THRASH_SHARE or counted >= SPEAKS or calls < THRASH_CALLS * steps:
        return
    yield Finding(
        cause="allocator_thrash",
        view="memory",
        word=f"{calls / steps:.1f} allocations a step",
        sentence=(
            f"Each step allocates or frees GPU memory {calls / steps:.1f} times, which takes "
            f"{100 * share:.0f} % of it."
        ),
        advice=KEEP_BLOCKS,
        value=100 * share,
        threshold=100 * THRASH_SHARE,
        source="cudaMalloc and cudaFree by the steps, and idle.alloc",
    )


LEFT = 0.75
"""Share of a GPU's memory that a run has to leave where computing again may save what it needs."""

AGAIN = 0.25
"""Of forward, forward again and backward the second forward, as a backward pass takes about twice
as long. Steps of two trainings took 131 and 123 ms with it, 100 and 97 without (H200)."""

AGAIN_MOST = 1 / 3
"""The same at most: where few weights are trained, a backward pass takes as long as a forward one.
"""

LAUNCHED_AGAIN = 3 / 4
"""The same at most of what the CPU launches: autograd's engine launches a backward pass in less
time than Python the forward one, and checkpointing has a hook for each tensor that is kept, and
sets the random state."""

_NO_MODEL = (Leaf.OPTIMIZER, Leaf.COMMUNICATION)
_LAUNCHING = (Leaf.LAUNCH, Leaf.HOST)


def recomputation(analysis: Analysis) -> Iterator[Finding]:
    """Gradient checkpointing where most of the memory is left."""
    tree = analysis.tree
    if tree is None or (line := recomputed(analysis.run)) is None:
        return
    used: list[tuple[float, int]] = []
    for index in analysis.devices:
        gpu = analysis.session.gpus.get(index)
        memory = analysis.readings.series(index, _USED)
        total = gpu.facts.memory_total_bytes if gpu is not None else None
        if memory is None or not memory.count or not total:
            return
        used.append((memory.maximum, total))
    if not used or any(most > (1 - LEFT) * total for most, total in used):
        return
    model = tree.kernels_share - sum(tree.share(tree.leaves.get(leaf, 0)) for leaf in _NO_MODEL)
    # Where the CPU is what a step waits for, it launches the forward pass twice, too.
    launching = tree.share(sum(tree.leaves.get(leaf, 0) for leaf in _LAUNCHING))
    others = tree.share(tree.idle_ns) - launching
    share = AGAIN * (model + launching)
    if share < SPEAKS:
        return
    most, total = max(used)
    yield Finding(
        cause="recomputation",
        word="recomputation",
        sentence=(
            "Backward passes compute forward passes again (gradient checkpointing), "
            "and memory peaks "
            f"at {units.size(most)} of {units.size(total)}."
        ),
        advice=(
            "no gradient checkpointing (gradient_checkpointing=False, no "
            "torch.utils.checkpoint), or "
            "for as few layers as memory asks for"
        ),
        value=100 * share,
        threshold=100 * SPEAKS,
        source=(
            "a second forward pass is a quarter of forward, forward and backward; "
            "lines of autograd's "
            "threads"
        ),
        share_percent=100 * share,
        step_ns=tree.a_step(share * tree.wall_ns),
        recoverable=share,
        gains=gain_of(
            0.85 * share,
            (AGAIN_MOST * model + LAUNCHED_AGAIN * launching + others / 2)
            if launching > model
            else 1.15 * AGAIN * model + LAUNCHED_AGAIN * launching,
        ),
        evidence=(f"Computed again: {line}",) if line else (),
        leads=True,
        # Half of a forward pass's launches are for it: one argument is less than a CUDA graph.
        explains=(LEAVES[Leaf.LAUNCH].key,) if launching > model else (),
    )


RULES = (
    RunRule(0, lost_records),
    RunRule(17, recomputation),
    RunRule(20, memory_grows),
    RunRule(21, allocator_thrash),
    RunRule(30, held_clock),
    RunRule(31, slow_link),
    MachineRule(0, memory_full),
    MachineRule(10, throttled),
)
