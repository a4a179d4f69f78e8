"""A finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from gputui.state import Readings, Run, Session


@dataclass(frozen=True, slots=True)
class Insight:
    """One finding. `value` and `threshold` share a unit, which the verdict names. `headline` is a
    short form for a screen that shows other things too.
    """

    rule: str
    value: float
    threshold: float
    source: str
    headline: str
    verdict: str
    advice: str


@dataclass(frozen=True, slots=True)
class RunRule:
    """A rule about a run. `order` is its place among the findings."""

    order: int
    find: Callable[[Session, Run], Iterable[Insight]]
    in_verdict: bool = False
    """Whether the verdict has these findings."""


@dataclass(frozen=True, slots=True)
class MachineRule:
    """A rule about readings of the machine, which needs no run."""

    order: int
    find: Callable[[Session, Readings], Iterable[Insight]]


class InsightDocument(msgspec.Struct, frozen=True):
    """A verdict for programs, which need no headline."""

    rule: str
    value: float
    threshold: float
    source: str
    verdict: str
    advice: str


def gpu_names(indices: Iterable[int]) -> str:
    """ "GPU 3", "GPUs 0 to 7", "GPUs 0, 2 and 5"."""
    known = sorted(set(indices))
    if len(known) == 1:
        return f"GPU {known[0]}"
    if len(known) > 2 and known[-1] - known[0] == len(known) - 1:
        return f"GPUs {known[0]} to {known[-1]}"
    return f"GPUs {', '.join(map(str, known[:-1]))} and {known[-1]}"


def percents(values: Sequence[float]) -> str:
    """ "25 %", or "25 to 40 %" if several differ."""
    least, most = f"{min(values):.0f}", f"{max(values):.0f}"
    return f"{most} %" if least == most else f"{least} to {most} %"
