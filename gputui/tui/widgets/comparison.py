"""A comparison's tables on the screen: figures in words, names in little room, noise dim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from gputui.model.leaves import LEAF_OF_KEY, LEAVES
from gputui.model.naming import OF_ONE_NAME
from gputui.model.units import MISSING
from gputui.report.change import signed_duration
from gputui.report.compare import Comparison
from gputui.report.schema import AnyColumn, AnyTable, Cell, Column
from gputui.report.tables.workload import metric_text
from gputui.tui.widgets.names import short_names
from gputui.tui.widgets.table import column

Cells = tuple[Cell, ...]


def figure_label(kind: str, figure: str) -> str:
    """A figure in words; conditions of --fail-if, and the details of a line, have its own name."""
    if kind == "compare_metrics":
        return ""
    in_use = figure.removeprefix("in_use_")
    if in_use != figure:
        return f"{metric_text(in_use, 0)[0]}, in use"
    if kind == "compare_kernels" and figure == "avg_ns":
        return "one kernel"
    return _FIGURES.get(figure) or metric_text(figure, 0)[0]


_FIGURES = {
    "mean_ns": "mean", "median_ns": "median", "p99_ns": "p99", "step_ns": "a step",
    "operations": "operations a step", "slow_percent": "slow steps", "share_percent": "share",
    "cpu_avg_ns": "CPU time of one", "gpu_busy_avg_ns": "GPU busy of one",
    "gpu_projected_avg_ns": "on the GPU, of one", "total_ns": "GPU time", "instances": "count",
}  # fmt: skip


def sameness(table: AnyTable) -> Callable[[Cells], bool]:
    """What says of a line whether its change is none, or within noise; of none if nothing is
    compared in the table."""
    headers = [one.header for one in table.columns]
    if "Beyond noise" not in headers:
        return lambda _: False
    change, beyond = headers.index("Change (%)"), headers.index("Beyond noise")
    return lambda row: row[beyond] == "no" or row[change] == 0


def effects(comparison: Comparison) -> dict[str, float]:
    """How much longer a step is for each cause, in ns, by the cause's name in the table; of two
    runs."""
    found = {}
    for item in comparison.of_kind("cause") if len(comparison.subjects) == 2 else ():
        figure = item.figures.get("step_ns")
        difference = figure.difference(1) if figure is not None else None
        if item.name in LEAF_OF_KEY and difference is not None:
            state, label = item.name.partition(".")[0], LEAVES[LEAF_OF_KEY[item.name]].label
            found[f"{state} {label}"] = difference.absolute
    return found


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
        if cell_text(shown, row[number]) == MISSING or is_same(row):
            return "dim"
        beyond = number + 2 < len(row) and row[number + 2] == "yes"
        return "value" if header.startswith("Change") and beyond else "text"

    return column(
        _HEADINGS.get(header, header.removesuffix(" (%)").lower()),
        lambda row: cell_text(shown, row[number]),
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
_PRIORITIES = {
    "Noise": 4,
    "Run": 0,
    "Change": 0,
    "Beyond": 2,
    "Host": 3,
    "GPUs": 4,
    "Started": 2,
}


def cell_text(column: AnyColumn, cell: Cell) -> str:
    if cell is None:
        return MISSING
    if column.show is not None and isinstance(cell, int | float):
        return column.show(cell)
    return str(cell)
