"""The run's own lines: what it is, its progress, what it reports."""

from __future__ import annotations

from rich.cells import cell_len

from gputui.model.units import duration, quantity
from gputui.report.losses import lost_count, why_lost
from gputui.report.workload_metrics import metric_text
from gputui.state import Run, remarks
from gputui.tui.widgets.canvas import Row, bar, clip, flow, wrap


def state(run: Run, *, lost_end: bool = False) -> tuple[str, str]:
    """The run's state, and its role. `lost_end` if no more is to come."""
    if run.ended is None and lost_end:
        return f"■ no end was recorded after {duration(run.duration_ns)}", "warn"
    took = duration(run.duration_ns)
    match run.outcome:
        case "running":
            return f"▶ running {took}", "accent"
        case "stopped":
            return f"■ stopped after {took}", "warn"
        case "done":
            return f"✓ done in {took}", "good"
        case "ended":
            return f"■ ended after {took}", "text"
        case "failed":
            return f"✗ FAILED after {took}", "hot"


def eta_ns(run: Run) -> float | None:
    """Time left of the stage at its mean speed so far; None while unknown."""
    progress = run.progress
    if run.ended is not None or progress is None or not progress.total or progress.done <= 0:
        return None
    elapsed = run.updated_ns - run.stage_started_ns
    left = max(0.0, progress.total - progress.done)
    return elapsed * left / progress.done if elapsed > 0 else None


def title_row(run: Run, width: int, *, lost_end: bool = False) -> Row:
    text, role = state(run, lost_end=lost_end)
    given = "  ".join(f"{name}={value}" for name, value in run.started.parameters.items())
    if run.started.kind == "command":
        given = " ".join(run.started.arguments)
    row: Row = ((f"{run.started.name}  ", "title"), (text, role))
    if given:
        row = (*row, (f"   {given}", "dim"))
    return clip(row, width)


def progress_row(run: Run, width: int, *, lost_end: bool = False) -> Row:
    """Stage, bar, progress, and the estimated time left. Empty if nothing is reported."""
    progress = run.progress
    if progress is None:
        waits = run.is_active and not lost_end
        return (("no progress reported", "dim"),) if waits else ()
    done = f"{progress.done:.0f}" if progress.done == int(progress.done) else f"{progress.done:.1f}"
    unit = f" {progress.unit}" if progress.unit else ""
    if not progress.total:
        return clip(
            (("stage ", "label"), (progress.stage, "value"), (f"  {done}{unit}", "text")), width
        )
    fraction = min(1.0, progress.done / progress.total)
    left = None if lost_end else eta_ns(run)
    ending = f"{int(100 * fraction):>3} %  {done} of {progress.total:.0f}{unit}"
    if left is not None and fraction < 1:
        ending += f"  about {duration(left)} left"
    stage = f"{progress.stage}  "
    room = width - cell_len(stage) - cell_len(ending) - 4
    if room < 4:
        return clip(((stage, "label"), (ending, "value")), width)
    meter = bar(fraction, min(room, 50))
    return ((stage, "label"), ("▕", "dim"), (meter, "accent"), ("▏ ", "dim"), (ending, "value"))


def _is_static(name: str) -> bool:
    """Whether a metric describes the run rather than its speed: those come last."""
    return not any(word in name for word in ("per_s", "ttft", "tpot", "itl", "loss", "latency"))


def metric_rows(run: Run, width: int, lines: int) -> list[Row]:
    """Values the workload reported."""
    items: list[Row] = []
    for name, value in sorted(run.metrics.items(), key=lambda item: _is_static(item[0])):
        label, text = metric_text(name, value)
        items.append(((f"{label} ", "label"), (text, "value")))
    return flow(items, width, lines)


def problems(run: Run, width: int, remark: str = "") -> list[Row]:
    """What the person must know to trust the figures: losses, and what is not captured; `remark` is
    a problem of the recording.
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
    return rows
