"""The panels of the overview of a run without work on a GPU: its steps on the CPU, and the host."""

from __future__ import annotations

from dataclasses import replace

from gputui.model.units import duration
from gputui.report.phases import PhaseRow
from gputui.tui.model import Model
from gputui.tui.widgets.distribution import distribution
from gputui.tui.widgets.gpu import spark_row
from gputui.tui.widgets.gpu_charts import host_charts
from gputui.tui.widgets.run_panels import Panel


def step_times(step: PhaseRow, height: int, width: int) -> Panel:
    """How long the program's steps took, by the clock of the CPU."""
    panel = distribution(step.cpu, height, width)
    median, p99 = duration(step.cpu.median), duration(step.cpu.percentile(99))
    title = f"{step.name}  median {median}, p99 {p99}"
    return replace(panel, title=title, view="phases")


def host(model: Model, width: int) -> Panel:
    """Its CPUs and memory, each with its last minute."""
    session = model.session
    rows = [
        spark_row(chart, None, width, model.interval_s, own_scale=model.own_scale)
        for chart in host_charts(session)
    ]
    facts = session.header.host if session.header is not None else None
    name, note = (facts.hostname, f"{facts.cpu_count} CPUs") if facts is not None else ("", "")
    return Panel(f"Host  {name}", rows, note, view="devices")
