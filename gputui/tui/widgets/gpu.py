"""One GPU as rows: a card with charts, and one line of a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gputui.model.events import GpuSample
from gputui.model.units import MISSING, celsius, percent, size, watts
from gputui.report.schema import Column
from gputui.state import Gpu, Run
from gputui.tui.widgets.canvas import Row, flow, heading, wrap
from gputui.tui.widgets.chart import Look, spark
from gputui.tui.widgets.gpu_charts import chart_grid, charts, time_axis
from gputui.tui.widgets.gpu_details import instance_rows
from gputui.tui.widgets.gpu_figures import (
    busy,
    clock,
    figures,
    health,
    memory_role,
    memory_text,
    temperature,
    throttling,
    trouble,
)
from gputui.tui.widgets.run import MARK, has_alert
from gputui.tui.widgets.table import column

CARD_HEIGHT = 9
"""Fewer lines than these cannot hold a card with charts."""

CARD_WIDTH = 56

_LEAST_CHARTS = 4

if TYPE_CHECKING:
    from gputui.tui.model import Model


def card_rows(
    gpu: Gpu,
    width: int,
    height: int,
    interval_s: float,
    now_ns: int,
    look: Look,
    *,
    chosen: bool = False,
    alerted: bool = False,
    run: Run | None = None,
) -> list[Row]:
    """A card in exactly `width` × `height`; `chosen` marks the one that Enter opens, `alerted`
    one with an alert; of `run` it is said what held the clocks down once it has ended."""
    facts = gpu.facts
    about = [size(facts.memory_total_bytes) if facts.memory_total_bytes else ""]
    about.append(f"{facts.sm_count} SMs" if facts.sm_count else "")
    about.append(f"L2 {size(facts.l2_cache_bytes)}" if facts.l2_cache_bytes else "")
    about.append(f"compute {facts.compute_capability}" if facts.compute_capability else "")
    note = " · ".join(part for part in about if part)
    marks = f"{'› ' * chosen}{f'{MARK} ' * alerted}"
    rows = [heading(f"{marks}GPU {facts.index}  {facts.name}", width, note)]
    problem = trouble(gpu, now_ns, interval_s)
    if problem:
        rows += wrap(f"! {problem}", width, "hot")[:2]
    rows += flow(figures(gpu, run), width, 1 if height < 14 else 2 if height < 26 else 3)
    instances = instance_rows(gpu, width)
    room = height - len(rows) - _LEAST_CHARTS
    if instances and room >= 2:
        rows += instances[:room]
    rows += chart_grid(charts(gpu), width, height - len(rows), interval_s, look)
    return (rows + [()] * height)[:height]


def list_columns(model: Model, spark_width: int, look: Look) -> list[Column[Gpu]]:
    """One GPU a line: the compact list."""
    session, interval_s = model.session, model.interval_s
    now_ns = session.now_ns

    def trend(gpu: Gpu) -> str:
        active = gpu.sample is not None and gpu.sample.sm_active_percent is not None
        shown = gpu.samples.track("sm_active_percent" if active else "utilization_percent")
        axis = time_axis(shown, spark_width, interval_s, look)
        return spark(axis.columns(shown.samples(axis.column_ns), spark_width), 100.0)

    def of(figure: Callable[[GpuSample], str]) -> Callable[[Gpu], str]:
        return lambda gpu: figure(gpu.sample) if gpu.sample else MISSING

    def state(gpu: Gpu) -> tuple[str, str]:
        problem = trouble(gpu, now_ns, interval_s)
        if problem:
            return f"! {problem}", "hot"
        if has_alert(session, gpu):
            return f"{MARK} alert", "hot"
        for label, text, role in health(gpu):
            return f"{label} {text}", role
        text, role = throttling(gpu)
        return text.removeprefix("THROTTLED: "), role

    return [
        column("GPU", lambda gpu: str(gpu.facts.index), 0),
        column("name", lambda gpu: gpu.facts.name, 6, flexible=True, right=False, width=8),
        column("busy", lambda gpu: percent(busy(gpu.sample)), 0, width=5),
        column("busy over time", trend, 5, right=False, width=spark_width, role="utilization"),
        column("memory", of(memory_text), 1, role=lambda gpu: memory_role(gpu.sample)),
        column("bandwidth", of(lambda s: percent(s.memory_bandwidth_percent)), 4),
        column("tensor", of(lambda s: percent(s.tensor_active_percent)), 7),
        column("power", of(lambda s: watts(s.power_watts)), 3, width=5),
        column(
            "temp",
            of(lambda s: celsius(s.temperature_celsius)),
            2,
            role=lambda gpu: temperature(gpu)[1],
        ),
        column("SM clock", of(lambda s: clock(s.sm_clock_mhz, None)), 8),
        column(
            "state",
            lambda gpu: state(gpu)[0],
            1,
            flexible=True,
            right=False,
            width=10,
            role=lambda gpu: state(gpu)[1],
        ),
    ]
