"""Ranges of Python programs: the nvtx package, threads, forks and torch."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from gputui.ring import FLAG_COLORED, FLAG_PAYLOAD, RecordKind
from tests.inject.traced import run, run_python

pytestmark = pytest.mark.usefixtures("library")


def test_annotations_ranges_and_marks(tmp_path):
    trace = run_python(
        """
import nvtx
with nvtx.annotate("outer"):
    nvtx.push_range("inner", color="red")
    nvtx.mark("now", domain="library")
    nvtx.pop_range()
handle = nvtx.start_range("loose", domain="library")
nvtx.end_range(handle)
@nvtx.annotate("decorated é")
def function(): pass
function()
""",
        tmp_path,
    ).trace
    assert trace.ranges() == [
        ("push", "outer", "", "0"),
        ("push", "inner", "", "1"),
        ("mark", "now", "library"),
        ("pop", "", "1"),
        ("pop", "", "0"),
        ("start", "loose", "library"),
        ("end",),
        ("push", "decorated é", "", "0"),
        ("pop", "", "0"),
    ]
    assert set(trace.of(RecordKind.RANGE_PUSH)["thread"]) == {trace.facts.pid}


def test_categories_colours_payloads_and_domains(tmp_path):
    trace = run_python(
        """
import nvtx
nvtx.push_range("a", color="red", category="loading", payload=41); nvtx.pop_range()
nvtx.push_range("b", domain="library", category="other", payload=1.5)
nvtx.pop_range(domain="library")
domain = nvtx.get_domain("library")
attributes = domain.get_event_attributes(message="c", color="blue", payload=-1)
domain.push_range(attributes); domain.pop_range()
""",
        tmp_path,
    ).trace
    first, second, third = trace.of(RecordKind.RANGE_PUSH)
    assert trace.name(first["b"]) == "loading"
    assert trace.name(second["b"]) == "other"
    assert [trace.name(row["a"]) for row in (first, second, third)] == ["", "library", "library"]
    assert first["sub"] == FLAG_COLORED | FLAG_PAYLOAD
    assert (int(first["c"]), int(third["c"])) == (0xFF0000, 0x0000FF)
    payloads = [np.uint64(row["end"]) for row in (first, second, third)]
    assert int(payloads[0].view(np.int64)) == 41
    assert float(payloads[1].view(np.float64)) == 1.5
    assert int(payloads[2].view(np.int64)) == -1


def test_threads_nest_apart(tmp_path):
    trace = run_python(
        """
import nvtx, threading
def work(name):
    for _ in range(200):
        with nvtx.annotate(name):
            with nvtx.annotate("inner"): pass
threads = [threading.Thread(target=work, args=(f"worker {n}",)) for n in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
""",
        tmp_path,
    ).trace
    ranges = trace.of(RecordKind.RANGE_PUSH, RecordKind.RANGE_POP)
    threads = np.unique(ranges["thread"])
    assert len(ranges) == 4 * 200 * 4
    assert trace.facts.pid not in threads
    for thread in threads:
        levels = ranges["d"][ranges["thread"] == thread]
        assert levels.tolist() == [0, 1, 1, 0] * 200


def test_fork_writes_nothing_and_spawn_has_a_ring_of_its_own(tmp_path):
    source = """
import multiprocessing, subprocess, sys
import nvtx
with nvtx.annotate("parent"):
    fork = multiprocessing.get_context("fork")
    def work():
        with nvtx.annotate("forked"): pass
    child = fork.Process(target=work); child.start(); child.join(); assert child.exitcode == 0
    subprocess.run([sys.executable, "-c", "import nvtx; nvtx.mark('spawned')"], check=True)
"""
    outcome = run_python(source, tmp_path)
    parent, spawned = outcome.traces
    assert parent.ranges() == [("push", "parent", "", "0"), ("pop", "", "0")]
    assert spawned.ranges() == [("mark", "spawned", "")]
    assert spawned.facts.parent_pid == parent.facts.pid
    assert "forked" not in parent.strings.values()


def test_os_exit_and_an_exception_lose_nothing(tmp_path):
    for number, (ending, exited) in enumerate(
        [("os._exit(4)", False), ("raise SystemExit(4)", True)]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        source = f"import nvtx, os; nvtx.push_range('left open'); {ending}"
        outcome = run([sys.executable, "-c", source], folder)
        assert outcome.status == 4
        assert outcome.trace.ranges() == [("push", "left open", "", "0")]
        assert outcome.trace.exited is exited
