"""Facts about memory beside the time tree: it grows, it is almost full, it is allocated anew."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from gputui.model import units
from gputui.model.leaves import Leaf
from gputui.report.explain.counted import all_steps
from gputui.report.explain.finding import Finding, MachineRule, RunRule, times_faster
from gputui.report.explain.lines import recomputed
from gputui.report.explain.time_tree import time_tree
from gputui.report.explain.verdict import SPEAKS, kernels_share
from gputui.state import Readings, Run, Session

_USED = "memory_used_bytes"

LEAST_READINGS = 3
GROWS_BYTES = 1 << 30
"""Least growth over a run's steady time that is a finding."""

SOON_S = 60.0
"""From memory that is full this soon a run must be saved, whatever else could make it faster."""


def memory_grows(session: Session, run: Run) -> Iterator[Finding]:
    """Memory that grows in steady state and never falls."""
    tree = time_tree(run)
    if tree is None or not tree.steps:
        return
    for index, gpu in sorted(session.gpus.items()):
        used_bytes = run.readings.gpu_integrals.get((index, _USED))
        if used_bytes is None or index not in run.devices:
            continue
        # Means of up to 256 stretches: this is asked every second, for each GPU.
        stretches = used_bytes.rates(tree.first_ns, tree.last_ns)
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
            left, urgent = f"{left_s:.0f} s", left_s < SOON_S
            full = f": full in {left}" if run.is_active else f": full {left} later"
        yield Finding(
            "memory_grows",
            f"memory of GPU {index} grows",
            f"GPU {index}'s memory grows by {units.size(a_second)}/s and never falls{full}.",
            "look for what is kept from step to step: outputs, losses with their graph, a cache",
            last - first,
            GROWS_BYTES,
            "NVML memory in use during the steady steps",
            leads=True,
            urgent=urgent,
        )


def memory_full(session: Session, readings: Readings) -> Iterator[Finding]:
    """A GPU whose memory is almost full."""
    for (index, name), spread in sorted(readings.gpu_spreads.items()):
        gpu = session.gpus.get(index)
        total = gpu.facts.memory_total_bytes if gpu else None
        if name == _USED and total:
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


THRASH_CALLS = 1.0
THRASH_SHARE = 0.05
"""Calls a step, and share of the wall time, from which allocating in each step is worth knowing."""


def allocator_thrash(_session: Session, run: Run) -> Iterator[Finding]:
    """Steps that allocate and free, where that is no finding of the time tree."""
    tree = time_tree(run)
    if tree is None or not tree.has_steps:
        return
    share = tree.share(tree.leaves.get(Leaf.ALLOCATION, 0))
    steps = all_steps(run)
    calls = sum(
        times.count
        for key, times in run.api.items()
        if key.name.startswith(("cudaMalloc", "cudaFree", "cuMemAlloc", "cuMemFree"))
    )
    if not THRASH_SHARE <= share < SPEAKS or calls < THRASH_CALLS * steps:
        return
    yield Finding(
        "allocator_thrash",
        f"{calls / steps:.1f} allocations a step",
        f"Each step allocates or frees GPU memory {calls / steps:.1f} times, which takes "
        f"{100 * share:.0f} % of it.",
        "no torch.cuda.empty_cache() in the loop; "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True where sizes vary",
        100 * share,
        100 * THRASH_SHARE,
        "cudaMalloc and cudaFree by the steps, and idle.alloc",
    )


LEFT = 0.75
"""Share of a GPU's memory that a run has to leave where computing again may save what it needs."""

AGAIN = 0.25
"""Of forward, forward again and backward the second forward, as a backward pass takes about twice
as long. Steps of two trainings took 131 and 123 ms with it, 100 and 97 without (H200)."""

_NO_MODEL = (Leaf.OPTIMIZER, Leaf.COMMUNICATION)


def recomputation(session: Session, run: Run) -> Iterator[Finding]:
    """Gradient checkpointing where most of the memory is left."""
    tree = time_tree(run)
    if tree is None or (line := recomputed(run)) is None:
        return
    used: list[tuple[float, int]] = []
    for index in run.devices:
        gpu, spread = session.gpus.get(index), run.readings.gpu_spreads.get((index, _USED))
        total = gpu.facts.memory_total_bytes if gpu is not None else None
        if spread is None or not spread.count or not total:
            return
        used.append((spread.maximum, total))
    if not used or any(most > (1 - LEFT) * total for most, total in used):
        return
    model = kernels_share(tree) - sum(tree.share(tree.leaves.get(leaf, 0)) for leaf in _NO_MODEL)
    share = AGAIN * model
    if share < SPEAKS:
        return
    most, total = max(used)
    yield Finding(
        "recomputation",
        "recomputation",
        "Backward passes compute forward passes again (gradient checkpointing), and memory peaks "
        f"at {units.size(most)} of {units.size(total)}.",
        "no gradient checkpointing (gradient_checkpointing=False, no torch.utils.checkpoint), or "
        "for as few layers as memory asks for",
        100 * share,
        100 * SPEAKS,
        "a second forward pass is a quarter of forward, forward and backward; lines of autograd's "
        "threads",
        share=share,
        ns_per_step=tree.a_step(share * tree.wall_ns),
        recoverable=share,
        gain=times_faster(share),
        evidence=(f"Computed again: {line}",) if line else (),
        leads=True,
    )


RULES = (
    RunRule(17, recomputation),
    RunRule(20, memory_grows),
    RunRule(21, allocator_thrash),
    MachineRule(0, memory_full),
)
