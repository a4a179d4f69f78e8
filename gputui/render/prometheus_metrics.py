"""The names and meanings of metrics, in base units.

Shares are ratios from 0 to 1, clocks are in hertz. Counters are the driver's own, or the run's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from gputui.model.metrics import Metric


@dataclass(frozen=True, eq=False, slots=True)
class Family:
    """A metric with any labels. `name` is without the `_total` that is added to a counter's."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str


Figures = list[tuple[Family, float]]
"""The values for one set of labels."""

Labels = tuple[tuple[str, str], ...]
"""Names and values."""

Found = Iterator[tuple[Labels, Figures]]


def gauge(name: str, text: str) -> Family:
    return Family(f"gputui_{name}", "gauge", text)


def counter(name: str, text: str) -> Family:
    return Family(f"gputui_{name}", "counter", text)


class Exported:
    """The figures of one kind of record whose declarations name a metric."""

    def __init__(self, prefix: str, fields: Mapping[str, Metric]) -> None:
        """`prefix` comes before the declared names: "gpu_"."""
        self._keyed: list[tuple[str, Family, str]] = []
        families: dict[str, Family] = {}
        alike: dict[Labels, list[tuple[str, Family, float]]] = {}
        for field, metric in fields.items():
            if metric.prometheus is None:
                continue
            name = f"gputui_{prefix}{metric.prometheus}"
            family = families.setdefault(name, Family(name, metric.prometheus_kind, metric.help))
            if metric.prometheus_key:
                self._keyed.append((field, family, metric.prometheus_key))
            else:
                labels = (metric.prometheus_label,) if metric.prometheus_label else ()
                alike.setdefault(labels, []).append((field, family, metric.unit.factor))
        self._alike = [
            (labels, _reader([field for field, _, _ in found]), [one[1:] for one in found])
            for labels, found in alike.items()
        ]

    def of(self, record: object, labels: Labels = ()) -> Found:
        """Those of `record` that are not None, under `labels` and their own distinguishing ones."""
        for more, read, families in self._alike:
            yield (
                labels + more,
                [
                    (family, value * factor)
                    for (family, factor), value in zip(families, read(record), strict=True)
                    if value is not None
                ],
            )
        for field, family, label in self._keyed:
            told = getattr(record, field) or ()
            for key in told:
                value = told[key] if isinstance(told, dict) else 1
                yield (*labels, (label, key)), [(family, value)]


def _reader(fields: list[str]) -> Callable[[object], tuple[Any, ...]]:
    if len(fields) > 1:
        return attrgetter(*fields)
    return lambda record: tuple(getattr(record, field) for field in fields)


def series_name(family: Family) -> str:
    """The name of a family's series in both text formats."""
    return f"{family.name}_total" if family.kind == "counter" else family.name


def labels_text(labels: Labels) -> str:
    """What follows it: the labels in braces, or nothing."""
    text = ",".join([f'{label}="{escaped(value)}"' for label, value in labels])
    return f"{{{text}}}" if text else ""


def number(value: float) -> str:
    """A value as both text formats write it."""
    value = float(value)
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def escaped(text: str) -> str:
    """A label's value, so that it cannot end its line or its quotes."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
