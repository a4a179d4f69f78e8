"""What watching cost, from what was recorded."""

from __future__ import annotations

import pytest

from gputui.model.events import CaptureDelta
from gputui.report.cost import cost_of
from gputui.report.summary_document import summary_document
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
    cost = cost_of(session, run)
    assert (cost.records, cost.dropped, cost.unattributed) == (6000, 7, 1)
    assert cost.records_per_s == pytest.approx(6000 / seconds)
    assert cost.library_percent == pytest.approx(2 / seconds)
    assert cost.reader_percent == pytest.approx(4 / seconds)
    assert cost.kernels_traced_percent == pytest.approx(10)
    overhead = summary_document(session, run)["overhead"]
    assert overhead["library_percent"] == cost.library_percent
    assert overhead["callback_ns"] == 20_000_000


def test_a_run_that_took_no_time_has_no_shares() -> None:
    session = Session()
    session.apply([header(), run_started()])
    run = session.run
    assert run is not None
    assert run.duration_ns == 0
    assert cost_of(session, run).library_percent is None
