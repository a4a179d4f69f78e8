"""Why is it slow: rules that compare one figure of a run with a threshold that has a source.

`verdict` is the answer: the leaves of the time tree whose cure would gain most. `insights` are
these with what else a person must know: lost records, memory that grows or is almost full, clocks
that were held down. A module of this package lists its rules in RULES: adding one touches no other
file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache
from typing import TypeVar

from gputui.report.explain.insight import Insight, InsightDocument, MachineRule, RunRule
from gputui.state import Readings, Run, Session

R = TypeVar("R", RunRule, MachineRule)

__all__ = ["Insight", "InsightDocument", "insight_documents", "insights", "machine_insights"]


def insights(session: Session, run: Run, *, beside_verdict: bool = False) -> list[Insight]:
    """The findings, in the order to look at them; those of the verdict may be left out."""
    rules = [one for one in _rules(RunRule) if not (beside_verdict and one.in_verdict)]
    found = [found for rule in rules for found in rule.find(session, run)]
    return found + machine_insights(session, run.readings)


def machine_insights(session: Session, readings: Readings) -> list[Insight]:
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


def insight_documents(found: Iterable[Insight]) -> list[InsightDocument]:
    """For programs."""
    names = InsightDocument.__struct_fields__
    return [InsightDocument(*(getattr(one, name) for name in names)) for one in found]
