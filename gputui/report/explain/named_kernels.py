"""Causes that kernels' names show and no leaf has: another layout, an optimizer in many passes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from gputui.model.leaves import CHANGES_LAYOUT, LEAVES, leaf_of_kernel
from gputui.model.naming import short_name
from gputui.model.units import count, percent
from gputui.report.explain.finding import MOST_NAMED, Finding, RunRule
from gputui.report.explain.pauses import of_scope
from gputui.report.explain.time_tree import time_tree
from gputui.report.explain.verdict import SPEAKS, kernels_share
from gputui.report.statistics import kernel_sums
from gputui.state import Run, Session


@dataclass(frozen=True, slots=True)
class _Named:
    """Kernels, what they are together, and how much of their time a better way saves."""

    key: str
    kernels: re.Pattern[str]
    word: str
    sentence: str
    advice: str
    recoverable: float
    source: str


_CAUSES = (
    _Named(
        "layout",
        CHANGES_LAYOUT,
        "other layout",
        "Kernels that only change the layout of tensors for convolutions take {share}.",
        "memory_format=torch.channels_last, for the model and its input",
        1.0,
        "tensor cores take NHWC (cuDNN's developer guide): cuDNN transposes what comes as NCHW",
    ),
    _Named(
        "unfused_optimizer",
        re.compile(r"multi_tensor_apply_kernel(?!.*Fused)", re.S),
        "foreach optimizer",
        "The optimizer's foreach kernels go over all parameters several times, {share}.",
        "fused=True for the optimizer, which goes over them once",
        0.65,
        "AdamW with foreach reads or writes a tensor 20 times a parameter, the fused one 7 times",
    ),
)


def named(session: Session, run: Run) -> Iterator[Finding]:
    """Those whose cure would gain as much as a leaf needs to be a finding."""
    tree = time_tree(run)
    if tree is None:
        return
    of_kernels = kernels_share(tree)
    sums = kernel_sums(run)
    whole_ns = sum(ns for _, ns in sums.values())
    for cause in _CAUSES:
        names = session.kernel_names
        of = [n for n in sums if n in names and cause.kernels.search(names[n].name)]
        of.sort(key=lambda number: -sums[number][1])
        share = of_kernels * sum(sums[number][1] for number in of) / whole_ns if whole_ns else 0.0
        gain = share * cause.recoverable
        if gain >= SPEAKS:
            yield Finding(
                cause.key,
                cause.word,
                cause.sentence.format(share=of_scope(tree, share)),
                cause.advice,
                100 * gain,
                100 * SPEAKS,
                cause.source,
                share=share,
                ns_per_step=tree.a_step(share * tree.wall_ns),
                recoverable=gain,
                gain=1.0 / (1.0 - min(gain, 0.999)),
                evidence=(
                    f"They are part of {LEAVES[leaf_of_kernel(names[of[0]].name)].label}",
                    *(
                        f"{name} {count(counted)} ×, {percent(100 * of_kernels * ns / whole_ns)}"
                        for name, counted, ns in _by_name(
                            (short_name(names[number].name), *sums[number]) for number in of
                        )
                    ),
                ),
                kernel=names[of[0]].name,
                leads=True,
            )


def _by_name(kernels: Iterator[tuple[str, int, int]]) -> Iterator[tuple[str, int, int]]:
    """Short name, count, ns of the longest: those that differ only in what a name leaves out
    are one, or a list would repeat it."""
    times, counts = Counter[str](), Counter[str]()
    for name, counted, ns in kernels:
        times[name] += ns
        counts[name] += counted
    for name, ns in times.most_common(MOST_NAMED):
        yield name, counts[name], ns


RULES = (RunRule(12, named),)
