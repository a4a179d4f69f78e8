"""The source over all rings of one run: finds them, drains them, and emits events."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gputui.attribute.accounting.account import Sharing
from gputui.attribute.collectives.matching import Matching
from gputui.attribute.numbering import Numbering
from gputui.attribute.traced_process import AttachedProcess, TracedProcess
from gputui.model.events import AnyEvent, CaptureDelta, CaptureRefused, RunOutput
from gputui.ring.folder import RingFolder, RingWatch
from gputui.ring.reader import RingError, RingReader
from gputui.store.trace import TraceWriter

POLL_S = 0.05
IDLE_POLL_S = 0.25
"""How often rings are read; RingWatch empties those that fill up meanwhile."""

FIRST_PAUSE_S = 0.1
"""From one collection to the next at the beginning, and twice as long each time."""

UNCOLLECTED_RECORDS = 200_000
"""Collect early after this many records, so that memory stays bounded: columns of all of them take
some 400 bytes a record."""

HURRY_S = 2.0
"""How long to keep processing the backlog at the end while somebody waits for the end."""

Emit = Callable[[list[AnyEvent]], None]


class CaptureReader:
    """Reads the rings in `folder`, where the processes of `run` create them.

    `poll` and `collect` can be called by hand; `start` calls them from a thread. `problems` are
    lines about files that could not be read. `numbering` is shared by the runs of a session;
    windows of tracing are kept within `max_cost_percent` of the processes' time.
    """

    def __init__(
        self,
        folder: Path,
        run: int,
        step_range: str | None = None,
        numbering: Numbering | None = None,
        trace: TraceWriter | None = None,
        max_cost_percent: float | None = None,
    ) -> None:
        self._folder = RingFolder(folder)
        self._run = run
        self._step_range = step_range
        self._numbering = numbering or Numbering()
        self._trace = trace
        self._max_cost_percent = max_cost_percent
        self._attached: list[AttachedProcess] = []
        self._matching = Matching()
        self._sharing = Sharing()
        self._finding = threading.Lock()
        self._found: list[RingReader] = []
        self._watch: RingWatch | None = None
        self._hurried = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.problems: list[str] = []
        self._reported = 0
        self._refused = 0

    def poll(self, now_ns: int) -> int:
        """Read all rings, including new ones. Returns the number of slots read."""
        self._find()
        with self._finding:
            found, self._found = self._found, []
        for ring in found:
            process = TracedProcess(
                self._numbering.process(),
                ring.facts.pid,
                self._numbering,
                self._step_range,
                self._trace,
                ring.thread_name,
            )
            self._attached.append(AttachedProcess(ring, process, now_ns))
        return sum(attached.poll(now_ns) for attached in self._attached)

    def _find(self) -> None:
        with self._finding:
            rings, problems = self._folder.discover()
            self.problems += problems
            self._found += rings
            if self._watch is not None:
                for ring in rings:
                    self._watch.add(ring)

    def _close(self, ring: RingReader) -> None:
        if self._watch is not None:
            self._watch.remove(ring)
        ring.close()

    def collect(self, now_ns: int, *, detach: bool = False) -> list[AnyEvent]:
        """Events since the last call. Processes that ended are detached; with `detach` all are."""
        events = self._tell_problems(now_ns) + self._refusals(now_ns)
        ended = {attached: detach or attached.drained for attached in self._attached}
        members = [
            attached.prepare(self._matching, now_ns, is_last) for attached, is_last in ended.items()
        ]
        self._matching.match()
        self._sharing.exchange(members)
        for attached, is_last in ended.items():
            events += attached.collect(self._run, now_ns, is_last, self._matching)
            if is_last:
                self._attached.remove(attached)
                self._close(attached.ring)
        self._keep_within_cost()
        return events + self._matched_later(now_ns)

    def _matched_later(self, now_ns: int) -> list[AnyEvent]:
        """The sums of processes that ended before those that their collectives are matched with."""
        going = {attached.process.number for attached in self._attached}
        return [
            CaptureDelta(time_ns=now_ns, process=process, **self._matching.take_parts(process))
            for process in sorted(self._matching.untaken - going)
        ]

    def _keep_within_cost(self) -> None:
        """All ranks of a job open their windows at the same moments: as seldom as the one to which
        they cost most."""
        if self._max_cost_percent is None or not self._attached:
            return
        percent = self._max_cost_percent
        wanted = max(one.process.windows.costs.period_ns(percent) for one in self._attached)
        for attached in self._attached:
            attached.ring.wish(wanted, attached.process.step_string)

    def _refusals(self, now_ns: int) -> list[AnyEvent]:
        """How many processes could not make a ring, if there are more than before."""
        refusals = self._folder.refusals
        if refusals.total() == self._refused:
            return []
        self._refused = refusals.total()
        ((error, _),) = refusals.most_common(1)
        return [
            CaptureRefused(
                time_ns=now_ns, run=self._run, processes=self._refused, reason=self._why(error)
            )
        ]

    def _why(self, error: int) -> str:
        what = os.strerror(error).lower()
        if error == errno.EFBIG:
            return f"{what}: raise ulimit -f"
        if error in {errno.ENOSPC, errno.EDQUOT}:
            return f"{what}: make room in {self._folder.path.parent}"
        return what

    def _tell_problems(self, now_ns: int) -> list[AnyEvent]:
        """Lines for the run's log about rings that cannot be read."""
        new = tuple(self.problems[self._reported :])
        self._reported = len(self.problems)
        if not new:
            return []
        return [RunOutput(time_ns=now_ns, run=self._run, stream="stderr", lines=new)]

    def finish(self, now_ns: int) -> list[AnyEvent]:
        """Read what is there, wait for nothing more, detach all."""
        self.poll(now_ns)
        while self._behind:
            self.poll(now_ns)
        return self.collect(now_ns, detach=True)

    @property
    def _behind(self) -> bool:
        return any(attached.behind for attached in self._attached)

    @property
    def _full(self) -> bool:
        return any(a.process.uncollected > UNCOLLECTED_RECORDS for a in self._attached)

    def watch(self) -> None:
        """Find rings and keep them from overflowing, from now until `stop`: call before the first
        process starts.
        """
        try:
            self._watch = RingWatch(self._folder, self._find)
            self._watch.start()
        except RingError:
            pass  # without it, no process creates a ring either

    def start(self, emit: Emit, interval_s: float) -> None:
        """Read in a separate thread, passing events to `emit` each interval until `stop`; sooner at
        the beginning, where somebody waits for the first."""
        self._thread = threading.Thread(
            target=self._read, args=(emit, interval_s), name="capture reader", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread, which first processes the backlog and emits it."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        if self._watch is not None:
            self._watch.stop()

    def hurry(self) -> None:
        """Somebody waits for the end: whatever is left after a short while is counted as
        dropped.
        """
        self._hurried = True

    def _read(self, emit: Emit, interval_s: float) -> None:
        pause = min(FIRST_PAUSE_S, interval_s)
        due = time.monotonic() + pause
        wait = POLL_S
        while not self._stopping.wait(min(wait, max(0.0, due - time.monotonic()))):
            now_ns = time.time_ns()
            wait = POLL_S if self.poll(now_ns) else min(IDLE_POLL_S, wait * 1.5)
            if self._behind:
                wait = 0.0
            if self._full or time.monotonic() >= due:
                if events := self.collect(now_ns):
                    emit(events)
                pause = min(2 * pause, interval_s)
                due = time.monotonic() + pause
        self._catch_up(emit)

    def _catch_up(self, emit: Emit) -> None:
        began = time.monotonic()
        self.poll(time.time_ns())
        while self._behind and not (self._hurried and time.monotonic() - began > HURRY_S):
            if self._full and (events := self.collect(time.time_ns())):
                emit(events)
            self.poll(time.time_ns())
        if events := self.collect(time.time_ns(), detach=True):
            emit(events)
