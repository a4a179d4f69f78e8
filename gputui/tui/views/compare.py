"""Compare: recordings side by side, and what differs beyond noise, and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gputui.base.sanitize import sanitize
from gputui.report.compare import NOISE_RULE, Comparison
from gputui.report.schema import AnyTable
from gputui.tui.model import Model
from gputui.tui.widgets.canvas import Row, labelled, wrap
from gputui.tui.widgets.comparison import (
    Cells,
    cell_text,
    comparison_columns,
    effects,
    sameness,
)
from gputui.tui.widgets.recordings import recording_name
from gputui.tui.widgets.table import column_at, table_rows
from gputui.tui.widgets.table_view import NO_MATCH, TableView
from gputui.tui.widgets.view import Details

if TYPE_CHECKING:
    from gputui.tui.app import GputuiApp
    from gputui.tui.dialogs.export import ExportRequest

Read = tuple[Comparison, list[AnyTable], tuple[str, ...], list[str]]
"""What is compared, its tables, remarks, the verdict."""

_TITLES = {
    "runs": "Runs",
    "compare_steps": "Steps",
    "compare_causes": "Causes",
    "compare_metrics": "Metrics",
    "compare_devices": "GPUs",
    "compare_phases": "Phases",
    "compare_kernels": "Kernels",
    "compare_unmatched": "Not in all",
}
_NOISE = NOISE_RULE.partition(". ")[0] + ". What is within it is dim."
_FIRST = ("compare_causes", "compare_phases")


class CompareView(TableView):
    """The tables of a comparison, one at a time."""

    LEADS_BACK_TO = "sessions"
    orders = ("as recorded", "change")

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._comparison: Comparison | None = None
        self._tables: list[AnyTable] = []
        self._paths: tuple[Path, ...] = ()
        self._notes: tuple[str, ...] = ()
        self._verdict: list[str] = []
        self._failure = ""
        self._listed: list[Cells] = []
        self._effects: dict[str, float] = {}

    def compare(self, paths: Sequence[Path]) -> None:
        """Read recordings in a thread and show how they differ from the first."""
        asked = self._paths = tuple(paths)
        self._comparison, self._tables, self._notes, self._failure = None, [], (), ""
        self.needle, self._verdict = "", []
        self.draw()

        def read() -> Read:
            from gputui.playback.opening import load
            from gputui.render.comparison import answer, comparison_tables
            from gputui.report.comparable import Subject
            from gputui.report.compare import compare

            loaded = [load(str(path)) for path in asked]
            subjects = [
                Subject(recording_name(path), one.session, one.run)
                for path, one in zip(asked, loaded, strict=True)
            ]
            notes = tuple(note for one in loaded for note in one.remarks)
            comparison = compare(subjects)
            verdict = answer(comparison).splitlines()
            return comparison, comparison_tables(comparison), notes, verdict

        def done(result: Read) -> None:
            if asked == self._paths:
                self._comparison, self._tables, self._notes, self._verdict = result
                self._effects = effects(result[0])
                names = [table.name for table in self._tables]
                self.tab = next((names.index(name) for name in _FIRST if name in names), 0)
                self._gputui.main.draw()

        def failed(reason: str) -> None:
            if asked == self._paths:
                self._failure = reason.replace(f"{asked[0].parent}/", "")
                self._gputui.main.draw()

        self._gputui.in_thread(read, done, failed)

    def rows(self, width: int, height: int) -> list[Row]:
        """What is compared, tabs, the table."""
        self._listed = []
        names = [recording_name(path) for path in self._paths]
        rows: list[Row] = []
        for number, name in enumerate(names):
            label = "baseline  " if not number else f"run {number + 1:<6}"
            rows.append(((label, "label"), (name, "title" if not number else "text")))
        if not names:
            return wrap("Mark recordings in Runs (7) and press c.", width, "dim")
        if self._failure:
            return [*rows, (), *wrap(f"! {sanitize(self._failure)}", width, "error")]
        if not self._tables:
            return [*rows, (), (("  reading the recordings…", "dim"),)]
        for note in self._notes:
            rows += wrap(f"! {note}", width, "warn")[:2]
        for line in self._verdict:
            rows += wrap(line, width, "text" if line.startswith(" ") else "title")
        table = self._tables[self.tab]
        note = self.filter_note or f"{len(table.rows)} lines"
        rows.append(self.tab_row(len(rows), width, note))
        foot = wrap(_NOISE, width, "dim") if table.name.startswith("compare_") else []
        foot = foot if height >= 20 and table.name != "compare_unmatched" else []
        self._listed = self._ordered(table)
        if not self._listed:
            return [*rows, (), ((f"  {NO_MATCH}", "dim"),)]
        room = height - len(rows) - len(foot) - 1
        window = self.cursor.window([row[:2] for row in self._listed], room)
        shown = self._listed[window]
        columns = comparison_columns(table, shown, self._effects)
        self.first_item_line = len(rows) + 1
        self.header = (len(rows), lambda x: column_at(columns, shown, width, x))
        chosen = self.cursor.index - self.cursor.offset
        rows += table_rows(columns, shown, width, selected=chosen, beyond=self.cursor.beyond)
        rows += [()] * (height - len(rows) - len(foot))
        return rows + foot

    # --- keys

    def activate(self) -> Details | None:
        """Every cell of the chosen line, names in full."""
        row = next((row for row in self._listed if row[:2] == self.cursor.key), None)
        if row is None:
            return None
        columns = self._tables[self.tab].columns
        cells = zip(columns, row, strict=True)
        pairs = [(column.header, cell_text(column, cell)) for column, cell in cells]
        return Details(str(row[0]), labelled(pairs, 16))

    def export(self) -> bool:
        """Ask where the comparison is to be written, and as what."""
        comparison = self._comparison
        if comparison is None:
            self._gputui.main.refuse("nothing is compared yet")
            return True
        from gputui.render import formats
        from gputui.render.atomic_write import write_whole
        from gputui.tui.dialogs.export import ExportDialog

        def answered(request: ExportRequest | None) -> None:
            if request is not None:
                main = self._gputui.main
                path = Path(request.path)
                self._gputui.in_thread(
                    lambda: write_whole(path, formats.comparison(comparison, request.key)),
                    lambda _: main.say(sanitize(f"written: {request.path}")),
                    main.refuse,
                )

        names = "-".join(map(recording_name, self._paths))
        default = self._paths[0].with_name(f"compare-{names}"[:100])
        able = [known for known in formats.every() if known.comparison]
        able.sort(key=lambda known: known.key != "md")  # a comparison is for people first
        dialog = ExportDialog(default, able, "Export the comparison")
        self.app.push_screen(dialog, answered)
        return True

    def sort(self) -> None:
        """By how much changed, or in the order of the baseline."""
        self.other_way = False
        super().sort()
        self._gputui.main.say(f"sorted by {self.orders[self.sorting]}")

    # --- parts

    @property
    def tabs(self) -> Sequence[str]:
        return [_TITLES.get(one.name, one.title) for one in self._tables]

    @property
    def _gputui(self) -> GputuiApp:
        return cast("GputuiApp", self.app)

    def _ordered(self, table: AnyTable) -> list[Cells]:
        needle = self.needle.lower()
        found = [row for row in table.rows if needle in " ".join(map(str, row[:2])).lower()]
        if table.name == "compare_metrics":
            found.sort(key=sameness(table))
        changes = [
            number
            for number, column in enumerate(table.columns)
            if column.header.startswith("Change")
        ]

        def change(row: Cells) -> float:
            return max((abs(cell) for n in changes if isinstance(cell := row[n], float)), default=0)

        if self.sorting and changes:
            found.sort(key=change, reverse=True)
        return found[::-1] if self.other_way else found
