"""nsys's SQLite export: read as the events of a session, and checked by SQL of its own."""

from __future__ import annotations

import csv
import gzip
import io
import sqlite3
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputui.base import JournalError
from gputui.cli.dispatch import run as gputui
from gputui.imports.nsys import NsysReport
from gputui.model.events import CaptureDelta, Payload
from gputui.playback.opening import load, open_recording
from gputui.render.nsys import write_nsys
from gputui.render.summary import facts_lines, one_table
from gputui.render.traces import open_traced
from gputui.report.explain.time_tree import time_tree
from gputui.report.phases import phase_rows
from gputui.report.statistics import api_rows, kernel_rows, memory_size_rows, memory_time_rows
from gputui.report.tables import run_tables
from gputui.report.tables.phases import mark_rows
from gputui.state import Run, Session
from gputui.store.journal.writer import JournalWriter
from tests.imports.nsys_for_tests import EPOCH_NS, PID, REAL, TASK, Export
from tests.sessions_for_tests import read_whole

needs_real = pytest.mark.skipif(not REAL.is_file(), reason="no real nsys export beside the project")


# --- the real one ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> tuple[Session, Run]:
    session, run = read_whole(REAL)
    run.raw_names = True  # as SQL has them
    return session, run


@pytest.fixture
def sql() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"file:{REAL}?mode=ro", uri=True)) as connection:
        yield connection


@needs_real
def test_kernels_add_up_as_in_sql(real: tuple[Session, Run], sql: sqlite3.Connection) -> None:
    expected = sql.execute(
        "SELECT s.value, COUNT(*), SUM(k.end - k.start), MIN(k.end - k.start), "
        "MAX(k.end - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s "
        "ON s.id = k.demangledName GROUP BY s.value"
    )
    found = {
        (row.name, row.instances, row.total, row.minimum, row.maximum) for row in kernel_rows(*real)
    }
    assert found == set(expected)
    assert sum(row[1] for row in found) == 3689


@needs_real
def test_ranges_add_up_as_in_sql(real: tuple[Session, Run], sql: sqlite3.Connection) -> None:
    expected = sql.execute(
        "SELECT COALESCE(d.text, '') || ':' || COALESCE(n.text, s.value), COUNT(*), "
        "SUM(n.end - n.start) FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId "
        "LEFT JOIN NVTX_EVENTS d ON d.eventType = 75 AND d.domainId = n.domainId "
        "WHERE n.eventType = 59 GROUP BY 1"
    )
    found = {
        (row[-1], row[2], row[1]) for row in run_tables()["nvtx_pushpop_sum"].table(*real).cells
    }
    assert found == set(expected)


@needs_real
def test_kernels_of_a_range_are_those_nsys_finds_inside(
    real: tuple[Session, Run], sql: sqlite3.Connection
) -> None:
    expected = sql.execute(
        "SELECT s.value, COUNT(*), SUM(k.end - k.start) FROM NVTX_EVENTS n "
        "JOIN StringIds s ON s.id = n.textId "
        "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.globalTid = n.globalTid "
        "AND r.start >= n.start AND r.end <= n.end "
        "JOIN CUPTI_ACTIVITY_KIND_KERNEL k ON k.correlationId = r.correlationId "
        "WHERE n.eventType = 59 AND n.domainId = 0 GROUP BY s.value"
    )
    found = {(row.name, row.kernels, row.kernel_ns) for row in phase_rows(real[1]) if row.kernels}
    assert found == set(expected)
    assert len(found) > 80


@needs_real
def test_projections_are_first_start_to_last_end(
    real: tuple[Session, Run], sql: sqlite3.Connection
) -> None:
    expected = dict(
        sql.execute(
            "WITH ops AS (SELECT start, end, correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL "
            "UNION ALL SELECT start, end, correlationId FROM CUPTI_ACTIVITY_KIND_MEMCPY) "
            "SELECT s.value, MAX(o.end) - MIN(o.start) FROM NVTX_EVENTS n "
            "JOIN StringIds s ON s.id = n.textId "
            "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.globalTid = n.globalTid "
            "AND r.start >= n.start AND r.end <= n.end "
            "JOIN ops o ON o.correlationId = r.correlationId "
            "WHERE n.eventType = 59 AND n.domainId = 0 GROUP BY s.value"
        )
    )
    found = {row.name: row.projected.total for row in phase_rows(real[1]) if row.projected.count}
    assert found == expected


@needs_real
def test_calls_and_copies_add_up_as_in_sql(
    real: tuple[Session, Run], sql: sqlite3.Connection
) -> None:
    calls = {
        name: (count, total)
        for name, count, total in sql.execute(
            "SELECT s.value, COUNT(*), SUM(r.end - r.start) FROM CUPTI_ACTIVITY_KIND_RUNTIME r "
            "JOIN StringIds s ON s.id = r.nameId GROUP BY 1"
        )
    }
    found = {row.name: (row.instances, row.total) for row in api_rows(real[1])}
    assert found["cudaLaunchKernel"] == calls["cudaLaunchKernel_v7000"]
    assert found["cuLaunchKernel"] == calls["cuLaunchKernel"]
    assert sum(count for count, _ in found.values()) == sum(count for count, _ in calls.values())
    count, total_ns, total_bytes = sql.execute(
        "SELECT COUNT(*), SUM(end - start), SUM(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY"
    ).fetchone()
    times, sizes = memory_time_rows(real[1]), memory_size_rows(real[1])
    assert [row.name for row in times] == ["[CUDA memcpy Device-to-Host]"]
    assert (times[0].instances, times[0].total, sizes[0].total) == (count, total_ns, total_bytes)
    inside = sql.execute(
        "SELECT s.value, SUM(m.bytes) FROM NVTX_EVENTS n JOIN StringIds s ON s.id = n.textId "
        "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.globalTid = n.globalTid "
        "AND r.start >= n.start AND r.end <= n.end "
        "JOIN CUPTI_ACTIVITY_KIND_MEMCPY m ON m.correlationId = r.correlationId "
        "WHERE n.eventType = 59 AND n.domainId = 0 GROUP BY s.value"
    )
    found_bytes = {row.name: row.memcpy_bytes for row in phase_rows(real[1]) if row.memcpy_bytes}
    assert found_bytes == dict(inside)


@needs_real
def test_it_says_what_was_run_and_where(real: tuple[Session, Run]) -> None:
    session, run = real
    assert run.started.arguments == ("python", "power_iteration__baseline.py")
    assert session.gpus[0].facts.name == "Tesla T4"
    assert session.gpus[0].facts.memory_total_bytes == 15828320256
    assert session.header is not None
    assert session.header.driver_version == "550.54.15"
    assert session.header.cuda_driver_version == "12.4"
    assert run.duration_ns == pytest.approx(1.8e9, rel=0.01)
    [process] = run.processes.values()
    assert process.attached.pid == 9946


@needs_real
def test_it_becomes_a_recording_that_folds_to_the_same(
    real: tuple[Session, Run], tmp_path: Path
) -> None:
    path = tmp_path / "copy.gputui"
    writer = JournalWriter(path)
    writer.write(list(NsysReport(REAL)))
    writer.close()
    _, run = read_whole(path)
    assert run.kernels.keys() == real[1].kernels.keys()
    assert kernel_rows(*read_whole(path)) == kernel_rows(*real)


# --- small ones --------------------------------------------------------------------------------


def test_launches_belong_to_the_innermost_range_and_text_is_inline_or_by_id(
    tmp_path: Path,
) -> None:
    export = Export()
    export.range("step", 100, 1000)
    export.add(
        "NVTX_EVENTS", start=200, end=400, eventType=59, textId=export.string("attention"),
        globalTid=TASK | PID, domainId=0, color=0xFF00FF00,
    )  # fmt: skip
    export.kernel("gemm", (210, 220), (300, 350), 1)
    export.kernel("relu", (500, 510), (600, 620), 2)
    export.kernel("outside", (2000, 2010), (2100, 2200), 3)
    session, run = read_whole(export.write(tmp_path / "r.sqlite"))
    rows = {row.path: row for row in phase_rows(run)}
    assert list(rows) == ["step", "step/attention"]
    assert (rows["step"].kernels, rows["step"].kernel_ns) == (2, 70)
    attention = rows["step/attention"]
    assert (attention.kernels, attention.phase.nodes[0].definition.color) == (1, 0x00FF00)
    assert rows["step"].projected.total == 320
    assert rows["step"].gpu_busy_ns == 70
    assert run.started.time_ns == EPOCH_NS + 100
    assert {kernel.name: kernel.mangled for kernel in session.kernel_names.values()} == {
        "gemm": "_Zgemm",
        "relu": "_Zrelu",
        "outside": "_Zoutside",
    }


def test_a_driver_launch_counts_at_its_own_moment(tmp_path: Path) -> None:
    export = Export()
    export.range("setup", 0, 200_000_000)
    export.kernel("gemm", (10, 20), (30, 100), 1, driver=True)
    export.range("loop", 300_000_000, 900_000_000)
    for number in range(2, 6):
        start = number * 200_000_000 + 50_000_000
        export.kernel("gemm", (start, start + 20), (start + 30, start + 100), number, driver=True)
    session = Session()
    counts = []
    for event in open_recording(str(export.write(tmp_path / "r.sqlite"))):
        session.apply([event])
        if isinstance(event, CaptureDelta):
            assert session.run is not None
            kernels = sum(row.instances for row in kernel_rows(session, session.run))
            launches = sum(row.instances for row in api_rows(session.run))
            counts.append((kernels, launches))
    assert len(counts) > 3
    assert counts[-1] == (5, 5)
    assert [kernels for kernels, _ in counts] == [launches for _, launches in counts]


def test_busy_time_counts_whether_or_not_a_launch_is_known(tmp_path: Path) -> None:
    export = Export()
    export.range("step", 0, 4_000_000_000)
    for number in range(1, 200):
        start = number * 20_000_000
        # Every second one overlaps the one before.
        ran = (start + 100, start + (15 if number % 2 else 25) * 1_000_000)
        export.kernel("gemm", (start, start + 50), ran, number)
    path = export.write(tmp_path / "whole.sqlite")
    _, whole = read_whole(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(
            "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId > 40 AND "
            "correlationId % 3 != 0"
        )
        spans = connection.execute(
            "SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY start"
        ).fetchall()
        missing = connection.execute(
            "SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId NOT IN "
            "(SELECT correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME)"
        ).fetchone()[0]
    busy_ns = reached = 0
    for start, end in spans:
        busy_ns += max(0, end - max(start, reached))
        reached = max(reached, end)
    session, run = read_whole(path)
    [use] = run.timing.devices.values()
    assert use.busy_ns == busy_ns
    assert use.idle.count == next(iter(whole.timing.devices.values())).idle.count
    assert use.span_ns == spans[-1][1] - spans[0][0]
    tree = time_tree(run)
    assert tree is not None
    assert tree.wall_ns == pytest.approx(use.span_ns, rel=1e-3)
    assert tree.wall_ns - tree.idle_ns == pytest.approx(busy_ns, rel=1e-3)
    [process] = run.processes.values()
    assert process.unattributed == missing > 100
    assert f"{missing} operations without a launch" in "\n".join(facts_lines(session, run))
    # nsys prints kernels without a launch with empty PID and TID.
    rows = run_tables()["nvtx_kern_sum"].table(session, run).cells
    assert [(row[0], row[2:4], row[5]) for row in rows] == [
        ("", (None, None), missing), (":step", (PID, PID), 199 - missing),
    ]  # fmt: skip


def test_nobody_knows_how_the_program_of_a_report_ended(tmp_path: Path) -> None:
    export = Export()
    export.range("step", 0, 1000)
    _, run = read_whole(export.write(tmp_path / "r.sqlite"))
    assert run.outcome == "ended"


@pytest.mark.parametrize("rows_at_once", [None, 1, 7, 100])
def test_every_row_counts_wherever_blocks_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_once: int | None
) -> None:
    """Of pages, one by one, or of rows that SQLite sorts."""
    if rows_at_once is None:
        monkeypatch.setattr("gputui.imports.nsys.table_pages.BYTES_AT_ONCE", 1)
    else:
        monkeypatch.setattr("gputui.imports.nsys.database.MOST_HELD", -1)
        monkeypatch.setattr("gputui.imports.nsys.database.ROWS_AT_ONCE", rows_at_once)
    export = Export()
    for i in range(50):
        export.range("step", 1000 * i, 1000 * i + 900)
        export.kernel("gemm", (1000 * i + 10, 1000 * i + 20), (1000 * i + 30, 1000 * i + 40), i + 1)
    _, run = read_whole(export.write(tmp_path / "r.sqlite"))
    [step] = phase_rows(run)
    assert (step.instances, step.kernels, step.launches, step.kernel_ns) == (50, 50, 50, 500)


def test_memory_operations_keep_their_kinds(tmp_path: Path) -> None:
    export = Export()
    common = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": TASK}
    export.add("CUPTI_ACTIVITY_KIND_MEMCPY", start=10, end=30, correlationId=1, bytes=4096,
               copyKind=1, srcKind=1, dstKind=2, **common)  # fmt: skip
    export.add("CUPTI_ACTIVITY_KIND_MEMSET", start=40, end=45, correlationId=2, bytes=64,
               value=0, memKind=2, **common)  # fmt: skip
    _, run = read_whole(export.write(tmp_path / "r.sqlite"))
    found = {
        (both.operation, both.source_kind, both.destination_kind): (
            both.time.total,
            both.size.total,
        )
        for both in run.memory_operations.values()
    }
    assert found == {
        ("[CUDA memcpy Host-to-Device]", "pinned", "device"): (20, 4096),
        ("[CUDA memset]", None, "device"): (5, 64),
    }


def test_domains_categories_marks_and_start_end_ranges(tmp_path: Path) -> None:
    export = Export()
    thread = {"globalTid": TASK | PID}
    export.add("NVTX_EVENTS", start=0, eventType=75, text="mine", domainId=3, **thread)
    export.add("NVTX_EVENTS", start=0, eventType=33, text="io", domainId=3, category=9, **thread)
    export.add("NVTX_EVENTS", start=10, end=90, eventType=60, text="load", domainId=3, category=9,
               **thread)  # fmt: skip
    export.add("NVTX_EVENTS", start=20, eventType=34, text="here", domainId=0, category=4,
               uint64Value=-1, **thread)  # fmt: skip
    export.add("NVTX_EVENTS", start=21, eventType=34, domainId=0, floatValue=0.5, **thread)
    export.range("never closed", 30, None)
    _, run = read_whole(export.write(tmp_path / "r.sqlite"))
    load = next(node for node in run.ranges.values() if node.definition.name == "load")
    assert (load.definition.domain, load.definition.category) == ("mine", "io")
    assert (load.definition.style, load.cpu.total) == ("StartEnd", 80)
    assert [(mark.name, mark.time_ns, mark.payload) for mark in run.newest_marks] == [
        ("here", EPOCH_NS + 20, Payload("uint64", 2**64 - 1)),
        ("(no name)", EPOCH_NS + 21, Payload("float", 0.5)),
    ]
    assert [(row.name, row.category) for row in mark_rows(run)] == [
        ("here", "4"), ("(no name)", None),
    ]  # fmt: skip
    assert [row.instances for row in phase_rows(run) if row.name == "never closed"] == [1]


def test_a_report_of_two_processes_keeps_them_apart(tmp_path: Path) -> None:
    export = Export()
    other = 1 << 48 | 501 << 24
    export.range("step", 0, 100)
    export.range("step", 10, 50, globalTid=other | 501)
    _, run = read_whole(export.write(tmp_path / "r.sqlite"))
    assert {row.pid: row.cpu_total_ns for row in phase_rows(run)} == {500: 100, 501: 40}
    assert {process.attached.cuda_status for process in run.processes.values()} == {
        "the report holds no CUDA activity"
    }


nested = st.recursive(
    st.just([]), lambda inside: st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3),
                                                   inside, st.integers(0, 3)), max_size=3),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(nested)
def test_any_nesting_is_found_again(tmp_path_factory: pytest.TempPathFactory, tree: list) -> None:
    export = Export()
    totals: dict[str, int] = {}
    counts: dict[str, int] = {}

    def write(ranges: list, at: int, above: str) -> int:
        for name, before, inside, after in ranges:
            path = f"{above}/{name}" if above else name
            # A range and the one after it do not begin at one moment, nor has any no length:
            # of such rows nsys itself does not tell which was inside which.
            start = at + 1
            end = write(inside, start + before, path) + after + 1
            export.range(name, start, end)
            totals[path] = totals.get(path, 0) + end - start
            counts[path] = counts.get(path, 0) + 1
            at = end
        return at

    write(tree, 0, "")
    if not totals:
        return
    _, run = read_whole(export.write(tmp_path_factory.mktemp("r") / "r.sqlite"))
    assert {row.path: row.cpu_total_ns for row in phase_rows(run)} == totals
    assert {row.path: row.instances for row in phase_rows(run)} == counts


# --- what is no report -------------------------------------------------------------------------


def test_an_export_without_activity_is_refused_in_one_line(tmp_path: Path) -> None:
    path = Export().write(tmp_path / "empty.sqlite")
    with pytest.raises(JournalError, match="--trace=cuda,nvtx") as caught:
        open_recording(str(path))
    assert "\n" not in str(caught.value)


def test_damage_is_one_line_or_a_word_about_where(tmp_path: Path) -> None:
    export = Export()
    for i in range(3000):
        export.range(f"range {i}", 10 * i, 10 * i + 5)
    whole = export.write(tmp_path / "whole.sqlite").read_bytes()
    for name, data in {
        "cut": whole[: len(whole) // 2],
        "head": whole[:20],
        "zeros": whole[:100] + b"\0" * (len(whole) - 100),
        "noise": whole[:4096] + b"\xff" * (len(whole) - 4096),
    }.items():
        path = tmp_path / f"{name}.sqlite"
        path.write_bytes(data)
        try:
            reader = open_recording(str(path))
            Session().apply(reader)
        except JournalError as error:
            message = str(error)
        else:
            message = reader.damage or ""
        assert str(path) in message
        assert "\n" not in message


def test_code_in_the_file_does_not_run(tmp_path: Path) -> None:
    export = Export()
    export.range("real", 0, 10)
    path = export.write(tmp_path / "r.sqlite")
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(start) AS "
        "(SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT * FROM n"
    )
    connection.commit()
    connection.close()
    _, run = read_whole(path)
    assert not run.kernels
    assert [row.name for row in phase_rows(run)] == ["real"]


def test_wrong_types_and_absurd_figures_are_survived(tmp_path: Path) -> None:
    export = Export()
    export.range("fine", 10, 60)
    export.range("backwards", 50, 5)
    export.range("\x1b[2Jhostile\u202e", 70, 80)
    export.range("far", 2**62, 2**63 - 1)
    export.range("long ago", -(2**62), -5)
    export.range("text", "soon", "later")  # type: ignore[arg-type]
    export.kernel("k", (20, 30), (40, 45), 2**63 - 1)
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", start="x", end=b"\0", deviceId=-7, globalPid=None,
               correlationId="nine", demangledName=-1)  # fmt: skip
    session, run = read_whole(export.write(tmp_path / "r.sqlite"))
    names = {row.name for row in phase_rows(run)}
    assert "fine" in names
    assert not any("\x1b" in name or "\u202e" in name for name in names)
    assert session.time_ns <= 4_102_444_800_000_000_000


def test_the_export_is_left_as_it_was(tmp_path: Path) -> None:
    export = Export()
    export.range("a", 0, 10)
    path = export.write(tmp_path / "r.sqlite")
    path.chmod(stat.S_IRUSR)
    before = path.read_bytes()
    read_whole(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.sqlite"]


def test_copies_of_unified_memory_are_named_as_in_nsys(tmp_path: Path) -> None:
    export = Export()
    export.kernel("gemm", (10, 20), (30, 100), 1)
    for kind, start in ((11, 200), (12, 300)):
        export.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY", start=start, end=start + 50, deviceId=0, contextId=1,
            streamId=7, correlationId=0, globalPid=TASK, bytes=4096, copyKind=kind, srcKind=7,
            dstKind=7,
        )  # fmt: skip
    path = export.write(tmp_path / "r.sqlite")
    _, run = read_whole(path)
    names = {"[CUDA memcpy Unified Host-to-Device]", "[CUDA memcpy Unified Device-to-Host]"}
    assert {row.name for row in memory_time_rows(run)} == names
    [process] = run.processes.values()
    assert process.unattributed == 0  # no call launches them
    out = tmp_path / "out.sqlite"
    with open_traced(str(path)) as traced:
        write_nsys(out, traced.session, traced.run, traced.trace)
    with closing(sqlite3.connect(out)) as connection:
        labels = connection.execute(
            "SELECT label FROM CUPTI_ACTIVITY_KIND_MEMCPY JOIN ENUM_CUDA_MEMCPY_OPER "
            "ON id = copyKind ORDER BY copyKind"
        ).fetchall()
    assert labels == [("Unified Host-to-Device",), ("Unified Device-to-Host",)]


def test_a_compressed_export_is_read_as_what_it_holds(tmp_path: Path) -> None:
    export = Export()
    export.range("step", 0, 1000)
    path = export.write(tmp_path / "r.sqlite")
    packed = tmp_path / "r.sqlite.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    reader = open_recording(str(packed))
    assert reader.name == str(packed)
    session = Session.from_events(reader)
    assert session.run is not None
    assert [row.name for row in phase_rows(session.run)] == ["step"]
    packed.write_bytes(gzip.compress(path.read_bytes()[:3000]))
    with pytest.raises(JournalError) as caught:
        open_recording(str(packed))
    assert str(packed) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nsys_itself_exports_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export = Export()
    export.range("step", 0, 1000)
    made = export.write(tmp_path / "made.sqlite")
    path = tmp_path / "-r $(touch x).nsys-rep"
    path.write_bytes(b"of nsys")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(JournalError, match="nsys export --type sqlite -r") as caught:
        open_recording(str(path))
    assert "\n" not in str(caught.value)
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    # Its output is its seventh argument, its input the eighth. Meanwhile a capture begins, which
    # removes folders that others have left.
    begins = "from gputui.inject.environment import create_capture_folder as c; c().__enter__()"
    program.write_text(
        f'#!/bin/sh\n{sys.executable} -c "{begins}" && [ -f "$8" ] && /bin/cp {made} "$7"\n'
    )
    program.chmod(0o755)
    _, run = read_whole(path)
    assert [row.name for row in phase_rows(run)] == ["step"]
    program.write_text("#!/bin/sh\necho Version number is invalid >&2\nexit 1\n")
    with pytest.raises(JournalError, match="nsys export failed: Version number is invalid"):
        open_recording(str(path))


def test_an_export_names_its_devices_and_their_clocks(tmp_path: Path) -> None:
    export = Export()
    export.kernel("gemm", (10, 20), (30, 100), 1)
    export.add(
        "TARGET_INFO_GPU", id=0, name="Tesla V100", clockRate=1_530_000_000, computeMajor=7,
        computeMinor=0, l2CacheSize=6 << 20,
    )  # fmt: skip
    out = tmp_path / "out.sqlite"
    with open_traced(str(export.write(tmp_path / "r.sqlite"))) as traced:
        assert traced.session.gpus[0].facts.l2_cache_bytes == 6 << 20
        write_nsys(out, traced.session, traced.run, traced.trace)
    with closing(sqlite3.connect(out)) as connection:
        found = connection.execute(
            "SELECT clockRate, chipName, l2CacheSize FROM TARGET_INFO_GPU"
        ).fetchall()
        devices = connection.execute("SELECT * FROM TARGET_INFO_CUDA_DEVICE").fetchall()
    assert found == [(1_530_000_000, "GV100", 6 << 20)]
    assert devices == [(0, 0, PID)]


# --- long reports --------------------------------------------------------------------------------


def _long_report(seconds: int) -> Export:
    """Steps of 50 ms, each with a range of another domain that crosses its own."""
    export = Export()
    export.add("NVTX_EVENTS", start=0, eventType=75, text="other", domainId=3, globalTid=TASK | PID)
    for i in range(20 * seconds):
        begin = 50_000_000 * i
        export.range("step", begin, begin + 49_000_000, int64Value=i)
        export.range("inner", begin + 1_000_000, begin + 20_000_000)
        export.range("beside", begin + 10_000_000, begin + 30_000_000, domainId=3)
        for kernel in range(2):
            call = begin + 2_000_000 + 10_000_000 * kernel
            ran = (call + 300_000, call + 5_000_000 + 1_000 * i)
            export.kernel(f"gemm{kernel}", (call, call + 100_000), ran, 2 * i + kernel + 1)
    return export


def test_a_long_report_that_is_only_summed_up_comes_to_the_same_in_fewer_events(
    tmp_path: Path,
) -> None:
    path = _long_report(34).write(tmp_path / "r.sqlite")
    every, summed = list(NsysReport(path)), list(NsysReport(path, summed=True))
    deltas = [
        sum(isinstance(event, CaptureDelta) for event in events) for events in (every, summed)
    ]
    assert deltas[1] < deltas[0] / 4
    tables = [_all_tables(Session.from_events(events)) for events in (every, summed)]
    assert tables[0].keys() == tables[1].keys()
    for place, cell in tables[0].items():
        # Causes of idling are shared out in whole nanoseconds, tick by tick.
        same = pytest.approx(cell, rel=1e-6) if isinstance(cell, int | float) else cell
        assert tables[1][place] == same, place


def _all_tables(session: Session) -> dict[tuple[str, int, int], object]:
    """Every cell of every table of its run, by table, row and column."""
    run = session.run
    assert run is not None
    return {
        (name, row, column): cell
        for name, table in run_tables().items()
        for row, cells in enumerate(table.table(session, run).cells)
        for column, cell in enumerate(cells)
    }


def test_ranges_are_summed_up_soon_after_their_last_operation(tmp_path: Path) -> None:
    path = _long_report(6).write(tmp_path / "r.sqlite")
    first_ns = min(
        event.time_ns
        for event in NsysReport(path)
        if isinstance(event, CaptureDelta) and any(row.projected for row in event.ranges)
    )
    assert first_ns - EPOCH_NS < 3_000_000_000


# --- one table of sums, of its own rows ----------------------------------------------------------


def _assert_same(expected: Sequence[Sequence[object]], cells: Sequence[Sequence[object]]) -> None:
    """All cells alike; deviations up to the rounding of sums that were added in another order."""
    assert len(expected) == len(cells)
    for row, other in zip(expected, cells, strict=True):
        for cell, value in zip(row, other, strict=True):
            assert value == (pytest.approx(cell, rel=1e-6) if isinstance(cell, float) else cell)


SUMS = ("cuda_gpu_kern_sum", "cuda_gpu_kern_sum:base", "cuda_gpu_kern_sum:mangled", "cuda_api_sum",
        "cuda_gpu_mem_time_sum", "cuda_gpu_mem_size_sum", "nvtx_sum", "nvtx_pushpop_sum",
        "nvtx_startend_sum")  # fmt: skip


def _report_of_every_table() -> Export:
    export = _long_report(2)
    task = TASK | PID
    for i in range(3):
        export.range("", 40_000_000 * i, 40_000_000 * i + i, domainId=9)
        export.range("apart", 10_000 * i, 70_000_000 * i + 20_000, eventType=60)
        export.add("NVTX_EVENTS", start=i, eventType=34, text="mark", globalTid=task)
        call = {"globalTid": task, "returnValue": 0, "start": 3_000_000 * i}
        export.add("CUPTI_ACTIVITY_KIND_RUNTIME", **call, end=3_000_000 * i + 40, eventClass=1,
                   correlationId=900 + i, nameId=export.string("cuEventRecord"))  # fmt: skip
        if i:  # a call of the runtime that made it, with the same id
            export.add("CUPTI_ACTIVITY_KIND_RUNTIME", **call, end=3_000_000 * i + 50, eventClass=0,
                       correlationId=900 + i, nameId=export.string("cudaEventRecord_v3020"),
                       )  # fmt: skip
        common = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": TASK}
        export.add("CUPTI_ACTIVITY_KIND_MEMCPY", start=10 + i, end=30 + 2 * i, correlationId=700,
                   bytes=4096 * i, copyKind=1 + i, srcKind=1, dstKind=2, **common)  # fmt: skip
        export.add("CUPTI_ACTIVITY_KIND_MEMSET", start=40, end=45 + i, correlationId=701, bytes=64,
                   value=0, memKind=2, **common)  # fmt: skip
    return export


@pytest.mark.parametrize("table", SUMS)
def test_a_table_of_its_own_rows_is_that_of_all_rows(tmp_path: Path, table: str) -> None:
    path = _report_of_every_table().write(tmp_path / "r.sqlite")
    whole, alone = (load(str(path), tables=(name,) if name else ()) for name in (None, table))
    assert alone.run is not None
    assert len(alone.run.ranges) * len(alone.run.kernels) == 0  # only what the table shows
    tables = [one_table(loaded.session, loaded.run, table) for loaded in (whole, alone)]
    assert tables[0].rows
    _assert_same(tables[0].cells, tables[1].cells)
    assert tables[0].note == tables[1].note


@needs_real
@pytest.mark.parametrize("table", SUMS)
def test_a_table_of_a_real_report_is_that_of_all_rows(table: str) -> None:
    tables = [
        one_table(loaded.session, loaded.run, table)
        for loaded in (load(str(REAL)), load(str(REAL), tables=(table,)))
    ]
    _assert_same(tables[0].cells, tables[1].cells)


@st.composite
def _programs(draw: st.DrawFn) -> Export:
    """Threads that push and pop in two domains and call, most of them soon before an operation."""
    export, clock = Export(), 0
    moments = st.integers(1, 40)
    for thread in range(draw(st.integers(1, 2))):
        task = TASK | PID + thread
        stacks: dict[int, list[dict[str, object]]] = {0: [], 5: []}
        for number in range(draw(st.integers(1, 14))):
            clock += draw(moments) * 1_000
            domain = draw(st.sampled_from((0, 0, 5)))
            what = draw(st.sampled_from(("push", "push", "pop", "launch", "launch")))
            if what == "push":
                name = draw(st.sampled_from("abc"))
                export.range(name, clock, None, domainId=domain, globalTid=task)
                stacks[domain].append(export.rows["NVTX_EVENTS"][-1])
            elif what == "pop" and stacks[domain]:
                stacks[domain].pop()["end"] = clock
            elif what == "launch":
                returned, began = clock + draw(moments), clock + draw(moments) * 500
                export.kernel("k", (clock, returned), (began, began + 7), thread * 100 + number)
                export.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]["globalTid"] = task
        for stack in stacks.values():
            while stack:
                clock += draw(moments) * 1_000
                stack.pop()["end"] = clock
    export.range("last", clock + 1_000, clock + 2_000)
    return export


@settings(max_examples=25)
@given(_programs())
def test_projections_by_columns_are_those_of_all_rows(export: Export) -> None:
    with TemporaryDirectory() as folder:
        path = str(export.write(Path(folder, "r.sqlite")))
        names = ("nvtx_gpu_proj_sum", "nvtx_sum")
        whole, alone = load(path), load(path, tables=names)
        assert alone.run is not None
        assert not alone.run.kernels  # of columns
        for name in names:
            tables = [one_table(read.session, read.run, name) for read in (whole, alone)]
            _assert_same(tables[0].cells, tables[1].cells)


@pytest.mark.parametrize("what", ["another kernel", "Start/End", "long after", "before"])
def test_projections_that_are_not_plain_need_all_rows(tmp_path: Path, what: str) -> None:
    export = _long_report(1)
    if what == "Start/End":
        export.range("apart", 10, 90_000_000, eventType=60)
    else:
        later = {"long after": 11_000_000_000, "before": -3_000_000}.get(what, 2_000)
        began = export.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][0]["start"]
        assert isinstance(began, int)
        kernel = export.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0]
        times = {"start": began + later, "end": began + later + 500}
        if what == "another kernel":
            export.add("CUPTI_ACTIVITY_KIND_KERNEL", **{**kernel, **times})
        else:
            kernel.update(times)
    path = str(export.write(tmp_path / "r.sqlite"))
    alone = load(path, tables=("nvtx_gpu_proj_sum",))
    assert alone.run is not None
    assert alone.run.kernels


def test_a_table_that_is_cut_to_a_range_needs_all_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(_long_report(1).write(tmp_path / "r.sqlite"))
    table = ["--table", "cuda_gpu_kern_sum", "--format", "csv"]
    assert gputui(["summary", path, *table, "--phase", "inner"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["Name"]: row["Instances"] for row in rows} == {"gemm0": "20", "gemm1": "20"}


def test_a_range_that_never_ends_needs_all_rows(tmp_path: Path) -> None:
    export = _long_report(1)
    export.range("open", 5, None)
    path = str(export.write(tmp_path / "r.sqlite"))
    tables = [
        one_table(loaded.session, loaded.run, "nvtx_sum")
        for loaded in (load(path), load(path, tables=("nvtx_sum",)))
    ]
    _assert_same(tables[0].cells, tables[1].cells)
    assert "open" in str(tables[0].cells)


# --- for a screen: how much was read, and an end before the end -----------------------------------


def test_the_first_figures_are_there_long_before_the_last(tmp_path: Path) -> None:
    report = NsysReport(_long_report(10).write(tmp_path / "r.sqlite"))
    shares = [report.share_read for event in report if isinstance(event, CaptureDelta)]
    assert shares == sorted(shares)
    assert shares[0] < 0.05
    assert report.share_read == shares[-1] == 1
    assert report.damage is None


def test_what_was_read_before_the_stop_stays(tmp_path: Path) -> None:
    report = NsysReport(_long_report(10).write(tmp_path / "r.sqlite"))
    session = Session()
    for event in report:
        session.apply((event,))
        if report.share_read >= 0.5:
            report.stop()
    assert session.run is not None
    assert session.run.ended is not None
    assert 0.5 <= report.share_read < 0.6
    assert 0 < len(kernel_rows(session, session.run)) <= 2
    assert str(report.damage).endswith(f"reading was stopped at {report.share_read:.0%}")


def test_a_report_that_is_stopped_while_it_is_sorted_ends_at_once(tmp_path: Path) -> None:
    report = NsysReport(_long_report(1).write(tmp_path / "r.sqlite"))
    report.stop()
    assert [event for event in report if isinstance(event, CaptureDelta)] == []
    assert str(report.damage).endswith("reading was stopped at 0%")
