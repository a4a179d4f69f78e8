"""Memory: what each GPU holds and held, and what the run copied, set and allocated, and where."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import ceil
from typing import Any

import msgspec

from gputui.model.events import GpuSample
from gputui.model.units import percent, size
from gputui.report.schema import Column
from gputui.report.statistics import TableRow
from gputui.report.tables.memory import PhaseMemory, Transfer, held
from gputui.state import Gpu, Run, Session
from gputui.tui.model import WHOLE, Model
from gputui.tui.widgets import memory_tables as tables
from gputui.tui.widgets.canvas import Row, Span, bar, clip, flow, heading, row_width, wrap
from gputui.tui.widgets.chart import Chart, Look
from gputui.tui.widgets.gpu_charts import (
    ChartedView,
    bandwidth_chart,
    chart_grid,
    host_charts,
    host_items,
)
from gputui.tui.widgets.gpu_figures import memory_fraction, memory_role
from gputui.tui.widgets.no_run import scope_rows
from gputui.tui.widgets.processes import Order, known_rows, listed, process_columns
from gputui.tui.widgets.table import Move, moved
from gputui.tui.widgets.table_view import NO_MATCH, TableView, call_columns
from gputui.tui.widgets.verdict import why_empty
from gputui.tui.widgets.view import (
    Details,
)

# How full the memory of each GPU is and was: bars, and charts whose scale fits what is held.


_NARROWEST_BAR = 12


def device_rows(
    session: Session, width: int, height: int, interval_s: float, look: Look
) -> list[Row]:
    """A bar for each GPU, and as many charts as there is room for, in at most `height` rows: of
    a single GPU its bandwidth too. Without a GPU the host's memory."""
    gpus = list(session.gpus.values())
    if not gpus:
        charts = [
            _of_host(chart)
            for chart in host_charts(session)
            if chart.role == "memory" and chart.series.extremes(0, 1) is not None
        ]
        return chart_grid(charts, width, height, interval_s, look) if charts else []
    rows = [bar_row(gpu, width) for gpu in gpus][:height]
    charts = [_chart(gpu) for gpu in gpus]
    if len(gpus) == 1:
        charts.append(bandwidth_chart(gpus[0]))
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


def _of_host(chart: Chart) -> Chart:
    (name, text), *others = chart.titles
    titles = ((f"{name} used", text), *others)
    return msgspec.structs.replace(chart, titles=titles)


def _chart(gpu: Gpu) -> Chart:
    sample = gpu.sample or GpuSample(index=gpu.facts.index)
    total = sample.memory_total_bytes or gpu.facts.memory_total_bytes
    used = gpu.samples.track("memory_used_bytes")
    name = f"GPU {gpu.facts.index} memory used"
    of = f" of {size(total)}" if total else ""
    held_now = size(sample.memory_used_bytes)
    return Chart(
        ((name, f"{held_now}{of}"), (name, held_now), ("", held_now)),
        "memory",
        float(total) if total else None,
        size,
        used,
        reason=gpu.unavailable.get("memory_used_bytes", ""),
        value_role=memory_role(sample),
    )


class MemoryView(TableView, ChartedView):
    """Where memory went."""

    tabs = ("Phases", "Copies", "Allocations", "Processes", "Workload")

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.order = Order()
        self.top = 0
        self._read: tuple[int, tables.Read] | None = None
        self._items: Sequence[Any] = ()

    def rows(self, width: int, height: int) -> list[Row]:
        session = self.model.session
        self._items = ()
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
            rows += flow(tables.reported_items(run), width, 1 if height < 30 else 2)
        rows.append(self.tab_row(len(rows), width, self.filter_note))
        return rows + self._table(run, width, height - len(rows), len(rows))

    # --- keys

    def move(self, move: Move) -> None:
        if self.tab == 4 and move not in ("left", "right"):
            self.top = moved(self.top, move, max(1, self.size.height // 2))
            self.draw()
        else:
            super().move(move)

    def activate(self) -> Details | None:
        """Details of the chosen line."""
        run = self.model.run
        for item in self._items:
            if self._key(item) != self.cursor.key:
                continue
            if isinstance(item, PhaseMemory):
                return Details(item.path, tables.phase_details(item))
            if isinstance(item, Transfer):
                return Details(item.operation, tables.transfer_details(item))
            if isinstance(item, TableRow) and run is not None:
                return Details(item.name, tables.allocation_details(item, run))
            return Details(f"Process {item.pid}", known_rows(item, self.model.session))
        return None

    def sort(self) -> None:
        """By the next column; phases stay in the program's order."""
        if self.tab == 3:
            self.order = self.order.next()
            self.draw()
        else:
            super().sort()

    def sort_by(self, title: str) -> None:
        before = self.order
        if self.tab == 3:
            self.order = before.by(title)
        if self.order is before:
            super().sort_by(title)
        self.draw()

    def reverse(self) -> None:
        if self.tab == 3:
            self.order = self.order.reversed()
            self.draw()
        else:
            super().reverse()

    def toggle_tree(self) -> bool:
        """Processes under what launched them, or in one list."""
        self.order = self.order.arranged()
        self.tab = 3
        self.draw()
        return True

    def toggle_processes(self) -> bool:
        self.tab = 0 if self.tab == 3 else 3
        self.draw()
        return True

    @property
    def orders(self) -> Sequence[str]:
        by_tab = {1: tables.TRANSFER_SORTS, 2: tables.ALLOCATION_SORTS}
        return by_tab.get(self.tab, ("",))

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
        over = held(gpu, session.run) if session.run is not None else None
        if note := self.moment_note():
            return note
        if over is None or len(session.gpus) > 1:
            return ""
        return f"this run: {size(over.first)} at first, {size(over.most)} at most"

    def put_tab(self, number: int) -> None:
        self.sorting, self.other_way, self.top = 0, False, 0
        super().put_tab(number)

    def _table(self, run: Run | None, width: int, height: int, top: int) -> list[Row]:
        if self.tab == 3:
            columns: Sequence[Column[Any]] = process_columns(many_instances=False)
            self._items = listed(self.model.session, self.order, self.needle)
            return self._shown(columns, width, height, top, self.order.title, self._no_process())
        if run is None:
            text = "  No run yet: its copies, allocations and figures appear here."
            rows: list[Row] = [(), ((text, "dim"),)]
            if self.model.can_start:
                rows.append((("  w", "key"), ("  choose a workload and start it", "text")))
            return rows
        read = self._reading(run)
        if self.tab == 4:
            return self._workload(run, width, height)
        if self.tab == 0:
            columns = tables.phase_columns(read.most, read.phases)
            self._items = self._matching(read.phases, lambda row: row.path)
            return self._shown(columns, width, height, top, "", self._why(run, "or allocated any"))
        by = self.orders[self.sorting]
        sign = 1 if self.other_way else -1
        if self.tab == 1:
            columns = tables.transfer_columns()
            found = self._matching(read.copies, lambda row: row.operation)
            self._items = sorted(found, key=lambda row: sign * tables.transfer_order(row, by))
            return self._shown(columns, width, height, top, by, self._why(run, ""))
        columns = call_columns("call")
        calls = self._matching(read.calls, lambda row: row.name)
        self._items = sorted(calls, key=lambda row: sign * tables.allocation_order(row, by))
        text = "No call got memory or gave it back through CUDA."
        return self._shown(columns, width, height, top, by, self._why(run, "", text))

    def _shown(
        self,
        columns: Sequence[Column[Any]],
        width: int,
        height: int,
        top: int,
        sorted_by: str,
        empty: str,
    ) -> list[Row]:
        if not self._items:
            text = NO_MATCH if self.needle else empty
            return [(), *wrap(text, width - 2, "dim", "  ")][:height]
        keys = [self._key(item) for item in self._items]
        ascending = not self.order.descending if self.tab == 3 else self.other_way
        return self.table(
            columns, self._items, keys, width, height, top,
            sorted_by=sorted_by, ascending=ascending,
        )  # fmt: skip

    def _workload(self, run: Run, width: int, height: int) -> list[Row]:
        rows = tables.reported_rows(run, width)
        if not rows:
            text = "This program reports no figures of its memory. The workloads of the menu do: "
            text += "weights, KV cache, the most that torch allocated and reserved."
            return [(), *wrap(text, width - 2, "dim", "  ")]
        self.top = max(0, min(self.top, len(rows) - height))
        return rows[self.top : self.top + height]

    def _reading(self, run: Run) -> tables.Read:
        if self._read is None or self._read[0] != self.model.revision:
            self._read = (self.model.revision, tables.read(self.model.session, run))
        return self._read[1]

    def _matching(self, rows: Sequence[Any], name: Callable[[Any], str]) -> list[Any]:
        needle = self.needle.lower()
        return [row for row in rows if needle in name(row).lower()]

    @staticmethod
    def _key(item: Any) -> Hashable:
        if isinstance(item, PhaseMemory):
            return item.phase.key if item.phase else item.path
        if isinstance(item, Transfer):
            return (item.operation, item.source, item.destination)
        key: Hashable = item.name if isinstance(item, TableRow) else item.identity
        return key

    def _why(self, run: Run, more: str, text: str = "") -> str:
        """Why a table is empty."""
        if not run.kernels and not run.api:
            why = why_empty(run).removesuffix(".")
            return f"{why}. ← shows what the workload itself reports."
        return text or " ".join(f"Nothing was copied or set on a GPU {more}".split()) + "."

    def _no_process(self) -> str:
        reason = self.model.session.host_unavailable.get("processes")
        return f"not known: {reason}" if reason else "No process is on a GPU."
