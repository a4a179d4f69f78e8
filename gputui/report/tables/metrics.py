"""What the workload reports of itself."""

from __future__ import annotations

from typing import Any

from gputui.report.schema import Column, TableSpec, text
from gputui.report.workload_metrics import metric_text

METRICS: TableSpec[tuple[str, Any]] = TableSpec(
    key="metrics",
    title="Metrics",
    meaning="What the workload reports; names end in their unit.",
    columns=(
        text("Metric", "name", lambda row: row[0], "Its name"),
        Column(
            "Value",
            None,
            "value",
            lambda row: row[1],
            meaning="The newest value",
            kind=float | int | str | bool | None,
            words=lambda row: metric_text(*row)[1],
            flexible=True,
        ),
    ),
    rows=lambda _session, run: list(run.metrics.items()),
    order=0,
    in_summary=True,
)
TABLES = (METRICS,)
