"""All figures of files of other tools are what they were: reading them faster changes none."""

from __future__ import annotations

from pathlib import Path

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
    for after in (
        {"rows": [{"total_ns": 6, "average": 2.5}], "note": None},
        {"rows": [{"total_ns": 5, "average": 2.5000001}], "note": None},
        {"rows": [{"total_ns": 5, "average": 2.5}], "note": "lost"},
        {"rows": [], "note": None},
        {"rows": [{"total_ns": 5}], "note": None},
    ):
        assert len(list(differences(before, after))) == 1
