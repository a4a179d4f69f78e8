"""Why is it slow, and what else must be known of a run.

`conclusion` is the answer: the leaves of the time tree whose cure would gain most. `findings` are
these with facts beside the tree: lost records, memory that grows or is almost full, clocks that
were held down. All are functions of an `Analysis`, and computed once for each.

A module of this package lists its rules in RULES. A finding says itself which view shows it,
whether it leads, which others follow from it and what shows it: adding a rule touches no other
file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

from msgspec.structs import replace

from gputui.report.explain.analysis import (
    Analysis,
    MachineAnalysis,
    MachineRule,
    RunRule,
    computed_once,
)
from gputui.report.explain.finding import Finding, calibrated
from gputui.report.explain.verdict import SPEAKS, Verdict, verdict

__all__ = [
    "Analysis",
    "Finding",
    "MachineAnalysis",
    "Verdict",
    "conclusion",
    "findings",
    "machine_findings",
    "verdict",
]


@computed_once
def findings(analysis: Analysis) -> list[Finding]:
    """The findings of a run and of the machine while it went on, in the order to look at them."""
    of_run = [
        finding if finding.modelled else calibrated(finding)
        for rule in _rules(RunRule)
        for finding in rule.find(analysis)
    ]
    every = _without_consequences([*of_run, *machine_findings(analysis)])
    first = _leading(every)
    covered = {cause for finding in first for cause in finding.covers}
    ordered = (*first, *(finding for finding in every if finding not in first))
    return [finding for finding in ordered if finding.cause not in covered]


@computed_once
def machine_findings(analysis: MachineAnalysis) -> list[Finding]:
    """The findings that need no run, only readings."""
    return [finding for rule in _rules(MachineRule) for finding in rule.find(analysis)]


@computed_once
def conclusion(analysis: Analysis) -> Verdict | None:
    """The answer: the verdict on where the time goes, or a fact that matters where no leaf of the
    time tree does, that ends the run or soon will, or whose cure saves more than any leaf's by
    LARGER; None where no operation was captured and no such fact is known."""
    of_leaves = verdict(analysis)
    facts = _leading(findings(analysis))
    if not facts:
        return of_leaves
    if of_leaves is None:
        return Verdict(facts[0].word.upper(), facts[0].sentence, facts)
    covered = {cause for fact in facts for cause in fact.covers}
    explained = {cause for fact in facts for cause in fact.explains}
    leaves = [
        replace(finding, sentence=f"{finding.sentence} Part of it is the same time.")
        if finding.cause in explained
        else finding
        for finding in of_leaves.findings
        if finding.cause not in covered
    ]
    has_share = leaves or facts[0].share_percent is not None
    return Verdict(
        facts[0].word.upper(),
        facts[0].sentence,
        (*facts, *leaves),
        of_leaves.tree,
        "" if has_share else of_leaves.headline,
    )


def _without_consequences(every: list[Finding]) -> list[Finding]:
    """What one finding explains neither leads nor is urgent beside it; where that was urgent, the
    one that explains it is."""
    causes = {finding.cause for finding in every}
    explained = {cause for finding in every for cause in finding.explains if cause in causes}
    urgent = {finding.cause for finding in every if finding.urgent}
    return [
        replace(finding, urgent=not urgent.isdisjoint(finding.explains))
        if explained.intersection(finding.explains)
        else replace(finding, leads=False, urgent=False)
        if finding.cause in explained
        else finding
        for finding in every
    ]


def _leading(every: Sequence[Finding]) -> tuple[Finding, ...]:
    """The facts that are the answer rather than the leaves among these. What saves less than a leaf
    has to is none: collections of 7 and 8 % of the time stood first where nothing else did."""
    explained = {
        cause
        for finding in every
        if finding.leads
        for cause in (*finding.explains, *finding.covers)
    }
    leaves = [
        finding
        for finding in every
        if finding.share_percent is not None
        and not finding.leads
        and finding.cause not in explained
    ]
    most = max((finding.recoverable for finding in leaves), default=None)
    return tuple(
        finding
        for finding in every
        if finding.leads
        and (
            finding.ends_run
            or finding.urgent
            or (most is None and not 0.0 < finding.recoverable < SPEAKS)
            or (most is not None and finding.recoverable >= most + _margin(finding))
        )
    )


LARGER = 0.05
"""How much more of the time a fact has to save than a leaf to lead: of two that save as much, the
one that the tree shows does, but where the fact was timed itself. Fitted on one server: collections
of 41 %, of which the tree shows 38 as CPU code, beside launches of 42."""


def _margin(finding: Finding) -> float:
    return -LARGER if finding.is_timed else LARGER


Rule = TypeVar("Rule", RunRule, MachineRule)


@cache
def _rules(kind: type[Rule]) -> tuple[Rule, ...]:
    """Every rule of a kind, found in RULES of this package's modules, in their order."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    every = [rule for module in modules for rule in getattr(module, "RULES", ())]
    return tuple(
        sorted(
            (rule for rule in every if isinstance(rule, kind)),
            key=lambda rule: rule.order,
        )
    )
