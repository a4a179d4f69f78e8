"""What rules may use of a run is computed once for an analysis, whoever asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gputui.report.explain import Analysis, analysis, conclusion, findings
from tests.conftest import DATA
from tests.sessions_for_tests import loaded_once

FIGURES = ("matched", "device_trees", "kernel_sums", "rank_times", "lateness_of", "line_shares")


def test_rules_compute_no_figure_a_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[tuple[str, Any]] = Counter()

    def counted(name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
        def compute_and_count(*arguments: Any, **options: Any) -> Any:
            counts[name, options.get("leaf")] += 1
            return compute(*arguments, **options)

        return compute_and_count

    for name in FIGURES:
        monkeypatch.setattr(analysis, name, counted(name, getattr(analysis, name)))
    loaded = loaded_once(str(DATA / "ranks" / "late_work.gputui.gz"))
    assert loaded.run is not None
    of_run = Analysis(loaded.session, loaded.run)
    assert conclusion(of_run) is conclusion(of_run)
    assert findings(of_run) is findings(of_run)
    assert {name for name, _ in counts} == set(FIGURES)
    assert set(counts.values()) == {1}
