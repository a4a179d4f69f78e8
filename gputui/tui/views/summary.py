"""Summary: the run's tables, as they stand or as they ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from textual import events

from gputui.model.units import count, duration, parameter, percent, quantity, size
from gputui.report.explain import Analysis, findings
from gputui.report.phases import PhaseRow, main_step, phase_rows, shares_error_points
from gputui.report.schema import Column
from gputui.report.statistics import (
    TableRow,
    api_rows,
    kernel_rows,
    memory_size_rows,
    memory_time_rows,
)
from gputui.report.tables import metric_text, own_tables
from gputui.report.tables.phases import PHASES, mark_rows
from gputui.report.tables.processes import PROCESSES, TracedRow, traced_rows
from gputui.report.windows import cost_of
from gputui.state import Run, Session
from gputui.tui.model import WHOLE, Model
from gputui.tui.widgets.canvas import Row, Span, flow, heading, paragraph, wrap
from gputui.tui.widgets.marks import TOP_MARKS, mark_columns
from gputui.tui.widgets.no_run import no_run, scope_rows
from gputui.tui.widgets.result import MOST_ROWS, result_rows
from gputui.tui.widgets.run import problems, state
from gputui.tui.widgets.table import Move, declared, moved, table_rows
from gputui.tui.widgets.table_view import (
    call_columns,
    kernel_columns,
    operation_columns,
    size_columns,
    time_rows,
)
from gputui.tui.widgets.tree import process_columns, scope_text, share_column
from gputui.tui.widgets.view import (
    SCROLL_LINES,
    View,
)

_TOP_KERNELS = 20
_TOP_CALLS = 15
_MOST_PHASES = 500
"""A page that is laid out anew every second; the view of phases and exports have all."""


class SummaryView(View):
    """Everything about the run, one table after another."""

    FILTERS = True
    OPENS = False

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.top = 0
        self._built: tuple[int, int, list[Row]] | None = None

    def rows(self, width: int, height: int) -> list[Row]:
        """The part of the summary that is in sight."""
        run = self.model.run
        if run is None:
            text = "A run's tables appear here, during the run and after it."
            return no_run(self.model, width, height, text)
        key = (self.model.revision, width)
        if self._built is None or self._built[:2] != key:
            self._built = (*key, self._tables(run, width - 2))
        everything = matching_lines(self._built[2], self.needle)
        if not everything:
            return [(("  no line matches the filter (Esc clears it)", "dim"),)]
        self.top = max(0, min(self.top, len(everything) - height + 1))
        if len(everything) <= height:
            return [((" ", "text"), *row) for row in everything]
        last = min(len(everything), self.top + height - 1)
        rows: list[Row] = [((" ", "text"), *row) for row in everything[self.top : last]]
        more = (
            f" lines {self.top + 1} to {last} of {len(everything)}: ↑ ↓ PgUp PgDn scroll, e exports"
        )
        return [*rows, ((more, "dim"),)]

    def _tables(self, run: Run, width: int) -> list[Row]:
        model = self.model
        rows = scope_rows(model, width, WHOLE)
        return rows + summary_rows(
            model.session, run, width, remark=model.remark, lost_end=model.lost_end
        )

    def move(self, move: Move) -> None:
        """Scroll."""
        if move in ("left", "right"):
            self.nothing_chosen("all tables are one list here: ↑ ↓ PgUp PgDn scroll")
        else:
            self.top = moved(self.top, move, max(1, self.size.height - 2))
            self.draw()

    def _roll(self, move: Move, event: events.MouseEvent) -> None:
        del event
        self.top = max(0, self.top + (SCROLL_LINES if move == "down" else -SCROLL_LINES))
        self.draw()


def matching_lines(rows: Sequence[Row], needle: str) -> list[Row]:
    """The lines with a text in them, in any case, under the headings they stand under."""
    if not needle:
        return list(rows)
    low = needle.lower()
    found: list[Row] = []
    above: list[Row] = []
    for row in rows:
        roles = {role for _, role in row}
        if "rule" in roles:
            above = [row]
        elif "head" in roles:
            above = [*above[:1], row]
        elif low in "".join(text for text, _ in row).lower():
            found += [*above, row]
            above = []
    return found


def summary_rows(
    session: Session, run: Run, width: int, *, remark: str = "", lost_end: bool = False
) -> list[Row]:
    """All tables of a run, `width` wide."""
    rows = [heading("Run" if run.ended or lost_end else "Run so far", width)]
    rows += _facts(session, run, width, state(run, lost_end=lost_end).cell)
    rows += [*problems(run, width, remark)]
    found = findings(Analysis(session, run))
    if found:
        rows += [(), heading("Findings", width)]
        for finding in found:
            rows += paragraph("• ", finding.sentence, width, of="text")
            rows += paragraph("  try: ", finding.advice, width, "dim", "dim")
    if steps := time_rows(session, run, width):
        rows += [(), *steps]
    if run.metrics:
        rows += [(), heading("Figures the workload reports", width)]
        rows += _pairs([metric_text(name, value) for name, value in run.metrics.items()], width)
    for table in own_tables(run):
        if table.rows and table.columns:
            total = len(table.rows)
            note = f"first {MOST_ROWS} of {total}" if total > MOST_ROWS else ""
            rows += [(), heading(table.title, width, note), *result_rows(table, width)]
    phases = phase_rows(run)
    if phases:
        on_gpu = any(device.busy_ns for device in run.devices.values())
        shown = phases[:_MOST_PHASES]
        cut = len(phases) > len(shown)
        note = scope_text(run, main_step(run, phases))
        note = f"first {len(shown)} of {len(phases)}  {note}" if cut else note
        rows += [(), heading("Phases", width, note), *_phases(shown, width, on_gpu)]
    marks = mark_rows(run)
    if marks:
        note = f"top {TOP_MARKS} of {len(marks)}" if len(marks) > TOP_MARKS else ""
        rows += [(), heading("Marks", width, note)]
        rows += table_rows(mark_columns(marks[:TOP_MARKS]), marks[:TOP_MARKS], width)
    rows += _top("Kernels", kernel_columns(), kernel_rows(session, run), _TOP_KERNELS, width)
    rows += _top("CUDA calls", call_columns(), api_rows(run), _TOP_CALLS, width)
    operations = memory_time_rows(run)
    if operations:
        rows += [(), heading("Memory operations", width)]
        rows += table_rows(operation_columns(), operations, width)
        rows += [()]
        rows += table_rows(size_columns(), memory_size_rows(run), width)
    if run.devices:
        rows += [(), heading("Devices", width)]
        for index, device in sorted(run.devices.items()):
            gpu = session.gpus.get(index)
            name = gpu.facts.name if gpu else ""
            share = percent(100 * device.busy_ns / run.duration_ns) if run.duration_ns else "n/a"
            text = f"busy {duration(device.busy_ns)}, {share} of the run"
            parts: list[Row] = [
                ((f"GPU {index}  {name}", "label"),),
                ((text, "value"),),
                ((f"{count(device.operations)} operations", "dim"),),
            ]
            rows += flow(parts, width, len(parts), gap=2)
    traced = traced_rows(run)
    if traced:
        rows += [(), heading("Processes", width, "times since the run's start")]
        rows += table_rows(_process_columns(), traced, width)
    rows += [(), heading("Capture", width), *_capture(session, run, width)]
    return rows


def _top(
    title: str, columns: list[Column[TableRow]], found: list[TableRow], most: int, width: int
) -> list[Row]:
    """The first rows of a table; nothing where it has none."""
    if not found:
        return []
    note = f"top {most} of {len(found)}" if len(found) > most else ""
    return [(), heading(title, width, note), *table_rows(columns, found[:most], width)]


def _facts(session: Session, run: Run, width: int, became: Span) -> list[Row]:
    started = datetime.fromtimestamp(run.started.time_ns / 1e9).astimezone()
    rows: list[Row] = [(("state          ", "label"), became)]
    pairs = [
        ("name", run.started.name),
        ("started", started.strftime("%Y-%m-%d %H:%M:%S %z")),
        ("duration", duration(run.duration_ns)),
    ]
    header = session.header
    if header is not None:
        pairs.append(("host", header.host.hostname))
        for gpu in session.gpus.values():
            pairs.append((f"GPU {gpu.facts.index}", gpu.facts.name))
        if header.driver_version:
            pairs.append(("driver", header.driver_version))
    rows += _pairs(pairs, width)
    given = [f"{name}={parameter(value)}" for name, value in run.started.parameters.items()]
    if run.started.kind == "command":
        given = list(run.started.arguments)
    return rows + paragraph("parameters     ", "  ".join(given), width)


def _pairs(pairs: Sequence[tuple[str, str]], width: int) -> list[Row]:
    """Label and figure, in two columns where the width allows."""
    label = max([14, *(len(name) for name, _ in pairs)]) + 1
    figure = max([10, *(len(text) for _, text in pairs)])
    columns = max(1, min(3, (width + 3) // (label + figure + 3)))
    lines = -(-len(pairs) // columns)
    rows: list[Row] = []
    for line in range(lines):
        spans: list[tuple[str, str]] = []
        for place in range(columns):
            at = place * lines + line
            if at < len(pairs):
                name, text = pairs[at]
                if place:
                    spans.append((" " * 3, "text"))
                spans.append((name.ljust(label), "label"))
                spans.append((text.ljust(figure), "value"))
        rows.append(tuple(spans))
    return rows


def _phase_name(row: PhaseRow) -> str:
    """As in the view of phases: outermost ranges of a domain that has a name say it."""
    where = f" [{row.domain}]" if row.depth == 0 and row.domain else ""
    return "  " * row.depth + row.name + where


def _phases(phases: list[PhaseRow], width: int, on_gpu: bool) -> list[Row]:
    keys = ["instances", "cpu_total_ns", "cpu_exclusive_ns", "cpu_med_ns"]
    if on_gpu:
        keys += ["gpu_busy_ns", "gpu_projected_ns", "kernels", "launches", "memcpy_bytes"]
    name = msgspec.structs.replace(PHASES.column("name"), words=_phase_name)
    share = share_column({}, 8)
    columns = [name, share, *declared(PHASES, *keys, blank=("memcpy_bytes",))]
    columns[1:1] = process_columns(phases, lambda row: row)
    return table_rows(columns, phases, width)


def _process_columns() -> list[Column[TracedRow]]:
    keys = [one.key for one in PROCESSES.columns]
    return declared(PROCESSES, *keys, blank=("rank", "local_rank", "end_ns"))


def _capture(session: Session, run: Run, width: int) -> list[Row]:
    processes = list(run.processes.values())
    if not processes:
        reason = run.unseen_reason or "no process of the run was seen"
        return wrap(f"Nothing was captured: {reason}", width, "dim")
    cost = cost_of(session, run, shares_error_points(run))
    pairs = [
        ("processes", str(len(processes))),
        ("records", quantity(cost.records)),
        ("records a second", quantity(cost.records_per_s)),
        ("dropped", quantity(cost.dropped)),
        ("unattributed", quantity(cost.unattributed)),
        ("library's own code, of the run", percent(cost.library_percent)),
        ("with CUPTI, at most", percent(cost.slowdown_most_percent)),
        ("reader, of a core", percent(cost.reader_percent)),
        ("gputui, of a core", percent(cost.monitor_cpu_percent)),
    ]
    if cost.recorded_bytes is not None:
        pairs.append(("recorded", size(cost.recorded_bytes)))
    if cost.traced_bytes is not None:
        pairs.append(("traced", size(cost.traced_bytes)))
    rows = _pairs(pairs, width)
    for status in sorted({process.attached.cuda_status for process in processes}):
        rows += wrap(f"CUDA: {status}", width, "dim")
    return rows
