"""Alerts raised during a run, or over a recording without one."""

from __future__ import annotations

from typing import NamedTuple

from gputui.report.alerts import amount_text
from gputui.report.schema import Column, TableSpec, text, time
from gputui.state import AlertSpan, Run, Session


class AlertRow(NamedTuple):
    """An alert, and the moment its times count from."""

    span: AlertSpan
    start_ns: int

    @property
    def since_ns(self) -> int:
        """The first reading over the limit."""
        return self.span.since_ns - self.start_ns

    @property
    def held_ns(self) -> int | None:
        """How long it lasted, None if it was not over at the end."""
        until_ns = self.span.until_ns
        return None if until_ns is None else until_ns - self.span.since_ns

    @property
    def worst(self) -> str:
        """The reading furthest from the limit, in words."""
        return amount_text(self.span.raised.what, self.span.worst)


def alert_rows(session: Session, run: Run | None) -> list[AlertRow]:
    """The alerts of a run, the oldest first; without one those of the recording."""
    if run is None:
        return [AlertRow(span, session.started_ns) for span in session.alerts]
    first_ns, last_ns = run.started.time_ns, run.started.time_ns + run.duration_ns
    return [
        AlertRow(span, first_ns)
        for span in session.alerts
        if span.since_ns <= last_ns and (span.until_ns is None or span.until_ns >= first_ns)
    ]


ALERTS: TableSpec[AlertRow] = TableSpec(
    key="alerts",
    title="Alerts",
    meaning="Conditions of `--alert` that held for as long as they say.",
    columns=(
        text("Condition", "condition", lambda row: row.span.raised.condition, "As it was typed"),
        text("Where", "subject", lambda row: row.span.raised.subject,
             "A GPU, the host, or the run whose time it is about"),
        time("Since", "since_ns", lambda row: row.since_ns,
             "The first reading over the limit, since the start"),
        time("Held", "held_ns", lambda row: row.held_ns,
             "How long; missing where it was not over at the end", kind=int | None),
        Column("Worst", None, "worst", lambda row: row.span.worst,
               meaning="The reading furthest from the limit", kind=float,
               words=lambda row: row.worst, right=True),
    ),
    rows=alert_rows,
    order=5,
    in_summary=True,
    document="alerts",
    note=lambda _run, _rows: "times since the start",
)  # fmt: skip
TABLES = (ALERTS,)
MACHINE_TABLES = (ALERTS,)
