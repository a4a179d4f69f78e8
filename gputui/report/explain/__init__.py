"""Why is it slow, and what else must be known of a run.

`conclusion` is the answer: the leaves of the time tree whose cure would gain most. `findings` are
these with facts beside the tree: lost records, memory that grows or is almost full, clocks that
were held down. A module of this package lists its rules in RULES: adding one touches no other file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar

from gputui.model.leaves import LEAVES, Leaf
from gputui.report.explain.advice import is_of_plans
from gputui.report.explain.finding import Finding, MachineRule, RunRule, times_faster
from gputui.report.explain.time_tree import time_tree
from gputui.report.explain.trends import work_trend
from gputui.report.explain.verdict import Verdict, verdict
from gputui.state import Readings, Run, Session

R = TypeVar("R", RunRule, MachineRule)

__all__ = ["Finding", "Verdict", "conclusion", "findings", "machine_findings"]


def findings(session: Session, run: Run) -> list[Finding]:
    """The findings, in the order to look at them."""
    found = [found for rule in _rules(RunRule) for found in rule.find(session, run)]
    found = _plans_of_growth(run, _growth_once(found)) + machine_findings(session, run.readings)
    first = _leading(found)
    return [*first, *(one for one in found if one not in first)]


def conclusion(
    session: Session, run: Run, among: Sequence[Finding] | None = None
) -> Verdict | None:
    """The answer: the verdict on where the time goes, or a fact that matters where no leaf of the
    time tree does, that ends the run or soon will, or whose cure saves more than any leaf's by
    LARGER; None where no operation was captured and no such fact is known. `among` are the run's
    findings, where they are known."""
    found = verdict(run, session.kernel_names)
    facts = _leading(findings(session, run) if among is None else among)
    if not facts:
        return found
    if found is None:
        return Verdict(facts[0].word.upper(), facts[0].sentence, facts)
    return Verdict(
        facts[0].word.upper(),
        facts[0].sentence,
        (*facts, *found.findings),
        found.tree,
        "" if found.findings or facts[0].share is not None else found.headline,
    )


def _growth_once(found: list[Finding]) -> list[Finding]:
    """Steps that grow say why memory does: it holds what each step goes through again. They are as
    urgent then, and lead over it."""
    causes = {one.cause for one in found}
    if not {"steps_grow", "memory_grows"} <= causes:
        return found
    urgent = any(one.urgent for one in found if one.cause == "memory_grows")
    return [
        replace(one, urgent=urgent)
        if one.cause == "steps_grow"
        else replace(one, leads=False, urgent=False)
        if one.cause == "memory_grows"
        else one
        for one in found
    ]


def _plans_of_growth(run: Run, found: list[Finding]) -> list[Finding]:
    """Steps that grow by a text gone through again give attention a new length each time: what the
    CPU plans for it goes with them where they are cured."""
    grows = next((one for one in found if one.cause == "steps_grow"), None)
    planned = next((one for one in found if one.cause == _HOST and is_of_plans(one.advice)), None)
    if grows is None or planned is None:
        return found
    tree = time_tree(run)
    if tree is None or work_trend(tree) is None:
        return found
    share = f"{100 * planned.recoverable:.0f} % of each step"
    also = f"For each length cuDNN plans attention anew: {share}, under CPU code."
    both = replace(
        grows,
        sentence=f"{grows.sentence} {also}",
        gain=times_faster(_saves(grows) + planned.recoverable),
    )
    return [both if one is grows else one for one in found]


_HOST = LEAVES[Leaf.HOST].key


def _leading(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """The facts that are the answer rather than the leaves among these."""
    leaves = [one for one in found if one.share is not None and not one.leads]
    most = max(map(_saves, leaves), default=None)
    return tuple(
        one
        for one in found
        if one.leads
        and (one.ends_run or one.urgent or most is None or _saves(one) >= most + LARGER)
    )


LARGER = 0.05
"""How much more of the time a fact has to save than a leaf to lead: of two that save as much, the
one that the tree shows does."""


def _saves(one: Finding) -> float:
    """Share of the time that goes where it is cured."""
    return 1.0 - 1.0 / (one.gain or 1.0)


def machine_findings(session: Session, readings: Readings) -> list[Finding]:
    """The findings that need no run, only readings."""
    return [found for rule in _rules(MachineRule) for found in rule.find(session, readings)]


@cache
def _rules(kind: type[R]) -> tuple[R, ...]:
    """Every rule of a kind, found in RULES of this package's modules, in their order."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    found = [rule for module in modules for rule in getattr(module, "RULES", ())]
    rules = (rule for rule in found if isinstance(rule, kind))
    return tuple(sorted(rules, key=lambda rule: rule.order))
