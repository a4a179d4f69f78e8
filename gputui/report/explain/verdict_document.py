"""The verdict for programs."""

from __future__ import annotations

from typing import Literal

import msgspec

from gputui.report.explain.verdict import Verdict


class VerdictDocument(msgspec.Struct, frozen=True):
    """The verdict for programs. Shares and times are of `scope`; `step_error_ns` is the standard
    error of the mean step. `beside_ns` is time that is not in the scope, by what it is."""

    word: str
    headline: str
    scope: Literal["steady steps", "since the first kernel"]
    gpus: int
    wall_ns: int
    busy_percent: float
    idle_percent: float
    steps: int
    step_ns: float | None
    step_error_ns: float | None
    step_median_ns: float | None
    step_p99_ns: float | None
    slow_steps: int
    beside_ns: dict[str, int]


def verdict_document(found: Verdict | None) -> VerdictDocument | None:
    """For programs."""
    tree = found.tree if found is not None else None
    if found is None or tree is None:
        return None
    idle = 100 * tree.share(tree.idle_ns)
    mean = tree.step_mean if tree.has_steps else None
    return VerdictDocument(
        word=found.word,
        headline=found.headline,
        scope="steady steps" if tree.has_steps else "since the first kernel",
        gpus=tree.devices,
        wall_ns=tree.wall_ns,
        busy_percent=100 - idle,
        idle_percent=idle,
        steps=tree.steps,
        step_ns=mean.amount if mean else None,
        step_error_ns=mean.error if mean else None,
        step_median_ns=tree.step_ns.median,
        step_p99_ns=tree.step_ns.percentile(99),
        slow_steps=tree.slow_steps,
        beside_ns={scope.name.lower(): ns for scope, ns in sorted(tree.beside_ns.items()) if ns},
    )
