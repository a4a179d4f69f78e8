"""A comparison as tables for people, and as a document for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from textwrap import fill

import msgspec

from gputui.model import units
from gputui.model.events import SCHEMA_VERSION
from gputui.model.leaves import LEAF_OF_KEY, LEAVES
from gputui.model.naming import OF_ONE_NAME, short_name
from gputui.model.units import moment
from gputui.render.summary import title_of
from gputui.render.text_tables import to_text
from gputui.report.change import Change, changes, signed_percent
from gputui.report.comparable import EFFECTS
from gputui.report.compare import NOISE_RULE, Comparison, Difference, Figure, Item
from gputui.report.schema import AnyColumn, AnyTable, Cell, Column, Table, text, time
from gputui.report.tables import metric_text

SHOWN = {
    "step": ("mean_ns", "median_ns", "p99_ns", "operations", "slow_percent"),
    "cause": ("step_ns", "share_percent"),
    "metric": ("value",),
    "device": (),
    "phase": ("cpu_avg_ns", "gpu_busy_avg_ns", "gpu_projected_avg_ns", "kernels"),
    "kernel": ("total_ns", "avg_ns", "instances"),
}
"""Figures in the tables, all if empty; the document has every one. Of a cause the first known."""

TITLES = {
    "step": "Steps", "cause": "By cause", "metric": "Metrics", "device": "Devices (averages)",
    "phase": "Phases", "kernel": "Kernels",
}  # fmt: skip

IN_SHORT = ("runs", "compare_steps", "compare_causes")
"""The tables that `gputui compare` prints without --full: of two decodes all were 230 lines."""

LEAST_SHARE = 0.1
"""Causes with less of the time than this percentage in every run are not in the table."""

KERNEL_ROWS = 40
"""The most kernels in a table for people; the kernels that changed the most come first."""


def comparison_tables(comparison: Comparison) -> list[AnyTable]:
    """The comparison as tables: the runs; then steps, causes, metrics, devices, phases and kernels
    with their differences; then what not all runs have."""
    tables = [_runs(comparison)]
    tables += [_table(comparison, kind) for kind in TITLES]
    tables.append(_unmatched(comparison))
    return [table for table in tables if table.rows]


def comparison_text(comparison: Comparison, width: int | None = None, more: str = "") -> str:
    """The verdict and every table, as a terminal shows them. With `more`, which says how to get
    the others, only the runs, their steps and causes, where a GPU's steps were captured."""
    tables = comparison_tables(comparison)
    if more and "compare_steps" in {table.name for table in tables}:
        tables = [table for table in tables if table.name in IN_SHORT]
        more = f"\n  tables  {more}\n"
    else:
        more = ""
    verdicts = [
        fill(line, width, subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2))
        if width
        else line
        for line in verdict_text(comparison).splitlines()
    ]
    sections = ["\n".join([*verdicts, ""])] * bool(verdicts)
    sections += [to_text(table, width) for table in tables]
    return "\n".join(sections) + more


def _runs(comparison: Comparison) -> AnyTable:
    def cells(index: int) -> tuple[Cell, ...]:
        subject = comparison.subjects[index]
        header = subject.session.header
        gpus = ", ".join(dict.fromkeys(gpu.facts.name for gpu in subject.session.gpus.values()))
        return (
            "baseline" if index == 0 else f"run {index + 1}",
            subject.label,
            title_of(subject.run),
            header.host.hostname if header else None,
            gpus or "no GPU",
            moment(subject.started_ns),
            subject.duration_ns,
        )

    names = ("", "Session", "Workload", "Host", "GPUs", "Started")
    columns: tuple[AnyColumn, ...] = (*map(text, names), time("Length"))
    rows = tuple(map(cells, range(len(comparison.subjects))))
    return Table("runs", "Compared", columns, rows, "; ".join(comparison.remarks))


def verdict_text(comparison: Comparison) -> str:
    """The verdict on each run, for the head of a comparison; empty where there is none."""
    return "\n".join(line for change in changes(comparison) for line in _verdict(change))


def _verdict(change: Change) -> list[str]:
    lines = [f"{change.word}  {change.sentence}"]
    if change.because:
        lines.append(f"  because {change.because}.")
    if change.changed:
        lines.append(f"  changed {change.changed}.")
    return lines


def _table(comparison: Comparison, kind: str) -> AnyTable:
    """Two runs on one line; of more, one line each, so that they fit a terminal."""
    several = len(comparison.subjects) > 2
    change: AnyColumn = Column("Change", _signed_percent, unit="%")
    columns: tuple[AnyColumn, ...] = (
        *map(text, ("Name", "Figure", "Run", "Value") if several else
             ("Name", "Figure", "Baseline", "Run 2")),
        change, text("Noise"), text("Beyond noise"),
    )  # fmt: skip
    items = _items_of(comparison, kind)
    left_out = max(0, len(items) - KERNEL_ROWS) if kind == "kernel" else 0
    lines = _stacked if several else _beside
    rows = [
        row
        for item, name, figure in _shown(items[: len(items) - left_out])
        for row in lines(name, figure, _unit(item.name if kind == "metric" else figure.name))
    ]
    note = "largest effect first" if kind in EFFECTS else ""
    if left_out:
        note += f"; {left_out} more kernels in the json format"
    return Table(f"compare_{kind}s", TITLES[kind], columns, tuple(rows), note)


def _items_of(comparison: Comparison, kind: str) -> list[Item]:
    """The items of a table: the sums of the causes stand with the steps, small causes nowhere."""
    causes = comparison.of_kind("cause")
    if kind == "step":
        sums = [item for item in causes if item.name not in LEAF_OF_KEY]
        return [*comparison.of_kind("step"), *sums]
    if kind != "cause":
        return comparison.of_kind(kind)
    return [
        item
        for item in causes
        if item.name in LEAF_OF_KEY and max(_amounts(item.figures["share_percent"])) >= LEAST_SHARE
    ]


def _shown(items: list[Item]) -> Iterator[tuple[Item, str, Figure]]:
    for item in items:
        if not item.present[0] or sum(item.present) < 2:
            continue
        name = f"{item.was} → {item.name}" if item.was else item.name
        if item.name in LEAF_OF_KEY:
            name = f"{item.name.partition('.')[0]} {LEAVES[LEAF_OF_KEY[item.name]].label}"
        names = [figure for figure in SHOWN[item.kind] or item.figures if figure in item.figures]
        if item.kind == "device":
            names = [figure for figure in names if _is_shown(item, figure)]
        for figure in names[:1] if item.kind == "cause" else names:
            yield item, name, item.figures[figure]


def _is_shown(item: Item, figure: str) -> bool:
    """Each figure of a device once: while the GPU was in use where that is known of every run,
    and a bandwidth as a share of its peak."""
    others = [figure.replace("_bytes_per_s", "_percent")] if "_bytes_per_s" in figure else []
    others += [] if figure.startswith("in_use_") else [f"in_use_{figure}"]
    better = (item.figures[other] for other in others if other in item.figures)
    return not any(None not in figure_of.values for figure_of in better)


def _amounts(figure: Figure) -> list[float]:
    return [value.amount for value in figure.values if value is not None]


def _beside(name: str, figure: Figure, show: Callable[[float], str]) -> Iterator[tuple[Cell, ...]]:
    yield (name, figure.name, _amount(figure, 0, show), _amount(figure, 1, show),
           *_change(figure, 1, show))  # fmt: skip


def _stacked(name: str, figure: Figure, show: Callable[[float], str]) -> Iterator[tuple[Cell, ...]]:
    yield name, figure.name, "baseline", _amount(figure, 0, show), "", "", ""
    for index in range(1, len(figure.values)):
        yield (name, figure.name, f"run {index + 1}", _amount(figure, index, show),
               *_change(figure, index, show))  # fmt: skip


def _amount(figure: Figure, index: int, show: Callable[[float], str]) -> str:
    value = figure.values[index]
    return show(value.amount) if value else units.MISSING


def _change(
    figure: Figure, index: int, show: Callable[[float], str]
) -> tuple[float | str | None, ...]:
    difference = figure.difference(index)
    if difference is None:
        return None, "", ""
    return (
        _share(difference),
        "" if difference.noise is None else f"±{show(difference.noise)}",
        {None: "", True: "yes", False: "no"}[difference.beyond_noise],
    )


def _share(difference: Difference) -> float | str:
    """The change in percent; of nothing there is none."""
    if difference.percent is None:
        return "from 0" if difference.absolute else 0.0
    return round(difference.percent, 3)


def flat_table(comparison: Comparison) -> AnyTable:
    """Every figure of every item in one table, one row each, as raw numbers."""
    labels = [subject.label for subject in comparison.subjects]
    headers = ["kind", "name", "was", "figure", *labels]
    for label in labels[1:]:
        headers += [f"{label} {what}" for what in ("percent", "noise", "beyond_noise")]
    rows: list[tuple[Cell, ...]] = []
    for item in comparison.items:
        for figure in item.figures.values():
            row: list[Cell] = [item.kind, item.name, item.was, figure.name]
            row += [value.amount if value else None for value in figure.values]
            for index in range(1, len(labels)):
                difference = figure.difference(index)
                row += (
                    [difference.percent, difference.noise, difference.beyond_noise]
                    if difference
                    else [None] * 3
                )
            rows.append(tuple(row))
    return Table("compare", "Comparison", tuple(map(text, headers)), tuple(rows))


def _unit(name: str) -> Callable[[float], str]:
    return lambda amount: metric_text(name, amount)[1]


def _signed_percent(value: float | None) -> str:
    return units.MISSING if value is None else signed_percent(value)


def _unmatched(comparison: Comparison) -> AnyTable:
    rows: list[tuple[Cell, ...]] = [
        (item.kind, item.was, f"renamed to {item.name}") for item in comparison.renamed
    ]
    alike: dict[tuple[str, str, str], list[str]] = {}
    for item in comparison.missing:
        # Cut to a line, templates of one function read alike.
        name = short_name(item.name) if item.kind == "kernel" else item.name
        what = f"not in {', '.join(comparison.lacking(item))}"
        alike.setdefault((item.kind, name, what), []).append(item.name)
    rows += [
        (kind, names[0] if len(names) == 1 else f"{name} ({len(names)} {OF_ONE_NAME}", what)
        for (kind, name, what), names in alike.items()
    ]
    columns: tuple[AnyColumn, ...] = (text("Kind"), text("Name"), text("What"))
    return Table("compare_unmatched", "Renamed or not in every run", columns, tuple(rows))


# --- what `compare --format json` writes


class ComparedRun(msgspec.Struct, frozen=True):
    """One of the runs; `name` is None where none was recorded."""

    label: str
    name: str | None
    hostname: str | None
    started: str
    duration_ns: int


class ComparedFigure(msgspec.Struct, frozen=True):
    """A figure in each run, with the standard error of the mean where it is known; `differences`
    are of each run but the first from the first."""

    values: list[float | None]
    errors: list[float | None]
    differences: list[Difference | None]


class ComparedItem(msgspec.Struct, frozen=True):
    """A step, cause, metric, device, phase or kernel; `was` is its name in the first run, if it
    is another."""

    kind: str
    name: str
    was: str | None
    figures: dict[str, ComparedFigure]


class Renamed(msgspec.Struct, frozen=True, rename={"old": "from", "new": "to"}):
    """An item that the first run knows by another name."""

    kind: str
    old: str | None
    new: str


class Missing(msgspec.Struct, frozen=True):
    """An item that some runs lack."""

    kind: str
    name: str
    missing_in: list[str]


class ComparisonDocument(msgspec.Struct, frozen=True):
    """Every figure of every item, missing as null. `verdicts` are on the runs after the first, of
    those that used a GPU."""

    schema: int
    verdicts: list[Change]
    noise_rule: str
    remarks: list[str]
    runs: list[ComparedRun]
    items: list[ComparedItem]
    renamed: list[Renamed]
    missing: list[Missing]


def comparison_document(comparison: Comparison) -> ComparisonDocument:
    """The comparison as a document: every figure of every item, for JSON."""
    return ComparisonDocument(
        SCHEMA_VERSION,
        changes(comparison),
        NOISE_RULE,
        comparison.remarks,
        [
            ComparedRun(
                subject.label,
                subject.run.started.name if subject.run else None,
                subject.session.header.host.hostname if subject.session.header else None,
                moment(subject.started_ns),
                subject.duration_ns,
            )
            for subject in comparison.subjects
        ],
        [_item(comparison, item) for item in comparison.items],
        [Renamed(item.kind, item.was, item.name) for item in comparison.renamed],
        [Missing(item.kind, item.name, comparison.lacking(item)) for item in comparison.missing],
    )


def _item(comparison: Comparison, item: Item) -> ComparedItem:
    others = range(1, len(comparison.subjects))
    return ComparedItem(
        item.kind,
        item.name,
        item.was,
        {
            name: ComparedFigure(
                [value.amount if value else None for value in figure.values],
                [value.error if value else None for value in figure.values],
                [figure.difference(index) for index in others],
            )
            for name, figure in item.figures.items()
        },
    )


# A comparison's figures in words, and what in its tables has not changed.


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


def sameness(table: AnyTable) -> Callable[[tuple[Cell, ...]], bool]:
    """What says of a line whether its change is none, or within noise; of none if nothing is
    compared in the table."""
    headers = [column.header for column in table.columns]
    if "Beyond noise" not in headers:
        return lambda _: False
    change, beyond = headers.index("Change (%)"), headers.index("Beyond noise")
    return lambda row: row[beyond] == "no" or row[change] == 0


def longer_by_cause(comparison: Comparison) -> dict[str, float]:
    """How much longer a step is for each cause, in ns, by the cause's name in the table; of two
    runs."""
    longer_ns = {}
    for item in comparison.of_kind("cause") if len(comparison.subjects) == 2 else ():
        figure = item.figures.get("step_ns")
        difference = figure.difference(1) if figure is not None else None
        if item.name in LEAF_OF_KEY and difference is not None:
            state, label = item.name.partition(".")[0], LEAVES[LEAF_OF_KEY[item.name]].label
            longer_ns[f"{state} {label}"] = difference.absolute
    return longer_ns
