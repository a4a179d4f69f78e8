"""What a step takes once its cause is cured: for each cause a model of the cured step, from what
was measured of this one.

A model gives the least and the most of the time that goes; what follows is an interval, narrow
where the rest of the step is known and wide where it is not. How well each did is in
`docs/gains.md`: its constants were fitted to the pairs of programs named there as fitted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gputui.model.events import Scope
from gputui.model.leaves import LEAVES, Leaf
from gputui.model.peaks import link_bytes_per_s, product_rates
from gputui.report.explain.advice import (
    COMPILE_WHOLE,
    GRAPHS_IN_USE,
    HIDES,
    ONE_BY_ONE,
    UNBLOCK,
    launch_advice,
    optimizer_launches,
)
from gputui.report.explain.analysis import Analysis
from gputui.report.explain.finding import Gain, gain_of
from gputui.report.explain.time_tree import TimeTree


class Forecast(NamedTuple):
    """What cures gain, or why that is not known."""

    gains: tuple[Gain, ...] = ()
    unknown: str = ""


def forecast(analysis: Analysis, tree: TimeTree, leaf: Leaf, share: float) -> Forecast:
    """What curing a leaf gains, of which `share` of the time, 0 to 1, is to blame."""
    step = _Step(analysis, tree)
    model = _MODELS.get(leaf)
    if model is not None:
        return model(step, share)
    if LEAVES[leaf].is_idle:
        return Forecast(step.without_idle(leaf, share))
    return Forecast(gain_of(share))


class _Step:
    """A mean step of a run in parts of its time, 0 to 1."""

    def __init__(self, analysis: Analysis, tree: TimeTree) -> None:
        self.analysis, self.tree = analysis, tree

    def share(self, *leaves: Leaf) -> float:
        """Of these leaves together."""
        return self.tree.share(sum(self.tree.leaves.get(leaf, 0) for leaf in leaves))

    @property
    def idle(self) -> float:
        return self.tree.share(self.tree.idle_ns)

    @property
    def busy(self) -> float:
        return 1.0 - self.idle

    def as_share(self, ns_a_step: float) -> float | None:
        """So long a step, as a part of it; None without steps."""
        mean_ns = self.tree.a_step(self.tree.wall_ns)
        return ns_a_step / mean_ns if mean_ns else None

    @property
    def gaps(self) -> tuple[float, float]:
        """What the gaps between the operations of a CUDA graph take, at least and at most."""
        operations = self.tree.operations / max(1, self.tree.steps)
        least, most = (self.as_share(operations * gap_ns) or 0.0 for gap_ns in GRAPH_GAP_NS)
        return least, most

    def without_idle(self, leaf: Leaf, share: float) -> tuple[Gain, ...]:
        """Idle time that goes, and other idle time that follows it: a CPU that is no longer held
        up launches ahead of the GPU."""
        others = max(0.0, self.idle - self.share(leaf))
        return gain_of(LEAST_FREED * share, share + FOLLOWS * others)

    @property
    def host(self) -> float | None:
        """What the CPU does in a step beside waiting for the GPU, which no cure of waits makes
        shorter; None where that was not measured."""
        waited = [
            loop.waited_ns
            for loop in self.analysis.run.loops.values()
            if loop.scope == Scope.STEADY and loop.steps
        ]
        measured = [ns for ns in waited if ns is not None]
        if not self.tree.has_steps or not measured:
            return None
        return max(0.0, 1.0 - self.tree.share(sum(measured)))


LEAST_FREED, FOLLOWS = 0.95, 0.3

GRAPH_GAP_NS = (300.0, 1200.0)


def _launch(step: _Step, share: float) -> Forecast:
    """CUDA graphs, or fewer launches."""
    advice = launch_advice(step.analysis)
    rest = 1.0 - share
    if advice == UNBLOCK:
        return Forecast(gain_of(0.4 * share, share))
    if advice == GRAPHS_IN_USE:
        return Forecast(gain_of(0.3 * share, share))
    if advice == ONE_BY_ONE:
        removed = optimizer_launches(step.analysis)
        least, most = (min(part, 1.0) for part in removed)
        return Forecast(gain_of(least * share, most * share))
    least_gap, most_gap = step.gaps
    fused = step.share(Leaf.ELEMENTWISE, Leaf.ELEMENTWISE_CHAIN, Leaf.NORMALIZATION, Leaf.OTHER)
    if advice == COMPILE_WHOLE:
        return Forecast(gain_of(share - most_gap, share + 0.7 * step.busy))
    slow = rest + most_gap
    fast = max(rest - 0.5 * fused - 0.5 * (step.idle - step.share(Leaf.LAUNCH)), 0.3 * rest)
    return Forecast(gain_of(1.0 - slow, 1.0 - fast - least_gap))


def _sync(step: _Step, share: float) -> Forecast:
    """Waits that go: the step is then the longer of the GPU's work and the CPU's."""
    gap, _ = step.gaps
    floor = max(step.busy + gap, step.host or 0.0)
    others = step.idle - step.share(Leaf.SYNC)
    freed = min(1.0 - floor, share + others)
    return Forecast(gain_of(min(0.8 * share, freed), max(freed, share)))


def _pageable(step: _Step, share: float) -> Forecast:
    """The same bytes at the link's rate, after the step's work or beside it."""
    rate = link_bytes_per_s(step.analysis.facts)
    copies = [
        row
        for row in step.analysis.run.memory_operations.values()
        if "pageable" in (row.source_kind, row.destination_kind)
    ]
    whole_ns = sum(row.time.total for row in copies)
    if rate is None or not whole_ns:
        return Forecast(unknown="the rate of the link to the host was not read")
    pageable = sum(row.size.total for row in copies) / whole_ns * 1e9
    slow, fast = (share * pageable / (rate * part) for part in PINNED)
    beside = max(0.0, fast - step.tree.kernels_share)
    return Forecast(gain_of(share - min(slow, share), share - beside))


PINNED = (0.75, 0.9)
"""Of the link's rate, what copies from pinned memory come to: 55 of 63 GB/s (PCIe 5, 16 lanes)."""


def _pinned(step: _Step, share: float) -> Forecast:
    """Copies hide behind kernels, or kernels behind copies: whichever is shorter goes."""
    hidden = min(share, step.tree.kernels_share)
    if step.tree.kernels_share < HIDES:
        return Forecast(unknown="it depends on how much need not be copied")
    return Forecast(gain_of(0.75 * hidden, hidden))


def _communication(step: _Step, share: float) -> Forecast:
    """As with copies: no more is hidden than there is to hide behind."""
    others = step.tree.kernels_share - step.share(Leaf.COMMUNICATION)
    if others < HIDES:
        return Forecast(unknown="it depends on how much need not be sent")
    hidden = min(share, others)
    return Forecast(gain_of(0.4 * hidden, hidden))


def _products(step: _Step, share: float) -> Forecast:
    """Matrix products in a format for tensor cores."""
    rates = product_rates(step.analysis.facts)
    if rates is None:
        return Forecast(unknown="what this card's tensor cores do is not known")
    gains: list[Gain] = []
    for cure, rate in (("TF32", rates.tf32), ("bf16", rates.bf16), ("fp16", rates.fp16)):
        if rate is None or rate <= 1.0 or (cure == "fp16" and rates.bf16 is not None):
            continue
        slow, fast = (share / (rate * part) for part in EFFICIENCY)
        gains += gain_of(share - slow, share - fast, cure)
    return Forecast(tuple(gains))


EFFICIENCY = (0.6, 1.0)


def _unaligned(_step: _Step, share: float) -> Forecast:
    return Forecast(gain_of(0.5 * share, 0.8 * share))


def _attention(step: _Step, share: float) -> Forecast:
    """Scores are no longer written; their two products go into the fused kernel."""
    return Forecast(gain_of(0.85 * share, share + 0.5 * step.share(Leaf.MATMUL)))


def _chain(_step: _Step, share: float) -> Forecast:
    return Forecast(gain_of(0.5 * share, 0.85 * share))


_MODELS: dict[Leaf, Callable[[_Step, float], Forecast]] = {
    Leaf.LAUNCH: _launch,
    Leaf.SYNC: _sync,
    Leaf.COPY_PAGEABLE: _pageable,
    Leaf.COPY_PINNED: _pinned,
    Leaf.COMMUNICATION: _communication,
    Leaf.MATMUL_SIMT: _products,
    Leaf.MATMUL_UNALIGNED: _unaligned,
    Leaf.ATTENTION_UNFUSED: _attention,
    Leaf.ELEMENTWISE_CHAIN: _chain,
}
