"""Memory: what each GPU holds and held, and what the run copied, set and allocated, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import msgspec

from gputui.base.sanitize import cut_middle
from gputui.model.events import GpuSample
from gputui.model.units import percent, size
from gputui.report.machine_now import memory_fraction, memory_role
from gputui.report.schema import Column, why_empty
from gputui.report.tables import is_memory_metric, metric_text
from gputui.report.tables.memory import (
    COPIES,
    PHASE_MEMORY,
    PhaseMemory,
    Transfer,
    among_few,
    held_by_phase,
    memory_held,
    phase_memory,
    transfers,
)
from gputui.state import Gpu, Run, Session
from gputui.tui.model import WHOLE
from gputui.tui.widgets.canvas import (
    Row,
    Span,
    bar,
    clip,
    flow,
    halved,
    heading,
    row_width,
    wrap,
)
from gputui.tui.widgets.chart import Chart, Look
from gputui.tui.widgets.gpu_charts import (
    ChartedView,
    chart_grid,
    chart_of,
    host_charts,
    host_items,
)
from gputui.tui.widgets.run import scope_rows
from gputui.tui.widgets.table import column, declared, details_of
from gputui.tui.widgets.tree import process_columns as whose_columns
from gputui.tui.widgets.view import NO_MATCH, Details, TableView

# The tables of the Memory view: columns, figures, and why one is empty.


_MOVED = (
    "to_device_bytes", "to_host_bytes", "on_device_bytes", "set_bytes", "pageable_bytes",
    "moving_ns", "allocations", "frees", "allocating_ns",
)  # fmt: skip


def phase_columns(
    most: Mapping[str, int], phases: Sequence[PhaseMemory]
) -> list[Column[PhaseMemory]]:
    """What phases moved and allocated. `most` is what a device held in outermost phases."""
    columns = declared(PHASE_MEMORY, "name")
    known = [row.phase for row in phases if row.phase is not None]
    columns += whose_columns(known, lambda row: row.phase)
    if most:
        columns.append(
            column(
                "GPU held",
                lambda row: "" if row.depth or not row.phase else _bytes(most.get(row.name, 0)),
                2,
                width=8,
            )
        )
    return columns + declared(PHASE_MEMORY, *_MOVED, blank=_MOVED)


def phase_details(row: PhaseMemory) -> tuple[Row, ...]:
    """Everything about one phase."""
    note = "With all that happened in phases inside it, of threads with a range of their own."
    figures = declared(PHASE_MEMORY, *_MOVED, "other_bytes")
    return (*details_of(figures, row), (), ((note, "dim"),))


TRANSFER_SORTS = ("bytes", "count", "time", "rate")


def transfer_columns() -> list[Column[Transfer]]:
    """Copies and memsets by kind of memory at both ends."""
    kinds = ("source_kind", "destination_kind")
    figures = ("total_bytes", "count", "avg_bytes", "max_bytes", "total_ns", "bytes_per_s")
    return declared(COPIES, "operation", *kinds, *figures, blank=kinds)


def transfer_details(row: Transfer) -> tuple[Row, ...]:
    """Everything about one kind of copy, and what its kind of memory means."""
    rows = details_of(transfer_columns()[1:], row)
    if row.is_pageable:
        text = "Pageable memory is copied through a buffer of the driver's: pinned is faster."
        rows = (*rows, (), ((text, "dim"),))
    return rows


def reported_items(run: Run) -> list[Row]:
    """The memory figures the workload reports, one after another."""
    told = [
        metric_text(name, value)
        for name, value in run.metrics.items()
        if is_memory_metric(name) and value is not None
    ]
    return [((f"{label} ", "label"), (text, "value")) for label, text in told]


def _bytes(value: int) -> str:
    return size(value) if value else ""


# How full the memory of each GPU is and was: bars, and charts whose scale fits what is held.


_NARROWEST_BAR = 12


def device_rows(
    session: Session, width: int, height: int, interval_s: float, look: Look
) -> list[Row]:
    """A bar for each GPU, and as many charts as there is room for, in at most `height` rows: of
    a single GPU its bandwidth too. Without a GPU that was read the host's memory."""
    gpus = list(session.gpus.values())
    if all(gpu.sample is None for gpu in gpus):
        charts = [
            _called(chart, "Memory used")
            for chart in host_charts(session)
            if chart.role == "memory" and chart.series.extremes(0, 1) is not None
        ]
        return chart_grid(charts, width, height, interval_s, look) if charts else []
    rows = [bar_row(gpu, width) for gpu in gpus][:height]
    charts = [
        _called(chart_of(gpu, "memory_used_bytes"), f"GPU {gpu.facts.index} memory used")
        for gpu in gpus
    ]
    if len(gpus) == 1:
        charts.append(chart_of(gpus[0], "memory_bandwidth_percent"))
    return rows + chart_grid(charts, width, height - len(rows), interval_s, look)


def bar_row(gpu: Gpu, width: int) -> Row:
    """One line: what is used, what the driver keeps, what is left."""
    sample = gpu.sample or GpuSample(index=gpu.facts.index)
    used, reserved = sample.memory_used_bytes, sample.memory_reserved_bytes
    total = sample.memory_total_bytes or gpu.facts.memory_total_bytes
    name: Row = ((f"GPU {gpu.facts.index} ", "label"),)
    if used is None or not total:
        reason = gpu.unavailable.get("memory_used_bytes", "no reading yet")
        return clip((*name, (f"memory n/a: {reason}", "dim")), width)
    free = max(0, total - used - (reserved or 0))
    full = "  NEARLY FULL" if (memory_fraction(sample) or 0) >= 0.97 else ""
    figures: list[Row] = [
        ((f"used {size(used):>8} {percent(100 * used / total):>6}{full}", memory_role(sample)),),
        ((f"driver keeps {size(reserved):>7}", "label"),),
        ((f"free {size(free):>8}", "text"),),
        ((f"of {size(total)}", "dim"),),
    ]
    left = width - row_width(name) - _NARROWEST_BAR - 3
    kept: list[Span] = []
    for figure in figures:
        if row_width(figure) + 2 <= left:
            kept += [("  ", "text"), *figure]
            left -= row_width(figure) + 2
    meter = min(40, _NARROWEST_BAR + max(0, left))
    taken = bar(used / total, meter)
    filled = len(taken.rstrip())
    edge = min(meter, max(filled, ceil(meter * (used + (reserved or 0)) / total)))
    return (
        *name,
        ("▕", "dim"),
        (taken[:filled], "memory"),
        ("·" * (edge - filled), "dim"),
        (" " * (meter - edge), "text"),
        ("▏", "dim"),
        *kept,
    )


def _called(chart: Chart, name: str) -> Chart:
    """The same with another name above it."""
    return msgspec.structs.replace(chart, titles=tuple((name, now) for _, now in chart.titles))


_LEAST_BELOW = 8
"""Lines left under the table from which they say more of the chosen line."""


class MemoryView(TableView, ChartedView):
    """Where memory went."""

    offers = TableView.offers | ChartedView.offers
    tabs = ("Phases", "Copies")

    def rows(self, width: int, height: int) -> list[Row]:
        session = self.model.session
        if session.header is None:
            return [(), ((f"  {self.model.failure or 'reading the machine…'}", "dim"),)]
        run = self.model.run
        self.mark_phases()
        gpus = len(session.gpus)
        # A third of a tall screen: with one GPU eleven lines left half of it empty.
        wanted = max(8 + 3 * gpus, height // 3)
        above = max(6, min(height * 2 // 5, wanted), min(gpus + 1, height - 8))
        rows = [*self._above(width, above), *scope_rows(self.model, width, WHOLE)]
        if run is not None:
            rows += flow(reported_items(run), width, 2 if height < 30 else 3)
        rows.append(self.tab_row(width, self.filter_note))
        rows += self._table(run, width, height - len(rows), len(rows))
        details = self.activate()
        if details is None or height - len(rows) < _LEAST_BELOW:
            return rows
        title = heading(cut_middle(details.title, width - 8), width)
        return [*rows, (), title, *halved(details.rows, width)][:height]

    # --- keys

    def activate(self) -> Details | None:
        item = self.item
        if isinstance(item, PhaseMemory):
            return Details(item.path, phase_details(item))
        if isinstance(item, Transfer):
            return Details(item.operation, transfer_details(item))
        return None

    @property
    def orders(self) -> Sequence[str]:
        return TRANSFER_SORTS if self.tab else super().orders

    # --- parts

    def _above(self, width: int, height: int) -> list[Row]:
        session, header = self.model.session, self.model.session.header
        if session.gpus:
            names = dict.fromkeys(gpu.facts.name for gpu in session.gpus.values())
            rows = [heading(f"Memory of {', '.join(names)}", width, self._note())]
        else:
            reason = (header.gpu_unavailable_reason if header else None) or "no device was found"
            rows = [heading("Memory of the host", width, f"no NVIDIA GPU: {reason}")]
            rows += flow(host_items(session), width, 1)
        room = height - len(rows)
        rows += device_rows(session, width, room, self.model.interval_s, self.look)
        return rows[:height]

    def _note(self) -> str:
        """What one GPU held over the run; with several GPUs the bars show it."""
        session = self.model.session
        gpu = next(iter(session.gpus.values()))
        over = memory_held(gpu, session.run) if session.run is not None else None
        if note := self.moment_note():
            return note
        if over is None or len(session.gpus) > 1:
            return "" if gpu.sample is not None else "no reading of it"
        most = f"{size(over.most)} at most{among_few(over.samples)}"
        return f"this run: {size(over.first)} at first, {most}"

    def put_tab(self, number: int) -> None:
        self.sorting, self.other_way = 0, False
        super().put_tab(number)

    def _table(self, run: Run | None, width: int, height: int, top: int) -> list[Row]:
        if run is None:
            text = "  No run yet: its copies, allocations and figures appear here."
            rows: list[Row] = [(), ((text, "dim"),)]
            if self.model.can_start:
                rows.append((("  w", "key"), ("  choose a workload and start it", "text")))
            return rows
        items: Sequence[Any]
        columns: Sequence[Column[Any]]
        if self.tab:
            items = self.matching(transfers(run), lambda row: row.operation)
            columns, items = transfer_columns(), self.in_order(transfer_columns(), items)
            keys = [(row.operation, row.source, row.destination) for row in items]
        else:
            session = self.model.session
            read = self.model.once(self, lambda: (phase_memory(run), _most_held(session, run)))
            items = self.matching(read[0], lambda row: row.path)
            columns = phase_columns(read[1], read[0])
            keys = [row.phase.key if row.phase else row.path for row in items]
        if not items:
            text = NO_MATCH if self.needle else _why_empty(run, has_calls=not self.tab)
            return [(), *wrap(text, width - 2, "dim", "  ")][:height]
        return self.table(columns, items, keys, width, height, top)


def _most_held(session: Session, run: Run) -> dict[str, int]:
    """By outermost phase, the most that a GPU held."""
    most: dict[str, int] = {}
    for gpu in session.gpus.values():
        for name, used in held_by_phase(gpu, run).items():
            most[name] = max(most.get(name, 0), used)
    return most


def _why_empty(run: Run, *, has_calls: bool) -> str:
    """Why nothing is listed; with phases allocations would be."""
    if not run.kernels and not run.api:
        return why_empty(run)
    return f"Nothing was copied or set on a GPU{' or allocated any' * has_calls}."
