"""Records that come while nobody works on them: a real child, and a reader that is busy."""

from __future__ import annotations

import subprocess
import threading

import pytest

from gputui.attribute import reader
from gputui.attribute.reader import CaptureReader
from gputui.model.events import AnyEvent, RunStarted
from gputui.state import Session
from tests.inject.traced import LIMIT_S, environment

STEPS = 60_000
"""Of six records each: five times what a ring of 4 MiB holds."""


@pytest.mark.parametrize("hurried", [False, True])
def test_what_comes_while_the_reader_is_busy_is_kept_or_counted(
    nvtx_program, tmp_path, monkeypatch, hurried
):
    monkeypatch.setattr(reader, "HURRY_S", 0.0)
    events: list[AnyEvent] = []
    busy, ended = threading.Event(), threading.Event()

    def emit(batch: list[AnyEvent]) -> None:
        events.extend(batch)
        busy.set()
        assert ended.wait(LIMIT_S)

    capture = CaptureReader(tmp_path, run=1)
    capture.watch()
    capture.start(emit, 0.01)
    go = tmp_path / "go"
    extra = {"GPUTUI_RING_BYTES": str(4 << 20), "GPUTUI_TEST_GO": str(go)}
    words = [nvtx_program, "as-room-is-made", str(STEPS)]
    child = subprocess.Popen(words, env=environment(tmp_path, extra))
    assert busy.wait(LIMIT_S)
    go.touch()
    assert child.wait(LIMIT_S) == 0
    if hurried:
        capture.hurry()
    ended.set()
    capture.stop()
    session = Session()
    start = RunStarted(time_ns=0, run=1, kind="command", name="p", arguments=(), pid=1)
    session.apply([start, *events])
    assert session.run
    (process,) = session.run.processes.values()
    assert process.records + process.dropped >= 6 * STEPS
    if hurried:
        assert process.dropped > 0
    else:
        assert process.dropped == 0
        assert {node.path: node.cpu.count for node in session.run.ranges.values()} == {
            "step": STEPS,
            "step/odd": STEPS // 2,
            "step/even": STEPS // 2,
            "step/copy back": STEPS,
        }
