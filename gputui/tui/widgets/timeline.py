"""The last step as lanes: the CPU's nested ranges, and below them the GPU's work."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace
from rich.cells import cell_len

from gputui.model.events import StepSpan, StepTimeline
from gputui.model.naming import is_library_domain
from gputui.model.payloads import payload_text
from gputui.model.units import count, duration
from gputui.report.schema import Column
from gputui.report.tables.phases import NVTX_MARKS, MarkRow, newest_marks
from gputui.state import Run
from gputui.tui.widgets.canvas import Row, Span, clip, fit, flow, heading
from gputui.tui.widgets.chart import block_rows
from gputui.tui.widgets.table import column, declared

# NVTX marks: as a table, as a line of the newest, and in their places in a step.


TOP_MARKS = 20

_MOST_NEWEST = 6
"""Names a line; they are cut at _LONGEST where all have not room for more."""

_LONGEST = 40
_LEAST_MARK = 5
"""Cells that a part of a name takes at least."""


def mark_columns(rows: Sequence[MarkRow]) -> list[Column[MarkRow]]:
    """The columns of a table of these marks; those in which nothing would stand are left out."""
    names = declared(NVTX_MARKS, "name", "domain", "category", "payload")
    whose: Column[MarkRow] = column(
        "rank", lambda row: str(row.pid if row.rank is None else row.rank), 4, width=4
    )
    columns = [*names, whose, *declared(NVTX_MARKS, "count", "first_ns", "last_ns")]
    empty = {
        title
        for title, is_there in (
            ("domain", any(row.domain for row in rows)),
            ("category", any(row.category for row in rows)),
            ("payload", any(row.payload for row in rows)),
        )
        if not is_there
    }
    return [column for column in columns if column.heading not in empty]


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


def step_marks(step: StepTimeline, run: Run, columns: int, *, libraries: bool) -> str:
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


_LABEL = 5
_FIGURE = 8
_LEAST_NAME = 6
"""Cells from which a span is drawn as a block of its own, with its name."""
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
    window: tuple[float, float] = (0.0, 1.0),
) -> list[Row]:
    """The step, or the part of it in `window`, in at most `width` × `height`: a title, lanes, its
    marks, a time axis."""
    node = run.ranges.get(step.range)
    if node is None or step.duration_ns <= 0 or height < LEAST_HEIGHT:
        return []
    columns = width - _LABEL - _FIGURE
    note = f"{step.spans_left_out} spans left out" if step.spans_left_out else ""
    whose = ""
    if len(run.processes) > 1 and step.process in run.processes:
        attached = run.processes[step.process].attached
        whose = f" of {attached.pid}" if attached.rank is None else f" of rank {attached.rank}"
    title = f"Last step: {node.path}{whose}  {duration(step.duration_ns)}"
    if window != (0.0, 1.0):
        low_ns, high_ns = (round(step.duration_ns * part) for part in window)
        title += f", {duration(low_ns)} to {duration(high_ns)}"
        step = _within(step, low_ns, max(high_ns, low_ns + 1))
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
        rows.append(_busy_lane(gpu, step, columns))
    if marks:
        rows.append((("MARK".ljust(_LABEL), "label"), (marks, "text")))
    rows.append(((" " * _LABEL, "dim"), (_axis(step.duration_ns, columns), "dim")))
    return rows


def _within(step: StepTimeline, low_ns: int, high_ns: int) -> StepTimeline:
    """The part of a step between two moments of it, as a step."""
    spans = []
    for span in step.spans:
        first = max(span.start_ns, low_ns)
        last = min(span.start_ns + span.duration_ns, high_ns)
        if last > first:
            inside = last - first
            busy = span.busy_ns
            if busy is not None:
                busy = busy * inside // max(1, span.duration_ns)
            spans.append(StepSpan(span.lane, span.range, first - low_ns, inside, busy))
    return replace(
        step, start_ns=step.start_ns + low_ns, duration_ns=high_ns - low_ns, spans=tuple(spans)
    )


def _busy_lane(spans: Sequence[StepSpan], step: StepTimeline, columns: int) -> Row:
    """How much of each column something ran: the ink is the figure at the right."""
    each = step.duration_ns / columns
    busy = [0.0] * columns
    known = all(span.busy_ns is not None for span in spans)
    for span in spans:
        ran = (span.duration_ns if span.busy_ns is None else span.busy_ns) / max(
            1, span.duration_ns
        )
        end_ns = span.start_ns + span.duration_ns
        for at in range(int(span.start_ns / each), min(columns, int(end_ns / each) + 1)):
            if at >= 0:
                inside = min(end_ns, (at + 1) * each) - max(span.start_ns, at * each)
                busy[at] += max(0.0, inside) * ran / each
    [line] = block_rows([min(1.0, part) for part in busy], 1.0, 1)
    share = 100 * sum(min(1.0, part) for part in busy) / columns
    figure = f"{share:.1f} %" if known else f"≤ {share:.0f} %"
    return (
        ("GPU".ljust(_LABEL), "label"),
        (line, "cause-matmul"),
        (f"{figure:>{_FIGURE}}", "value"),
    )


def _lane(
    label: str,
    spans: Sequence[StepSpan],
    step: StepTimeline,
    run: Run,
    colors: dict[str, int],
    columns: int,
) -> Row:
    """Spans as named blocks. Those too narrow for a name are one block with their neighbours, which
    names what took most of it."""
    scale = columns / step.duration_ns
    blocks: list[list[StepSpan]] = []
    narrow = False
    for span in sorted(spans, key=lambda span: span.start_ns):
        is_narrow = span.duration_ns * scale < _LEAST_NAME
        if is_narrow and narrow:
            blocks[-1].append(span)
        else:
            blocks.append([span])
        narrow = is_narrow
    result: list[Span] = [(label.ljust(_LABEL), "label")]
    at = 0
    for block in blocks:
        last = block[-1]
        first = max(at, min(columns, round(block[0].start_ns * scale)))
        end = max(first, min(columns, round((last.start_ns + last.duration_ns) * scale)))
        if first > at:
            result.append((" " * (first - at), "text"))
        if end > first:
            took: dict[str, int] = {}
            for span in block:
                name = run.ranges[span.range].definition.name
                took[name] = took.get(name, 0) + span.duration_ns
            names = sorted(took, key=lambda name: -took[name])
            text = names[0] if len(block) == 1 else f"{len(block)} × {', '.join(names)}"
            result.append((_block(text, end - first), f"block-{colors.get(names[0], 1)}"))
        at = max(at, end)
    return (*result, (" " * (columns - at), "text"))


def _block(name: str, width: int) -> str:
    return f"▏{fit(name, width - 1)}" if width > 1 else "▏"


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
