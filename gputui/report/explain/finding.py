"""A finding, and the rules that find some."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from gputui.state import Readings, Run, Session


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that costs time, or that a person must know, and what to try.

    `cause` is a leaf's key or a rule's name, `word` what a screen says of it in a few words.
    `value` and `threshold` share a unit. Of a leaf there is more: its share of the wall time, its
    time a step, the share that goes where it is cured, and how many times shorter a step is then
    at most (`gain`).
    """

    cause: str
    word: str
    sentence: str
    advice: str
    value: float
    threshold: float
    source: str
    share: float | None = None
    ns_per_step: float | None = None
    with_pauses: bool = False
    """Whether the share is of the loop with its pauses, and not of its steps."""
    recoverable: float = 0.0
    gain: float = 1.0
    evidence: tuple[str, ...] = ()
    place: str = ""
    """The line of the program that it is at, as a rule."""
    kernel: str = ""
    """Of several kernels that it is about, the one that takes longest."""
    covers: tuple[str, ...] = ()
    """The leaves that it is about besides its cause: share, time and gain are of them together."""
    leads: bool = False
    """Whether a fact is the answer where no leaf is."""
    urgent: bool = False
    """Whether the run will soon end for it: it comes before what only takes time."""
    ends_run: bool = False
    """Whether the run did not go on for it: then it is the answer, whatever leaves there are."""

    @property
    def headline(self) -> str:
        """For a screen that shows other things too."""
        return self.word if self.share is None else f"{self.word}: {100 * self.share:.0f} %"

    @property
    def told(self) -> str:
        """The sentence where no evidence stands beside it."""
        return f"{self.sentence} {self.placed}".rstrip()

    @property
    def placed(self) -> str:
        """Where it is, as a sentence; empty where that is not known."""
        return f"Mostly at {self.place}." if self.place else ""

    @property
    def bound(self) -> str:
        """What curing it gains at most, empty where that is little, unknown or nearly no bound."""
        if not WORTH_SAYING <= self.gain <= SAYS_NOTHING:
            return ""
        return f"At most {self.gain:.{int(self.gain < TENS)}f}× faster."


WORTH_SAYING, SAYS_NOTHING = 1.05, 100.0
"""Gains below and above which no bound is printed."""

TENS = 9.95
"""Gain from which a bound has no decimals."""


def times_faster(recoverable: float) -> float:
    """How many times shorter a step is without this share of the time, at most."""
    return 1.0 / (1.0 - min(recoverable, 0.999))


@dataclass(frozen=True, slots=True)
class RunRule:
    """A rule about a run. `order` is its place among the findings."""

    order: int
    find: Callable[[Session, Run], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class MachineRule:
    """A rule about readings of the machine, which needs no run."""

    order: int
    find: Callable[[Session, Readings], Iterable[Finding]]


class FindingDocument(msgspec.Struct, frozen=True, rename={"advice": "try"}):
    """A finding for programs. `cause` is a leaf of the time tree, whose share of the wall time,
    time a step and bound are given, or the name of a rule. `value` and `threshold` share a unit.
    `with_pauses` is whether the share is of the loop with its pauses, and not of its steps.
    """

    cause: str
    word: str
    share_percent: float | None
    with_pauses: bool
    step_ns: float | None
    gain: float | None
    sentence: str
    advice: str
    evidence: list[str]
    value: float
    threshold: float
    source: str


def finding_documents(found: Iterable[Finding]) -> list[FindingDocument]:
    """For programs."""
    return [
        FindingDocument(
            one.cause,
            one.word,
            None if one.share is None else 100 * one.share,
            one.with_pauses,
            one.ns_per_step,
            one.gain if one.gain > 1.0 else None,
            one.sentence,
            one.advice,
            list(one.evidence),
            one.value,
            one.threshold,
            one.source,
        )
        for one in found
    ]


def gpu_names(indices: Iterable[int]) -> str:
    """ "GPU 3", "GPUs 0 to 7", "GPUs 0, 2 and 5"."""
    known = sorted(set(indices))
    if len(known) == 1:
        return f"GPU {known[0]}"
    if len(known) > 2 and known[-1] - known[0] == len(known) - 1:
        return f"GPUs {known[0]} to {known[-1]}"
    return f"GPUs {_listed(known)}"


MOST_NAMED = 4
"""Of more ranks or hosts their number is enough."""


def capital(text: str) -> str:
    """As it begins a sentence."""
    return f"{text[0].upper()}{text[1:]}"


def rank_names(ranks: Iterable[int], most: int | None = None) -> str:
    """ "rank 3", "ranks 0, 2 and 5"; of more than `most` only how many."""
    known = sorted(ranks)
    if len(known) == 1:
        return f"rank {known[0]}"
    if most is not None and len(known) > most:
        return f"{len(known)} ranks"
    return f"ranks {_listed(known)}"


def _listed(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def percents(values: Sequence[float]) -> str:
    """ "25 %", or "25 to 40 %" if several differ."""
    least, most = f"{min(values):.0f}", f"{max(values):.0f}"
    return f"{most} %" if least == most else f"{least} to {most} %"
