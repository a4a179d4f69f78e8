"""Kernels that fill the GPU's multiprocessors (SMs) and use little of what these can do."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gputui.model.leaves import LEAVES, is_kernel
from gputui.model.naming import short_name
from gputui.report.explain.finding import Finding, RunRule, times_faster
from gputui.report.explain.named_kernels import by_name, named
from gputui.report.explain.pauses import in_words
from gputui.report.explain.time_tree import time_tree
from gputui.report.explain.verdict import SPEAKS, kernels_share, verdict
from gputui.report.roofline import Roof, steady_roofs
from gputui.report.statistics import kernel_sums
from gputui.state import Run, Session

MOSTLY_KERNELS = 0.5
"""Share of the time in which kernels run from which counters speak of them."""

FILLED = 0.6
"""Share of the kernels' time in which SMs are active from which these are not merely too small."""

USED = 0.6
"""Tensor activity and memory use together, over SM activity, from which kernels are not slow: 0.73
to 1.24 in 44 programs without such a fault, 0.04 to 0.5 where kernels compute in FP32, sort, scan
or scatter (H100 and H200)."""

USUAL = 0.73

LEAST_SAMPLES = 3

TOLD = 0.05
"""Least share of the time of a kernel that is named."""

_ADVICE = (
    (
        re.compile(
            r"scatter|index_?func|index_?(add|put|reduce)|indexing_backward|grad_weight", re.I
        ),
        "sorted indices and a sum by segment in place of atomics, fewer equal indices; sparse=True "
        "for an embedding's gradient",
    ),
    (
        re.compile(r"gather|index_?select|index_elementwise", re.I),
        "indices sorted or grouped, so that rows lie together; rows of 128 bytes and more",
    ),
    (re.compile(r"cdist"), 'compute_mode="use_mm_for_euclid_dist", which takes matrix products'),
    (
        re.compile("scan", re.I),
        "sums over chunks as matrix products, or torch.compile, which joins a scan with what is "
        "around it",
    ),
)
"""By the longest kernel's name."""

_OTHERWISE = (
    "find what launches the longest, and a form of it that uses tensor cores (bf16, matrix "
    "products) or reads and writes memory in order: torch.compile, a fused kernel"
)


def slow_kernels(session: Session, run: Run) -> Iterator[Finding]:
    """Named where no leaf and no name says what the kernels are at."""
    tree = time_tree(run)
    if tree is None or (kernels := kernels_share(tree)) < MOSTLY_KERNELS:
        return
    known = [use for roof in steady_roofs(session, run) if (use := _use(roof)) is not None]
    if not known:
        return
    active, tensor, memory = (sum(column) / len(known) for column in zip(*known, strict=True))
    used = (tensor + memory) / active if active else 1.0
    gain = kernels * (1.0 - used / USUAL)
    if active < 100 * FILLED * kernels or used >= USED or gain < SPEAKS:
        return
    if _explained(session, run) >= kernels / 4:
        return
    sums = kernel_sums(run)
    whole_ns = sum(ns for _, ns in sums.values())
    names = {n: session.kernel_names[n].name for n in sums if n in session.kernel_names}
    longest = names[max(names, key=lambda number: sums[number][1])] if names else ""
    shares = (
        (name, kernels * ns / whole_ns)
        for name, _, ns in by_name((short_name(names[n]), *sums[n]) for n in names)
    )
    told = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares if share >= TOLD)
    scope, _ = in_words(tree, ())
    yield Finding(
        "slow_kernels",
        "slow kernels",
        f"Kernels run {100 * kernels:.0f} % of {scope} and use little of the GPU: its tensor cores "
        f"{tensor:.0f} % of the time, {memory:.0f} % of its memory bandwidth.",
        next((advice for name, advice in _ADVICE if name.search(longest)), _OTHERWISE),
        100 * gain,
        100 * SPEAKS,
        "tensor activity and memory use over SM activity, by the GPU's counters: 0.73 and more in "
        "programs without a fault",
        share=kernels,
        ns_per_step=tree.a_step(kernels * tree.wall_ns),
        recoverable=gain,
        gain=times_faster(gain),
        evidence=(f"The longest: {told}",) if told else (),
        kernel=longest,
        leads=True,
    )


def _use(roof: Roof) -> tuple[float, float, float] | None:
    """How active SMs and tensor cores were and how much of its bandwidth memory moved, in percent;
    None where that was read too seldom or not at all."""
    read = roof.sm_active_percent, roof.tensor_active_percent, roof.memory_peak_percent
    active, tensor, memory = read
    if roof.samples < LEAST_SAMPLES or active is None or tensor is None or memory is None:
        return None
    return active, tensor, memory


def _explained(session: Session, run: Run) -> float:
    """Share of the time in kernels that other findings are about."""
    found = verdict(run, session.kernel_names)
    kernels = {meaning.key for leaf, meaning in LEAVES.items() if is_kernel(leaf)}
    leaves = [one for one in found.findings if one.cause in kernels] if found is not None else []
    return sum(one.share or 0.0 for one in (*leaves, *named(session, run)))


RULES = (RunRule(13, slow_kernels),)
