"""A workload's own tables stand in the summary after its metrics, and can be asked for."""

from __future__ import annotations

import json

import pytest

from gputui.model.events import ResultColumn, ResultTable, RunResult
from gputui.render import ExportError, formats
from gputui.render.summary import one_table
from gputui.report.summary_document import summary_document
from gputui.report.tables import summary_tables, table_names
from gputui.state import Session
from tests.events_for_tests import at, header, run_ended, run_started

HEADLINE = ResultTable(
    name="headline",
    title="Training step",
    columns=(
        ResultColumn(name="size"),
        ResultColumn(name="avg_ms", unit="ms", help="mean"),
        ResultColumn(name="peak_bytes", unit="bytes"),
    ),
    rows=(("tiny", 12.345678, 1 << 30), ("xl", None, None)),
)


@pytest.fixture
def session() -> Session:
    session = Session()
    result = RunResult(
        time_ns=at(8), run=1, complete=True, parameters={}, results={"steps": 3}, tables=(HEADLINE,)
    )
    session.apply([header(), run_started(), result, run_ended()])
    return session


def test_the_summary_prints_it_after_the_metrics_with_human_figures(session: Session) -> None:
    run = session.runs[1]
    names = [table.name for table in summary_tables(session, run)]
    assert names[:4] == ["metrics", "headline", "time", "ranks"]
    text = formats.summary(session, run, "table")
    lines = text[text.index("Training step") :].splitlines()
    assert lines[2].split() == ["size", "avg_ms", "peak_bytes"]
    assert lines[3].split() == ["tiny", "12.35", "1.00", "GiB"]
    assert lines[4].split() == ["xl", "n/a", "n/a"]


def test_sums_of_short_formats_can_be_told_apart(session: Session) -> None:
    sums = ResultTable(
        name="sums",
        title="0.01 added a thousand times",
        columns=(ResultColumn(name="sum"), ResultColumn(name="terms")),
        rows=((10.000133514404297, 1000), (9.953125, 1000), (10.0021362, 123456), (4.0, None)),
    )
    result = RunResult(
        time_ns=at(9), run=1, complete=True, parameters={}, results={}, tables=(sums,)
    )
    session.apply([result])
    text = formats.one_table(one_table(session, session.runs[1], "sums"), "table")
    shown = [line.split() for line in text.splitlines()[3:]]
    assert shown == [
        ["10.0001", "1,000"],
        ["9.95312", "1,000"],
        ["10.0021", "123,456"],
        ["4", "n/a"],
    ]


def test_the_document_has_it_whole(session: Session) -> None:
    (table,) = summary_document(session, session.runs[1])["tables"]
    assert table["columns"][1] == {"name": "avg_ms", "unit": "ms", "help": "mean"}
    assert table["rows"] == [["tiny", 12.345678, 1 << 30], ["xl", None, None]]


def test_one_table_can_be_asked_for_by_name(session: Session) -> None:
    run = session.runs[1]
    assert "headline" in table_names(run)
    rows = json.loads(formats.one_table(one_table(session, run, "headline"), "json"))["rows"]
    assert rows[0] == {"size": "tiny", "avg_ms": 12.345678, "peak_bytes": 1 << 30}
    assert formats.one_table(one_table(session, run, "metrics"), "csv").startswith("Metric,Value")
    with pytest.raises(ExportError, match=r"no table 'nothing'; known: headline, metrics"):
        one_table(session, run, "nothing")
