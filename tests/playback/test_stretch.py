"""Some steps of a recorded run: their phases and kernels, from what was read while they went on."""

from __future__ import annotations

import pytest

from gputui.base import JournalError
from gputui.playback.opening import load, read_stretch
from gputui.report.explain.time_tree import main_loops
from gputui.report.phases import phase_rows
from gputui.report.statistics import kernel_rows
from gputui.tui.tour import FOLDER
from tests.conftest import DATA

LAUNCH = str(DATA / "faults" / "launch.gputui.gz")
DECODE = str(FOLDER / "slow.gputui.gz")


def test_kernels_are_those_of_the_steps() -> None:
    whole = load(LAUNCH)
    loops = main_loops(whole.needed_run())
    session, run = read_stretch(LAUNCH, 1, loops, 1, 13_591)
    counts = [row.instances for row in kernel_rows(session, run)]
    assert [count / 13_591 for count in counts] == pytest.approx([1, 1, 1], abs=0.05)
    assert run.duration_ns == pytest.approx(1.246e9, rel=0.05)  # as long as the steps took
    assert session.samples == 3  # of the machine, meanwhile

    halves = [read_stretch(LAUNCH, 1, loops, *part) for part in ((1, 18_000), (18_001, 36_465))]
    every = read_stretch(LAUNCH, 1, loops, 1, 10**9)
    launched = [sum(k.time.count for k in one.run.kernels.values()) for one in (*halves, every)]
    assert launched[0] + launched[1] == launched[2]  # no reading is counted twice, or left out


def test_phases_are_those_that_went_on_and_what_is_around_them() -> None:
    whole = load(DECODE)
    run = whole.needed_run()
    assert {"warmup", "prefill", "decode"} <= {row.name for row in phase_rows(run)}
    session, part = read_stretch(DECODE, 1, main_loops(run), 51, 425)
    rows = {row.path: row for row in phase_rows(part)}
    assert [path for path in rows if "/" not in path] == ["decode"]
    step = rows["decode/step"]
    assert step.share_percent == 100.0
    assert 300 < step.instances < 450
    assert rows["decode/step/mlp"].instances == pytest.approx(24 * step.instances, rel=0.02)
    assert not any(row.is_open for row in rows.values())
    assert {row.phase for row in part.kernels.values()} <= {0, *part.ranges}
    assert session.unknown_references == 0


def test_why_there_is_nothing_of_them() -> None:
    loops = main_loops(load(LAUNCH).needed_run())
    with pytest.raises(JournalError, match="does not hold these steps"):
        read_stretch(LAUNCH, 1, loops, 40_000, 50_000)
    with pytest.raises(JournalError, match="does not hold these steps"):
        read_stretch(LAUNCH, 2, loops, 1, 100)
