"""Windows of tracing under a budget, through the real library: when CUPTI comes and goes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gputui.ring.layout import LeftCupti, RecordKind, WindowEdge
from tests.inject.test_cupti import cupti, driver, run_cuda  # noqa: F401

SAMPLING = "finalize 150000000 200000000 step"


@pytest.fixture(scope="module")
def windows(cupti, driver, tmp_path_factory):  # noqa: F811
    extra = {"GPUTUI_TEST_DRIVER": str(driver)}

    def run(part: str, sampling: str = SAMPLING):
        asked = extra | {"GPUTUI_TRACE_SAMPLING": sampling}
        return run_cuda(cupti, tmp_path_factory.mktemp(part), part, **asked)

    return run


def test_cupti_is_out_of_an_eager_program_between_windows(windows):
    outcome = windows("windows")
    trace = outcome.trace
    edges = trace.of(RecordKind.WINDOW)
    assert trace.ranges()[0] == ("push", "step", "", "0")  # bare until the first window
    order = [WindowEdge.OPENING, WindowEdge.ON, WindowEdge.OFF, WindowEdge.CLOSED]
    assert edges["sub"].tolist()[:12] == order * 3
    assert set(edges["value"][edges["sub"] == WindowEdge.CLOSED]) == {LeftCupti.FINALIZED}

    # In turn: subscribed, calls before kinds; kinds off, all that came flushed, then gone.
    calls = " ".join(outcome.words)
    window = re.compile(
        r"Subscribe\(0\) SetThreadIdType\(1\) ActivityRegisterCallbacks\(0\) ActivityEnable\(5\) "
        r".*?ActivityEnable\(4\) .*?ActivityEnable\(10\) ActivityEnable\(1\) .*?"
        r"ActivityDisable\(10\) .*?ActivityDisable\(5\) ActivityDisable\(4\) "
        r"Unsubscribe\(1\) Finalize\([01]\)"
    )
    assert len(window.findall(calls)) >= 3
    assert "Finalize(1)" in calls  # by the program's only thread, at the end of a call
    assert calls.count("Finalize") <= calls.count("Subscribe(0)")

    # A window lies on whole steps: each that it holds is there with its kernel, and no other.
    pushes = trace.of(RecordKind.RANGE_PUSH)
    kernels = {trace.name(kernel["name"]) for kernel in trace.of(RecordKind.KERNEL)}
    ons, offs = (edges["start"][edges["sub"] == edge] for edge in (WindowEdge.ON, WindowEdge.OFF))
    inside = np.zeros(len(pushes), np.bool_)
    for on, off in zip(ons[:3], offs[:3], strict=True):
        inside |= (pushes["start"] >= on) & (pushes["start"] < off)
    assert kernels == {f"step{number}" for number in np.flatnonzero(inside).tolist()}
    assert 0 < inside.sum() < len(pushes)
    assert trace.health.traced_ns > 0 < trace.health.paused_ns


def test_cupti_is_not_finalized_unless_that_is_asked_for(windows):
    outcome = windows("windows-kept", SAMPLING.replace("finalize", "budget"))
    edges = outcome.trace.of(RecordKind.WINDOW)
    assert set(edges["value"][edges["sub"] == WindowEdge.CLOSED]) == {LeftCupti.UNPROVEN}
    assert "Finalize" not in " ".join(outcome.words)
    assert outcome.words.count("Unsubscribe(1)") >= 3


def test_cupti_is_not_finalized_once_there_is_a_graph(windows):
    outcome = windows("windows-graphs")
    edges = outcome.trace.of(RecordKind.WINDOW)
    left = edges["value"][edges["sub"] == WindowEdge.CLOSED].tolist()
    assert left[:2] == [LeftCupti.FINALIZED, LeftCupti.GRAPHS]
    assert LeftCupti.FINALIZED not in left[1:]
    assert " ".join(outcome.words).count("Finalize") == 1
    assert outcome.words.count("Unsubscribe(1)") >= 3


def test_cupti_is_not_finalized_where_several_threads_may_begin_a_graph(windows):
    outcome = windows("windows-threads")
    edges = outcome.trace.of(RecordKind.WINDOW)
    assert LeftCupti.THREADS in edges["value"][edges["sub"] == WindowEdge.CLOSED]
    assert "Finalize(1)" not in outcome.words  # a window without a call may end by our own


def test_a_program_that_calls_nothing_is_left_by_our_own_thread(windows):
    outcome = windows("windows-idle")
    assert outcome.words.count("Finalize(0)") == 3
