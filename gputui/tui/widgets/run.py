"""The run's own lines: what it is, its progress, what it reports."""

from __future__ import annotations

from typing import NamedTuple

from gputui.model.leaves import LEAVES, Leaf
from gputui.model.units import duration, parameter, quantity
from gputui.report.alerts import about, amount_text
from gputui.report.phases import shares_error_points
from gputui.report.schema import lost_count, why_lost
from gputui.report.tables import metric_text
from gputui.report.windows import tracing_cost, tracing_line
from gputui.state import Gpu, Run, Session, lasting_alerts, remarks
from gputui.tui.widgets.canvas import Row, Span, bar, clip, flow, row_width, wrap

# Alerts that last: a line each, and the mark beside what they are about.


MARK = "▲"
_MOST = 3


def alert_rows(session: Session, width: int) -> list[Row]:
    """The newest alerts that last."""
    lasting = lasting_alerts(session)
    rows: list[Row] = []
    for span in lasting[-_MOST:]:
        told = span.raised
        worst = amount_text(told.what, span.worst)
        text = f" {MARK} ALERT {about(told)}: reached {worst}"
        more = f" and {len(lasting) - _MOST} more" if len(lasting) > _MOST and not rows else ""
        rows.append(clip(((text + more, "hot"),), width))
    return rows


def has_alert(session: Session, what: Gpu | Leaf) -> bool:
    """Whether an alert about a GPU, or a leaf of the time tree, lasts."""
    for span in lasting_alerts(session):
        told = span.raised
        if isinstance(what, Leaf):
            if told.what == LEAVES[what].key:
                return True
        elif told.gpu == what.facts.index:
            return True
    return False


class State(NamedTuple):
    """A run's state, in words and as a mark before them."""

    mark: str
    words: str
    role: str

    @property
    def cell(self) -> Span:
        """Both, in the state's colour."""
        return (f"{self.mark} {self.words}", self.role)


def state(run: Run, *, lost_end: bool = False) -> State:
    """The run's state. `lost_end` if no more is to come."""
    took = duration(run.duration_ns)
    if run.ended is None and lost_end:
        return State("■", f"no end was recorded after {took}", "warn")
    match run.outcome:
        case "running":
            return State("▶", f"running {took}", "accent")
        case "stopped":
            return State("■", f"stopped after {took}", "warn")
        case "detached":
            return State("■", f"detached after {took}", "text")
        case "done":
            return State("✓", f"done in {took}", "good")
        case "ended" if not run.duration_ns:
            return State("■", "imported: its length is not known", "text")
        case "ended":
            return State("■", f"ended after {took}", "text")
        case "failed":
            return State("✗", f"FAILED after {took}", "hot")


def eta_ns(run: Run) -> float | None:
    """Time left of the stage at its mean speed so far; None while unknown."""
    progress = run.progress
    if run.ended is not None or progress is None or not progress.total or progress.done <= 0:
        return None
    elapsed = run.updated_ns - run.stage_started_ns
    left = max(0.0, progress.total - progress.done)
    return elapsed * left / progress.done if elapsed > 0 else None


def run_row(run: Run, width: int, *, lost_end: bool = False) -> Row:
    """One row: what runs, and at its right end how far it is, or how it ended."""
    given = "  ".join(
        f"{name}={parameter(value)}" for name, value in run.started.parameters.items()
    )
    if run.started.kind == "command":
        given = " ".join(run.started.arguments)
    right = _progress(run, lost_end=lost_end)
    room = width - row_width(right) - 3
    name = run.started.name
    first, _, others = given.partition(" ")
    rest = others if first == name else given
    left = clip(((f" {name}  ", "title"), (rest, "dim")), max(12, room))
    gap = " " * max(2, width - row_width(left) - row_width(right) - 1)
    return clip((*left, (gap, "text"), *right), width)


def _progress(run: Run, *, lost_end: bool) -> Row:
    """Stage, bar, how much of how much and the estimated time left; the state where nothing more
    is to come or nothing is reported."""
    progress = run.progress
    now = state(run, lost_end=lost_end).cell
    if progress is None or run.ended is not None or lost_end:
        if progress is None or not progress.total:
            return (now,)
        unit = f" {progress.unit}" if progress.unit else ""
        far = f"{progress.stage} {progress.done:.0f} of {progress.total:.0f}{unit}  "
        return ((far, "dim"), now)
    done = f"{progress.done:.0f}" if progress.done == int(progress.done) else f"{progress.done:.1f}"
    unit = f" {progress.unit}" if progress.unit else ""
    stage = (f"{progress.stage} ", "label")
    if not progress.total:
        return (stage, (f"{done}{unit}  ", "value"), now)
    fraction = min(1.0, progress.done / progress.total)
    left = eta_ns(run)
    ending = f"{done} of {progress.total:.0f}{unit}"
    if left is not None and fraction < 1:
        ending += f", {duration(left)} left"
    return (stage, ("▕", "dim"), (bar(fraction, 20), "accent"), ("▏ ", "dim"), (ending, "value"))


def _is_static(name: str) -> bool:
    """Whether a metric describes the run rather than its speed: those come last."""
    return not any(word in name for word in ("per_s", "ttft", "tpot", "itl", "loss", "latency"))


def metric_rows(run: Run, width: int, lines: int) -> list[Row]:
    """Values the workload reported."""
    items: list[Row] = []
    for name, value in sorted(run.metrics.items(), key=lambda item: _is_static(item[0])):
        label, text = metric_text(name, value)
        items.append(((f"{label} ", "label"), (text, "value")))
    return [((" ", "text"), *row) for row in flow(items, width - 1, lines)]


def problems(run: Run, width: int, remark: str = "", most: int | None = None) -> list[Row]:
    """What the person must know to trust the figures: losses, and what is not captured; `remark` is
    a problem of the recording. Of more than `most` rows the last one shown ends in an ellipsis.
    """
    rows: list[Row] = wrap(f"! {remark}", width, "warn") if remark else []
    if run.ended is not None and run.outcome == "failed":
        rows += wrap(f"! {run.ended.reason}", width, "hot")
    dropped = lost_count(run)
    if dropped:
        why = f" ({reason})" if (reason := why_lost(run)) else ""
        text = f"! {quantity(dropped)} records were dropped{why}: figures are too low"
        rows += wrap(text, width, "warn")
    for each in remarks(run):
        rows += wrap(f"! {each.line}", width, "warn")
    if tracing := tracing_line(run, shares_error_points(run)):
        cost = tracing_cost(run)
        over = cost is not None and cost.is_over
        rows += wrap(f"! {tracing}" if over else tracing, width, "warn" if over else "dim")
    if most is None or len(rows) <= most:
        return rows
    # A cut of what must be known of a run is marked.
    return [*rows[: most - 1], clip((*rows[most - 1], (" …", "dim")), width)]
