"""What was measured of each cure so far, and which of them are on while others are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from gputui.base.sanitize import sanitize
from gputui.cures import BOUND
from gputui.trial.blocks import Pair
from gputui.trial.outcome import RUNS_TELL, WHOLE_STEP, Trial, Verdict, Way, with_gain
from gputui.trial.planning import Candidate
from gputui.trial.proof import (
    EARLY_PAIRS,
    FEWEST,
    HELD,
    LEAST_GAIN,
    MeasuredGain,
    is_decided,
    show_nothing,
)
from gputui.trial.runs import RunStep
from gputui.trial.sameness import UNKNOWN, Sameness

SLIGHT = 1.05
"""A gain in the middle of few pairs from which those that promise nothing get more in another
run."""


@dataclass
class Measured:
    """What was seen of one candidate so far."""

    candidate: Candidate
    pairs: list[Pair] = field(default_factory=list)
    off_runs: list[RunStep] = field(default_factory=list)
    on_runs: list[RunStep] = field(default_factory=list)
    run_beside: tuple[str, ...] = ()
    """The cures that were on in its runs, and in those without it."""
    rivals: int = 1
    """Cures, or ablations, that were measured when its last pairs were."""
    gain: MeasuredGain | None = None
    same: Sameness = UNKNOWN
    way: Way = ""
    why: str = ""
    applies: bool = True
    doubt: str = ""
    """Why a gain that its pairs show needs runs of its own."""
    ended: str = ""
    """Why it has ended by itself in any run: whatever was measured of it is no gain then."""
    refused: str = ""
    """Why it could not be on in a run after its gain was proven: with others, mostly."""
    failed: bool = False
    last_lines: tuple[str, ...] = ()
    note: str = ""
    place: str = ""
    """The line of a call that it is about."""
    ready_s: float | None = None
    first_step: int = 0
    """The first step that was timed, of its first run."""

    @property
    def is_bound(self) -> bool:
        """Whether it is an ablation."""
        return self.candidate.cure.result == BOUND

    @property
    def cause(self) -> str | None:
        """The cause of the finding that it answers."""
        return self.candidate.finding.cause if self.candidate.finding is not None else None

    @property
    def choice(self) -> object:
        """Of cures with the same choice a program has one: they are alternatives, or the same line,
        or need runs of their own and answer the same finding."""
        name, cure = self.candidate.name, self.candidate.cure
        is_alone = cure.in_one_run or self.cause is None
        line = cure.change, name.partition("@")[2]
        return cure.alternative or (line if is_alone else self.cause)

    @property
    def waits(self) -> bool:
        """Whether it promises something, and has not been tried."""
        is_open = not self.why and not self.pairs and not self.on_runs
        return is_open and self.candidate.forecast is not None

    @property
    def is_worth_a_start(self) -> bool:
        """Whether pairs of it, after those that it had, are worth another start of the program:
        one that shows nothing, and promises nothing, took 20 s of 100."""
        if self.candidate.forecast or self.is_bound or len(self.pairs) < EARLY_PAIRS:
            return True
        return median(pair.ratio for pair in self.pairs) > SLIGHT

    @property
    def beside(self) -> tuple[str, ...]:
        """The cures that were on in blocks, or runs, without it, too."""
        if self.on_runs:
            return self.run_beside
        return self.pairs[-1].beside if self.pairs else ()

    @property
    def off_ns(self) -> list[float]:
        """What a step took without the cure, in each block or run."""
        off_runs = self.off_runs if self.on_runs else ()
        return [run.ns for run in off_runs] or [pair.off.step_ns for pair in self.pairs]

    @property
    def on_ns(self) -> list[float]:
        """What a step took with the cure, in each block or run."""
        return [run.ns for run in self.on_runs] or [pair.on.step_ns for pair in self.pairs]

    @property
    def is_decided(self) -> bool:
        """Whether more pairs are not worth their time."""
        return bool(self.ended) or is_decided(self.gain, is_bound=self.is_bound)

    @property
    def is_by_itself(self) -> bool:
        """Whether it needs runs of its own, although it may be switched: it promises something of
        pauses, which lie further apart than blocks, fills a queue, or compiles for long when it is
        switched on."""
        promises = self.candidate.forecast is not None and self.candidate.is_of_pauses
        cure = self.candidate.cure
        return promises or cure.fills_queues or (cure.in_one_run and cure.longer_s > 0.0)

    @property
    def has_pauses(self) -> bool:
        """Whether pauses count in its runs."""
        return self.candidate.is_of_pauses or bool(self.doubt)

    def drop_beside(self, ended: str) -> bool:
        """Drop what was measured beside a cure that has ended by itself, which says nothing.
        Whether runs of its own were dropped."""
        before = len(self.pairs)
        self.pairs = [pair for pair in self.pairs if ended not in pair.beside]
        is_of_runs = ended in self.run_beside
        if is_of_runs:
            self.on_runs, self.off_runs, self.run_beside = [], [], ()
            self.way = "in one run" if self.pairs else ""
        if is_of_runs or len(self.pairs) < before:
            self.gain = None  # until it is judged anew
        return is_of_runs

    @property
    def verdict(self) -> Verdict:
        """What it comes to so far."""
        gain = self.gain
        if self.ended:
            return "not tried"
        if gain is None or self.failed:
            return "nothing" if show_nothing(self.pairs) and not self.failed else "not tried"
        if self.is_bound:
            return "bound" if gain.is_claimed or gain.doubt else _undecided(gain)
        if gain.is_claimed:
            return "another result" if self.same.kind == "other" else "gain"
        return _undecided(gain)

    def trial(self, ready: str = "") -> Trial:
        """Its row of the answer; `ready` says from when on its steps are as fast."""
        verdict, why = self.verdict, self.ended or self.why
        if verdict == "bound" and self.gain and self.gain.middle > WHOLE_STEP:
            why = why or "it is nearly the whole step"
        elif verdict == "unclear" and len(self.pairs) in range(1, FEWEST) and not self.on_runs:
            why = why or f"{len(self.pairs)} of the {FEWEST} pairs that a proof takes"
        elif verdict == "unclear" and self.doubt and not self.on_runs:
            why = f"most blocks show it, but {self.doubt}: {RUNS_TELL}"
        elif verdict == "gain" and self.gain:
            refused = f"not together with others: {self.refused}" if self.refused else ""
            why = why or "; ".join(filter(None, (self.gain.bounded, refused, self.note)))
        forecast = self.candidate.forecast
        trial = Trial(
            cure=self.candidate.name,
            result=self.candidate.cure.result,
            cause=self.cause,
            verdict=verdict,
            off_ns=median(self.off_ns) if self.off_ns else None,
            on_ns=median(self.on_ns) if self.on_ns else None,
            way=self.way if verdict != "not tried" else "",
            pairs=len(self.pairs),
            beside=self.beside,
            same=self.same.text if self.same.kind != "unknown" else "",
            ready_s=self.ready_s,
            change=self.candidate.cure.change,
            place=self.place,
            applies=self.applies,
            last_lines=tuple(sanitize(line, 300) for line in self.last_lines),
            why=sanitize("; ".join(filter(None, (why or self.note, ready))), 300),
            forecast_low=forecast.low if forecast is not None else None,
            forecast_high=forecast.high if forecast is not None else None,
        )
        return with_gain(trial, None if self.ended else self.gain)


def _undecided(gain: MeasuredGain) -> Verdict:
    if gain.high < 1.0 / LEAST_GAIN:
        return "slower"
    return "nothing" if gain.high < LEAST_GAIN else "unclear"


def proven_compatible(measured: Sequence[Measured]) -> list[Measured]:
    """The proven gains that were not refused beside others, of those with the same choice the one
    that gains most."""
    chosen: dict[object, Measured] = {}
    proven = [each for each in measured if each.verdict == "gain" and not each.refused]
    for each in sorted(proven, key=lambda each: -(each.gain.middle if each.gain else 0.0)):
        chosen.setdefault(each.choice, each)
    return list(chosen.values())


def held_beside(measured: Sequence[Measured], group: Sequence[Measured]) -> list[Measured]:
    """The proven gains that are on while a group is measured, none of which is in it; not what
    compiles, in which nothing can be switched."""
    alternatives = {each.candidate.cure.alternative for each in group} - {""}
    return [
        each for each in proven_compatible(measured)
        if each.gain is not None and each.gain.middle >= HELD and each not in group
        and not each.candidate.cure.longer_s
        and each.candidate.cure.alternative not in alternatives
    ]  # fmt: skip


def held_in_runs(measured: Sequence[Measured], each: Measured) -> tuple[str, ...]:
    """Those that are on in runs of a cure, and in those without it: of several ways to mend the
    same that need runs of their own, and of ablations, none."""
    if each.is_bound:
        return ()
    return tuple(
        other.candidate.name for other in held_beside(measured, [each])
        if other.candidate.cure.in_one_run or other.cause is None or other.cause != each.cause
    )  # fmt: skip


def proven_of_same_cause(measured: Sequence[Measured], each: Measured) -> list[Measured]:
    """The proven gains of the same finding."""
    return [
        other for other in measured
        if other is not each and other.verdict == "gain" and other.cause is not None
        and other.cause == each.cause
    ]  # fmt: skip
