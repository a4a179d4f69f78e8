"""Windows of tracing under a budget, through the real library."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gputui.ring import RecordKind, WindowEdge
from tests.inject.test_cupti import cupti, driver, run_cuda  # noqa: F401

SAMPLING = "budget 150000000 200000000 step"


@pytest.fixture(scope="module")
def windows(cupti, driver, tmp_path_factory):  # noqa: F811
    extra = {"GPUTUI_TEST_DRIVER": str(driver)}

    def run(part: str, sampling: str = SAMPLING):
        asked = extra | {"GPUTUI_TRACE_SAMPLING": sampling}
        return run_cuda(cupti, tmp_path_factory.mktemp(part), part, **asked)

    return run


def test_a_window_waits_for_what_xlas_cupti_hands_over(cupti, compile_program, tmp_path):  # noqa: F811
    """A slow program fills no buffer in the time of one."""
    on_ns = 50_000_000
    plugin = compile_program("fake_driver.c", "xla_cuda_plugin.so", "-shared", "-fPIC")
    asked = {"GPUTUI_TRACE_SAMPLING": f"budget {on_ns} {on_ns * 2}"}
    outcome = run_cuda(cupti, tmp_path, "xla window", GPUTUI_TEST_DRIVER=str(plugin), **asked)
    edges = outcome.trace.of(RecordKind.WINDOW)
    on, off = (edges["start"][edges["sub"] == edge] for edge in (WindowEdge.ON, WindowEdge.OFF))
    assert off[0] - on[0] >= 4 * on_ns


def test_windows_switch_kernels_and_calls(windows):
    outcome = windows("windows")
    trace = outcome.trace
    edges = trace.of(RecordKind.WINDOW)
    assert trace.ranges()[0] == ("push", "step", "", "0")  # bare until the first window
    order = [WindowEdge.OPENING, WindowEdge.ON, WindowEdge.OFF, WindowEdge.CLOSED]
    assert edges["sub"].tolist()[:12] == order * 3

    # Subscribed once, calls before kernels; each window's kernels go off before the next.
    calls = " ".join(outcome.words)
    begin = re.match(
        r"Subscribe\(0\) SetThreadIdType\(1\) ActivityRegisterCallbacks\(0\) ActivityEnable\(10\) "
        r"ActivityEnable\(1\) ",
        calls,
    )
    assert begin, calls
    switched = re.findall(r"Activity(?:Enable|Disable)\(10\)", calls)
    assert switched[:6] == ["ActivityEnable(10)", "ActivityDisable(10)"] * 3
    assert calls.count("Subscribe(0)") == 1
    # Calls are seen by callbacks: their kinds, switched a few times, end with one id for all.
    assert not re.search(r"Activity(Enable|Disable)\([45]\)|Enable(Runtime|Driver)Api", calls)
    made = {trace.name(row["name"]): row["correlation"] for row in trace.of(RecordKind.KERNEL)}
    launches = trace.of(RecordKind.API)["correlation"].tolist()
    assert launches == sorted(made.values()) == [int(name[4:]) for name in made]

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
