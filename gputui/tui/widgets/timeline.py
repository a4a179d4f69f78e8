"""The last step as lanes: the CPU's nested ranges, and below them the GPU's work."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from gputui.model.events import StepSpan, StepTimeline
from gputui.model.units import duration
from gputui.state import Run
from gputui.tui.widgets.canvas import Row, Span, fit, heading
from gputui.tui.widgets.marks import step_marks

_LABEL = 5
_MOST_LANES = 4
LEAST_HEIGHT = 5
"""A title, one or two CPU lanes, the GPU's, the axis."""


def timeline_rows(
    step: StepTimeline,
    run: Run,
    colors: dict[str, int],
    width: int,
    height: int,
    *,
    libraries: bool = False,
) -> list[Row]:
    """The step in at most `width` × `height`: a title, lanes, its marks, a time axis."""
    node = run.ranges.get(step.range)
    if node is None or step.duration_ns <= 0 or height < LEAST_HEIGHT:
        return []
    columns = width - _LABEL
    note = f"{step.spans_left_out} spans left out" if step.spans_left_out else ""
    whose = ""
    if len(run.processes) > 1 and step.process in run.processes:
        attached = run.processes[step.process].attached
        whose = f" of {attached.pid}" if attached.rank is None else f" of rank {attached.rank}"
    title = f"Last step: {node.path}{whose}  {duration(step.duration_ns)}"
    rows = [heading(title, width, note)]
    lanes: dict[int, list[StepSpan]] = {}
    gpu: list[StepSpan] = []
    for span in step.spans:
        inside = run.ranges.get(span.range)
        if inside is None:
            continue
        if span.lane == "gpu":
            gpu.append(span)
        else:
            lanes.setdefault(max(0, inside.depth - node.depth), []).append(span)
    depths = sorted(lanes)
    marks = step_marks(step, run, columns, libraries=libraries)
    room = min(_MOST_LANES, height - 2 - bool(gpu) - bool(marks))
    if len(depths) > room:  # the outermost lane is the step itself: the least informative
        depths = depths[-room:] if room < len(depths) - 1 else depths[1:]
    for number, depth in enumerate(depths):
        label = "CPU" if number == 0 else ""
        rows.append(_lane(label, lanes[depth], step, run, colors, columns))
    if gpu:
        rows.append(_lane("GPU", gpu, step, run, colors, columns))
    if marks:
        rows.append((("MARK".ljust(_LABEL), "label"), (marks, "text")))
    rows.append(((" " * _LABEL, "dim"), (_axis(step.duration_ns, columns), "dim")))
    return rows


def _lane(
    label: str,
    spans: Sequence[StepSpan],
    step: StepTimeline,
    run: Run,
    colors: dict[str, int],
    columns: int,
) -> Row:
    """Spans as coloured blocks. Those narrower than a column share it: the longest is visible."""
    owner = [-1] * columns
    weight = [0] * columns
    scale = columns / step.duration_ns
    for number, span in enumerate(spans):
        first = max(0, min(columns - 1, int(span.start_ns * scale)))
        last = int(max(first, min(columns - 1, (span.start_ns + span.duration_ns) * scale - 0.5)))
        for column in range(first, last + 1):
            if span.duration_ns > weight[column]:
                weight[column] = span.duration_ns
                owner[column] = number
    result: list[Span] = [(label.ljust(_LABEL), "label")]
    column = 0
    while column < columns:
        end = column
        while end < columns and owner[end] == owner[column]:
            end += 1
        if owner[column] < 0:
            result.append((" " * (end - column), "text"))
        else:
            name = run.ranges[spans[owner[column]].range].definition.name
            result.append((_block(name, end - column), f"block-{colors.get(name, 1)}"))
        column = end
    return tuple(result)


def _block(name: str, width: int) -> str:
    if width >= 5 or cell_len(name) < width:
        return f"▏{fit(name, width - 1)}"
    # Its first letters distinguish a narrow span from its neighbours even without colours.
    return set_cell_size(name, width)


def _axis(total_ns: int, columns: int) -> str:
    ticks = max(1, min(6, columns // 14))
    line = [" "] * columns
    for tick in range(ticks + 1):
        text = "0" if tick == 0 else duration(total_ns * tick / ticks)
        place = round(columns * tick / ticks)
        start = min(place, columns - len(text)) if tick == ticks else place
        if start >= 0 and start + len(text) <= columns:
            line[start : start + len(text)] = text
    return "".join(line)
