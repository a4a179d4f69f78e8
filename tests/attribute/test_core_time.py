"""What threads ran and waited for a core: between two readings of the same thread, not before."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gputui.attribute.local_collectives import CoreTime
from gputui.attribute.reader import CaptureReader
from gputui.inject.environment import library_path
from gputui.model.events import AnyEvent, CaptureDelta
from tests.attribute.capture_program import START_NS, Program
from tests.attribute.test_capture_reader import write_ring


def test_what_threads_came_to_between_readings_is_added_up() -> None:
    core_time = CoreTime()
    core_time.add(1000, {})
    core_time.add(2000, {7: (0, 500)})
    core_time.add(3000, {7: (10, 600), 8: (1, 9000)})
    core_time.add(4000, {7: (30, 650), 8: (6, 9100)})
    core_time.keep(together=True)
    core_time.add(5000, {7: (930, 650), 8: (6, 9900)})
    core_time.keep(together=False)  # nothing that ranks do together
    core_time.add(6000, {})  # both are gone
    core_time.add(7000, {7: (5, 5)})  # another of the same number
    core_time.keep(together=True)
    assert core_time.kept == (35, 250, 2000 + 1000)
    core_time.forget()
    assert core_time.kept == (0, 0, 0)


@pytest.mark.skipif(library_path() is None, reason="the capture library is not built")
def test_threads_with_collectives_on_the_cpu_are_watched(tmp_path: Path) -> None:
    """A ring of this process, as if its thread was in a collective."""
    program, here = Program(), threading.get_native_id()
    ticks = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
    first, second = (program.push(at, "all_reduce", here, "comm") for at in (1, 5))
    fields = {"pid": os.getpid(), "start_ticks": ticks}
    path, later = tmp_path / "1-1.ring", tmp_path / "later"
    later.mkdir()
    write_ring(tmp_path, path.name, program, [first], **fields)
    write_ring(later, path.name, program, [first, second], **fields)
    events: list[AnyEvent] = []
    with path.open("r+b") as ring:
        reader = CaptureReader(tmp_path, run=1)
        reader.poll(START_NS)
        events += reader.collect(START_NS)
        ring.write((later / path.name).read_bytes())
    for at_ms in (100, 200, 210, 300):
        reader.poll(START_NS + at_ms * 1_000_000)
    events += reader.finish(START_NS + 300_000_000)
    deltas = [one for one in events if isinstance(one, CaptureDelta)]
    assert [one.core_watched_ns for one in deltas] == [0, 200_000_000]
