"""The panels of the overview, as many as there is room for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gputui.report.explain import Finding, Verdict
from gputui.report.explain.time_tree import TimeTree
from gputui.report.phases import PhaseRow
from gputui.report.statistics import TableRow
from gputui.report.tables.energy import RunEnergy
from gputui.state import Run
from gputui.tui.model import Model, Tables
from gputui.tui.source import ManyHosts
from gputui.tui.widgets import cpu_panels as cpu
from gputui.tui.widgets import run_panels as short
from gputui.tui.widgets.distribution import distribution
from gputui.tui.widgets.gpu_panel import gpu_panel
from gputui.tui.widgets.last_runs import LastRuns
from gputui.tui.widgets.panels import Layout, Panel, columns_of
from gputui.tui.widgets.run_panels import Chosen
from gputui.tui.widgets.step_lanes import newest_step

Make = Callable[[int], Panel]
"""Makes a panel of this width."""

FEW = 4
"""Points of which a chart over time would say nothing."""

TWO_COLUMNS, THREE_COLUMNS = 100, 160
_NARROW_PHASES = 4
_FEWEST_ROWS = 4
"""A table of phases with fewer says less than a row of them."""


@dataclass(frozen=True, slots=True)
class Read:
    """What the panels show, at one state of the run."""

    revision: int
    found: Verdict | None
    tree: TimeTree | None
    others: tuple[Finding, ...]
    """What does not lead."""
    steps: tuple[PhaseRow, ...]
    """The phases of a step, or the outermost ones."""
    kernels: tuple[TableRow, ...]
    energy: tuple[RunEnergy, ...]
    meaning: str
    """What a step is, where that must be said."""
    tables: Tables
    """Where phases and kernels are from."""
    main: PhaseRow | None
    """The step that the program's own ranges name."""


def fill(
    layout: Layout, model: Model, run: Run, read: Read, height: int, chosen: Chosen | None,
    last_runs: Callable[[], LastRuns],
) -> None:  # fmt: skip
    """As many as there is room for, the most telling first."""
    left = height - len(layout.rows)
    width = layout.width
    if left < 3:
        return
    tree = read.tree
    columns = 3 if width >= THREE_COLUMNS else 2 if width >= TWO_COLUMNS else 1
    if columns == 1:
        _stack(layout, model, run, read, left, chosen)
        return
    low = 8
    points = short.step_points(tree)[0] if tree is not None and tree.has_steps else []
    first: list[Make] = []
    second: list[Make] = []
    third: list[Make] = []
    # Of a stretch of steps there is no distribution.
    if tree is not None and (len(points) >= FEW or (points and not tree.step_ns.values)):
        first.append(partial(short.steps, tree, low))
    if tree is not None and tree.step_ns.values and (columns == 3 or 0 < len(points) < FEW):
        first.append(partial(distribution, tree.step_ns, low))
    on_cpu = tree is None and not read.kernels
    if on_cpu and read.main is not None and read.main.cpu.values:
        first.append(partial(cpu.step_times, read.main, low))
    if model.session.gpus:
        first.append(partial(gpu_panel, model, read.tables, read.energy, low + 1))
    elif on_cpu and model.session.host is not None:
        first.append(partial(cpu.host, model))
    if tree is not None:
        second.append(partial(short.causes, tree, min(max(4, left - low - 3), 14), chosen))
    if read.steps:
        second.append(partial(short.phases, read.steps, 12, chosen, run.is_active))
    if read.kernels:
        most = 13 if columns == 3 and second else left
        third.append(partial(short.kernels, read.kernels, most, chosen))
    if columns == 2 and tree is not None and len(points) >= FEW and not read.steps:
        third.append(partial(distribution, tree.step_ns, low + 1))
    if run.log_lines:
        third.append(partial(short.output, run, max(4, left - low - (25 if on_cpu else 18))))
    if columns == 3 and not isinstance(model.source, ManyHosts):
        runs = last_runs()
        third += [partial(runs.panel, run, 6, chosen)] if runs.of(run) else []
    everything = [*first, *second, *third]
    bands = [everything[at : at + columns] for at in range(0, len(everything), columns)]
    if columns == 3 and len(bands) > 2 and run.step_lanes:
        bands.insert(2, [partial(newest_step, run.step_lanes[-1])])
    if on_cpu and (step := cpu.last_step(run, width)) is not None:
        bands.append([lambda _: step])
    for number, band in enumerate(bands):
        room = height - len(layout.rows) - (1 if number else 0)
        if room < 4:
            break
        widths = columns_of(width, len(band))
        panels = [make(each) for make, each in zip(band, widths, strict=True)]
        for panel in panels:
            _name_scope(panel, read.tables)
        most = max(len(panel.rows) for panel in panels) + 1
        size = min(most, room if number == len(bands) - 1 else max(4, min(most, room - 4)))
        if number:
            layout.add([()])
        layout.band(panels, widths, size)


def _stack(
    layout: Layout, model: Model, run: Run, read: Read, left: int, chosen: Chosen | None
) -> None:
    """One column: causes, steps, the GPU, phases, output."""
    tree = read.tree
    width = layout.width
    panels: list[tuple[Panel, int]] = []
    if tree is not None:
        most = max(3, min(8, left - 9))
        panels.append((short.causes(tree, most, chosen, width), most + 1))
        if tree.has_steps and len(short.step_points(tree)[0]) >= FEW:
            panels.append((short.steps(tree, 1, width), 2))
    if model.session.gpus:
        panels.append((gpu_panel(model, read.tables, read.energy, 4, width, is_narrow=True), 4))
    if read.steps:
        most = _NARROW_PHASES if tree is not None else 8
        found = short.phases(read.steps, most, chosen, run.is_active, width)
        panels.append((found, most + 1))
    if tree is None and read.kernels:
        panels.append((short.kernels(read.kernels, 5, chosen, width), 6))
    if run.log_lines:
        panels.append((short.output(run, 8, width), 8))
    for panel, most in panels:
        size = min(most, len(panel.rows) + 1, left)
        if size < 2:
            break
        if panel.view == "phases" and size < min(most, _FEWEST_ROWS):
            panel, size = short.phase_line(read.steps, width), 2
        _name_scope(panel, read.tables)
        layout.band([panel], [width], size)
        left -= size


def _name_scope(panel: Panel, tables: Tables) -> None:
    """Say in the title of what is added up over the run of which time it is."""
    if panel.view == "kernels" or (panel.view == "phases" and tables.of):
        panel.title += f", {tables.span}"
