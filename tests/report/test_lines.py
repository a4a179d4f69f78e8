"""GPU time by the line that launched it, and at which line the CPU was."""

from __future__ import annotations

from typing import Any

import pytest

from gputui.model.events import (
    CaptureDelta,
    DeviceDelta,
    LineDefined,
    LineLaunches,
    LineSamples,
    ProcessAttached,
    RunStarted,
)
from gputui.model.leaves import Leaf
from gputui.report.explain.lines import likeliest_line
from gputui.report.tables.launches import line_rows
from gputui.state import Run, Session


def a_run(**captured: Any) -> Run:
    """Two lines, and what was captured at them."""
    session = Session.from_events(
        [
            RunStarted(time_ns=0, run=1, kind="command", name="p", arguments=(), pid=5),
            ProcessAttached(
                time_ns=0, run=1, process=1, pid=5, parent_pid=1, command="p", cuda_status="tracing"
            ),
            LineDefined(time_ns=0, process=1, line=1, path="/m/model.py", number=88, function="f"),
            LineDefined(time_ns=0, process=1, line=2, path="/m/train.py", number=7, function="g"),
            LineDefined(
                time_ns=0,
                process=1,
                line=3,
                path="/e/lib/python3.12/site-packages/torch/utils/data/_utils/fetch.py",
                number=40,
                function="fetch",
            ),
            CaptureDelta(time_ns=1, process=1, **captured),
        ]
    )
    return session.runs[1]


def test_lines_share_the_gpu_time_as_their_readings_do() -> None:
    """The margin is that of a proportion of 100 readings."""
    run = a_run(
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
    )
    first, second = line_rows(run)
    assert (first.place, first.gpu_time_percent, first.gpu_ns) == (
        "/m/model.py:88",
        75.0,
        6_000_000,
    )
    assert (second.place, second.function, second.readings) == ("/m/train.py:7", "g", 40)
    assert first.margin_percent == second.margin_percent == pytest.approx(8.487, abs=0.001)


@pytest.mark.parametrize(
    ("leaf", "place"),
    [
        (Leaf.INPUT, "train.py:7 g"),
        (Leaf.HOST, "model.py:88 f"),
        (Leaf.COMPILE, "model.py:88 f"),
        (None, "train.py:7 g"),
    ],
)
def test_a_leaf_is_at_the_lines_whose_frames_speak_of_it(leaf: Leaf | None, place: str) -> None:
    """Data is loaded at one line, and what a trainer computes is at another."""
    run = a_run(
        line_samples=(
            LineSamples(1, 0, 0, 1, 12),
            LineSamples(1, 0, 0, 2, 1),
            LineSamples(1, 0, 0, 2, 14, Leaf.INPUT, 3, 12),
        )
    )
    line = likeliest_line(run, leaf=leaf)
    assert line is not None
    assert line.where == place
    called = "fetch (torch/utils/data/_utils/fetch.py:40)" if place == "train.py:7 g" else ""
    assert line.inside == called
