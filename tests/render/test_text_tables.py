"""Tables for a terminal: what has no figures is left out, and what does not fit goes by rank."""

from __future__ import annotations

import csv
import io

import pytest

from gputui.base.sanitize import cell_width, cut_to_width
from gputui.render import formats
from gputui.render.text_tables import csv_line, to_csv, to_json, to_markdown, to_text
from gputui.report.comparable import Subject
from gputui.report.compare import compare
from gputui.report.schema import Column, Table, count, text, time
from gputui.report.tables import run_tables
from gputui.state import Session
from tests.calls_for_tests import calls_of
from tests.events_for_tests import attached, defined, header, run_started

TABLE = Table(
    "t",
    "Title",
    (text("Name"), time("Total"), count("Calls", priority=2), count("Kernels", priority=1)),
    (("decode", 1_500_000, 12, 3), ("a very long name of a phase indeed", 10, 1, None)),
)


def test_all_of_it_where_there_is_room() -> None:
    lines = to_text(TABLE, 100).splitlines()
    assert lines[2].split() == ["Name", "Total", "Calls", "Kernels"]
    assert lines[3].split() == ["decode", "1.50", "ms", "12", "3"]
    assert lines[4].endswith("n/a")


@pytest.mark.parametrize(
    ("width", "headers"),
    [
        (52, ["Name", "Total", "Calls", "Kernels"]),
        (45, ["Name", "Total", "Kernels"]),
        (40, ["Name", "Total"]),
        (20, ["Name", "Total"]),
    ],
)
def test_spare_columns_go_first_and_figures_are_never_cut(width: int, headers: list[str]) -> None:
    lines = to_text(TABLE, width).splitlines()
    assert lines[2].split() == headers
    assert "1.50 ms" in lines[3]
    assert all(cell_width(line) <= max(width, 21) for line in lines)


def test_columns_without_a_figure_are_left_out() -> None:
    table = Table("t", "T", (text("Name"), time("GPU")), (("load", None), ("decode", None)))
    assert "GPU" not in to_text(table)
    assert "GPU" in to_csv(table)


@pytest.mark.parametrize(
    ("table", "raw", "shown"),
    [
        # In use, then over the whole run; memory while the run's processes had CUDA.
        ("devices", "memory_used_bytes", ["Memory", "used", *["999", "MiB"] * 4, "1"]),
        ("devices", "sm_clock_mhz", ["SM", "clock", "1980", "MHz", "672", "MHz", "345", "MHz"]),
        ("metrics", "kv_cache_bytes", ["kv_cache_bytes", "6.75", "MiB"]),
    ],
)
def test_people_read_a_figure_in_its_unit_and_programs_as_it_is(
    h200: Session, table: str, raw: str, shown: list[str]
) -> None:
    assert h200.run is not None
    made = run_tables()[table].table(h200, h200.run)
    assert any(" ".join(shown) in " ".join(line.split()) for line in to_text(made).splitlines())
    assert " ".join(shown[:1]) in to_markdown(made).replace("\\", "")
    (row,) = [row for row in csv.reader(io.StringIO(to_csv(made))) if raw in row]
    (same,) = [row for row in made.cells if raw in row]
    assert row == [str(cell) for cell in same]
    assert f'"{raw}"' in to_json(made)


def test_an_empty_table_keeps_its_headers() -> None:
    assert "GPU" in to_text(Table("t", "T", (text("Name"), Column("GPU", str)), ()))


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("name", run_tables())
def test_every_table_of_a_recorded_run_fits_a_terminal(
    h200: Session, name: str, width: int
) -> None:
    assert h200.run is not None
    lines = to_text(run_tables()[name].table(h200, h200.run), width).splitlines()
    assert max(map(cell_width, lines)) <= width


@pytest.mark.parametrize("words", ["=1+1", "+1", "-1", "@x", "  =1+1", "＝1", "－1", "\t=1"])
def test_no_text_becomes_a_formula_of_a_spreadsheet(words: str) -> None:
    table = Table("t", "T", (text(words), count("Calls")), ((words, -3), ("plain - 1", 2)))
    rows = list(csv.reader(io.StringIO(to_csv(table))))
    assert rows == [[f"'{words}", "Calls"], [f"'{words}", "-3"], ["plain - 1", "2"]]


def test_a_title_stays_in_its_cell() -> None:
    assert list(csv.reader([csv_line('# t: a,=1+1,"b')])) == [['# t: a,=1+1,"b']]


def test_a_note_that_does_not_fit_beside_the_title_stands_below_it() -> None:
    table = Table("t", "Title", (text("Name"),), (("load",),), "what there is to say of it")
    assert to_text(table, 80).splitlines()[0] == "Title  (what there is to say of it)"
    assert to_text(table, 30).splitlines()[:3] == ["Title", "─────", "(what there is to say of it)"]


@pytest.mark.parametrize("width", [None, 400])
def test_a_name_is_bounded_for_people_and_whole_for_programs(width: int | None) -> None:
    name = "void " + "kernel<" * 600
    table = Table("t", "T", (text("Name"), count("Calls")), ((name, 3), ("norm", 1)))
    first, second = to_text(table, width).splitlines()[3:]
    assert first == name[:99] + "…" + "      3"
    assert len(second) == len(first)
    assert name in to_csv(table)
    assert name in to_json(table)


def test_a_comparison_can_be_read_in_a_log(h200: Session) -> None:
    assert h200.run is not None
    subjects = [Subject(label, h200, h200.run) for label in ("a", "b")]
    lines = formats.comparison(compare(subjects), "table").splitlines()
    assert max(map(cell_width, lines)) < 240
    longest = max((known.name for known in h200.kernel_names.values()), key=len)
    assert len(longest) > 240
    assert longest in formats.comparison(compare(subjects), "json")


def test_names_that_stand_very_deep_are_still_read() -> None:
    table = Table("t", "T", (text("Phase"),), ((" " * 40 + "level 20",), (" " * 256 + "norm",)))
    assert to_text(table).splitlines()[3:] == [" " * 40 + "level 20", " " * 38 + "… norm"]


def test_a_summary_does_not_print_names_by_the_thousand() -> None:
    names = [defined(1 + number, f"name {number}") for number in range(1200)]
    session = Session.from_events([header(), run_started(), attached(), *names])
    run = session.run
    assert run is not None
    run.raw_names = True
    text = formats.summary(session, run, "table")
    assert "name 999 " in text
    assert "name 1000 " not in text
    page = formats.summary(session, run, "html")
    assert "name 999<" in page
    assert "name 1000<" not in page
    assert "200 rows more" in page
    assert "… and 200 rows more: gputui summary FILE --table phases" in text
    assert "name 1199" in to_text(run_tables()["phases"].table(session, run))


@pytest.mark.parametrize("unit", ["漢" * 2, "e\u0301", "\u0301" * 2])
def test_long_names_of_any_script_are_cut_in_linear_time(unit: str) -> None:
    def cut(length: int) -> None:
        rows = tuple((f"{number}{unit * length}", number) for number in range(20))
        lines = to_text(Table("t", "T", (text("Name"), count("Calls")), rows), 80).splitlines()
        assert max(map(cell_width, lines)) <= 80
        assert all("…" in line for line in lines[3:])

    cut(2000)  # what is cached on the way
    assert calls_of(lambda: cut(2000)) <= 4.2 * calls_of(lambda: cut(500))


@pytest.mark.parametrize(
    ("words", "width", "cut"),
    [
        ("abc", 3, "abc"), ("abcd", 3, "ab…"), ("漢字", 4, "漢字"), ("漢字", 3, "漢…"),
        ("漢字漢", 4, "漢…"), ("e\u0301a\u0301b", 3, "e\u0301a\u0301b"),
        ("e\u0301a\u0301b", 2, "e\u0301…"), ("", 3, ""),
    ],
)  # fmt: skip
def test_a_text_is_cut_to_a_width(words: str, width: int, cut: str) -> None:
    assert cut_to_width(words, width) == cut
    assert cell_width(cut) <= width
