"""Why is it slow: rules that compare one figure of a run with a threshold that has a source.

A rule speaks only where its figure exists; each says what it read, what it compares with, where
that comes from, and what to try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gputui.analysis.insights.insight import Insight
from gputui.analysis.insights.using import (
    lost_records,
    memory_full,
    no_tensor_cores,
    pageable_copies,
    throttled,
)
from gputui.analysis.insights.waiting import (
    gpu_idle,
    launch_gaps,
    launch_time,
    no_overlap,
    queue_growing,
    short_kernels,
)
from gputui.session import Run, Session

__all__ = ["Insight", "insights"]


def insights(session: Session, run: Run) -> list[Insight]:
    """What the rules find, in the order of what to look at first."""
    return [found for rule in _RULES for found in rule(session, run)]


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
    memory_full,
    throttled,
)
