"""What a program calls its streams and devices, and why records of it were lost."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest

from gputui.attribute.traced_process import MAX_DOMAINS, OTHER_DOMAINS, TracedProcess
from gputui.model.events import CaptureDelta, DeviceDefined, ResourceNamed, RunStarted
from gputui.model.hub import Numbering
from gputui.render.chrome import write_chrome
from gputui.render.nsys import write_nsys
from gputui.report.explain import Analysis, findings
from gputui.report.schema import lost_count, why_lost
from gputui.report.tables import run_tables
from gputui.report.tables.timing import timing_of
from gputui.ring import REFUSED_DEFERRED, UNKNOWN_DEVICE, RecordKind, Resource
from gputui.ring.reader import RingHealth
from gputui.state import Session
from gputui.store import trace_path
from gputui.store.journal import Preamble
from gputui.store.trace import TraceReader, TraceWriter
from tests.attribute.capture_program import MAIN, START_NS, Program, Traced
from tests.events_for_tests import at, attached, gpu, header, run_started


def launches(program: Program) -> list:
    named = [
        program.slot(RecordKind.RESOURCE_NAME, sub=Resource.STREAM, a=13, b=0,
                     name=program.id("copies")),
        program.slot(RecordKind.RESOURCE_NAME, sub=Resource.STREAM, a=14, b=UNKNOWN_DEVICE,
                     name=program.id("compute")),
        program.slot(RecordKind.RESOURCE_NAME, sub=Resource.DEVICE, a=0, b=0,
                     name=program.id("trainer")),
        program.slot(RecordKind.RESOURCE_NAME, sub=77, a=13, name=program.id("hostile")),
        program.slot(RecordKind.DEVICE, a=0, value=50 << 20),
        program.slot(RecordKind.DEVICE, a=0, value=50 << 20),  # of a second attach
    ]  # fmt: skip
    for number, stream in enumerate((13, 14, 15), 1):
        kernel = program.kernel(10 * number + 2, 10 * number + 5, number)
        kernel["b"] = stream
        named += [program.call(10 * number, 10 * number + 1, number), kernel]
    return named


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    program = Program()
    traced = Traced(program)
    writer = TraceWriter(trace_path(tmp_path / "r.gputui"), 1 << 22)
    traced.process = TracedProcess(1, MAIN, Numbering(), trace=writer)
    traced.finish(*launches(program))
    writer.close()
    return traced


def test_streams_are_called_by_their_names_in_the_tables(traced: Traced) -> None:
    table = run_tables()["gpu_streams"].table(traced.session, traced.run)
    at = [column.header for column in table.columns].index("Stream")
    assert sorted(map(str, (row[at] for row in table.cells))) == [
        "15", "compute (14)", "copies (13)",
    ]  # fmt: skip
    streams = timing_of(traced.run).streams
    assert streams is not None
    assert {entry.stream: entry.name for entry in streams} == {
        13: "copies", 14: "compute", 15: None,
    }  # fmt: skip


def test_names_of_streams_and_devices_are_in_the_exports(traced: Traced, tmp_path: Path) -> None:
    trace = TraceReader(trace_path(tmp_path / "r.gputui"))
    out = io.StringIO()
    write_chrome(out, traced.session, traced.run, trace, 1)
    named = [e for e in json.loads(out.getvalue())["traceEvents"] if e["ph"] == "M"]
    tracks = {e["tid"]: e["args"]["name"] for e in named if e["name"] == "thread_name"}
    assert (tracks[13], tracks[14], tracks[15]) == (
        "copies (stream 13)", "compute (stream 14)", "stream 15",
    )  # fmt: skip
    assert "GPU 0 trainer" in [e["args"]["name"] for e in named]
    write_nsys(tmp_path / "r.sqlite", traced.session, traced.run, trace)


def test_a_rotated_file_begins_with_the_names_of_resources(traced: Traced) -> None:
    preamble = Preamble()
    preamble.see(
        [RunStarted(time_ns=0, run=1, kind="command", name="p", arguments=(), pid=1)]
        + [process.attached for process in traced.run.processes.values()]
        + traced.events
    )
    names = [event.name for event in preamble.events() if isinstance(event, ResourceNamed)]
    assert names == ["copies", "compute", "trainer"]
    (device,) = [event for event in preamble.events() if isinstance(event, DeviceDefined)]
    assert (device.process, device.device, device.l2_cache_bytes) == (1, 0, 50 << 20)


@pytest.mark.parametrize(
    ("visible", "sizes"),
    [(None, [50 << 20, None]), ("1,0", [None, 50 << 20]), ("MIG-1", [None, None])],
)
def test_the_l2_cache_is_that_of_the_gpu_that_the_program_calls_0(
    visible: str | None, sizes: list[int | None]
) -> None:
    session = Session()
    process = msgspec.structs.replace(attached(), visible_devices=visible)
    found = DeviceDefined(time_ns=at(2), process=1, device=0, l2_cache_bytes=50 << 20)
    session.apply([header(gpu(0), gpu(1)), run_started(), process, found])
    assert [one.facts.l2_cache_bytes for one in session.gpus.values()] == sizes


def test_losses_are_told_by_cause_and_domain() -> None:
    program = Program()
    traced = Traced(program)
    refused = [program.slot(RecordKind.REFUSED, thread=MAIN, a=program.id(name)) for name in "aab"]
    later = program.slot(RecordKind.REFUSED, sub=REFUSED_DEFERRED, a=program.id("c"), value=4)
    traced.feed([*refused, later])
    lost = RingHealth(dropped=7, cupti_dropped=2)
    traced.session.apply(traced.process.collect(START_NS, added=lost))
    run = traced.run
    assert lost_count(run) == 16
    words = (
        "7 because the ring was full; 4 in domain c: deferred events are not supported; "
        "3 in domains a, b: a thread had ranges open in 32 others; "
    )
    assert why_lost(run) == words + "2 because CUPTI's buffers were full"
    [lost] = [
        found for found in findings(Analysis(traced.session, run)) if found.cause == "lost_records"
    ]
    assert why_lost(run) in lost.sentence


def test_domains_without_end_are_counted_together() -> None:
    program = Program()
    traced = Traced(program)
    names = [f"domain {number}" for number in range(MAX_DOMAINS + 5)]
    run = traced.finish(*(program.slot(RecordKind.REFUSED, a=program.id(name)) for name in names))
    losses = run.processes[1].losses
    assert losses["domains", OTHER_DOMAINS].records == 5
    total = sum(lost.records for lost in losses.values())
    assert total == run.processes[1].dropped == MAX_DOMAINS + 5
    assert "and 61 more" in why_lost(run)


def test_an_older_recording_does_not_tell_why() -> None:
    traced = Traced(Program())
    traced.session.apply([CaptureDelta(time_ns=START_NS, process=1, dropped=3)])
    assert (lost_count(traced.run), why_lost(traced.run)) == (3, "")
