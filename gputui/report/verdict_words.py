"""A verdict in words, for the screen, text and html: where in the program it is, what else was
seen, what to try, what that gains.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gputui.report.explain import Finding, Verdict
from gputui.report.explain.evidence import UNSEEN
from gputui.report.explain.verdict import WITHOUT_A_CAUSE
from gputui.report.schema import why_empty, why_unaccounted
from gputui.state import Run

UNRECORDED = "not recorded"
_IS_PLACE = re.compile(rf"\.py\b|{UNRECORDED}")


class VerdictWords(NamedTuple):
    """Sentences of a verdict, "" where there is nothing to say."""

    headline: str
    """Without the place, which `where` says in full."""
    where: str
    seen: list[str]
    """What else was seen, the most telling first."""
    advice: str
    gain: str


def verdict_words(verdict: Verdict, inside: str = "", *, has_bars: bool = False) -> VerdictWords:
    """`inside` is said where no line is known; `has_bars` is whether what a step then takes is
    drawn, so that the gain need not say it."""
    if not verdict.findings:
        return VerdictWords(verdict.headline, "", [], *_without_a_cause(verdict))
    best, headline = verdict.findings[0], verdict.headline
    if best.place:
        headline = headline.removesuffix(best.placed).rstrip()
    if best.with_pauses:  # of steps alone the time tree is not
        headline = headline.replace("; the steps alone", ".\0").partition("\0")[0]
    where, seen = _places(best, inside)
    gain = best.gain_beside_bars if has_bars else best.gain_text
    return VerdictWords(headline, where, seen, f"{best.advice}.", gain)


def _without_a_cause(verdict: Verdict) -> tuple[str, str]:
    """What more there is to gain where nothing stands out."""
    tree = verdict.tree
    if tree is None or not tree.has_steps or verdict.word not in WITHOUT_A_CAUSE:
        return "", ""
    most = 1 / max(0.01, 1 - tree.share(tree.idle_ns))
    gain = f"{most:.2f}× at most without idle time; what kernels could spare is not known."
    return "nothing to keep the GPU busier: more only with less work for it.", gain


def _places(finding: Finding, inside: str) -> tuple[str, list[str]]:
    """Where it is, and the other sentences of its evidence."""
    places = [sentence for sentence in finding.evidence if _IS_PLACE.search(sentence)]
    others = [f"{sentence}." for sentence in finding.evidence if sentence not in places]
    is_told = any(UNRECORDED in sentence for sentence in places)
    if finding.place and not is_told and re.split(r"[ ,]", finding.place)[0] not in "".join(places):
        places = [finding.placed.rstrip("."), *places]
    is_of_kernels = bool(finding.kernel) or finding.cause.startswith("busy.")
    if (is_of_kernels or finding.view == "kernels") and not places and not inside:
        places = [UNSEEN]
    return " ".join([*(f"{sentence}." for sentence in places), inside]).strip(), others


def why_no_verdict(run: Run) -> str:
    """Why there is none, or none so far."""
    if run.kernels:
        return why_unaccounted(run)
    statuses = {process.attached.cuda_status for process in run.processes.values()}
    if run.is_active and "tracing" in statuses:
        return "No kernel so far: it comes with the first steps."
    if run.is_active and statuses == {"no CUDA"}:
        return (
            "The program has not loaded CUDA: it comes with the first steps on a GPU. Phases and "
            "the host are measured meanwhile."
        )
    return why_empty(run) + " It comes by itself with the first steps." * run.is_active
