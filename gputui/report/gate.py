"""Conditions under which a comparison fails: what a CI job asks of two recordings.

    decode.gpu_busy_ns>+5%      grew by more than 5 % over the baseline
    decode.cpu_avg_ns>+200000   grew by more than that many ns
    tokens_per_s<-3%            a metric shrank by more than 3 %
    gpu0.temperature_celsius>80 is over 80, whatever the baseline was
    idle.launch>40%             the GPU waits for launches over 40 % of the time
    idle.launch>+5%             that share grew by more than 5 points
    step.mean_ns>+3%            a step takes over 3 % longer

A phase goes by its path or its last part, a kernel by its name or its short name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gputui.base.errors import WRONG_USAGE, GputuiError
from gputui.report.compare import Comparison, Figure, Item

_CONDITION = re.compile(
    r"(?P<what>.+?)\s*(?P<operator>[<>])\s*(?P<sign>[+-]?)(?P<number>\d+(?:\.\d+)?)(?P<percent>%?)"
)
LONGEST = 1000


class GateError(GputuiError):
    """A condition that cannot be parsed, or names something that does not exist. One line."""

    exit_status = WRONG_USAGE

    def __init__(self, reason: str) -> None:
        super().__init__(f"--fail-if {reason}")


@dataclass(frozen=True, slots=True)
class Condition:
    """One parsed condition. `relative` compares with the baseline, otherwise with a number."""

    text: str
    what: str
    above: bool
    limit: float
    relative: bool
    percent: bool

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Raises GateError."""
        match = _CONDITION.fullmatch(text.strip()) if len(text) <= LONGEST else None
        if match is None:
            raise GateError(
                f"{text[:80]!r} is not a condition; write for example 'decode.gpu_busy_ns>+5%' "
                "or 'tokens_per_s<-3%'"
            )
        relative, percent = bool(match["sign"]), bool(match["percent"])
        limit = float(f"{match['sign']}{match['number']}")
        return cls(text.strip(), match["what"], match["operator"] == ">", limit, relative, percent)

    def tripped(self, comparison: Comparison) -> list[str]:
        """A line for each run that meets the condition, or that cannot be judged.

        Raises GateError if no run has what it names.
        """
        item, figure = self._find(comparison)
        if self.percent and not self.relative and not figure.name.endswith("_percent"):
            number = f"{self.limit:g}"
            raise GateError(f"{self.text!r}: say +{number}% or -{number}%")
        lines = []
        for index, subject in enumerate(comparison.subjects[1:], 1):
            reason = self._judge(item, figure, index)
            if reason is not None:
                lines.append(f"{subject.label}: {self.text}: {reason}")
        return lines

    def _judge(self, item: Item, figure: Figure, index: int) -> str | None:
        value, base = figure.values[index], figure.values[0]
        if value is None:
            return f"{item.name} has no {figure.name} here"
        if not self.relative:
            unit = " %" if self.percent else ""
            return f"it is {_number(value.amount)}{unit}" if self._meets(value.amount) else None
        difference = figure.difference(index)
        if difference is None or base is None:
            return f"{item.name} has no {figure.name} in the baseline"
        # A share changes by points of the wall time.
        in_percent = self.percent and item.kind != "cause"
        change = difference.percent if in_percent else difference.absolute
        if change is None:
            # Growth from zero has no percentage: it exceeds any share.
            change = difference.absolute * float("inf") if difference.absolute else 0.0
        if not self._meets(change):
            return None
        sign = "+" if change > 0 else ""
        shown = f"{sign}{_number(change)}{' %' if self.percent else ''}"
        return f"{_number(base.amount)} → {_number(value.amount)} ({shown})"

    def _meets(self, amount: float) -> bool:
        return amount > self.limit if self.above else amount < self.limit

    def _find(self, comparison: Comparison) -> tuple[Item, Figure]:
        for kind, figure in (("metric", "value"), ("cause", "share_percent")):
            for item in comparison.of_kind(kind):
                if item.name == self.what:
                    return item, item.figures[figure]
        name, dot, figure = self.what.rpartition(".")
        if not dot:
            raise GateError(f"{self.text!r}: no run reports a metric {self.what!r}")
        items = [item for item in comparison.items if name in (item.name, item.was)]
        items = items or [item for item in comparison.items if item.short == name]
        # "step" is the loop's, and what many programs call a range.
        items = [item for item in items if figure in item.figures] or items
        if name in ("idle", "busy") and not any(figure in item.figures for item in items):
            known = ", ".join(item.name for item in comparison.of_kind("cause"))
            why = f"known: {known}" if known else "no run captured what a GPU did"
            raise GateError(f"{self.text!r}: there is no cause {self.what!r}; {why}")
        if not items:
            raise GateError(f"{self.text!r}: no run has a phase, kernel or device {name!r}")
        if len(items) > 1:
            known = ", ".join(repr(item.name) for item in items[:5])
            raise GateError(f"{self.text!r}: {name!r} is several things; say which: {known}")
        [item] = items
        if figure not in item.figures:
            known = ", ".join(item.figures)
            raise GateError(f"{self.text!r}: {item.name} has no {figure!r}; it has {known}")
        return item, item.figures[figure]


def _number(amount: float) -> str:
    """With enough digits to differ from a nearby limit, without powers of ten."""
    return f"{amount:,.0f}" if 1e5 <= abs(amount) < 1e18 else f"{amount:,.6g}"
