"""NVTX marks: as a line of the newest, and in their places in a step."""

from __future__ import annotations

from itertools import pairwise

from rich.cells import cell_len

from gputui.model.events import StepLanes, StepOperations, StepTimeline
from gputui.model.naming import is_library_domain
from gputui.model.payloads import payload_text
from gputui.model.units import count, duration
from gputui.report.tables.phases import newest_marks
from gputui.state import Run
from gputui.tui.widgets.canvas import Row, clip, fit, flow

_MOST_NEWEST = 6
"""Names a line; they are cut at _LONGEST where all have not room for more."""

_LONGEST = 40
_LEAST_MARK = 5
"""Cells that a part of a name takes at least."""


def newest_rows(run: Run, width: int, lines: int, *, libraries: bool) -> list[Row]:
    """The names that marks had last: how often each came, its payload, and when, since the run's
    start."""
    marks = newest_marks(run, _MOST_NEWEST * lines, library_domains=libraries)
    items: list[Row] = []
    longest = max(_LONGEST, (width - 8) * lines // max(1, len(marks)) - 2)
    for mark in marks:
        domain = f"{mark.domain}:" if mark.domain else ""
        parts = [
            (f"{domain}{mark.name}", "text"),
            (f" ×{count(mark.count)}", "value"),
            (f" at {duration(mark.last_ns)}", "dim"),
        ]
        if mark.payload:
            parts.insert(1, (f" {payload_text(mark.payload)}", "value"))
        items.append(clip(tuple(parts), longest))
    return flow([(("Marks", "label"),), *items], width, lines) if items else []


def step_marks(
    step: StepTimeline | StepLanes | StepOperations, run: Run, columns: int, *, libraries: bool
) -> str:
    """The kept marks of the step's process between its start and its end, each in its place and
    with its name where there is room; empty where there are none."""
    places: dict[int, str] = {}
    for mark in run.newest_marks:
        offset = mark.time_ns - step.start_ns
        if (
            mark.process == step.process
            and 0 <= offset <= step.duration_ns
            and (libraries or not is_library_domain(mark.domain))
        ):
            places[min(columns - 1, offset * columns // step.duration_ns)] = mark.name
    line = ""
    for place, end in pairwise([*sorted(places), columns]):
        room = end - place - 1
        name = places[place]
        is_told = room >= min(cell_len(name), _LEAST_MARK)
        line = f"{fit(line, place)}▾{fit(name, min(room, cell_len(name))) if is_told else ''}"
    return line
