"""Programs that come, go and die in every way: nobody is harmed and what was written is kept."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from gputui.ring import RecordKind
from tests.inject.traced import run, run_python

pytestmark = pytest.mark.usefixtures("library")


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_workers_of_multiprocessing(tmp_path, method):
    program = tmp_path / "pool.py"
    program.write_text(f"""
import multiprocessing, nvtx

def work(number):
    with nvtx.annotate("work"):
        return number * number

if __name__ == "__main__":
    with nvtx.annotate("parent"):
        with multiprocessing.get_context("{method}").Pool(2) as pool:
            assert pool.map(work, range(40)) == [n * n for n in range(40)]
            pool.close()
            pool.join()
""")
    rings = tmp_path / "rings"
    rings.mkdir()
    outcome = run([sys.executable, str(program)], rings)
    assert outcome.status == 0, outcome.output
    pushed = [row[1] for trace in outcome.traces for row in trace.ranges() if row[0] == "push"]
    # A forked child shares the parent's ring, and so keeps out of it.
    assert pushed.count("parent") == 1
    if method == "spawn":
        assert pushed.count("work") == 40


def test_daemon_threads_at_the_end_of_the_interpreter(tmp_path):
    outcome = run_python(
        """
import nvtx, threading
begun = threading.Barrier(5)
def work():
    nvtx.mark("here")
    begun.wait()
    while True:
        with nvtx.annotate("for ever"): pass
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
begun.wait()
""",
        tmp_path,
    )
    assert outcome.trace.exited


def test_main_returns_while_threads_make_ranges(nvtx_program, tmp_path):
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        outcome = run([nvtx_program, "leave"], folder)
        assert outcome.status == 0
        assert outcome.trace.exited


def test_ranges_of_a_signal_handler(nvtx_program, tmp_path):
    trace = run([nvtx_program, "signals", "200000"], tmp_path).trace
    names = {trace.name(name) for name in np.unique(trace.of(RecordKind.RANGE_PUSH)["name"])}
    assert "in a signal" in names
    if trace.health.dropped == 0:
        pushes, pops = trace.of(RecordKind.RANGE_PUSH), trace.of(RecordKind.RANGE_POP)
        assert len(pushes) == len(pops)
        assert set(pops["d"].tolist()) <= {0, 1, 2}


def test_threads_by_the_thousand_leave_no_memory_behind(nvtx_program, tmp_path):
    outcome = run([nvtx_program, "short-threads", "10000"], tmp_path)
    assert len(outcome.trace.of(RecordKind.RANGE_PUSH)) == 10_000
    assert outcome.trace.health.dropped == 0
    assert int(outcome.words[1]) < 256


def test_a_process_that_goes_on_for_a_million_ranges_does_not_grow(nvtx_program, tmp_path):
    extra = {"GPUTUI_TEST_RATE": "1e6"}
    outcome = run([nvtx_program, "paced", "350000"], tmp_path, extra)
    pushes = outcome.trace.of(RecordKind.RANGE_PUSH)
    assert len(pushes) <= 3 * 350_000
    assert int(outcome.words[1]) < 256


def test_an_exception_closes_its_ranges_and_keeps_its_status(tmp_path):
    source = "import nvtx\nwith nvtx.annotate('load'): raise ValueError('as planned')"
    outcome = run([sys.executable, "-c", source], tmp_path)
    assert outcome.status == 1
    assert "as planned" in outcome.output
    assert outcome.trace.ranges() == [("push", "load", "", "0"), ("pop", "", "0")]
    assert outcome.trace.exited
