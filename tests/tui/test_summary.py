"""Summary: the workload's own tables and what stands out, at every width."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from gputui.model.events import CaptureDelta, ResultColumn, ResultTable, RunResult
from gputui.report.tables import own_tables
from gputui.state import Session
from gputui.tui.views.summary import summary_rows
from gputui.tui.widgets.result import MOST_ROWS, result_rows
from tests.tui import scripted
from tests.tui.conftest import Show
from tests.tui.scripted import SECOND_NS, START_NS, Batch

FIGURES = tuple(1.5 + number for number in range(12))


def with_result(rows: int = 2) -> list[Batch]:
    """A run whose table is wider than 80 columns."""
    table = ResultTable(
        name="headline",
        title="Training steps",
        columns=(
            ResultColumn(name="size"),
            ResultColumn(name="is_compiled"),
            *(ResultColumn(name=f"figure{number}_ms", unit="ms") for number in range(12)),
            ResultColumn(name="status"),
        ),
        rows=(
            *((f"small{n}", True, *FIGURES, "out of memory") for n in range(rows - 1)),
            ("大" * 60, False, None, *FIGURES[1:], "ok"),
        ),
    )
    result = RunResult(
        time_ns=START_NS + 300 * SECOND_NS,
        run=1,
        complete=True,
        parameters={},
        results={"final_loss": 2.5},
        tables=(table,),
    )
    return [*scripted.gpu_session(1, quiet=5), [result]]


def text_at(width: int, batches: list[Batch]) -> list[str]:
    """The whole summary."""
    session = Session()
    for batch in batches:
        session.apply(batch)
    assert session.run is not None
    rows = summary_rows(session, session.run, width)
    return ["".join(text for text, _ in row) for row in rows]


@pytest.mark.parametrize("width", [58, 78, 118, 198])
def test_no_figure_of_a_result_table_is_lost_or_cut(width: int) -> None:
    lines = text_at(width, with_result())
    assert all(cell_len(line) <= width for line in lines)
    start = next(n for n, line in enumerate(lines) if line.startswith("─ Training steps "))
    end = next(n for n in range(start + 1, len(lines)) if lines[n].startswith("─ "))
    block = lines[start:end]
    words = " ".join(block).split()
    for number, figure in enumerate(FIGURES):
        assert f"figure{number}_ms" in words
        assert f"{figure:.4g}" in words
    assert "n/a" in words
    assert "out of memory" in " ".join(block)
    names = sum(line.startswith("small0") for line in block)
    headers = sum(line.startswith("size") for line in block)
    assert names == headers >= 1


def test_a_long_table_shows_its_beginning_and_says_so() -> None:
    lines = text_at(118, with_result(MOST_ROWS + 20))
    assert any(f"first {MOST_ROWS} of {MOST_ROWS + 20}" in line for line in lines)
    shown = {line.split()[0] for line in lines if line.startswith("small")}
    assert len(shown) == MOST_ROWS


def test_a_table_of_figures_alone_repeats_its_first_column() -> None:
    session = Session()
    columns = tuple(ResultColumn(name=f"column_number_{n}") for n in range(8))
    table = ResultTable(name="x", title="X", columns=columns, rows=(tuple(range(8)),))
    result = RunResult(
        time_ns=START_NS, run=1, complete=True, parameters={}, results={}, tables=(table,)
    )
    for batch in [*scripted.gpu_session(1, quiet=2), [result]]:
        session.apply(batch)
    assert session.run is not None
    [own] = own_tables(session.run)
    lines = ["".join(text for text, _ in row) for row in result_rows(own, 60)]
    assert sum("column_number_0" in line for line in lines) > 1
    assert all(any(f"column_number_{n}" in line for line in lines) for n in range(8))


def test_rows_of_a_wrong_length_are_shown_as_far_as_they_go() -> None:
    columns = (ResultColumn(name="size"), ResultColumn(name="wall_ms", unit="ms"))
    tables = (
        ResultTable(name="x", title="Ragged", columns=columns, rows=(("a",), ("b", 7.25, 9))),
        ResultTable(name="y", title="Nothing", columns=(), rows=((), (1,))),
    )
    result = RunResult(
        time_ns=START_NS, run=1, complete=True, parameters={}, results={}, tables=tables
    )
    lines = text_at(78, [*scripted.gpu_session(1, quiet=2), [result]])
    assert any(line.split() == ["a", "n/a"] for line in lines)
    assert any(line.split() == ["b", "7.25"] for line in lines)
    assert not any("Nothing" in line for line in lines)


async def test_findings_are_shown_with_what_to_try(show: Show) -> None:
    lost = CaptureDelta(time_ns=START_NS + 300 * SECOND_NS, process=1, dropped=7)
    async with show([*with_result(), [lost]], (80, 200)) as shown:
        await shown.press("1", "1")
        assert "─ Findings " in shown.text
        assert "records were lost" in shown.text
        assert "try: " in shown.text
        assert shown.text.index("Figures the workload") < shown.text.index("Training steps")
