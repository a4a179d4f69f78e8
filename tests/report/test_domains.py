"""A summary of the ranges of some NVTX domains alone, as the command line gives it."""

from __future__ import annotations

import csv
import io

import pytest

from gputui.cli.dispatch import run
from gputui.playback.opening import load
from gputui.report.phases import phase_rows
from gputui.tui.views.summary import listed
from tests.report.nvtx_cases import write_cases


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_cases(tmp_path_factory.mktemp("report") / "r.sqlite"))


def table(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert run(["summary", *arguments, "--format", "csv"]) == 0
    return capsys.readouterr().out.splitlines()[1:]


@pytest.mark.parametrize("name", ["nvtx_sum", "nvtx_gpu_proj_sum"])
def test_tables_hold_the_ranges_of_that_domain_alone(
    report: str, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    every = table(capsys, report, "--table", name)
    apart = [
        table(capsys, report, "--table", name, "--domain", domain)
        for domain in ("default", "APP", "nccl")
    ]
    assert sum(map(len, apart)) == len(every)
    for rows, domain in zip(apart, ("", "app", "NCCL"), strict=True):
        assert rows
        assert all(f"{domain}:" in row for row in rows)


def test_the_tree_leaves_libraries_out_until_they_are_asked_for(
    report: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = table(capsys, report, "--table", "phases")
    library = table(capsys, report, "--table", "phases", "--domain", "NCCL")
    app = table(capsys, report, "--table", "phases", "--domain", "app", "--domain", "default")
    assert library
    assert len(app) == len(tree)


def test_an_unknown_domain_is_one_clear_line(
    report: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["summary", report, "--domain", "cub"]) == 2
    assert "available: default, app, NCCL" in capsys.readouterr().err


def test_phases_say_whose_they_are_to_programs_always_and_to_people_where_it_differs(
    report: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["summary", report, "--table", "phases", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["Domain"] for row in rows} == {"default", "app"}
    for row in rows:
        assert row["Path"].count("/") == int(row["Depth"])
        assert row["Path"].endswith(row["Phase"].strip())
        assert row["PID"].isdigit()
    assert run(["summary", report, "--table", "phases"]) == 0
    text = capsys.readouterr().out
    # Of the main step, in its domain.
    assert "share of the wall time of each step on the launching thread" in text
    header, *lines = text.splitlines()[2:]
    assert header.split()[:2] == ["Phase", "Domain"]
    assert {line[header.index("Domain") :].split()[0] for line in lines} == {"default", "app"}
    assert run(["summary", report, "--table", "phases", "--domain", "app"]) == 0
    assert "Domain" not in capsys.readouterr().out
    assert "Path" not in header
    assert "Depth" not in header


def test_the_summary_on_the_screen_says_the_domain_of_outermost_ranges(report: str) -> None:
    loaded = load(report)
    assert loaded.run is not None
    tables = listed(loaded.session, loaded.run)
    [phases] = [table for table in tables if table.title.startswith("Phases")]
    tops = [row for row in phase_rows(loaded.run) if row.depth == 0]
    assert any(row.domain for row in tops)
    for row in tops:
        lines = [line.cells for line in phases.lines if line.cells[0] == row.name]
        assert any((row.domain or "default") in cells for cells in lines)
