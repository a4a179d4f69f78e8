"""The table of a run's traced processes."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

import msgspec
import pytest

from gputui.model.events import (
    AnyEvent,
    CaptureDelta,
    DeviceDelta,
    ProcessAttached,
    ProcessDetached,
    ThreadNamed,
)
from gputui.render.text_tables import to_csv, to_text
from gputui.report.summary_document import summary_document
from gputui.report.tables import run_tables
from gputui.report.tables.processes import thread_words, traced_rows
from gputui.state import Session
from gputui.tui.views.summary import listed
from gputui.tui.widgets.table import table_rows
from tests.events_for_tests import at, attached, gpu, header, run_ended, run_started
from tests.sessions_for_tests import traced


def named(thread: int, name: str, process: int = 1) -> ThreadNamed:
    return ThreadNamed(time_ns=at(2), process=process, thread=thread, name=name, source="system")


def device(number: int, process: int) -> CaptureDelta:
    return CaptureDelta(
        time_ns=at(3), process=process, records=40, dropped=2,
        devices=(DeviceDelta(process=process, device=number, busy_ns=5, operations=1,
                             first_start_ns=at(2), last_end_ns=at(3)),),
    )  # fmt: skip


@pytest.fixture
def session() -> Session:
    """One process that ended, one that vanished, one that was left behind."""
    again = ProcessAttached(
        time_ns=at(4), run=1, process=1, pid=101, parent_pid=100, rank=0, local_rank=3,
        command="python train.py", cuda_status="tracing",
    )  # fmt: skip
    events: list[AnyEvent] = [
        header(gpu(0), gpu(1)), run_started(), attached(1), attached(2, rank=1), attached(3),
        named(101, "python"), named(103, "loader"), named(102, "loader"),
        device(1, 1), device(0, 1), again,
        ProcessDetached(time_ns=at(5), process=1, clean=True),
        ProcessDetached(time_ns=at(6), process=2, clean=False),
    ]  # fmt: skip
    return Session.from_events(events)


def test_each_process_says_when_it_came_and_how_it_went(session: Session) -> None:
    run = session.run
    assert run is not None
    first, second, third = traced_rows(run)
    assert (first.start_ns, first.end_ns, first.how_ended) == (5 * 10**8, 4 * 10**9, "ended")
    assert (first.gpus, first.threads) == ((0, 1), ("python", "loader", "loader"))
    assert thread_words(first) == "python, loader × 2"
    assert (second.end_ns, second.how_ended) == (5 * 10**9, "vanished")
    assert (second.gpus, second.threads) == ((), ())
    assert (third.end_ns, third.how_ended) == (None, "running")
    session.apply([run_ended()])
    assert traced_rows(run)[2].how_ended == "not seen to end"


def test_the_table_and_the_document_say_the_same(session: Session) -> None:
    run = session.run
    assert run is not None
    rows = list(csv.DictReader(io.StringIO(to_csv(run_tables()["processes"].table(session, run)))))
    told = msgspec.to_builtins(summary_document(session, run))["run"]["processes"]
    assert [int(row["PID"]) for row in rows] == [process["pid"] for process in told]
    assert (rows[0]["Rank"], rows[0]["Local Rank"]) == ("0", "3")
    assert (told[0]["rank"], told[0]["local_rank"], told[0]["gpus"]) == (0, 3, [0, 1])
    assert (told[0]["records"], told[0]["dropped"]) == (80, 4)
    assert told[0]["started"] == "2023-11-14T22:13:21.500+00:00"
    assert told[1]["ended"] == "2023-11-14T22:13:26.000+00:00"
    assert [process["state"] for process in told] == ["ended", "vanished", "running"]
    assert told[0]["threads"] == {"101": "python", "102": "loader", "103": "loader"}
    narrow = to_text(run_tables()["processes"].table(session, run), 80)
    assert "vanished" in narrow
    assert "101" in narrow


@pytest.mark.parametrize("width", [78, 118, 198])
def test_the_screen_shows_them(session: Session, width: int) -> None:
    run = session.run
    assert run is not None
    [processes] = [table for table in listed(session, run) if "Processes" in table.title]
    rows = table_rows(processes.columns, processes.lines, width)
    lines = ["".join(text for text, _ in row) for row in rows]
    assert all(len(line) <= width for line in lines)
    assert "vanished" in lines[2]
    assert lines[1].split()[0] == "101"


def test_the_processes_of_a_shell_script(tmp_path: Path) -> None:
    script = tmp_path / "two.sh"
    kill = "import nvtx, os; nvtx.push_range('open'); os.kill(os.getpid(), 9)"
    end = "import nvtx; nvtx.push_range('phase'); nvtx.pop_range()"
    script.write_text(
        f'LOCAL_RANK=1 RANK=5 {sys.executable} -c "{end}"\n{sys.executable} -c "{kill}"\nexit 0\n'
    )
    _, run = traced(["sh", str(script)])
    assert run.ended is not None
    rows = {row.process.attached.rank: row for row in traced_rows(run)}
    first, second = rows[5], rows[None]
    assert first.process.attached.local_rank == 1
    assert [row.process.attached.parent_pid for row in (first, second)] == [run.started.pid] * 2
    assert (first.how_ended, second.how_ended) == ("ended", "vanished")
    # One came after the other had gone, however seldom the reader looks.
    assert first.end_ns is not None
    assert 0 < first.start_ns < first.end_ns < second.start_ns
    for row in (first, second):
        assert row.end_ns is not None
        assert 0 <= row.start_ns <= row.end_ns <= run.duration_ns
        assert row.process.records >= 1
        assert row.gpus == ()
