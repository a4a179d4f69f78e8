"""Summary: the workload's own tables and what stands out, at every width."""

from __future__ import annotations

import pytest

from gputui.model.events import CaptureDelta, ResultColumn, ResultTable, RunResult
from gputui.report.schema import TableSpec, count, text
from gputui.report.tables import run_tables
from gputui.tui.views.summary import SummaryView
from tests.tui import scripted
from tests.tui.conftest import Show, Shown
from tests.tui.scripted import SECOND_NS, START_NS, Batch

FIGURES = tuple(1.5 + number for number in range(12))


def with_result(rows: int = 2) -> list[Batch]:
    """A run whose table is wider than 80 columns."""
    lines: list[tuple[str | float | None, ...]] = []
    for number in range(rows - 1):
        lines.append((f"small{number}", True, *FIGURES, "out of memory"))
    lines.append(("大" * 60, False, None, *FIGURES[1:], "ok"))
    table = ResultTable(
        name="headline",
        title="Training steps",
        columns=(
            ResultColumn(name="size"),
            ResultColumn(name="is_compiled"),
            *(ResultColumn(name=f"figure{number}_ms", unit="ms") for number in range(12)),
            ResultColumn(name="status"),
        ),
        rows=tuple(lines),
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


async def opened(shown: Shown, title: str) -> SummaryView:
    """One of the tables, by its title."""
    await shown.press("1", "1")
    view = shown.app.main.view
    assert isinstance(view, SummaryView)
    await shown.click(title)
    while "Esc all tables" not in shown.text:
        await shown.press("enter")
    return view


@pytest.mark.parametrize("size", [(60, 30), (80, 24), (120, 40), (200, 50)], ids=str)
async def test_no_figure_of_a_result_table_is_lost_or_cut(
    show: Show, size: tuple[int, int]
) -> None:
    """In columns where there is room, and all of them with Enter."""
    async with show(with_result(), size) as shown:
        await opened(shown, "Training steps")
        titles = " ".join(shown.text.split())
        places = [n for n in range(12) if f"figure{n}_ms" in titles]
        assert places
        for number in places:
            assert f" {FIGURES[number]:.4g} " in titles + " "
        await shown.press("end", "enter")
        details = shown.text
        for number, figure in enumerate(FIGURES[1:], 1):
            assert f"figure{number}_ms" in details
            assert f"{figure:.4g}" in details
        assert "n/a" in details
        assert "ok" in details


async def test_a_long_table_is_there_to_its_end(show: Show) -> None:
    async with show(with_result(121), (120, 40)) as shown:
        view = await opened(shown, "Training steps")
        assert view.records.row_count == 121
        assert "small0 " in shown.text
        await shown.press("end")
        assert "大" in shown.text
        assert "small0 " not in shown.text
        await shown.press("home")
        assert "small0 " in shown.text
        assert "大" not in shown.text


async def test_enter_opens_a_line_of_the_table_that_was_gone_to_unseen(show: Show) -> None:
    """The terminal too small, Enter paired the titles of a table with a line of the one before,
    and the screen failed."""
    async with show(with_result(), (120, 40)) as shown:
        await opened(shown, "Training steps")
        await shown.pilot.resize_terminal(120, 5)
        await shown.press("left", "enter")
        await shown.pilot.resize_terminal(120, 40)
        await shown.settle()
        assert "figure0_ms" not in shown.text


async def test_rows_of_a_wrong_length_are_shown_as_far_as_they_go(show: Show) -> None:
    columns = (ResultColumn(name="size"), ResultColumn(name="wall_ms", unit="ms"))
    tables = (
        ResultTable(name="x", title="Ragged", columns=columns, rows=(("a",), ("b", 7.25, 9))),
        ResultTable(name="y", title="Nothing", columns=(), rows=((), (1,))),
    )
    result = RunResult(
        time_ns=START_NS, run=1, complete=True, parameters={}, results={}, tables=tables
    )
    async with show([*scripted.gpu_session(1, quiet=2), [result]], (80, 40)) as shown:
        await opened(shown, "Ragged")
        assert any(line.split() == ["a", "n/a"] for line in shown.lines)
        assert any(line.split() == ["b", "7.25"] for line in shown.lines)
        await shown.press("escape")
        assert "Nothing" not in shown.text


async def test_a_table_that_is_declared_is_there_without_another_line(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = TableSpec(
        key="moons",
        title="Moons",
        meaning="None.",
        columns=(
            text("Moon", "moon", lambda row: row[0]),
            count("Craters", "craters", lambda row: row[1]),
        ),
        rows=lambda _session, _run: [("Io", 3), ("Europa", 12), ("Metis", None)],
        order=1,
        in_summary=True,
    )
    declared = {**run_tables(), "moons": spec}
    monkeypatch.setattr("gputui.report.tables.run_tables", lambda: declared)
    async with show(scripted.gpu_session(1, quiet=2), (80, 24)) as shown:
        await opened(shown, "Moons")

        def moons() -> list[str]:
            names = ("Io", "Europa", "Metis")
            return [line.split()[0] for line in shown.lines if line.startswith(names)]

        assert moons() == ["Io", "Europa", "Metis"]
        await shown.click("craters")
        assert moons() == ["Europa", "Io", "Metis"]
        await shown.click("craters")
        assert moons() == ["Io", "Europa", "Metis"]  # the one without a figure stays last
        await shown.press("s", "s")
        assert moons() == ["Europa", "Io", "Metis"]
        await shown.press("slash", *"eur", "enter")
        assert moons() == ["Europa"]
        await shown.press("y")
        await shown.press("escape", "left", "right", "escape")
        assert "─ Tables " in shown.text


async def test_findings_are_shown_with_what_to_try(show: Show) -> None:
    lost = CaptureDelta(time_ns=START_NS + 300 * SECOND_NS, process=1, dropped=7)
    async with show([*with_result(), [lost]], (80, 40)) as shown:
        await shown.press("1", "1")
        names = shown.text
        assert names.index("Findings") < names.index("Metrics") < names.index("Training steps")
        await opened(shown, "Findings")
        assert "records were lost" in shown.text
        assert "what to try" in shown.text
