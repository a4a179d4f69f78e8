"""The source over rings: processes come, are drained, and go."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from gputui.attribute.operation_sums import LAUNCHES_NS
from gputui.attribute.reader import CaptureReader
from gputui.counters import RunCounters
from gputui.inject.environment import capture_environment, library_path
from gputui.inject.target import LAYOUT_VERSION
from gputui.model.events import AnyEvent, ProcessAttached, ProcessDetached, RunOutput, RunStarted
from gputui.model.hub import Numbering
from gputui.ring import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    SLOT,
    SLOT_BYTES,
    STRING_BYTES_PER_SLOT,
    RecordKind,
    WindowEdge,
)
from gputui.state import Session
from tests.attribute.capture_program import MAIN, START_NS, Program

pytestmark = pytest.mark.skipif(library_path() is None, reason="the capture library is not built")

DEAD_PID = 2**22 + 1  # above any pid that Linux gives
CAPACITY = 64


def write_ring(
    folder: Path, name: str, program: Program, records: list[np.void], **header: int | bytes
) -> None:
    """A ring as a process leaves it behind: its strings, then its records."""
    slots = []
    for number, text in program.strings.items():
        content = text.encode()
        assert len(content) <= STRING_BYTES_PER_SLOT
        slots.append(program.slot(RecordKind.STRING, name=number, value=len(content)))
        part = np.zeros(1, SLOT)
        part.view(np.uint8)[: len(content)] = np.frombuffer(content, np.uint8)
        slots.append(part[0])
    ring = np.zeros(CAPACITY, SLOT)
    slots += records
    ring[: len(slots)] = slots
    ring["published"][: len(slots)] = np.arange(1, len(slots) + 1)
    page = np.zeros(1, HEADER)
    page["magic"], page["layout_version"] = MAGIC, LAYOUT_VERSION
    page["header_bytes"], page["slot_bytes"] = HEADER_BYTES, SLOT_BYTES
    page["capacity"], page["pid"], page["head"] = CAPACITY, DEAD_PID, len(slots)
    page["rank"] = page["local_rank"] = -1
    page["command"] = b"python train.py"
    for field, value in header.items():
        page[field] = value
    (folder / name).write_bytes(page.tobytes() + ring.tobytes())


def fold(events: list[AnyEvent]) -> Session:
    session = Session.from_events(
        [RunStarted(time_ns=0, run=1, kind="command", name="p", arguments=(), pid=MAIN), *events]
    )
    assert session.unknown_references == 0
    return session


@pytest.fixture
def program() -> Program:
    return Program()


@pytest.mark.parametrize("exited", [0, 1])
def test_what_a_dead_process_left_is_read_before_it_is_detached(tmp_path, program, exited):
    records = [program.push(1, "step"), program.call(2, 3, 1), program.pop(4)]
    records.append(program.kernel(5, 9, 1))
    write_ring(tmp_path, "1-1.ring", program, records, exited=exited, dropped=7, rank=3)
    reader = CaptureReader(tmp_path, run=1)
    reader.poll(START_NS)
    events = reader.collect(START_NS)
    session = fold(events)
    assert session.run
    process = session.run.processes[1]
    assert (process.attached.pid, process.attached.rank) == (DEAD_PID, 3)
    assert (process.attached.command, process.dropped) == ("python train.py", 7)
    assert process.records == 4
    assert process.detached
    assert process.detached.clean == bool(exited)
    assert isinstance(events[-1], ProcessDetached)
    assert [part.time.total for part in session.run.kernels.values()] == [4]
    assert reader.finish(START_NS) == []


@pytest.mark.parametrize("edge", list(WindowEdge))
def test_samplers_are_told_when_a_window_of_tracing_opens(tmp_path, program, edge):
    """Once, and of no other edge."""
    told = []

    class Counters(RunCounters):
        def hurry(self) -> None:
            told.append(True)

    records = [program.push(1, "step"), program.slot(RecordKind.WINDOW, sub=edge, start=2)]
    write_ring(tmp_path, "1-1.ring", program, records, pid_namespace=1)
    reader = CaptureReader(tmp_path, run=1, counters=Counters())
    reader.poll(START_NS)
    reader.poll(START_NS + 1)
    assert told == [True] * (edge == WindowEdge.ON)
    reader.finish(START_NS + 2)


def test_what_a_process_waited_for_is_told_though_it_ended_first(tmp_path, program):
    turns = 25
    goes_on = {"pid_namespace": 1}  # as in a container, where only a proper end is noticed
    for rank, (waits_ns, header) in enumerate(((12_000_000, {}), (100_000, goes_on))):
        later_ns = rank * 150_000  # so far apart that records of other collectives may be missing
        records = []
        for turn in range(turns):
            end_ns = (turn + 1) * 100_000_000
            records.append(program.push(end_ns - waits_ns, "all_reduce", domain="comm"))
            records.append(program.pop(end_ns + later_ns, domain="comm"))
        write_ring(tmp_path, f"{rank}-1.ring", program, records, rank=rank, **header)
    reader = CaptureReader(tmp_path, run=1)
    now_ns = START_NS + turns * 100_000_000
    reader.poll(now_ns)
    events = reader.collect(now_ns)
    assert sum(isinstance(event, ProcessDetached) for event in events) == 1
    run = fold(events + reader.finish(now_ns)).run
    assert run
    rows = {run.processes[row.process].attached.rank: row for row in run.collectives.values()}
    settled = turns - 10  # what came after the communicator's first second
    assert {rank: row.matched for rank, row in rows.items()} == {0: settled, 1: settled}
    assert {rank: row.wait_ns for rank, row in rows.items()} == {0: settled * 11_750_000, 1: 0}


def test_what_was_held_back_is_told_though_the_end_brings_nothing_new(tmp_path, program):
    records = [program.call(2, 3, 1), program.kernel(5, 9, 1), program.flush(20)]
    write_ring(tmp_path, "1-1.ring", program, records, pid_namespace=1, callback_ns=100)
    header = np.memmap(tmp_path / "1-1.ring", HEADER, "r+", shape=1)
    reader = CaptureReader(tmp_path, run=1)
    reader.poll(START_NS)
    events = [one for turn in range(3) for one in reader.collect(START_NS + turn * LAUNCHES_NS)]
    first = fold(events).run
    header["callback_ns"] = 107
    assert reader.collect(START_NS + 3 * LAUNCHES_NS) == []
    header["exited"] = 1
    run = fold(events + reader.finish(START_NS + 4 * LAUNCHES_NS)).run
    assert first is not None
    assert run is not None
    assert (first.leaf_times, sum(one.ns for one in run.leaf_times.values())) == ({}, 4)
    assert [process.callback_ns for process in run.processes.values()] == [107]


def test_runs_share_numbers(tmp_path, program):
    numbering = Numbering()
    attached = []
    for run in (1, 2):
        folder = tmp_path / str(run)
        folder.mkdir()
        write_ring(folder, "1-1.ring", program, [program.push(1, "step")])
        events = CaptureReader(folder, run, numbering=numbering).finish(START_NS)
        attached += [(e.run, e.process) for e in events if isinstance(e, ProcessAttached)]
    assert attached == [(1, 1), (2, 2)]


def test_what_is_no_ring_is_a_problem_told_once(tmp_path):
    (tmp_path / "1-1.ring").write_bytes(b"nonsense" * 1000)
    reader = CaptureReader(tmp_path, run=1)
    reader.poll(START_NS)
    reader.poll(START_NS)
    (told,) = reader.collect(START_NS)
    assert isinstance(told, RunOutput)
    assert told.lines == (f"{tmp_path / '1-1.ring'}: not a gputui ring",)
    assert reader.collect(START_NS) == reader.finish(START_NS) == []


def test_a_live_program_from_attach_to_detach(tmp_path):
    environment, problem = capture_environment(
        tmp_path, False, {k: v for k, v in os.environ.items() if "INJECTION64" not in k}
    )
    assert problem == (None, None)
    batches: list[list[AnyEvent]] = []
    seen = threading.Event()

    def emit(events: list[AnyEvent]) -> None:
        batches.append(events)
        session = fold([event for batch in batches for event in batch])
        if any(node.open_since_ns for node in session.run.ranges.values()):  # type: ignore[union-attr]
            seen.set()

    source = """
import nvtx
with nvtx.annotate("outer"):
    for _ in range(1000):
        with nvtx.annotate("inner", domain="app"): pass
    print("ready", flush=True)
    input()
"""
    reader = CaptureReader(tmp_path, run=1)
    reader.start(emit, 0.05)
    with subprocess.Popen(
        [sys.executable, "-c", source],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        assert seen.wait(30)  # the open range is seen while the program runs
        child.communicate("\n", timeout=30)
    reader.stop()
    session = fold([event for batch in batches for event in batch])
    assert session.run
    (process,) = session.run.processes.values()
    assert process.attached.pid == child.pid
    assert process.detached
    assert process.detached.clean
    assert {
        (node.definition.domain, node.path): node.cpu.count for node in session.run.ranges.values()
    } == {("", "outer"): 1, ("app", "inner"): 1000}
