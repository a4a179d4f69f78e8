"""What is kept of the tables a child reports: bounded, clean, and never a reason to fail."""

from __future__ import annotations

import json
import sys

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gputui.collect import child_reports
from gputui.collect.child_reports import ResultTables, TableReport
from gputui.collect.traced_run import RunRequest, TracedRun
from gputui.inject import CaptureOptions
from gputui.model.events import AnyEvent, RunResult
from gputui.model.hub import Numbering

HEAD = {"name": "t", "title": "A title", "columns": [{"name": "n"}, {"name": "ms", "unit": "ms"}]}


def reported(**changes: object) -> TableReport:
    return msgspec.convert({"type": "table", "rows": [], **HEAD, **changes}, TableReport)


def test_rows_of_one_name_add_up_and_keep_their_order() -> None:
    tables = ResultTables()
    assert tables.add(reported(rows=[["a", 1.5]]))
    assert tables.add(reported(rows=[["b", None], ["c", True]]))
    (table,) = tables.freeze()
    assert (table.name, table.title, table.columns[1].unit) == ("t", "A title", "ms")
    assert table.rows == (("a", 1.5), ("b", None), ("c", True))


def test_text_is_cleaned_and_what_is_no_scalar_is_missing() -> None:
    tables = ResultTables()
    tables.add(reported(title="\x1b[31mred", rows=[["a\x1bb" + "x" * 600, {"a": [1]}]]))
    (table,) = tables.freeze()
    ((text, missing),) = table.rows
    assert "\x1b" not in table.title
    assert isinstance(text, str)
    assert "\x1b" not in text
    assert len(text) <= 512
    assert missing is None


def test_rows_of_the_wrong_length_and_other_columns_are_left_out() -> None:
    tables = ResultTables()
    assert not tables.add(reported(rows=[["a"], ["b", 2]]))
    assert not tables.add(reported(columns=[{"name": "other"}], rows=[["c"]]))
    assert not tables.add(reported(name="none", columns=[]))
    (table,) = tables.freeze()
    assert table.rows == (("b", 2),)


def test_there_is_an_end_to_rows_tables_and_cells() -> None:
    tables = ResultTables()
    tables.add(reported(rows=[["a", 1]] * (child_reports.ROWS_LIMIT + 5)))
    for number in range(child_reports.TABLES_LIMIT + 5):
        tables.add(reported(name=f"t{number}", rows=[["a", 1]] * 1000))
    kept = tables.freeze()
    assert len(kept) == child_reports.TABLES_LIMIT
    assert len(kept[0].rows) == child_reports.ROWS_LIMIT
    assert sum(2 * len(table.rows) for table in kept) <= child_reports.CELLS_LIMIT


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=4
)


@given(st.lists(st.lists(json_values, max_size=3), max_size=5))
def test_whatever_the_cells_are_the_result_can_be_journaled(rows: list[list[object]]) -> None:
    tables = ResultTables()
    tables.add(reported(rows=rows))
    for row in tables.freeze()[0].rows:
        msgspec.json.encode(row)


def test_a_child_that_reports_a_table_and_a_result_gives_one_result_with_the_table() -> None:
    table = {"type": "table", "rows": [["a", 1.0]], **HEAD}
    result = {"type": "result", "result": {"results": {"done": 1}}}
    lines = "\n".join([json.dumps(table), json.dumps(table | {"columns": 7}), json.dumps(result)])
    program = (
        f"import os; os.write(int(os.environ['GPUTUI_REPORT_FD']), {(lines + chr(10)).encode()!r})"
    )
    events: list[AnyEvent] = []
    request = RunRequest("workload", "x", (sys.executable, "-c", program))
    run = TracedRun(
        1,
        request,
        events.extend,
        interval_s=0.1,
        numbering=Numbering(),
        capture=CaptureOptions(kernels=False),
    )
    run.start()
    assert run.join(30)
    (found,) = [event for event in events if isinstance(event, RunResult)]
    assert found.tables[0].rows == (("a", 1.0),)
    assert len(found.tables) == 1
