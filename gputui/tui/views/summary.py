"""Summary: every table of the run, one to be opened, as they stand or as they ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from rich.cells import cell_len

from gputui.model.units import MISSING, count, duration, parameter
from gputui.report.explain import Analysis, findings
from gputui.report.phases import shares_error_points
from gputui.report.schema import AnyTable, Cell, Column
from gputui.report.tables import summary_tables
from gputui.report.windows import captured_words
from gputui.state import Run, Session
from gputui.tui.model import WHOLE, Model
from gputui.tui.widgets.canvas import Row, fit, heading, labelled, wrap
from gputui.tui.widgets.run import no_run, problems, run_row, scope_rows, state
from gputui.tui.widgets.run import notes as run_notes
from gputui.tui.widgets.table import Move, column
from gputui.tui.widgets.view import NO_MATCH, Details, TableView

_LEAST_TEXT = 12
_LONGEST_TITLE = 26


class Line(NamedTuple):
    """A row of a table: its place, its cells, and how people read them."""

    number: int
    cells: Sequence[Cell]
    texts: Sequence[str]


class Listed(NamedTuple):
    """A table that has rows, with the columns that people see."""

    name: str
    title: str
    note: str
    headers: Sequence[str]
    columns: Sequence[Column[Line]]
    lines: Sequence[Line]

    def matching(self, needle: str) -> list[Line]:
        """The lines with a text in them, in any case."""
        low = needle.lower()
        return [line for line in self.lines if low in "\n".join(line.texts).lower()]


def listed(session: Session, run: Run, *, lost_end: bool = False) -> list[Listed]:
    """Those of the summary, between what the run was and what watching it cost."""
    is_over = run.ended is not None or lost_end
    facts = _pairs("run", "Run" if is_over else "Run so far", _facts(session, run, lost_end))
    found = [(finding.sentence, finding.advice) for finding in findings(Analysis(session, run))]
    tables = [_of_table(table) for table in summary_tables(session, run)]
    advice = _pairs("findings", "Findings", found, ("finding", "what to try"))
    return [
        table
        for table in (
            facts,
            advice,
            *tables,
            _pairs("capture", "Capture", captured_words(session, run, shares_error_points(run))),
        )
        if table.lines and table.columns
    ]


def _of_table(table: AnyTable) -> Listed:
    columns, raw, texts = table.for_people()
    lines = [Line(n, *pair) for n, pair in enumerate(zip(raw, texts, strict=True))]
    own = [_column(shown, n, lines) for n, shown in enumerate(columns)]
    return Listed(table.name, table.title, table.note, [c.header for c in columns], own, lines)


def _column(shown: Column[object], place: int, lines: Sequence[Line]) -> Column[Line]:
    longest = max((cell_len(line.texts[place]) for line in lines), default=0)
    return column(
        fit(shown.heading, min(cell_len(shown.heading), _LONGEST_TITLE)),
        partial(_text, place),
        shown.priority,
        flexible=shown.show is None,
        right=shown.is_right,
        width=min(longest, _LEAST_TEXT) if shown.show is None else longest,
        by=lambda line: line.cells[place],
        show=shown.show,
    )  # fmt: skip


def _text(place: int, line: Line) -> str:
    return line.texts[place]


def _pairs(
    name: str, title: str, pairs: Iterable[tuple[str, str]],
    headers: tuple[str, str] = ("figure", "value"),
) -> Listed:  # fmt: skip
    """A table of texts."""
    lines = [Line(n, pair, pair) for n, pair in enumerate(pairs)]
    columns = [
        column(
            header,
            partial(_text, n),
            flexible=True,
            right=False,
            width=_LEAST_TEXT,
            by=partial(_text, n),
        )
        for n, header in enumerate(headers)
    ]
    return Listed(name, title, "", headers, columns, lines)


class SummaryView(TableView):
    """All that is known of the run: the tables, or one that was opened."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._opened = ""
        self._tables: list[Listed] = []
        """Those that match the filter."""

    def rows(self, width: int, height: int) -> list[Row]:
        """What the run is, then its tables or one of them."""
        model, run = self.model, self.model.run
        self._tables = []
        if run is None:
            text = "A run's tables appear here, during the run and after it."
            return no_run(model, width, height, text)
        tables = model.once(self, lambda: listed(model.session, run, lost_end=model.lost_end))
        rows = [run_row(run, width, lost_end=model.lost_end), *scope_rows(model, width, WHOLE)]
        rows += [*problems(run, width, model.remark), *run_notes(run, width, most=4)]
        self._tables = [
            table
            for table in tables
            if self.needle.lower() in table.title.lower() or table.matching(self.needle)
        ]
        opened = self._table
        if opened is None:
            return [*rows, *self._list(width, height - len(rows), len(rows))]
        self.sorting = min(self.sorting, len(opened.columns))  # a table may have fewer now
        title_matches = self.needle.lower() in opened.title.lower()
        found = opened.lines if title_matches else opened.matching(self.needle)
        lines = self.in_order(opened.columns, found)
        notes = (self.filter_note, opened.note, "Esc all tables, ← → others")
        rows.append(heading(opened.title, width, "  ".join(filter(None, notes))))
        keys = [line.number for line in lines]
        return rows + self.table(opened.columns, lines, keys, width, height - len(rows), len(rows))

    def _list(self, width: int, height: int, top: int) -> list[Row]:
        title = f"Tables  {len(self._tables)}"
        rows = [heading(title, width, self.filter_note or "Enter opens one, e exports them")]
        if not self._tables:
            return [*rows, (), *wrap(NO_MATCH, width - 2, "dim", "  ")]
        columns: list[Column[Listed]] = [
            column("table", lambda table: table.title, right=False, width=24),
            column("rows", lambda table: count(len(table.matching(self.needle))), width=6),
            column("beginning with", _beginning, flexible=True, right=False, width=20, role="dim"),
        ]
        names = [table.name for table in self._tables]
        return rows + self.table(columns, self._tables, names, width, height - 1, top + 1)

    # --- keys

    def move(self, move: Move) -> None:
        """Right opens a table, or the next one; left the one before."""
        names = [table.name for table in self._tables]
        if move not in ("left", "right"):
            super().move(move)
        elif self._opened in names:
            step = 1 if move == "right" else -1
            self._open(names[(names.index(self._opened) + step) % len(names)])
        elif move == "right" and self.cursor.key in names:
            self._open(str(self.cursor.key))
        else:
            self.nothing_chosen("all tables are listed here: Enter opens one")

    def activate(self) -> Details | None:
        """A table; of a line of one every cell, in full."""
        opened = self._table
        if opened is None:
            if self._tables:
                self._open(str(self.cursor.key))
            return None
        line = self.item
        if not isinstance(line, Line):
            self.nothing_chosen()
            return None
        pairs = zip(opened.headers, line.texts, strict=True)
        return Details(opened.title, tuple(labelled(pairs, max(map(cell_len, opened.headers)) + 2)))

    def go_back(self) -> bool:
        """Back to the list of tables."""
        if self._table is None:
            return False
        self.cursor.key, self._opened = self._opened, ""
        self.draw()
        return True

    @property
    def orders(self) -> Sequence[str]:
        """The columns of the table that is open, after its own order."""
        opened = self._table
        return ["", *(one.heading for one in opened.columns)] if opened is not None else [""]

    def show_item(self, key: object) -> None:
        self.needle = ""
        self._open(str(key))

    # --- parts

    @property
    def _table(self) -> Listed | None:
        return next((table for table in self._tables if table.name == self._opened), None)

    def _open(self, name: str) -> None:
        self._opened, self.cursor.key = name, 0
        self.sorting, self.other_way = 0, False
        self.draw()


def _beginning(table: Listed) -> str:
    """The first line: names, then figures, each with what it is."""
    texts = zip(table.columns, table.lines[0].texts, strict=True)
    named = sorted(texts, key=lambda pair: pair[0].show is not None)
    return "  ".join(
        text if one.show is None and not text.isdigit() else f"{one.heading} {text}"
        for one, text in named
        if text and text != MISSING
    )


def _facts(session: Session, run: Run, lost_end: bool) -> list[tuple[str, str]]:
    """What the run was, where, and with which parameters."""
    started = datetime.fromtimestamp(run.started.time_ns / 1e9).astimezone()
    pairs = [
        ("state", state(run, lost_end=lost_end).words),
        ("name", run.started.name),
        ("started", started.strftime("%Y-%m-%d %H:%M:%S %z")),
        ("duration", duration(run.duration_ns)),
    ]
    if (header := session.header) is not None:
        pairs.append(("host", header.host.hostname))
        pairs += [(f"GPU {gpu.facts.index}", gpu.facts.name) for gpu in session.gpus.values()]
        if header.driver_version:
            pairs.append(("driver", header.driver_version))
    if run.started.kind == "command":
        return [*pairs, ("arguments", " ".join(run.started.arguments))]
    return pairs + [(name, parameter(value)) for name, value in run.started.parameters.items()]
