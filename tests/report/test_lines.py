"""GPU time by the line that launched it."""

from __future__ import annotations

import pytest

from gputui.model.events import (
    CaptureDelta,
    DeviceDelta,
    LineDefined,
    LineLaunches,
    ProcessAttached,
    RunStarted,
)
from gputui.report.tables.lines import line_rows
from gputui.state import Session


def test_lines_share_the_gpu_time_as_their_readings_do() -> None:
    """The margin is that of a proportion of 100 readings."""
    session = Session.of(
        [
            RunStarted(time_ns=0, run=1, kind="command", name="p", arguments=(), pid=5),
            ProcessAttached(
                time_ns=0, run=1, process=1, pid=5, parent_pid=1, command="p", cuda_status="tracing"
            ),
            LineDefined(time_ns=0, process=1, line=1, path="/m/model.py", number=88, function="f"),
            LineDefined(time_ns=0, process=1, line=2, path="/m/train.py", number=7, function="g"),
            CaptureDelta(
                time_ns=1,
                process=1,
                devices=(
                    DeviceDelta(
                        process=1,
                        device=0,
                        busy_ns=8_000_000,
                        operations=9,
                        first_start_ns=1,
                        last_end_ns=9_000_000,
                    ),
                ),
                line_launches=(LineLaunches(0, 1, 60, 900), LineLaunches(0, 2, 40, 300)),
            ),
        ]
    )
    first, second = line_rows(session.runs[1])
    assert (first.place, first.gpu_time_percent, first.gpu_ns) == (
        "/m/model.py:88",
        75.0,
        6_000_000,
    )
    assert (second.place, second.function, second.readings) == ("/m/train.py:7", "g", 40)
    assert first.margin_percent == second.margin_percent == pytest.approx(8.487, abs=0.001)
