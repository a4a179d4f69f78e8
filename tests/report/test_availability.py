"""What a recording was made without: no figure and a reason, and no word where it was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gputui.cli.dispatch import run
from gputui.playback.opening import load
from gputui.render.text_tables import to_csv, to_json, to_text
from gputui.report.schema import REASON
from gputui.report.summary_document import summary_document
from gputui.report.tables import run_tables
from gputui.report.tables.timing import device_timings
from gputui.state import Session
from tests.conftest import DATA
from tests.sessions_for_tests import loaded_once

EMPTY = (
    "launch_latency", "launch_intervals", "gpu_streams", "gpu_idle_ranges", "kernel_shapes",
    "cuda_kern_exec_sum", "cuda_kern_exec_sum:base", "time",
)  # fmt: skip


@pytest.mark.parametrize("name", EMPTY)
def test_a_table_that_an_old_recording_has_nothing_for_says_why(h200: Session, name: str) -> None:
    assert h200.run is not None
    table = run_tables()[name].table(h200, h200.run)
    assert not table.rows
    assert REASON in to_text(table).splitlines()[0]
    assert json.loads(to_json(table))["unavailable"] == {"rows": REASON}


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("gpu_idle", ["idle_ns", "idle_percent", "gaps", "overlap_ns", "overlap_percent"]),
        ("nvtx_gpu_proj_sum", ["total_range_ns", "gpu_operations", "avg_range_level"]),
        ("nvtx_kern_sum", ["instances"]),
    ],
)
def test_a_figure_that_was_not_measured_is_null_with_a_reason(
    h200: Session, name: str, keys: list[str]
) -> None:
    assert h200.run is not None
    table = run_tables()[name].table(h200, h200.run)
    document = json.loads(to_json(table))
    assert document["rows"]
    for key in keys:
        assert [row[key] for row in document["rows"]] == [None] * len(table.rows)
        assert document["unavailable"][key] == REASON
    assert to_text(table).splitlines()[0].endswith(f"{REASON})")
    assert ",," in to_csv(table) or to_csv(table).splitlines()[1].endswith(",")


def test_the_document_of_an_old_recording_has_nulls_with_reasons(h200: Session) -> None:
    assert h200.run is not None
    document = summary_document(h200, h200.run)
    (device,) = document["timing"]["devices"]
    assert device["busy_ns"] > 0
    for name in ("overlap_ns", "idle", "idle_ranges"):
        assert device[name] is None
        assert device["unavailable"][name] == REASON
    assert document["timing"]["streams"] is None
    assert document["timing"]["unavailable"] == {"streams": REASON, "threads": REASON}
    assert document["launch_shapes"] is None
    assert document["time"] is None
    assert document["unavailable"] == {
        "launch_shapes": REASON,
        "time": REASON,
        "roofline": "no sample was taken in steady steps or an outermost phase",
    }


YOUNGER: dict[str, set[str]] = {}
"""Columns, by the key of their table, of facts that no recording of tests/data has yet."""


@pytest.mark.parametrize("name", run_tables())
def test_nothing_is_missing_from_a_recording_of_today(name: str) -> None:
    # The annotated one is older than these.
    newer = {"time": "faults/launch.gputui.gz", "phase_causes": "h200-ranges.sqlite.gz"}
    recording = newer.get(name, "h200-annotated.gputui.gz")
    loaded = loaded_once(recording)
    unavailable = run_tables()[name].table(loaded.session, loaded.run).unavailable
    assert unavailable.keys() == YOUNGER.get(name, set())


def test_csv_has_its_reason_on_stderr(h200_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["summary", str(h200_path), "--table", "gpu_idle", "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].endswith(",,,,,,,,,")
    assert err.startswith("gputui: gpu_idle: ")
    assert err.endswith(f"idle time and overlap {REASON}\n")


@pytest.mark.parametrize(
    ("name", "gaps"), [("ranks/late_host", 26_263), ("faults/alloc_each", 52_321)]
)
def test_gaps_that_a_recording_has_are_shown_without_its_streams(name: str, gaps: int) -> None:
    """What single streams did was cut out of these to make them small; the idle time is there."""
    recorded = load(str(DATA / f"{name}.gputui.gz")).run
    assert recorded is not None
    rows = device_timings(recorded)
    assert not [row for row in rows if row.unavailable.keys() & {"idle", "overlap_ns"}]
    assert gaps in [row.idle.count for row in rows if row.idle is not None]
    assert not recorded.timing.streams
