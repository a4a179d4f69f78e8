"""What threads waited for a core: between two readings of the same thread, nothing before."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gputui.attribute.core_waits import CoreWaits
from gputui.attribute.reader import CaptureReader
from gputui.inject.environment import library_path
from gputui.model.events import CaptureDelta
from tests.attribute.capture_program import START_NS, Program
from tests.attribute.test_capture_reader import write_ring


def test_what_threads_waited_between_readings_is_added_up() -> None:
    waits = CoreWaits()
    waits.add(1000, {})
    waits.add(2000, {7: 500})
    waits.add(3000, {7: 600, 8: 9000})
    waits.add(4000, {7: 650, 8: 9100})
    assert (waits.waited_ns, waits.watched_ns) == (250, 2000)
    waits.clear()
    waits.add(5000, {})  # both are gone
    waits.add(6000, {7: 5})  # another of the same number
    assert (waits.waited_ns, waits.watched_ns) == (0, 1000)


@pytest.mark.skipif(library_path() is None, reason="the capture library is not built")
def test_threads_with_collectives_on_the_cpu_are_watched(tmp_path: Path) -> None:
    """A ring of this process, as if its thread was in a collective."""
    program, here = Program(), threading.get_native_id()
    ticks = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
    records = [program.push(1, "all_reduce", here, "comm"), program.push(1, "step", here + 1)]
    write_ring(tmp_path, "1-1.ring", program, records, pid=os.getpid(), start_ticks=ticks)
    reader = CaptureReader(tmp_path, run=1)
    for at_ms in (0, 100, 200, 300):
        reader.poll(START_NS + at_ms * 1_000_000)
        reader.collect(START_NS + at_ms * 1_000_000)
    deltas = [one for one in reader.finish(START_NS + 300_000_000) if isinstance(one, CaptureDelta)]
    assert [delta.core_watched_ns for delta in deltas] == [200_000_000]
