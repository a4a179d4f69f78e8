"""Compare: recordings side by side, and what differs beyond noise, and why."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from gputui.base.sanitize import sanitize
from gputui.model.kernel_categories import short_names
from gputui.model.naming import OF_ONE_NAME
from gputui.model.units import MISSING
from gputui.render.comparison import figure_label, longer_by_cause, sameness
from gputui.report.change import signed_duration
from gputui.report.compare import NOISE_RULE, Comparison
from gputui.report.schema import AnyTable, Cell, Column
from gputui.report.schema import shown as shown_cell
from gputui.report.tables import metric_text
from gputui.store.recordings import recording_name
from gputui.tui.model import Model
from gputui.tui.widgets.canvas import Row, labelled, wrap
from gputui.tui.widgets.run import badged
from gputui.tui.widgets.table import column
from gputui.tui.widgets.view import NO_MATCH, Details, TableView

if TYPE_CHECKING:
    from gputui.tui.app import GputuiApp


# A comparison's tables on the screen: figures in words, names in little room, noise dim.


Cells = tuple[Cell, ...]


def comparison_columns(
    table: AnyTable, shown: Sequence[Cells], by_cause: Mapping[str, float]
) -> list[Column[Cells]]:
    """Names in little room, and once for the lines of one thing; figures in words; what each cause
    adds to a step, all bars on one scale."""
    is_same = sameness(table)
    columns = [_column(table, number, is_same) for number in range(len(table.columns))]
    if table.name == "compare_causes" and by_cause:
        largest = max(map(abs, by_cause.values())) or 1.0

        def effect(row: Cells) -> str:
            ns = by_cause.get(str(row[0]))
            if ns is None:
                return ""
            return f"{signed_duration(ns):>9} {_diverging(ns / largest)}"

        def role(row: Cells) -> str:
            ns = by_cause.get(str(row[0]))
            return "dim" if ns is None or not ns or is_same(row) else "good" if ns < 0 else "hot"

        title = "effect    better ◂│▸ worse"
        columns.insert(5, column(title, effect, 3, right=False, role=role))
    if table.name == "compare_unmatched":
        kernels = [str(row[1]) for row in table.rows if row[0] == "kernel"]
        single = [name for name in dict.fromkeys(kernels) if not name.endswith(OF_ONE_NAME)]
        shorts = dict(zip(single, short_names(single, _NAME_WIDTH), strict=True))
        columns[1] = msgspec.structs.replace(
            columns[1], words=lambda row: shorts.get(str(row[1]), str(row[1]))
        )
    if table.columns[1].header != "Figure":
        return columns
    names = dict.fromkeys(str(row[0]) for row in table.rows)
    shorter = dict.fromkeys(names, "")
    if table.name == "compare_kernels":
        shorter = dict(zip(names, short_names([*names], _NAME_WIDTH), strict=True))
    elif table.name == "compare_metrics":
        shorter = {name: metric_text(name, 0)[0] for name in names}
    first = {str(row[0]): row[1] for row in reversed(shown)}

    def name(row: Cells) -> str:
        known = str(row[0])
        return (shorter[known] or known) if first[known] == row[1] else ""

    labels = {str(row[1]): figure_label(table.name, str(row[1])) for row in table.rows}
    columns[0] = msgspec.structs.replace(columns[0], words=name)
    columns[1] = msgspec.structs.replace(columns[1], words=lambda row: labels[str(row[1])])
    return columns if any(labels.values()) else [columns[0], *columns[2:]]


def _diverging(share: float) -> str:
    """A bar from the middle: to the left what takes less time now, to the right what takes more."""
    half = _BAR // 2
    size = min(half, round(abs(share) * half) or bool(share))
    left, right = ("█" * size, "") if share < 0 else ("", "█" * size)
    return f"{left:>{half}}│{right:<{half}}"


def _column(table: AnyTable, number: int, is_same: Callable[[Cells], bool]) -> Column[Cells]:
    shown = table.columns[number]
    header = shown.header
    is_name = number == 0 or header in ("Session", "What", "Name")

    def role(row: Cells) -> str:
        """What is beyond noise stands out; whether that is good nobody knows here."""
        if shown_cell(shown, row[number]) == MISSING or is_same(row):
            return "dim"
        beyond = number + 2 < len(row) and row[number + 2] == "yes"
        return "value" if header.startswith("Change") and beyond else "text"

    return column(
        _HEADINGS.get(header, header.removesuffix(" (%)").lower()),
        lambda row: shown_cell(shown, row[number]),
        0 if is_name or header in ("Figure", "Baseline") else _PRIORITIES.get(header.split()[0], 1),
        flexible=is_name or header == "Figure",
        right=not is_name and header not in ("Figure", "Kind", ""),
        width=_WIDTHS.get(header, 20 if is_name else 0),
        role=role,
    )


_BAR = 14
_NAME_WIDTH = 44
_WIDTHS = {"Figure": 16, "What": 40}
_HEADINGS = {"Session": "recording", "Length (ns)": "length", "GPUs": "GPUs"}
_PRIORITIES = {"Noise": 4, "Run": 0, "Change": 0, "Beyond": 2, "Host": 3, "GPUs": 4, "Started": 2}


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

    orders = ("as recorded", "change")

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._comparison: Comparison | None = None
        self._tables: list[AnyTable] = []
        self._paths: tuple[Path, ...] = ()
        self._notes: tuple[str, ...] = ()
        self._verdict: list[str] = []
        self._failure = ""
        self._listed_of: AnyTable | None = None
        self._effects: dict[str, float] = {}

    def show_item(self, key: Hashable) -> None:
        """Read recordings, of which `key` has the paths, in a thread, and show how they differ from
        the first."""
        asked = self._paths = cast("tuple[Path, ...]", key)
        self._comparison, self._tables, self._notes, self._failure = None, [], (), ""
        self.needle, self._verdict = "", []
        self.draw()

        def read() -> Read:
            from gputui.playback.opening import load
            from gputui.render.comparison import comparison_tables, verdict_text
            from gputui.report.comparable import Subject
            from gputui.report.compare import compare

            loaded = [load(str(path)) for path in asked]
            subjects = [
                Subject(recording_name(path), one.session, one.run)
                for path, one in zip(asked, loaded, strict=True)
            ]
            notes = tuple(note for one in loaded for note in one.remarks)
            comparison = compare(subjects)
            verdict = verdict_text(comparison).splitlines()
            return comparison, comparison_tables(comparison), notes, verdict

        def done(result: Read) -> None:
            if asked == self._paths:
                self._comparison, self._tables, self._notes, self._verdict = result
                self._effects = longer_by_cause(result[0])
                names = [table.name for table in self._tables]
                self.tab = next((names.index(name) for name in _FIRST if name in names), 0)
                self._gputui.main.draw()

        def failed(reason: str) -> None:
            if asked == self._paths:
                self._failure = reason.replace(f"{asked[0].parent}/", "")
                self._gputui.main.draw()

        self._gputui.in_thread(read, done, failed)

    def rows(self, width: int, height: int) -> list[Row]:
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
            word, _, said = line.partition("  ")
            badge = {"FASTER": "verdict-good", "SLOWER": "verdict-bad"}.get(word.split(" ")[-1])
            rows += badged(word, said, width, badge or "verdict") if word else [
                ((" ", "text"), *row) for row in wrap(line.strip(), width - 1, "text")]  # fmt: skip
        table = self._tables[self.tab]
        note = self.filter_note or f"{len(table.rows)} lines"
        rows.append(self.tab_row(width, note))
        foot = wrap(_NOISE, width, "dim") if table.name.startswith("compare_") else []
        foot = foot if height >= 20 and table.name != "compare_unmatched" else []
        listed, self._listed_of = self._ordered(table), table
        if not listed:
            return [*rows, (), ((f"  {NO_MATCH}", "dim"),)]
        columns = comparison_columns(table, listed, self._effects)
        keys = [row[:2] for row in listed]
        room = height - len(rows) - len(foot)
        rows += self.table(columns, listed, keys, width, room, len(rows), is_sorted=False)
        rows += [()] * (height - len(rows) - len(foot))
        return rows + foot

    # --- keys

    def activate(self) -> Details | None:
        """Every cell of the chosen line, names in full."""
        row: Cells | None = self.item
        # The lines are those drawn last, maybe of the tab before.
        if row is None or self._listed_of is None:
            return None
        cells = zip(self._listed_of.columns, row, strict=True)
        pairs = [(column.header, shown_cell(column, cell)) for column, cell in cells]
        return Details(str(row[0]), labelled(pairs, 16))

    def sort(self) -> None:
        """By how much changed, or in the order of the baseline."""
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
        found = self.matching(table.rows, lambda row: " ".join(map(str, row[:2])))
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
