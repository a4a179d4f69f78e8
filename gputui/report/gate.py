"""Conditions under which a comparison fails: what a CI job asks of two recordings.

    decode.gpu_busy_ns>+5%      grew by more than 5 % over the baseline
    decode.cpu_avg_ns>+200000   grew by more than that many ns
    tokens_per_s<-3%            a metric shrank by more than 3 %
    gpu0.temperature_celsius>80 is over 80, whatever the baseline was
    idle.launch>40%             the GPU waits for launches over 40 % of the time
    idle.launch>+5%             that share grew by more than 5 points
    step.mean_ns>+3%            a step takes over 3 % longer

A phase goes by its path or its last part, a kernel by its name or its short name. Figures of
gpu0, or of gpu for any, and of host are means; with `for` they are readings (report.alerts).
"""

from __future__ import annotations

from dataclasses import replace

from gputui.report.compare import Comparison, Figure, Item
from gputui.report.explain.time_tree import share_in_the_loop
from gputui.report.means import Mean
from gputui.report.threshold import ANY_GPU, Threshold


class Condition(Threshold, frozen=True):
    """A condition on a comparison."""

    def tripped(self, comparison: Comparison) -> list[str]:
        """A line for each run that meets the condition, or that cannot be judged.

        Raises ThresholdError if no run has what it names.
        """
        if self.for_ns is not None:
            raise self.error("a condition with for needs gputui summary: it is of one recording")
        lines = []
        for item, figure in self._find(comparison):
            if (item.kind, figure.name) == ("cause", "share_percent"):
                figure = _in_the_loop(comparison, item, figure)
            if self.percent and not self.relative and not figure.name.endswith("_percent"):
                number = f"{self.limit:g}"
                raise self.error(f"say +{number}% or -{number}%")
            which = f"{item.name}: " if self.what.startswith(f"{ANY_GPU}.") else ""
            for index, subject in enumerate(comparison.subjects[1:], 1):
                reason = self._judge(item, figure, index)
                if reason is not None:
                    lines.append(f"{subject.label}: {self.text}: {which}{reason}")
        return lines

    def _judge(self, item: Item, figure: Figure, index: int) -> str | None:
        value, base = figure.values[index], figure.values[0]
        if value is None:
            return f"{item.name} has no {figure.name} here"
        if not self.relative:
            unit = " %" if self.percent else ""
            return f"it is {_number(value.amount)}{unit}" if self.meets(value.amount) else None
        difference = figure.difference(index)
        if difference is None or base is None:
            return f"{item.name} has no {figure.name} in the baseline"
        # A share changes by points of the wall time.
        in_percent = self.percent and item.kind != "cause"
        change = difference.percent if in_percent else difference.absolute
        if change is None:
            # Growth from zero has no percentage: it exceeds any share.
            change = difference.absolute * float("inf") if difference.absolute else 0.0
        if not self.meets(change):
            return None
        sign = "+" if change > 0 else ""
        shown = f"{sign}{_number(change)}{' %' if self.percent else ''}"
        return f"{_number(base.amount)} → {_number(value.amount)} ({shown})"

    def _find(self, comparison: Comparison) -> list[tuple[Item, Figure]]:
        for kind, figure in (("metric", "value"), ("cause", "share_percent")):
            for item in comparison.of_kind(kind):
                if item.name == self.what:
                    return [(item, item.figures[figure])]
        name, dot, figure = self.what.rpartition(".")
        if not dot:
            raise self.error(f"no run reports a metric {self.what!r}")
        if name == ANY_GPU:
            gpus = [item for item in comparison.of_kind("device") if figure in item.figures]
            if gpus := [item for item in gpus if item.name.startswith(ANY_GPU)]:
                return [(item, item.figures[figure]) for item in gpus]
        items = [item for item in comparison.items if name in (item.name, item.was)]
        items = items or [item for item in comparison.items if item.short == name]
        # "step" is the loop's, and what many programs call a range.
        items = [item for item in items if figure in item.figures] or items
        if name in ("idle", "busy") and not any(figure in item.figures for item in items):
            known = ", ".join(item.name for item in comparison.of_kind("cause"))
            why = f"known: {known}" if known else "no run captured what a GPU did"
            raise self.error(f"there is no cause {self.what!r}; {why}")
        if not items:
            raise self.error(f"no run has a phase, kernel or device {name!r}")
        if len(items) > 1:
            known = ", ".join(repr(item.name) for item in items[:5])
            raise self.error(f"{name!r} is several things; say which: {known}")
        [item] = items
        if figure not in item.figures:
            known = ", ".join(item.figures)
            raise self.error(f"{item.name} has no {figure!r}; it has {known}")
        return [(item, item.figures[figure])]


def _in_the_loop(comparison: Comparison, item: Item, figure: Figure) -> Figure:
    """A share as the verdict has it: a loop's pauses are a part of it where they are its habit."""
    trees = [subject.tree for subject in comparison.subjects]
    shares = (None if tree is None else Mean(share_in_the_loop(tree, item.name)) for tree in trees)
    return replace(figure, values=tuple(shares))


def _number(amount: float) -> str:
    """With enough digits to differ from a nearby limit, without powers of ten."""
    return f"{amount:,.0f}" if 1e5 <= abs(amount) < 1e18 else f"{amount:,.6g}"
