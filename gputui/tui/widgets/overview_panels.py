"""The panels of the overview, as many as there is room for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gputui.report.energy import RunEnergy
from gputui.report.explain import Finding, Verdict
from gputui.report.explain.time_tree import TimeTree
from gputui.report.phases import PhaseRow
from gputui.report.statistics import TableRow
from gputui.state import Run
from gputui.tui.model import Model
from gputui.tui.source import ManyHosts
from gputui.tui.widgets import run_panels as short
from gputui.tui.widgets.gpu_panel import gpu_panels
from gputui.tui.widgets.last_runs import LastRuns
from gputui.tui.widgets.panels import Layout, Panel, columns_of
from gputui.tui.widgets.run_panels import Chosen
from gputui.tui.widgets.step_lanes import newest_step

TWO_COLUMNS, THREE_COLUMNS = 100, 160
_NARROW_PHASES = 4


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
    widths = columns_of(width, columns)
    stepped = tree is not None and tree.has_steps and bool(short.step_points(tree)[0])
    first: list[Panel] = []
    second: list[Panel] = []
    low = 8 if columns > 1 else 2
    wide = widths[0]
    if columns == 1:
        _stack(layout, model, run, read, left, chosen)
        return
    if stepped and tree is not None:
        first.append(short.steps(tree, wide, low))
        if columns == 3 and tree.step_ns.values:
            first.append(short.distribution(tree.step_ns, wide, low))
    first += gpu_panels(model, run, read.energy, wide, low + 1, is_narrow=False)
    if tree is not None:
        rows = max(4, left - low - 3)
        second.append(short.causes(tree, wide, min(rows, 14), chosen))
    if read.steps:
        found = short.phases(read.steps, wide, 12, chosen, run.is_active)
        second.append(found)
    third: list[Panel] = []
    if read.kernels:
        most = max(len(panel.rows) for panel in second) if columns == 3 and second else left
        third.append(short.kernels(read.kernels, wide, most, chosen))
    spread = tree.step_ns.values if stepped and tree is not None else None
    if columns == 2 and spread and tree is not None and not read.steps:
        third.append(short.distribution(tree.step_ns, wide, low + 1))
    if run.log_lines:
        third.append(short.output(run, wide, max(4, left - low - 18)))
    if columns == 3 and not isinstance(model.source, ManyHosts):
        panel = last_runs().panel(run, wide, 6, chosen)
        third += [panel] if panel is not None else []
    everything = [*first, *second, *third]
    bands = [everything[at : at + columns] for at in range(0, len(everything), columns)]
    if columns == 3 and len(bands) > 2 and (lanes := newest_step(run, width)) is not None:
        bands.insert(2, [lanes])
    for number, band in enumerate(bands):
        room = height - len(layout.rows) - (1 if number else 0)
        if room < 4:
            break
        most = max(len(panel.rows) for panel in band) + 1
        size = min(most, room if number == len(bands) - 1 else max(4, min(most, room - 4)))
        if number:
            layout.add([()])
        layout.band(band, columns_of(width, len(band)) if len(band) < columns else widths,
                    size)  # fmt: skip


def _stack(
    layout: Layout, model: Model, run: Run, read: Read, left: int, chosen: Chosen | None
) -> None:
    """One column: causes, steps, the GPU, phases, output."""
    tree = read.tree
    width = layout.width
    panels: list[tuple[Panel, int]] = []
    if tree is not None:
        most = max(3, min(8, left - 9))
        panels.append((short.causes(tree, width, most, chosen), most + 1))
        if tree.has_steps and short.step_points(tree)[0]:
            panels.append((short.steps(tree, width, 1), 2))
    panels += [
        (panel, 4) for panel in gpu_panels(model, run, read.energy, width, 4, is_narrow=True)
    ]
    if read.steps:
        most = _NARROW_PHASES if tree is not None else 8
        found = short.phases(read.steps, width, most, chosen, run.is_active)
        panels.append((found, most + 1))
    if tree is None and read.kernels:
        panels.append((short.kernels(read.kernels, width, 5, chosen), 6))
    if run.log_lines:
        panels.append((short.output(run, width, 8), 8))
    for panel, most in panels:
        size = min(most, len(panel.rows) + 1, left)
        if size < 2:
            break
        layout.band([panel], [width], size)
        left -= size
