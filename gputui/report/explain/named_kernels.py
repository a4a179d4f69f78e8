"""Causes that kernels' names show and no leaf has: another layout, an optimizer in many passes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gputui.model.leaves import CHANGES_LAYOUT
from gputui.report.explain.finding import Finding, RunRule
from gputui.report.explain.time_tree import time_tree
from gputui.report.explain.verdict import SPEAKS, kernels_share
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
        "Convolutions change the layout of their tensors, {share} of the time.",
        "memory_format=torch.channels_last, for the model and its input",
        1.0,
        "tensor cores take NHWC (cuDNN's developer guide): cuDNN transposes what comes as NCHW",
    ),
    _Named(
        "unfused_optimizer",
        re.compile(r"multi_tensor_apply_kernel(?!.*Fused)", re.S),
        "unfused optimizer",
        "The optimizer goes over all parameters in many kernels, {share} of the time.",
        "fused=True for the optimizer: one kernel",
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
    times = dict.fromkeys(session.kernel_names, 0)
    for key, kernels in run.kernels.items():
        times[key.kernel] = times.get(key.kernel, 0) + kernels.time.total
    whole_ns = sum(times.values())
    for cause in _CAUSES:
        of = [n for n, known in session.kernel_names.items() if cause.kernels.search(known.name)]
        share = of_kernels * sum(times[number] for number in of) / whole_ns if whole_ns else 0.0
        gain = share * cause.recoverable
        if gain >= SPEAKS:
            yield Finding(
                cause.key,
                cause.word,
                cause.sentence.format(share=f"{100 * share:.0f} %"),
                cause.advice,
                100 * gain,
                100 * SPEAKS,
                cause.source,
                share=share,
                recoverable=gain,
                gain=1.0 / (1.0 - min(gain, 0.999)),
                leads=True,
            )


RULES = (RunRule(12, named),)
