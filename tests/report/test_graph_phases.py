"""A decode of an H100 by CUDA graphs, recorded: its phases are those of the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.playback.opening import open_recording
from gputui.report.phases import phase_rows
from gputui.report.tables.nsys import TABLES
from gputui.state import Session

STEPS = 47
PER_STEP = {
    "embedding": 2, "norm": 25, "qkv_proj": 12, "attention": 24, "out_proj": 24, "mlp": 60,
    "lm_head": 1,
}  # fmt: skip
"""Kernels that an eager step launches in each part of GPT-2 small."""


@pytest.fixture(scope="module")
def session() -> Session:
    path = Path(__file__).parents[1] / "data" / "h100-graphs.gputui.gz"
    return Session.from_events(list(open_recording(str(path))))


def test_each_kernel_counts_in_the_part_that_captured_it(session: Session) -> None:
    assert session.run is not None
    rows = {row.path: row for row in phase_rows(session.run)}
    replay = rows["decode/step/replay"]
    found = {row.name: row for path, row in rows.items() if path.startswith(f"{replay.path}/")}
    kernels = {name: row.kernels for name, row in found.items()}
    assert kernels == {name: STEPS * count for name, count in PER_STEP.items()}
    assert all(row.kernels == row.launched.replayed and row.is_replayed for row in found.values())
    assert (replay.kernels, replay.launches) == (STEPS * 149, STEPS)
    # The rest, 2.6 %, is what samples: this recording's capture had no range around it.
    assert sum(row.kernel_ns for row in found.values()) > 0.97 * replay.kernel_ns
    # Shares as in the only eager pass beside it, the prompt's, which is not as small.
    prompt = rows["prefill/step"]
    for name in ("attention", "norm", "mlp"):
        eager = rows[f"prefill/step/{name}"].kernel_ns / prompt.kernel_ns
        assert found[name].kernel_ns / replay.kernel_ns == pytest.approx(eager, abs=0.06)


def test_tables_of_nsys_have_them_under_the_launch(session: Session) -> None:
    assert session.run is not None
    places = {
        getattr(row, "range", getattr(row, "name", ""))
        for table in TABLES
        for row in table.rows(session, session.run)
    }
    assert ":replay" in places
    captured = {
        node.definition.range for node in session.run.ranges.values() if node.definition.graph
    }
    assert captured
    assert not captured & {row.range for row in session.run.kernels.values()}
    projected = {number for number, node in session.run.ranges.items() if node.projected.count}
    assert not captured & projected
