"""Windows of tracing under a budget, through the real library."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gputui.ring.layout import RecordKind, WindowEdge
from tests.inject.test_cupti import cupti, driver, run_cuda  # noqa: F401

SAMPLING = "budget 150000000 200000000 step"


@pytest.fixture(scope="module")
def windows(cupti, driver, tmp_path_factory):  # noqa: F811
    extra = {"GPUTUI_TEST_DRIVER": str(driver)}

    def run(part: str, sampling: str = SAMPLING):
        asked = extra | {"GPUTUI_TRACE_SAMPLING": sampling}
        return run_cuda(cupti, tmp_path_factory.mktemp(part), part, **asked)

    return run


def test_nobody_subscribes_to_cupti_between_windows(windows):
    outcome = windows("windows")
    trace = outcome.trace
    edges = trace.of(RecordKind.WINDOW)
    assert trace.ranges()[0] == ("push", "step", "", "0")  # bare until the first window
    order = [WindowEdge.OPENING, WindowEdge.ON, WindowEdge.OFF, WindowEdge.CLOSED]
    assert edges["sub"].tolist()[:12] == order * 3

    # In turn: subscribed, calls before kinds; kinds off, all that came flushed, then gone.
    calls = " ".join(outcome.words)
    window = re.compile(
        r"Subscribe\(0\) SetThreadIdType\(1\) ActivityRegisterCallbacks\(0\) ActivityEnable\(5\) "
        r".*?ActivityEnable\(4\) .*?ActivityEnable\(10\) ActivityEnable\(1\) .*?"
        r"ActivityDisable\(10\) .*?ActivityDisable\(5\) ActivityDisable\(4\) "
        r"Unsubscribe\(1\)"
    )
    assert len(window.findall(calls)) >= 3
    assert calls.count("Unsubscribe(1)") in {calls.count("Subscribe(0)") - n for n in (0, 1)}

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
