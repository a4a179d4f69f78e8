"""One GPU as rows: a card with charts, and one line of a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from rich.cells import cell_len

from gputui.model.events import GpuSample, GpuStatus
from gputui.model.metrics import metrics_of
from gputui.model.units import (
    MISSING,
    celsius,
    duration,
    joules,
    percent,
    rate,
    size,
    times_by_reason,
    watt_hours,
    watts,
)
from gputui.report.explain.time_tree import TimeTree
from gputui.report.explain.verdict import with_pauses
from gputui.report.machine_now import (
    INSTANCES_NOW,
    busy_percent,
    health,
    memory_role,
    memory_text,
    mig_instances,
    temperature,
    throttled_in,
    throttling,
    trouble,
)
from gputui.report.schema import Column
from gputui.report.tables.energy import RunEnergy, used_span
from gputui.state import Gpu, Run
from gputui.tui.model import Model, Tables
from gputui.tui.widgets.canvas import Row, fact_rows, flow, heading, wrap
from gputui.tui.widgets.chart import Chart, Look, TimeAxis, spark
from gputui.tui.widgets.gpu_charts import chart_grid, charts, host_charts, time_axis
from gputui.tui.widgets.run import MARK, has_alert
from gputui.tui.widgets.run_panels import Panel
from gputui.tui.widgets.table import column, table_rows

# The GPU of a run in the overview: its figures, each with its last minute, and its energy.


_SPARK_S = 60
_WITH_LONG_NAMES = 50
_SCALE = 12
"""Cells of " to 79.6 GiB"."""

_LOW = 4
"""Rows up to which the energy is in the heading."""


def gpu_panel(
    model: Model, tables: Tables, energy: Sequence[RunEnergy], beside: TimeTree | None, height: int,
    width: int, is_narrow: bool = False,
) -> Panel:  # fmt: skip
    """The GPU that the run uses most; the first one where that is unknown. Its time is counted as
    in the tree `beside` it."""
    gpus, run = model.session.gpus, tables.run
    of = "whole run" if tables.session is model.session else "scope"
    devices = model.analysis(run, tables.session).devices
    used = max(devices, key=lambda index: devices[index].busy_ns, default=None)
    gpu = gpus.get(used) if used is not None else None
    gpu = gpu or next(iter(gpus.values()))
    own = next((one for one in energy if one.gpu == gpu.facts.index), None)
    if is_narrow:  # one column: the 100 % bar is just above
        return _panel(gpu, run, of, own, None, width, height, model.interval_s, pairs=True,
                      own_scale=model.own_scale, steps=beside)  # fmt: skip
    busy, of_time = None, "of the time"
    for (_, device), tree in model.analysis(model.scoped or run).device_trees.items():
        if device == gpu.facts.index and tree.wall_ns:
            shown = (with_pauses(tree) if beside and beside.with_pauses else None) or tree
            busy = 100 * (1 - shown.share(shown.idle_ns))
            of_time = "of each step" if shown.has_steps else "of the time"
            of_time = "of the time, pauses too" if shown.with_pauses else of_time
    return _panel(gpu, run, of, own, busy, width, height, model.interval_s, pairs=width >= 90,
                  own_scale=model.own_scale, of_time=of_time, steps=beside)  # fmt: skip


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
    height: int, interval_s: float, *, pairs: bool, own_scale: bool, of_time: str = "",
    steps: TimeTree | None = None,
) -> Panel:  # fmt: skip
    """A GPU's figures, each with its last minute. After the run, and of a
    scope that was read again, they are means of the time of its steady `steps`, as the share of the
    time beside them is, or where there are none of that in which it used the GPU."""
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
        beside = (f"  {of_time}", "dim") if not slowed else (f"  {slowed[0]}", "warn")
        row: Row = ((f" {'GPU busy':<16}", "label"), (f"{percent(busy):>9}", "value"), beside)
        rows.append(row)
    found = [chart for chart in charts(gpu) if not chart.reason]
    half = (width - 2) // 2 if pairs else width
    cells = [
        spark_row(chart, _mean_in(run, gpu, chart, steps), half, interval_s, own_scale=own_scale)
        for chart in found
    ]
    if half < width:
        cells = [(*left, ("  ", "text"), *right) for left, right in pairwise([*cells, ()])][::2]
    rows += cells
    if not run.is_active:
        of_steps = of != "whole run" or (steps is not None and steps.has_steps)
        facts = ["means of these steps" if of_steps else "means while in use"]
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


def _mean_in(run: Run, gpu: Gpu, chart: Chart, steps: TimeTree | None) -> float | None:
    """Of a run that has ended."""
    index = gpu.facts.index
    if run.is_active:
        return None
    series = run.readings.series(index, chart.series.field)
    if series is None:
        return None
    span = (steps.first_ns, steps.last_ns) if steps is not None and steps.has_steps else None
    in_steps = series.mean(span) if span is not None else None
    return in_steps if in_steps is not None else series.mean(used_span(run.devices.get(index)))


def means_in(run: Run, gpu: Gpu, steps: TimeTree | None) -> str:
    """The charted figures of a GPU in the steps of a run that has ended, or while it used it; ""
    where none is known."""
    means = ((chart, _mean_in(run, gpu, chart, steps)) for chart in charts(gpu))
    known = [f"{c.titles[-1][0]} {c.format(mean)}" for c, mean in means if mean is not None]
    when = "in its steps" if steps is not None and steps.has_steps else "in it"
    return f"{when} {', '.join(known)}" if known else ""


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


# Everything that is known of a GPU, in groups; what is not there says why.


_LABEL = 25


def detail_rows(gpu: Gpu, now_ns: int, interval_s: float) -> tuple[Row, ...]:
    """Every figure and fact of a GPU; what is not there says why."""
    from gputui.report.tables.machine import gpu_facts

    rows: list[Row] = []
    if problem := trouble(gpu, now_ns, interval_s):
        rows += [((f"! {problem}", "hot"),), ()]
    for title, facts in gpu_facts(gpu):
        rows.append(((title, "head"),))
        if title == "MIG instances":
            rows += instance_rows(gpu, 90)
        rows += [*fact_rows(facts, _LABEL), ()]
    if gpu.status is not None:
        age = duration(max(0, now_ns - gpu.status.time_ns) // 10**9 * 10**9)
        rows.append(((f"links, energy and health were read {age} ago", "dim"),))
    return tuple(rows)


def instance_rows(gpu: Gpu, width: int) -> list[Row]:
    """A line for each MIG instance, below a header; empty without any."""
    instances = mig_instances(gpu)
    return table_rows(INSTANCES_NOW.columns, instances, width) if instances else []


CARD_HEIGHT = 9
"""Fewer lines than these cannot hold a card with charts."""

CARD_WIDTH = 56

_LEAST_CHARTS = 4


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
        column("busy", lambda gpu: percent(busy_percent(gpu.sample)), 0, width=5),
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


def host_panel(model: Model, height: int, width: int) -> Panel:
    """The host: its CPUs and memory, each with its last minute."""
    session = model.session
    rows = [
        spark_row(chart, None, width, model.interval_s, own_scale=model.own_scale)
        for chart in host_charts(session)[:height]
    ]
    facts = session.header.host if session.header is not None else None
    name, note = (facts.hostname, f"{facts.cpu_count} CPUs") if facts is not None else ("", "")
    return Panel(f"Host  {name}", rows, note, view="devices")


# The figures on a card.


def figures(gpu: Gpu, run: Run | None = None) -> list[Row]:
    """The figures beside the charts, the most telling first; what is not there is left out."""
    sample, facts, status = gpu.sample, gpu.facts, gpu.status
    if sample is None:
        return [(("no reading yet", "dim"),)]
    result: list[Row] = []

    def add(label: str, value: str, role: str = "value") -> None:
        if value != MISSING:
            result.append(((f"{label} ", "label"), (value, role)))

    for label, text, role in health(gpu):
        add(label, text, role)
    state, state_role = throttling(gpu)
    add("throttling", state, state_role)
    add("throttled in the run", ", ".join(throttled_in(run, facts.index)) or MISSING, "warn")
    add("temperature", *temperature(gpu))
    if sample.sm_active_percent is not None:
        add("utilization", percent(sample.utilization_percent))
    add("SM clock", clock(sample.sm_clock_mhz, facts.max_sm_clock_mhz))
    add("PCIe", _both(sample.pcie_rx_bytes_per_s, sample.pcie_tx_bytes_per_s))
    add("NVLink", _both(sample.nvlink_rx_bytes_per_s, sample.nvlink_tx_bytes_per_s))
    if gpu.unavailable:
        result.append(((f"{len(gpu.unavailable)} figures n/a: Enter says why", "dim"),))
    add("memory clock", clock(sample.memory_clock_mhz, facts.max_memory_clock_mhz))
    add("reserved", size(sample.memory_reserved_bytes))
    add("state", MISSING if sample.performance_state is None else f"P{sample.performance_state}")
    add("memory temperature", celsius(sample.memory_temperature_celsius))
    if status is not None and status.throttle_seconds and any(status.throttle_seconds.values()):
        text = times_by_reason(status.throttle_seconds)
        add("throttled so far", text, "warn" if state_role == "hot" else "value")
    add("links", _links(status))
    if status is not None and status.energy_joules is not None:
        add("energy", watt_hours(status.energy_joules))
    add("fan", percent(status.fan_percent if status else None))
    for field, metric in metrics_of(GpuSample).items():
        if metric.card and (value := getattr(sample, field)):
            add(metric.card, metric.unit.show(value))
    return result


def _links(status: GpuStatus | None) -> str:
    if status is None or status.pcie_link_generation is None or status.pcie_link_width is None:
        return MISSING
    nvlinks = f", {status.nvlink_active_count} NVLinks" if status.nvlink_active_count else ""
    return f"PCIe {status.pcie_link_generation} ×{status.pcie_link_width}{nvlinks}"


def clock(value: int | None, maximum: int | None) -> str:
    """ "1410 of 1980 MHz"."""
    if value is None:
        return MISSING
    return f"{value} of {maximum} MHz" if maximum else f"{value} MHz"


def _both(received: float | None, sent: float | None) -> str:
    if received is None and sent is None:
        return MISSING
    # An idle link's kB/s only flicker: they are not shown.
    return f"in {_link_rate(received)} out {_link_rate(sent)}"


def _link_rate(bytes_per_s: float | None) -> str:
    """An idle link carries what asks for the readings, tens to hundreds of kB/s that change at each
    tick and say nothing."""
    if bytes_per_s is not None and 0 < bytes_per_s < 1e6:
        return "<1 MB/s"
    return rate(bytes_per_s)
