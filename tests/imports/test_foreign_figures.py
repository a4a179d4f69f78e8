"""All figures of files of other tools are what they were: reading them faster changes none."""

from __future__ import annotations

from pathlib import Path

from gputui.playback.opening import load
from gputui.render.summary import one_table
from gputui.render.text_tables import to_csv
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
        ("rich", ("cuda_gpu_kern_sum", "nvtx_pushpop_sum")),
    ):
        whole = load(reports[report])
        for table in tables:
            alone = load(reports[report], table=table)
            assert alone.run is not None
            assert len(alone.run.ranges) * len(alone.run.kernels) == 0  # only what the table shows
            texts = [to_csv(one_table(read.session, read.run, table)) for read in (whole, alone)]
            assert texts[0] == texts[1]
