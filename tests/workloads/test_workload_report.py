"""What arrives on the report pipe, and when. The clock is the test's, the pipe is real."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from workloads.errors import MonitorGone, WrongUsage
from workloads.report import FD_VARIABLE, LINE_LIMIT_BYTES, Report, report_fd, reports_only

MILLISECOND = 1_000_000


class Clock:
    """Stands still until told to go on."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class Pipe:
    """Both ends of a pipe, read without waiting."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)

    def messages(self) -> list[dict[str, Any]]:
        read = b""
        try:
            while piece := os.read(self.reader, 1 << 20):
                read += piece
        except BlockingIOError:
            pass
        return [json.loads(line) for line in read.splitlines()]

    def close_reader(self) -> None:
        os.close(self.reader)
        self.reader = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    for fd in (pipe.reader, pipe.writer):
        if fd >= 0:
            os.close(fd)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def report(pipe: Pipe, clock: Clock) -> Report:
    return Report(pipe.writer, io.StringIO(), clock)


def test_progress_is_limited_to_twenty_a_second_but_its_ends_always_arrive(
    pipe: Pipe, clock: Clock, report: Report
) -> None:
    for done in range(1001):
        report.progress("decode", done, 1000, "tokens")
        clock.now_ns += MILLISECOND
    sent = pipe.messages()
    assert sent[0] == {
        "type": "progress", "stage": "decode", "done": 0, "total": 1000, "unit": "tokens",
    }  # fmt: skip
    assert sent[-1]["done"] == 1000
    assert 20 <= len(sent) <= 22


def test_metrics_are_limited_and_the_newest_value_arrives_before_the_result(
    pipe: Pipe, clock: Clock, report: Report
) -> None:
    for step in range(1000):
        report.metrics({"step": step, f"only_{step}": None} if step == 1 else {"step": step})
        clock.now_ns += MILLISECOND
    report.result({"fine": True})
    *metrics, result = pipe.messages()
    assert result == {"type": "result", "result": {"fine": True}}
    assert [message["metrics"]["step"] for message in metrics] == [0, 200, 400, 600, 800, 999]
    assert metrics[1]["metrics"]["only_1"] is None


def test_what_is_no_number_is_missing(pipe: Pipe, report: Report) -> None:
    report.metrics({"nan": float("nan"), "infinite": float("inf"), "name": "x", "yes": True})
    (message,) = pipe.messages()
    assert message["metrics"] == {"nan": None, "infinite": None, "name": "x", "yes": True}


def test_a_stopped_reader_does_not_stop_the_workload(
    pipe: Pipe, clock: Clock, report: Report
) -> None:
    for step in range(20_000):
        report.metrics({"step": step, "padding": "x" * 100})
        clock.now_ns += 1000 * MILLISECOND
    kept = pipe.messages()
    assert 0 < len(kept) < 20_000
    report.error("out of memory", "no more")
    last_metrics, error = pipe.messages()
    assert last_metrics["metrics"]["step"] == 19_999
    assert error == {"type": "error", "error": "out of memory", "detail": "no more"}


def test_a_closed_pipe_means_that_the_monitor_is_gone(pipe: Pipe, report: Report) -> None:
    pipe.close_reader()
    with pytest.raises(MonitorGone):
        report.progress("load", 0, 1)


def test_a_line_is_never_longer_than_its_limit(pipe: Pipe, report: Report) -> None:
    with pytest.raises(ValueError, match="a line holds 65536"):
        report.result({"text": "x" * LINE_LIMIT_BYTES})
    report.error("failed", "x" * LINE_LIMIT_BYTES)
    (error,) = pipe.messages()
    assert len(error["detail"]) == 2000


def test_a_table_too_long_for_a_line_is_told_in_several(pipe: Pipe, report: Report) -> None:
    rows = [[number, "x" * 200] for number in range(120)]
    head = {"name": "t", "title": "T", "columns": [{"name": "n"}, {"name": "text"}]}
    report.table({**head, "rows": rows})
    parts = pipe.messages()
    assert len(parts) == 3
    assert [row for part in parts for row in part["rows"]] == rows
    assert all(part["columns"] == head["columns"] for part in parts)


def test_without_a_pipe_people_are_told_all_the_same() -> None:
    told = io.StringIO()
    report = Report(None, told)
    report.say("hello")
    report.metrics({"step": 1})
    report.result({})
    assert told.getvalue() == "hello\n"


def test_the_descriptor_is_taken_from_the_environment_and_kept_from_children(pipe: Pipe) -> None:
    os.set_inheritable(pipe.writer, True)
    environment = {FD_VARIABLE: str(pipe.writer), "HOME": "/", "GPUTUI_REPORT_ONLY": "1"}
    assert reports_only(environment)
    assert not reports_only(environment)
    assert not reports_only({"GPUTUI_REPORT_ONLY": "1"})  # nobody reads the report
    assert report_fd(environment) == pipe.writer
    assert environment == {"HOME": "/"}
    assert not os.get_inheritable(pipe.writer)
    assert report_fd(environment) is None


@pytest.mark.parametrize("text", ["", "pipe", "-1", "2", "987654", "9" * 400])
def test_a_descriptor_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage, match=FD_VARIABLE):
        report_fd({FD_VARIABLE: text})
