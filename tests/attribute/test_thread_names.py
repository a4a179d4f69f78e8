"""What threads are called: by NVTX, by the system of a real child, by a report of nsys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from gputui.attribute.reader import CaptureReader
from gputui.attribute.traced_process import TracedProcess
from gputui.imports.nsys import NsysReport
from gputui.inject.environment import capture_environment, library_path
from gputui.model.events import MarkDefined, RunStarted, ThreadNamed
from gputui.model.hub import Numbering
from gputui.render.chrome import write_chrome
from gputui.render.text_tables import to_csv
from gputui.report.phases import phase_rows
from gputui.report.tables import run_tables
from gputui.ring import SLOT, RecordKind
from gputui.state import Session
from gputui.store import trace_path
from gputui.store.journal import Preamble
from gputui.store.trace import TraceReader, TraceWriter
from tests.attribute.capture_program import MAIN, START_NS, Program, Traced
from tests.imports.nsys_for_tests import PID, TASK, Export


def named(program: Program, thread: int, name: str) -> np.void:
    return program.slot(RecordKind.THREAD_NAME, thread=thread, name=program.id(name))


def test_what_the_program_says_goes_before_what_the_system_says():
    program = Program()
    system = {101: "python"}
    process = TracedProcess(1, MAIN, Numbering(), thread_name=system.get)

    def told(*records: np.void) -> list[tuple[int, str, str]]:
        process.feed(np.array(list(records), SLOT), program.strings, START_NS)
        events = process.collect(START_NS)
        return [(e.thread, e.name, e.source) for e in events if isinstance(e, ThreadNamed)]

    assert told(program.push(1, "a", thread=101)) == [(101, "python", "system")]
    assert told() == []
    system[101] = "loader"  # threads are often named once they run
    assert told() == [(101, "loader", "system")]
    assert told(named(program, 101, "data loader")) == [(101, "data loader", "nvtx")]
    system[101] = "other"
    assert told(program.pop(9, thread=101)) == []


def test_phases_off_the_main_thread_say_where_they_ran():
    program = Program()
    traced = Traced(program)
    run = traced.finish(
        named(program, 101, "data loader"),
        program.push(0, "step"),
        program.push(1, "decode", thread=101),
        program.push(2, "shared"),
        program.push(3, "shared", thread=101),
    )
    rows = {row.path: row.threads for row in phase_rows(run)}
    assert rows["step"] == ()
    assert rows["decode"] == ("data loader (101)",)
    table = to_csv(run_tables()["phases"].table(traced.session, run)).splitlines()
    assert table[0].startswith("Phase,Domain,Rank,PID,Thread,")
    assert any(line.split(",")[0::4][:2] == ["decode", "data loader (101)"] for line in table)


def test_names_stand_in_the_chrome_export(tmp_path: Path):
    path = tmp_path / "r.gputui"
    program = Program()
    traced = Traced(program)
    writer = TraceWriter(trace_path(path), 1 << 22)
    traced.process = TracedProcess(1, MAIN, Numbering(), trace=writer)
    run = traced.finish(
        named(program, 101, "data loader"), program.push(0, "a", thread=101),
        program.pop(5, thread=101),
    )  # fmt: skip
    writer.close()
    out = StringIO()
    write_chrome(out, traced.session, run, TraceReader(trace_path(path)), 1)
    names = [e for e in json.loads(out.getvalue())["traceEvents"] if e["name"] == "thread_name"]
    assert [(e["tid"], e["args"]["name"]) for e in names] == [(101, "data loader")]


def test_a_rotated_file_begins_with_the_names():
    traced = Traced(program := Program())
    traced.finish(named(program, 101, "data loader"))
    preamble = Preamble()
    preamble.see(
        [RunStarted(time_ns=0, run=1, kind="command", name="p", arguments=(), pid=1)]
        + [process.attached for process in traced.run.processes.values()]
        + traced.events
    )
    assert [e.name for e in preamble.events() if isinstance(e, ThreadNamed)] == ["data loader"]


def test_a_rotated_file_begins_with_what_marks_are():
    traced = Traced(program := Program())
    traced.finish(program.slot(RecordKind.MARK, start=5, name=program.id("loaded")))
    preamble = Preamble()
    preamble.see(
        [RunStarted(time_ns=0, run=1, kind="command", name="p", arguments=(), pid=1)]
        + [process.attached for process in traced.run.processes.values()]
        + traced.events
    )
    assert [(e.mark, e.name) for e in preamble.events() if isinstance(e, MarkDefined)] == [
        (1, "loaded")
    ]


def test_a_report_of_nsys_names_threads(tmp_path: Path):
    export = Export()
    export.range("side", 10, 20, globalTid=TASK | PID + 1)
    export.add("ThreadNames", nameId=export.string("worker"), globalTid=TASK | PID + 1)
    session = Session.from_events(NsysReport(export.write(tmp_path / "r.sqlite")))
    assert session.run is not None
    (row,) = phase_rows(session.run)
    assert row.threads == (f"worker ({PID + 1})",)


CHILD = """
import ctypes, sys, threading, nvtx

def side():
    ctypes.CDLL(None).prctl(15, b"loader-7", 0, 0, 0)
    nvtx.push_range("load")
    sys.stdin.readline()
    nvtx.pop_range()

thread = threading.Thread(target=side)
thread.start()
thread.join()
"""


SHORT = """
import ctypes, threading, nvtx

def side(number):
    ctypes.CDLL(None).prctl(15, b"short-%d" % number, 0, 0, 0)
    nvtx.push_range("load")
    nvtx.pop_range()
    if number == 2:
        ctypes.CDLL(None).prctl(15, b"named late", 0, 0, 0)

for number in range(3):
    thread = threading.Thread(target=side, args=(number,))
    thread.start()
    thread.join()
"""


@pytest.mark.skipif(library_path() is None, reason="the capture library is not built")
def test_threads_that_nobody_saw_alive_have_the_systems_names(tmp_path: Path):
    environment, _ = capture_environment(tmp_path, False, os.environ)
    subprocess.run([sys.executable, "-c", SHORT], env=environment, check=True)
    events = CaptureReader(tmp_path, run=1).finish(time.time_ns())
    found = [(e.name, e.source) for e in events if isinstance(e, ThreadNamed)]
    assert sorted(found) == [
        ("named late", "system"),
        ("short-0", "system"),
        ("short-1", "system"),
    ]


@pytest.mark.skipif(library_path() is None, reason="the capture library is not built")
def test_a_real_childs_thread_has_the_systems_name(tmp_path: Path):
    environment, _ = capture_environment(tmp_path, False, os.environ)
    reader = CaptureReader(tmp_path, run=1)
    found: list[ThreadNamed] = []
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, env=environment, text=True
    ) as child:
        deadline = time.monotonic() + 60
        while not found and time.monotonic() < deadline:
            reader.poll(time.time_ns())
            events = reader.collect(time.time_ns())
            found += [e for e in events if isinstance(e, ThreadNamed) and e.name == "loader-7"]
        child.communicate("\n", timeout=60)
    reader.finish(time.time_ns())
    assert [(event.source, event.thread != child.pid) for event in found] == [("system", True)]
    assert found[0].priority == 20 + os.getpriority(os.PRIO_PROCESS, 0)
