"""NVTX marks: all are counted, however few are kept one by one."""

from __future__ import annotations

import csv
import io
import sys

from gputui.render.text_tables import to_csv
from gputui.report.summary_document import summary_document
from gputui.report.tables import run_tables
from gputui.report.tables.phases import domains_of, mark_rows, of_domains
from gputui.state import MARKS
from gputui.tui.views.summary import listed
from gputui.tui.widgets.table import table_rows
from tests.sessions_for_tests import traced

PROGRAM = """
import nvtx
for number in range(5000):
    nvtx.mark("often")
    if number % 1000 == 0:
        nvtx.mark("seldom", domain="app")
"""


def test_all_marks_of_a_program_are_counted() -> None:
    session, run = traced([sys.executable, "-c", PROGRAM])
    often, seldom = mark_rows(run)
    assert (often.name, often.domain, often.count) == ("often", "", 5000)
    assert (seldom.name, seldom.domain, seldom.count) == ("seldom", "app", 5)
    assert 0 < often.first_ns <= seldom.first_ns <= seldom.last_ns <= often.last_ns
    assert often.last_ns <= run.duration_ns
    assert len(run.newest_marks) == MARKS

    rows = list(csv.DictReader(io.StringIO(to_csv(run_tables()["nvtx_marks"].table(session, run)))))
    assert [(row["Name"], row["Domain"], row["Marks"]) for row in rows] == [
        ("often", "default", "5000"), ("seldom", "app", "5"),
    ]  # fmt: skip
    told = summary_document(session, run)["marks"]
    assert [(mark["name"], mark["count"]) for mark in told] == [("often", 5000), ("seldom", 5)]
    [marks] = [table for table in listed(session, run) if "Marks" in table.title]
    _, first, *_ = table_rows(marks.columns, marks.lines, 78)
    assert "often" in "".join(text for text, _ in first).split()

    assert domains_of(run) == ["default", "app"]
    assert [row.name for row in mark_rows(of_domains(run, ["app"]))] == ["seldom"]
