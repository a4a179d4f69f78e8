"""Which cures are tried: those that answer the findings, the largest forecast first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gputui.base.errors import WRONG_USAGE, GputuiError, did_you_mean
from gputui.cures import ANY, BOUND, DIFFERENT, EXACT, ROUNDING, Cure, cures
from gputui.report.explain.finding import Finding, Gain


class PlanError(GputuiError):
    """What was asked for cannot be tried. One line."""

    exit_status = WRONG_USAGE


class Candidate(NamedTuple):
    """A cure to try: `name` with its argument, as a person would type it for --cure."""

    name: str
    cure: Cure
    finding: Finding | None = None
    forecast: Gain | None = None

    @property
    def order(self) -> tuple[float, int]:
        """The largest forecast first; of those of one finding, as its advice names them."""
        middle = self.forecast.middle if self.forecast is not None else 0.0
        place = _place_in_advice(self.finding, self.cure) if self.finding is not None else None
        return -middle, _UNNAMED if place is None else place


_UNNAMED = 1 << 20


def _place_in_advice(finding: Finding, cure: Cure) -> int | None:
    """Where a finding's advice names a cure; None where it does not."""
    place = finding.advice.find(cure.advice) if cure.advice else -1
    return None if place < 0 else place


# A line of the program as findings have it: train.py:62 report.
_PLACE = re.compile(r"(?P<file>[^/:\s]+\.py):\d+ (?:[\w<>]+\.)*(?P<function>\w+)")


def plan(findings: Sequence[Finding], *, everything: bool = False) -> list[Candidate]:
    """The cures that answer these findings, and with `everything` all that leave results as they
    are, the largest forecast first; then those for faults that no finding shows; ablations last,
    one for each finding that has one."""
    chosen: dict[str, Candidate] = {}
    known = cures()
    for finding in findings:
        for cure in known.values():
            if cure.result not in (EXACT, ROUNDING) or finding.cause not in cure.answers:
                continue
            candidate = Candidate(cure.name, cure, finding, _forecast(finding, cure))
            before = chosen.get(cure.name)
            if before is None or candidate.order < before.order:
                chosen[cure.name] = candidate
    for cure in known.values():
        if cure.result in (EXACT, ROUNDING) and (everything or ANY in cure.answers):
            chosen.setdefault(cure.name, Candidate(cure.name, cure))
    ordered = sorted(chosen.values(), key=lambda candidate: candidate.order)
    return [*ordered, *_ablations(findings, known.values())]


def named(words: Iterable[str], findings: Sequence[Finding]) -> list[Candidate]:
    """The cures of these names, in their order, whatever class they are of. Raises PlanError."""
    known = cures()
    candidates = []
    for word in dict.fromkeys(words):
        name, _, argument = word.partition("@")
        cure = known.get(name)
        if cure is None:
            raise PlanError(
                f"--cure {word}: there is no such cure{did_you_mean(name, tuple(known))}; "
                "gputui try --list has them"
            )
        if bool(cure.argument) != bool(argument):
            form = f"{name}@{cure.argument}" if cure.argument else name
            raise PlanError(f"--cure {word}: give {form}")
        finding = next((each for each in findings if each.cause in cure.answers), None)
        forecast = _forecast(finding, cure) if finding is not None else None
        candidates.append(Candidate(word, cure, finding, forecast))
    return candidates


def _ablations(findings: Sequence[Finding], known: Iterable[Cure]) -> list[Candidate]:
    chosen: dict[str, Candidate] = {}
    for finding in findings:
        for cure in known:
            if cure.result != BOUND or finding.cause not in cure.answers:
                continue
            name = cure.name
            if cure.argument:
                place = _PLACE.search(finding.place)
                if place is None or place["function"] in ("module", "main"):
                    continue
                name = f"{cure.name}@{place['file']}:{place['function']}"
            chosen.setdefault(name, Candidate(name, cure, finding, _forecast(finding, cure)))
    return list(chosen.values())


def _forecast(finding: Finding, cure: Cure) -> Gain | None:
    """Of the finding's gains that of the cure: of its name for it, or of the advice as it is."""
    if cure.forecast is None or (cure.advice and _place_in_advice(finding, cure) is None):
        return None
    for gain in finding.gains:
        if gain.cure == cure.forecast:
            return gain
    return finding.gains[0] if finding.gains and not cure.forecast else None


CLASS_WORDS = {
    EXACT: "results are the same",
    ROUNDING: "results differ by rounding",
    DIFFERENT: "other results: by name only",
    BOUND: "no cure: what its cause costs, with wrong results",
}
"""What a class means, in a few words."""
