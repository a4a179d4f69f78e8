"""What a step that was kept in parts is among the others: a usual one, a slow one, none of them."""

from __future__ import annotations

from gputui.model.events import StepLanes
from gputui.model.step_kinds import PAUSE, PAUSE_NS, SLOW
from gputui.report.explain.time_tree import TimeTree


def what_it_is(step: StepLanes, tree: TimeTree | None) -> str:
    """In a few words, by its length and place among the steps of its device; empty where these are
    not known."""
    usual_ns = tree.step_ns.median if tree is not None else None
    if tree is None or not usual_ns:
        return ""
    if step.start_ns < tree.first_ns:
        return "before the steady steps"
    times = step.duration_ns / usual_ns
    if 1 / SLOW <= times <= SLOW:
        return "usual"
    if step.duration_ns > max(PAUSE * usual_ns, PAUSE_NS):
        return f"with a pause, {times:,.0f}× a usual one"
    return f"{'slow' if times > SLOW else 'short'}, {times:.1f}× a usual one"
