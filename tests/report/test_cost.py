"""What watching cost, from what was recorded."""

from __future__ import annotations

import pytest

from gputui.model.events import CaptureDelta, DeviceDelta
from gputui.render.summary import facts_lines
from gputui.report.summary_document import summary_document
from gputui.report.windows import cost_of
from gputui.state import Session
from tests.events_for_tests import at, attached, header, run_ended, run_started


def test_shares_are_of_the_time_of_the_run() -> None:
    session = Session()
    delta = CaptureDelta(
        time_ns=at(3), process=1, records=6000, dropped=7, unattributed=1,
        callback_ns=20_000_000, reader_cpu_ns=40_000_000, traced_ns=10**8, paused_ns=9 * 10**8,
    )  # fmt: skip
    session.apply([header(), run_started(), attached(), delta, run_ended()])
    run = session.run
    assert run is not None
    seconds = run.duration_ns / 1e9
    cost = cost_of(session, run, None)
    assert (cost.records, cost.dropped, cost.unattributed) == (6000, 7, 1)
    assert cost.records_per_s == pytest.approx(6000 / seconds)
    assert cost.library_percent == pytest.approx(2 / seconds)
    assert cost.reader_percent == pytest.approx(4 / seconds)
    assert cost.kernels_traced_percent == pytest.approx(10)
    overhead = summary_document(session, run)["overhead"]
    assert overhead["library_percent"] == cost.library_percent
    assert overhead["callback_ns"] == 20_000_000


def test_the_whole_cost_is_bounded_with_what_cupti_adds() -> None:
    session = Session()
    device = DeviceDelta(
        process=1, device=0, busy_ns=5 * 10**8, operations=100_000, first_start_ns=at(2),
        last_end_ns=at(4),
    )  # fmt: skip
    delta = CaptureDelta(time_ns=at(5), process=1, callback_ns=10**8, devices=(device,))
    session.apply([header(), run_started(), attached(), delta, run_ended()])
    assert session.run is not None
    cost = cost_of(session, session.run, None)
    # 0.1 s of our own and 0.1 to 0.3 of CUPTI's, of the 2 s that would else have been 1.8 to 1.6.
    assert cost.slowdown_least_percent == pytest.approx(100 * 0.2 / 1.8)
    assert cost.slowdown_most_percent == pytest.approx(100 * 0.4 / 1.6)
    (line,) = (one for one in facts_lines(session, session.run) if one.startswith("capture"))
    assert "own code 1.25 % of the run's time, with CUPTI an estimated 11.1 to 25.0 %" in line


def test_a_run_that_took_no_time_has_no_shares() -> None:
    session = Session.from_events([header(), run_started()])
    run = session.run
    assert run is not None
    assert run.duration_ns == 0
    assert cost_of(session, run, None).library_percent is None
