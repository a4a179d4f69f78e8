"""What `compare --format json` writes."""

from __future__ import annotations

import msgspec

from gputui.model.events import SCHEMA_VERSION
from gputui.model.units import moment
from gputui.report.change import Change, changes
from gputui.report.compare import NOISE_RULE, Comparison, Difference, Item


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
    """The comparison for programs."""
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
