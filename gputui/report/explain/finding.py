"""A finding, as people and programs read it, and the words that several rules use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec


class FindingDocument(msgspec.Struct, frozen=True, kw_only=True, rename={"advice": "try"}):
    """A finding, for programs. `cause` is a leaf of the time tree, whose share of the wall time,
    time a step and bound are given, or the name of a rule. `value` and `threshold` share a unit.
    `with_pauses` is whether the share is of the loop with its pauses, and not of its steps.
    """

    cause: str
    word: str
    share_percent: float | None = None
    with_pauses: bool = False
    step_ns: float | None = None
    gain: float | None = None
    sentence: str
    advice: str
    evidence: tuple[str, ...] = ()
    value: float
    threshold: float
    source: str


class Finding(FindingDocument, frozen=True, kw_only=True):
    """Something that costs time, or that a person must know, and what to try; beside its document
    what decides its place among others, and where a screen shows it.

    `word` is what a screen says of it in a few words, `sentence` has the figure. `gain` is how many
    times shorter a step is at most once the cause is cured, `recoverable` the share of the time, 0
    to 1, that goes then.
    """

    recoverable: float = 0.0
    place: str = ""
    """The line of the program that it is at, as a rule."""
    kernel: str = ""
    """Of several kernels that it is about, the one that takes longest."""
    covers: tuple[str, ...] = ()
    """The leaves that it is about besides its cause: share, time and gain are of them together."""
    view: str = ""
    """The name of the screen's view that shows what it is about; empty where none does."""
    leads: bool = False
    """Whether a fact is the answer where no leaf is."""
    urgent: bool = False
    """Whether the run will soon end for it: it comes before what only takes time."""
    ends_run: bool = False
    """Whether the run did not go on for it: then it is the answer, whatever leaves there are."""
    explains: tuple[str, ...] = ()
    """Causes of other findings that follow from this one: they no longer lead, and where one of
    them is urgent this one is."""

    @property
    def headline(self) -> str:
        """For a screen that shows other things too."""
        return (
            self.word if self.share_percent is None else f"{self.word}: {self.share_percent:.0f} %"
        )

    @property
    def saves(self) -> float:
        """Share of the time, 0 to 1, that goes where it is cured, by its gain."""
        return 1.0 - 1.0 / (self.gain or 1.0)

    @property
    def text(self) -> str:
        """The sentence where no evidence stands beside it."""
        return f"{self.sentence} {self.placed}".rstrip()

    @property
    def placed(self) -> str:
        """Where it is, as a sentence; empty where that is not known."""
        return f"Mostly at {self.place}." if self.place else ""

    @property
    def bound(self) -> str:
        """What curing it gains at most, empty where that is little, unknown or nearly no bound."""
        if self.gain is None or not WORTH_SAYING <= self.gain <= SAYS_NOTHING:
            return ""
        return f"At most {self.gain:.{int(self.gain < TENS)}f}× faster."


WORTH_SAYING, SAYS_NOTHING = 1.05, 100.0
"""Gains below and above which no bound is printed."""

TENS = 9.95
"""Gain from which a bound has no decimals."""


def times_faster(recoverable: float) -> float | None:
    """How many times shorter a step is without this share of the time, at most; None where it is
    not shorter."""
    return 1.0 / (1.0 - min(recoverable, 0.999)) if recoverable > 0 else None


def finding_documents(findings: Iterable[Finding]) -> list[FindingDocument]:
    """The findings without what only gputui itself needs of them."""
    names = FindingDocument.__struct_fields__
    return [
        FindingDocument(**{name: getattr(finding, name) for name in names}) for finding in findings
    ]


def gpu_names(indices: Iterable[int]) -> str:
    """ "GPU 3", "GPUs 0 to 7", "GPUs 0, 2 and 5"."""
    ordered = sorted(set(indices))
    if len(ordered) == 1:
        return f"GPU {ordered[0]}"
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"GPUs {ordered[0]} to {ordered[-1]}"
    return f"GPUs {_listed(ordered)}"


MOST_NAMED = 4
"""Of more ranks or hosts their number is enough."""


def capital(text: str) -> str:
    """As it begins a sentence."""
    return f"{text[0].upper()}{text[1:]}"


def rank_names(ranks: Iterable[int], most: int | None = None) -> str:
    """ "rank 3", "ranks 0, 2 and 5"; of more than `most` only how many."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if most is not None and len(ordered) > most:
        return f"{len(ordered)} ranks"
    return f"ranks {_listed(ordered)}"


def _listed(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def percents(values: Sequence[float]) -> str:
    """ "25 %", or "25 to 40 %" if several differ."""
    least, most = f"{min(values):.0f}", f"{max(values):.0f}"
    return f"{most} %" if least == most else f"{least} to {most} %"
