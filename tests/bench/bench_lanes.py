"""What a timeline of many operations costs: reading its lanes, and painting a window.

    python tests/bench/bench_lanes.py [--operations 1000000]

Writes a trace with so many kernels, each with its call, to a temporary file. Prints the CPU time to
read it, the most that a paint of the view took (200×50, windows from all of it down to a
ten-thousandth, the cursor in words included), and the process's largest memory.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from gputui.playback.lanes import TracedLanes, read_lanes
from gputui.state import Run, Session
from gputui.store.trace import TRACE, TraceKind, TraceReader, TraceWriter
from gputui.tui.model import Model
from gputui.tui.views.timeline import TimelineView
from tests.events_for_tests import attached, header, run_started

SIZE = (200, 50)
WINDOWS = (1.0, 0.1, 0.01, 0.001, 0.0001)
PORTION = 50_000


def write(path: Path, operations: int) -> None:
    """Kernels of 40 names, 1.5 µs each, a call 9 µs before each."""
    rng = np.random.default_rng(1)
    starts = np.cumsum(rng.integers(2_000, 20_000, operations)) + 10**18
    names = rng.integers(1, 40, operations)
    with closing(TraceWriter(path, 1 << 32)) as writer:
        for low in range(0, operations, PORTION):
            part = slice(low, min(operations, low + PORTION))
            for kind, before in ((TraceKind.CALL, 9_000), (TraceKind.KERNEL, 0)):
                records = np.zeros(part.stop - low, TRACE)
                records["kind"], records["process"] = kind, 1
                records["start"] = starts[part] - before
                records["end"] = records["start"] + 1_500
                records["correlation"] = np.arange(low, part.stop) + 1
                records["thread"] = records["stream"] = 7
                if kind is TraceKind.KERNEL:
                    records["name"] = names[part]
                writer.append(records)


class ShownLanes(TimelineView):
    """The view of lanes that were read already."""

    def __init__(self, session: Session, lanes: TracedLanes) -> None:
        super().__init__(Model(session))
        self._lanes = lanes

    def _load(self, run: Run) -> None:
        del run

    def show_window(self, length_ns: float) -> None:
        """From the beginning on."""
        self._show(0.0, length_ns)
        self._put_near(length_ns / 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    arguments = parser.parse_args()
    session = Session()
    session.apply([header(), run_started(), attached()])
    assert session.run is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.gputui-trace")
        write(path, arguments.operations)
        began_s = time.process_time()
        lanes = read_lanes(TraceReader(path), session, session.run)
        print(f"read: {time.process_time() - began_s:.2f} s of CPU")
    view = ShownLanes(session, lanes)
    longest_s = 0.0
    for window in WINDOWS:
        view.show_window(lanes.end_ns * window)
        began_s = time.process_time()
        view.rows(*SIZE)
        longest_s = max(longest_s, time.process_time() - began_s)
    print(f"a paint: {1000 * longest_s:.1f} ms of CPU at most")
    print(f"memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB at most")


if __name__ == "__main__":
    main()
