"""All figures of files of other tools are what they were: reading them faster changes none."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from gputui.imports import kineto_columns
from gputui.imports.nsys import database, table_pages
from gputui.playback.opening import Loaded, load
from gputui.render.summary import one_table
from gputui.render.text_tables import to_csv
from tests.bench.bench_imports import RichReport, write_chrome
from tests.imports.figures_for_tests import differences, figures_of, make_files, stored


def test_no_figure_of_a_foreign_file_changed(tmp_path: Path) -> None:
    expected = stored()
    changed: dict[str, list[str]] = {}
    for path in make_files(tmp_path):
        lines = list(differences(expected.pop(path.name), figures_of(path)))
        if lines:
            changed[path.name] = lines[:20]
    assert not changed
    assert not expected, "stored figures of files that are not made"


def test_blocks_of_rows_change_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ranges that begin at once, of which the inner stands first in the file, one may be the
    last row of a block; a table that is out of order is sorted."""
    RichReport(tmp_path / "r.sqlite").write(1)
    whole = figures_of(tmp_path / "r.sqlite")
    assert "step/forward/layer 0/attention/aten::op_#" in {row["path"] for row in whole["phases"]}
    monkeypatch.setattr(table_pages, "BYTES_AT_ONCE", 4096)
    monkeypatch.setattr(database, "ROWS_AT_ONCE", 61)
    for most_held in (1000, -1):
        monkeypatch.setattr(database, "MOST_HELD", most_held)
        assert not list(differences(whole, figures_of(tmp_path / "r.sqlite")))


def test_rows_of_a_trace_that_wait_in_a_file_have_the_same_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a trace whose events are in no order."""
    path = tmp_path / "chrome.json"
    write_chrome(path, 3)
    document = json.loads(path.read_text())
    random.Random(3).shuffle(document["traceEvents"])
    path.write_text(json.dumps(document))
    whole = figures_of(path)
    monkeypatch.setattr(kineto_columns, "ROWS_HELD", 400)
    assert not list(differences(whole, figures_of(path)))


def test_a_change_of_a_figure_is_seen() -> None:
    before = {"rows": [{"total_ns": 5, "average": 2.5}], "note": None}
    assert not list(differences(before, {"rows": [{"total_ns": 5, "average": 2.5 + 1e-14}],
                                         "note": None}))  # fmt: skip
    changed: tuple[dict[str, object], ...] = (
        {"rows": [{"total_ns": 6, "average": 2.5}], "note": None},
        {"rows": [{"total_ns": 5, "average": 2.5000001}], "note": None},
        {"rows": [{"total_ns": 5, "average": 2.5}], "note": "lost"},
        {"rows": [], "note": None},
        {"rows": [{"total_ns": 5}], "note": None},
    )
    for after in changed:
        assert len(list(differences(before, after))) == 1


def test_a_table_alone_has_the_same_digits_as_that_of_all_rows(tmp_path: Path) -> None:
    """Of so many different values that some medians are those of buckets."""
    reports = {path.stem: str(path) for path in make_files(tmp_path)}
    for report, tables in (
        ("h200-ranges-repeated", ("cuda_gpu_kern_sum", "cuda_api_sum", "cuda_gpu_mem_size_sum")),
        ("rich", ("cuda_gpu_kern_sum", "nvtx_pushpop_sum", "nvtx_gpu_proj_sum")),
    ):
        whole = load(reports[report])
        for table in tables:
            alone = load(reports[report], tables=(table,))
            assert alone.run is not None
            assert len(alone.run.ranges) * len(alone.run.kernels) == 0  # only what the table shows
            assert _as_csv(whole, table) == _as_csv(alone, table)
        together = load(reports[report], tables=tables)
        assert [_as_csv(whole, table) for table in tables] == [
            _as_csv(together, table) for table in tables
        ]


def _as_csv(loaded: Loaded, table: str) -> str:
    return to_csv(one_table(loaded.session, loaded.run, table))
