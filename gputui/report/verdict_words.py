"""A verdict in words, for the screen, text and html: where in the program it is, what else was
seen, what to try, what that gains.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gputui.model.leaves import LEAVES
from gputui.model.units import count, duration
from gputui.report.explain import Finding, Verdict
from gputui.report.explain.evidence import UNSEEN
from gputui.report.explain.time_tree import TimeTree
from gputui.report.explain.verdict import WITHOUT_A_CAUSE
from gputui.report.schema import why_empty, why_unaccounted
from gputui.report.statistics import half_width
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


LOOP_SAYS = 0.01
"""How far, in parts, the mean turn of the loop is from a steady step where it is said first: a
program that times its loop itself prints it."""


def loop_mean(tree: TimeTree) -> str:
    """What a turn of the loop takes, with pauses and what comes before it is steady, where that is
    another time than a steady step's."""
    steady_ns = tree.step_mean_ns
    if not steady_ns or abs(tree.turn_mean_ns - steady_ns) <= LOOP_SAYS * steady_ns:
        return ""
    turns = round(tree.of_program(tree.turns))
    return f"{duration(tree.turn_mean_ns)} mean of all {turns:,}"


UNSURE = 0.25
"""Half of the 95 % interval of a step, in parts of it, from which the figures are not sure."""


UNSURE_CAUSE = 0.5
"""The same of the cause's time: 16.9 ms ± 15.7 ms was under Sure."""


FEW_SLOW = 10
"""Slow steps up to which their number says more than an interval."""


def how_sure(verdict: Verdict) -> tuple[str, str]:
    """Whether it is sure, in a word, and of how many steps the verdict is, the 95 % intervals of
    the cause and of a step, from blocks of them, and what steps take with what lies between them;
    where no steps were seen, of what time it is."""
    tree = verdict.tree
    if tree is None:
        return "Sure", ""
    if not tree.has_steps:
        since = f"all {duration(tree.wall_ns)} since the first kernel"
        return "Unsure", f"shares are of {since}, not of steps: there is no interval"
    best = verdict.findings[0] if verdict.findings else None
    # Of pauses, and of several leaves together, the leaf's own time a step says nothing.
    its_leaves = best.of_leaves if best is not None else ()
    is_of_leaf = best is not None and best.step_ns and not best.with_pauses and len(its_leaves) < 2
    leaf = its_leaves[0] if is_of_leaf and its_leaves else None
    loop = verdict.shares_tree or tree
    means = [("", tree.step_mean)]
    if leaf is not None and (own := tree.leaf_mean(leaf)) is not None:
        means.insert(0, (LEAVES[leaf].label, own))
    halves = [
        (name, mean.amount, half) for name, mean in means if (half := half_width(mean)) is not None
    ]
    its = f"its {duration(best.step_ns)}" if best is not None and is_of_leaf else ""
    if len(halves) == 2:
        its = f"{halves[0][0]} {_plus_minus(*halves[0][1:])}"
    is_sure = all(
        half <= part * ns
        for part, (_, ns, half) in zip((UNSURE, UNSURE_CAUSE), reversed(halves), strict=False)
    )
    text = f"{count(tree.steps)} steady steps"
    if not halves:
        is_sure = False
        text = f"only {text}, too few for an interval"
    elif is_sure or not 0 < tree.slow_program_steps <= FEW_SLOW:
        a_step = f"{its} of a step's" if its else f"a step{' alone' * loop.with_pauses}"
        text = f"{a_step} {_plus_minus(*halves[-1][1:])} (95 % interval, {text})"
    else:
        slow_ns = tree.slow_ns / max(1, tree.slow_steps)
        slow = f"{count(tree.slow_program_steps)} of {count(tree.program_steps)} steady steps"
        usual = duration(tree.step_ns.median)
        text = f"{slow} take {duration(slow_ns)}, the others {usual}: too few to say how often"
    mean = loop_mean(tree)
    if loop.with_pauses:
        seen = f"{count(loop.pauses)} pause{'s' * (loop.pauses != 1)} seen"
        text, mean = f"{seen}, {duration(loop.turn_mean_ns)} a step with them", text
    return ("Sure" if is_sure else "Unsure"), "; ".join(filter(None, (text, mean)))


def _plus_minus(ns: float, half_ns: float) -> str:
    """ "42.1 ± 16.3 ms"; each in its own unit where the half width is far smaller."""
    figure, _, unit = duration(ns).partition(" ")
    half = duration(half_ns)
    return f"{figure if half.endswith(f' {unit}') else duration(ns)} ± {half}"
