"""A summary of the ranges of some NVTX domains alone, as the command line gives it."""

from __future__ import annotations

import pytest
from nvtx_cases import write_cases

from gputui.cli import run


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
    assert "there are: default, app, NCCL" in capsys.readouterr().err
