"""The GPU of a run in the overview: its figures, each with its last minute, and its energy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.cells import cell_len

from gputui.model.units import MISSING, joules, percent, watts
from gputui.report.tables.energy import RunEnergy, used_span
from gputui.state import Gpu, Run
from gputui.tui.model import Model, Tables
from gputui.tui.widgets.canvas import Row
from gputui.tui.widgets.chart import Chart, TimeAxis, spark
from gputui.tui.widgets.gpu_charts import charts
from gputui.tui.widgets.gpu_figures import temperature, throttled_in, throttling
from gputui.tui.widgets.run_panels import Panel

_SPARK_S = 60
_WITH_LONG_NAMES = 50
_SCALE = 11
"""Cells of " to 50 GiB"."""

_LOW = 4
"""Rows up to which the energy is in the heading."""


def gpu_panel(
    model: Model, tables: Tables, energy: Sequence[RunEnergy], height: int, width: int,
    is_narrow: bool = False,
) -> Panel:  # fmt: skip
    """The GPU that the run uses most; the first one where that is unknown."""
    gpus, run = model.session.gpus, tables.run
    of = "whole run" if tables.session is model.session else "scope"
    devices = model.analysis(run, tables.session).devices
    used = max(devices, key=lambda index: devices[index].busy_ns, default=None)
    gpu = gpus.get(used) if used is not None else None
    gpu = gpu or next(iter(gpus.values()))
    own = next((one for one in energy if one.gpu == gpu.facts.index), None)
    if is_narrow:  # one column: the 100 % bar is just above
        return _panel(gpu, run, of, own, None, width, height, model.interval_s, pairs=True,
                      own_scale=model.own_scale)  # fmt: skip
    busy = None
    for (_, device), tree in model.analysis(model.scoped or run).device_trees.items():
        if device == gpu.facts.index and tree.wall_ns:
            busy = 100 * (1 - tree.share(tree.idle_ns))
    return _panel(gpu, run, of, own, busy, width, height, model.interval_s, pairs=width >= 90,
                  own_scale=model.own_scale)  # fmt: skip


def _energy_words(energy: RunEnergy | None, of: str) -> list[str]:
    """What a token or a step takes, what all took."""
    if energy is None:
        return []
    words = [f"{of} {joules(energy.joules)}"]
    if energy.watts is not None:
        words[0] += f", {watts(energy.watts)}"
    if energy.token_joules is not None:
        return [f"{joules(energy.token_joules)}/token", *words]
    if energy.step_joules is not None:
        return [f"{joules(energy.step_joules)}/step", *words]
    return words


def _panel(
    gpu: Gpu, run: Run, of: str, energy: RunEnergy | None, busy: float | None, width: int,
    height: int, interval_s: float, *, pairs: bool, own_scale: bool,
) -> Panel:  # fmt: skip
    """A GPU's figures, each with its last minute. After the run, and of a
    scope that was read again, they are means of the time in which it used the GPU: what an idle
    one reads says nothing of it."""
    sample = gpu.sample
    facts = [f"{sample.sm_clock_mhz} MHz"] if sample and sample.sm_clock_mhz else []
    state, role = throttling(gpu)
    facts += [temperature(gpu)[0].partition(" (")[0]]
    if role == "hot":
        facts = [state, *facts]
    elif state != MISSING:
        facts.append("not throttled" if role == "good" else state)
    # Of a run that has ended, too, as the summary has it.
    slowed = [f"throttled: {why}" for why in throttled_in(run, gpu.facts.index)[:1]]
    rows: list[Row] = []
    if busy is not None:
        beside = ("  of the scope", "dim") if not slowed else (f"  {slowed[0]}", "warn")
        row: Row = ((f" {'GPU busy':<14}", "label"), (f"{percent(busy):>9}", "value"), beside)
        rows.append(row)
    found = [chart for chart in charts(gpu) if not chart.reason]
    half = (width - 2) // 2 if pairs else width
    cells = [
        spark_row(chart, _mean_in(run, gpu, chart), half, interval_s, own_scale=own_scale)
        for chart in found
    ]
    if half < width:
        cells = [(*left, ("  ", "text"), *right) for left, right in pairwise([*cells, ()])][::2]
    rows += cells
    if not run.is_active:
        facts = ["means in use" if of == "whole run" else "means of the scope"]
        facts += slowed if busy is None else []
    title = f"GPU {gpu.facts.index}  {gpu.facts.name}"
    rows = rows[: height - 1]
    words = _energy_words(energy, of)
    if words and height > _LOW:
        rows = [*rows[: height - 2], ((f" {'Energy':<16}", "label"), (" · ".join(words), "value"))]
    elif words:
        facts = [words[0], *facts]
    # As much of clock and temperature as fits: six figures take three lines at 80 columns.
    while facts and cell_len(" · ".join(facts)) + cell_len(title) + 8 > width:
        facts.pop()
    return Panel(title, rows, " · ".join(facts), view="devices")


def _mean_in(run: Run, gpu: Gpu, chart: Chart) -> float | None:
    """Of a run that has ended."""
    index = gpu.facts.index
    if run.is_active:
        return None
    series = run.readings.series(index, chart.series.field)
    return None if series is None else series.mean(used_span(run.devices.get(index)))


def spark_row(
    chart: Chart, mean: float | None, width: int, interval_s: float, *, own_scale: bool
) -> Row:
    """A figure, the newest one or a mean, and its last minute."""
    name, text = chart.titles[min(1, len(chart.titles) - 1)]
    text = text.partition("  ")[0].partition(" of ")[0]
    text = text if mean is None else chart.format(mean)
    label, figure = 16, 9
    if width < _WITH_LONG_NAMES:
        name, label, figure = chart.titles[-1][0], 12, 8
    room = max(0, min(_SPARK_S, width - label - figure - _SCALE - 2))
    last_ns, interval_ns = chart.series.last_ns, int(interval_s * 1e9)
    axis = TimeAxis((last_ns // interval_ns + 1) * interval_ns, interval_ns, interval_ns)
    values = axis.columns(chart.series.samples(interval_ns), room) if room else []
    top = chart.top(values, own_scale=own_scale)
    line = spark(values, top) if top else ""
    scale = f" to {chart.format(top)}".replace(".00 ", " ").replace(".0 ", " ") if top else ""
    return (
        (f" {name[:label]:<{label}}", "label"),
        (f"{text:>{figure}} ", "value"),
        (f"{line:<{room}}", chart.role),
        (f"{scale:<{_SCALE}}", "dim"),
    )
