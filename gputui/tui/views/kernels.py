"""Kernels, CUDA calls and memory operations, each a table with nsys's statistics."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import msgspec
from textual.binding import Binding, BindingType

from gputui.base.sanitize import cut_middle
from gputui.model.events.distributions import Statistics
from gputui.model.units import count, duration, percent, size
from gputui.report.explain.lines import launched_at
from gputui.report.roofline import kernel_roofs
from gputui.report.schema import Column, why_empty
from gputui.report.statistics import (
    TableRow,
    api_rows,
    category_rows,
    kernel_name,
    kernel_rows,
    memory_size_rows,
    memory_time_rows,
)
from gputui.report.tables.launches import shape_rows
from gputui.report.tables.memory import OUTSIDE, called_in
from gputui.report.tables.ranks import RankSum, rank_sums, rank_with_most
from gputui.tui.model import Model, Tables
from gputui.tui.widgets.canvas import Row, heading, labelled, row_width, wrap
from gputui.tui.widgets.run import no_run, scope_rows
from gputui.tui.widgets.table import column, details_of
from gputui.tui.widgets.view import (
    NO_MATCH,
    Details,
    Lead,
    TableView,
    call_columns,
    kernel_columns,
    operation_columns,
    with_bars,
)

_NAME = 35
"""Cells of the names that are distinguished."""

_MOST_RANKS = 8
"""Ranks that are listed of the chosen line."""

_LEAST_BELOW = 5
"""Lines left under the table from which they say more of the chosen line."""
_NAME_LINES = 2
_BELOW, _TALL = 10, 30
"""Lines that a long table leaves to it, in a view that has so many."""


@dataclass(frozen=True, slots=True)
class _Read:
    """The table of a tab."""

    rows: tuple[TableRow, ...]
    sizes: dict[str, int]
    categories: tuple[tuple[str, int, int, float], ...]
    ranks: dict[str, list[RankSum]]
    """What each rank has of a name, the one with most of it first; of several ranks."""


class KernelsView(TableView):
    """What the GPU ran."""

    offers = TableView.offers | {"scope"}
    tabs = ("Kernels", "CUDA calls", "Memory operations")
    orders = ("total", "count", "average", "median", "p99", "longest")
    can_focus = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "timeline", "the chosen one in the timeline", show=False)
    ]
    HINTS: ClassVar[tuple[tuple[str, str, str], ...]] = (("t", "in timeline", "here('timeline')"),)

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._read: _Read | None = None
        self._leads: dict[Row, Lead] = {}

    def rows(self, width: int, height: int) -> list[Row]:
        tables = self.model.tables_in_phase
        if tables is None:
            text = "Kernels appear here while a program runs."
            return no_run(self.model, width, height, text)
        run = tables.run
        read = self._read = self.model.once((self, self.tab), partial(self._tables, tables))
        rows = scope_rows(self.model, width, tables.instead)
        rows.append(self._tabs(width, tables))
        if self.tab == 0 and read.categories:
            rows.append(_categories([(name, share) for name, *_, share in read.categories], width))
        columns = self._columns(read)
        listed = self.in_order(columns, self.matching(read.rows, lambda row: row.name))
        if not listed:
            text = NO_MATCH if read.rows else why_empty(run)
            return [*rows, (), *wrap(text, width - 2, "dim", "  ")]
        names = [row.name for row in listed]
        kept = _BELOW if height >= _TALL else 0
        rows += self.table(columns, listed, names, width, height - len(rows) - kept, len(rows))
        below = self.leading(self._below(tables, width, height - len(rows) - 1), self._leads)
        if below:
            below[1] = self.hinting(below[1], "Enter: more", "activate")
            below[1] = self.hinting(below[1], "y: copy the name", "copy")
        return rows + below

    def action_timeline(self) -> None:
        """A usual one of the chosen name where it ran, with what launched it."""
        if isinstance(self.cursor.key, str) and self.model.has_operations:
            self.lead(Lead("timeline", self.cursor.key))
        else:
            self.nothing_chosen("no step of this run was kept")

    def activate(self) -> Details | None:
        """All that is known of the chosen line."""
        tables = self.model.tables_in_phase
        row: TableRow | None = self.item
        if tables is None or row is None:
            return None
        rows: list[Row] = [((row.name, "text"),), ()]
        _, *columns = (kernel_columns, call_columns, operation_columns)[self.tab]()
        rows += details_of(columns, row)
        if not row.exact:
            rows.append((("the median is known within 1 %", "dim"),))
        return Details(row.short_name, (*rows, *self._launches(tables, row.name)))

    def _below(self, tables: Tables, width: int, height: int) -> list[Row]:
        """Under the table, what its columns do not say of the chosen line."""
        name = self.cursor.key
        if height < _LEAST_BELOW or not isinstance(name, str):
            return []
        title = cut_middle(name, width - 40)
        rows = [heading(title, width, "Enter: more, y: copy the name")]
        rows += (
            wrap(name.removeprefix("void "), width - 2, "text", "  ")[:_NAME_LINES]
            if title != name
            else []
        )
        rows = (rows + self._launches(tables, name)[1:])[:height]
        while len(rows) > 1 and all(role == "label" for _, role in rows[-1]):
            rows.pop()  # the title of what had no room, or the blank line before it
        return [(), *rows]

    def _launches(self, tables: Tables, name: str) -> list[Row]:
        """How the chosen thing was launched, and in which phases, to which their rows lead."""
        self._leads.clear()
        rows = self._ranks(name)
        if self.tab == 0:
            names = tables.session.kernel_names
            numbers = {number for number in names if names[number].name == name}
            rows += [*_counters(tables, name), *self._shapes(tables, name)]
            line = launched_at(tables.run, numbers)
            if line or tables.run.lines:  # else no lines were read at all
                line = line or "a line that none of the samples of the program's stacks met"
                rows += [(), (("launched at", "label"),), ((f"  {line}", "text"),)]
        phases = self._phases(tables, name)
        if phases:
            rows += [(), (("launched in", "label"),)]
        for path, instances, total in phases[:12]:
            figures = f"{duration(total):>10}  {count(instances):>7} ×  "
            rows.append(((figures, "value"), (path, "text")))
            if path != OUTSIDE:
                self._leads[rows[-1]] = Lead("phases", path)
        return rows

    def _ranks(self, name: str) -> list[Row]:
        """What each rank has of it."""
        own = self._read.ranks.get(name, []) if self._read is not None else []
        rows: list[Row] = [(), (("by rank", "label"),)] if own else []
        for one in own[:_MOST_RANKS]:
            figures = f"{duration(one.total_ns):>10}  {count(one.launches):>7} ×  "
            average = f"rank {one.rank:<4} {duration(one.average_ns)} each"
            rows.append(((figures, "value"), (average, "text")))
        return rows

    def _shapes(self, tables: Tables, name: str) -> list[Row]:
        """How the kernel was launched, the most frequent first."""
        found = [row for row in shape_rows(tables.session, tables.run) if row.name == name]
        rows: list[Row] = [(), (("launched as", "label"),)] if found else []
        for row in found[:6]:
            shape = row.shape
            shared = size(shape.static_shared_bytes + shape.dynamic_shared_bytes)
            text = f"grid {row.grid}, block {row.block}, {shape.registers_per_thread} registers"
            rows.append(
                ((f"{count(row.launches):>10} ×  ", "value"), (f"{text}, {shared} shared", "text"))
            )
        return rows

    def _tables(self, tables: Tables) -> _Read:
        sizes: dict[str, int] = {}
        categories: list[tuple[str, int, int, float]] = []
        if self.tab == 0:
            rows = kernel_rows(tables.session, tables.run)
            categories = category_rows(tables.session, tables.run)
        elif self.tab == 1:
            rows = api_rows(tables.run)
        else:
            rows = memory_time_rows(tables.run)
            sizes = {row.name: row.total for row in memory_size_rows(tables.run)}
        times = [(name, process, one) for name, process, _, one in self._times(tables)]
        ranks = rank_sums(tables.run, times)
        return _Read(tuple(rows), sizes, tuple(categories), ranks)

    def _tabs(self, width: int, tables: Tables) -> Row:
        total = len(self._read.rows) if self._read else 0
        # No launches of a range whose calls nobody counts: a line of NCCL had thousands of kernels
        # and none.
        names = "1 name" if total == 1 else f"{total} names"
        whole = duration(sum(row.total for row in self._read.rows)) if self._read else ""
        notes = f"{names}, {tables.span}", f"100 % = {whole}"
        return self.tab_row(width, self.filter_note, *(notes if total else ()))

    def _columns(self, read: _Read) -> list[Column[TableRow]]:
        if self.tab == 0:
            columns = kernel_columns()
            names = self.model.kernel_names
            columns[0] = msgspec.structs.replace(
                columns[0], words=lambda row: names.get(row.name, row.short_name)
            )
        elif self.tab == 1:
            columns = call_columns()
        else:
            columns = operation_columns()
            columns.insert(3, column("bytes", lambda r: size(read.sizes.get(r.name)), 1, width=8))
        at = with_bars(columns, read.rows, are_kernels=self.tab == 0)
        if read.ranks:
            ranks = read.ranks
            columns.insert(
                at + 2, column("most on", lambda row: rank_with_most(ranks.get(row.name, ())), 2)
            )
        return columns

    @property
    def copied(self) -> str:
        row: TableRow | None = self.item
        return row.name if row is not None else super().copied

    def show_item(self, key: Hashable) -> None:
        """A kernel, by its full name, or a copy."""
        name, run = str(key), self.model.run
        self.tab = 2 * (run is not None and any(one.operation == name for one in
                                                run.memory_operations.values()))  # fmt: skip
        super().show_item(key)

    def _phases(self, tables: Tables, name: str) -> list[tuple[str, int, int]]:
        times = self._times(tables)
        return called_in(
            tables.run, ((phase, one) for known, _, phase, one in times if known == name)
        )

    def _times(self, tables: Tables) -> Iterator[tuple[str, int, int, Statistics]]:
        """The name, process, phase and times of each part of what the tab lists."""
        run = tables.run
        if self.tab == 0:
            names = tables.session.kernel_names
            for kernel in run.kernels.values():
                if kernel.kernel in names:
                    yield names[kernel.kernel].name, kernel.process, kernel.phase, kernel.time
        elif self.tab == 1:
            for call in run.api.values():
                yield call.name, call.process, call.range, call.time
        else:
            for copies in run.memory_operations.values():
                yield copies.operation, copies.process, copies.phase, copies.time


def _counters(tables: Tables, name: str) -> list[Row]:
    """What a kernel uses of each GPU while it runs, where counters were sampled."""
    rows: list[Row] = []
    for roof in kernel_roofs(tables.session, tables.run):
        if kernel_name(tables.session, roof.kernel) == name and (facts := roof.kernel_facts):
            rows += [(), ((f"while it runs on GPU {roof.gpu}", "label"),), *labelled(facts, 16)]
    return rows


def _categories(shares: Sequence[tuple[str, float]], width: int) -> Row:
    """Categories of kernels with their shares; the smallest as one where there is no room."""
    for kept in range(len(shares), -1, -1):
        shown, rest = [*shares[:kept]], [share for _, share in shares[kept:]]
        if rest:
            # Categories without room count as one.
            shown.append((f"{len(rest)} more", sum(rest)))
        items = [((f"{name} ", "label"), (percent(share), "value")) for name, share in shown]
        row = tuple(span for item in items for span in (*item, ("   ", "text")))[:-1]
        if row_width(row) <= width or kept == 0:
            return row
    return ()
