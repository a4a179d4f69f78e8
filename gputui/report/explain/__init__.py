"""Why is it slow: rules that compare one figure of a run with a threshold that has a source.

A rule applies only if its figure exists; each states the figure, the threshold, its source, and
what to try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gputui.report.explain.insight import Insight, InsightDocument
from gputui.report.explain.using import (
    lost_records,
    memory_full,
    no_tensor_cores,
    pageable_copies,
    throttled,
)
from gputui.report.explain.waiting import (
    gpu_idle,
    launch_gaps,
    launch_time,
    no_overlap,
    queue_growing,
    short_kernels,
)
from gputui.state import Readings, Run, Session

__all__ = ["Insight", "InsightDocument", "insight_documents", "insights", "machine_insights"]


def insights(session: Session, run: Run) -> list[Insight]:
    """The findings, in the order to look at them."""
    found = [found for rule in _RULES for found in rule(session, run)]
    return found + machine_insights(session, run.readings)


def machine_insights(session: Session, readings: Readings) -> list[Insight]:
    """The findings that need no run, only readings."""
    return [*memory_full(session, readings), *throttled(readings)]


def insight_documents(found: Iterable[Insight]) -> list[InsightDocument]:
    """For programs."""
    names = InsightDocument.__struct_fields__
    return [InsightDocument(*(getattr(one, name) for name in names)) for one in found]


_RULES: tuple[Callable[[Session, Run], Iterator[Insight]], ...] = (
    lost_records,
    gpu_idle,
    launch_gaps,
    short_kernels,
    launch_time,
    no_overlap,
    queue_growing,
    no_tensor_cores,
    pageable_copies,
)
