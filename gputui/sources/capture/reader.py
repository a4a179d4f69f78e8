"""The source over all rings of one run: finds them, drains them, and emits what was seen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gputui.capture.layout import SLOT
from gputui.capture.ring import RingFacts, RingFolder, RingReader, StringDefinitions
from gputui.events import AnyEvent, ProcessAttached, ProcessDetached, RunOutput
from gputui.sources.capture.arrays import Slots, stack
from gputui.sources.capture.numbering import Numbering
from gputui.sources.capture.process import BATCH_RECORDS, TracedProcess
from gputui.sources.trace import TraceWriter

POLL_S = 0.05
IDLE_POLL_S = 0.25
"""How often rings are drained: they hold some 100 ms of the busiest program."""

UNCOLLECTED_RECORDS = 500_000
"""Records after which a collection comes before its time, so that memory stays bounded."""

WAITING_RECORDS = 2_000_000
"""Records (of 64 bytes) copied out of a ring and not worked on yet: a burst of a program that
writes faster than they can be worked on."""

PEEK_S = 0.01
"""How often it is looked whether a ring fills, or a new one came, before its time."""

FILL = 1 / 16
"""What part of a ring is filled when it is drained before its time."""

_BATCHES_A_POLL = 256

Emit = Callable[[list[AnyEvent]], None]


class _Attached:
    """A ring and the process behind it."""

    def __init__(self, ring: RingReader, process: TracedProcess, seen_ns: int) -> None:
        self.ring = ring
        self._seen_ns = seen_ns
        self._gone_ns: int | None = None
        self.process = process
        self.facts: RingFacts | None = None
        self._definitions = StringDefinitions()
        self._waiting: list[Slots] = []
        self._strings: dict[int, str] = {}
        self._slots = 0
        self._dropped = 0
        self._callback_ns = 0
        self._traced_ns = 0
        self._paused_ns = 0
        self._cpu_ns = 0
        self.drained = False

    def poll(self, now_ns: int) -> int:
        """Empty the ring; small batches wait for more. Gives the number of slots read."""
        began = time.thread_time_ns()
        before = self._slots
        gone = self.ring.exited or self.ring.gone
        if gone and self._gone_ns is None:
            self._gone_ns = now_ns
        # Only of a process that is dead may slots be passed over that were never filled.
        dead = gone and self.ring.gone
        self.drained = False
        for _ in range(_BATCHES_A_POLL):
            # Copying is faster than any program writes, working on it is not: the ring first.
            self._copy(dead, gone)
            if sum(map(len, self._waiting)) < BATCH_RECORDS // 2:
                break
            self._feed(now_ns, BATCH_RECORDS // 2)
        self._cpu_ns += time.thread_time_ns() - began
        return self._slots - before

    def _copy(self, dead: bool, gone: bool) -> None:
        """Take what is in the ring, as far as the records that wait leave room."""
        while sum(map(len, self._waiting)) < WAITING_RECORDS:
            slots = self.ring.read(BATCH_RECORDS, dead)
            if not len(slots):
                self.drained = dead or (gone and self.ring.health().written <= self._slots)
                break
            self._slots += len(slots)
            records, strings = self._definitions.split(slots)
            self._strings.update(strings)
            self._waiting.append(records)

    def collect(self, run: int, now_ns: int, ended: bool) -> list[AnyEvent]:
        """What is new, the last time with `ended`."""
        began = time.thread_time_ns()
        self._feed(now_ns)
        health = self.ring.health()
        dropped = health.dropped + health.cupti_dropped
        events: list[AnyEvent] = []
        facts = self.ring.facts
        if facts != self.facts:
            # A process may come and go between two collections.
            moment_ns = now_ns if self.facts else self._seen_ns
            self.facts = facts
            events.append(_attachment(run, self.process.number, facts, moment_ns))
        self._cpu_ns += time.thread_time_ns() - began
        cpu_ns, self._cpu_ns = self._cpu_ns, 0
        began = time.thread_time_ns()
        events += self.process.collect(
            now_ns,
            dropped=max(0, dropped - self._dropped),
            callback_ns=max(0, health.callback_ns - self._callback_ns),
            reader_cpu_ns=cpu_ns,
            traced_ns=max(0, health.traced_ns - self._traced_ns),
            paused_ns=max(0, health.paused_ns - self._paused_ns),
            ended=ended,
        )
        self._traced_ns, self._paused_ns = health.traced_ns, health.paused_ns
        self._cpu_ns = time.thread_time_ns() - began
        self._dropped, self._callback_ns = dropped, health.callback_ns
        if ended:
            gone_ns = now_ns if self._gone_ns is None else self._gone_ns
            events.append(
                ProcessDetached(
                    time_ns=gone_ns, process=self.process.number, clean=self.ring.exited
                )
            )
        return events

    def _feed(self, now_ns: int, enough: int | None = None) -> None:
        """Work on what waits, all of it or `enough` records and a few more."""
        sizes = np.cumsum([len(part) for part in self._waiting])
        count = len(sizes) if enough is None else int(np.searchsorted(sizes, enough)) + 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        records = stack(taken) if taken else np.empty(0, SLOT)
        strings, self._strings = self._strings, {}
        self.process.feed(records, strings, now_ns)


class CaptureReader:
    """Reads the rings in `folder`, where the processes of `run` make them.

    `poll` and `collect` can be called by hand; `start` has a thread do so. `problems` are lines
    about files that could not be read. `numbering` is shared by the runs of a session.
    """

    def __init__(
        self,
        folder: Path,
        run: int,
        step_range: str | None = None,
        numbering: Numbering | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
        trace: TraceWriter | None = None,
    ) -> None:
        self._folder = RingFolder(folder)
        self._run = run
        self._step_range = step_range
        self._numbering = numbering or Numbering()
        self._clock_ns = clock_ns
        self._trace = trace
        self._attached: list[_Attached] = []
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.problems: list[str] = []
        self._told = 0

    def poll(self, now_ns: int) -> int:
        """Drain all rings, new ones too. Gives the number of slots read."""
        rings, problems = self._folder.discover()
        self.problems += problems
        for ring in rings:
            process = TracedProcess(
                self._numbering.process(),
                ring.facts.pid,
                self._numbering,
                self._step_range,
                self._trace,
                ring.thread_name,
            )
            self._attached.append(_Attached(ring, process, now_ns))
        return sum(attached.poll(now_ns) for attached in self._attached)

    def collect(self, now_ns: int) -> list[AnyEvent]:
        """The events since the last call. Processes that ended are detached."""
        events = self._tell_problems(now_ns)
        for attached in list(self._attached):
            events += attached.collect(self._run, now_ns, attached.drained)
            if attached.drained:
                self._attached.remove(attached)
                attached.ring.close()
        return events

    def _tell_problems(self, now_ns: int) -> list[AnyEvent]:
        """Lines for the run's log about rings that cannot be read."""
        new = tuple(self.problems[self._told :])
        self._told = len(self.problems)
        if not new:
            return []
        return [RunOutput(time_ns=now_ns, run=self._run, stream="stderr", lines=new)]

    def finish(self, now_ns: int) -> list[AnyEvent]:
        """Drain a last time, wait for nothing more, detach all."""
        self.poll(now_ns)
        events = self._tell_problems(now_ns)
        for attached in self._attached:
            events += attached.collect(self._run, now_ns, True)
            attached.ring.close()
        self._attached = []
        return events

    def start(self, emit: Emit, interval_s: float) -> None:
        """Read in a thread of its own, handing events to `emit` each interval until `stop`."""
        self._thread = threading.Thread(
            target=self._read, args=(emit, interval_s), name="capture reader", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread; it emits what is left first."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _pause(self, wait_s: float) -> bool:
        """Wait so long, or until there is work; whether it is time to stop."""
        until = time.monotonic() + wait_s
        while (left := until - time.monotonic()) > PEEK_S:
            if self._stopping.wait(PEEK_S):
                return True
            if self._folder.changed or any(a.ring.fill > FILL for a in self._attached):
                return False
        return self._stopping.wait(max(0.0, left))

    def _read(self, emit: Emit, interval_s: float) -> None:
        due = time.monotonic() + interval_s
        wait = POLL_S
        while not self._pause(min(wait, max(0.0, due - time.monotonic()))):
            now_ns = self._clock_ns()
            wait = POLL_S if self.poll(now_ns) else min(IDLE_POLL_S, wait * 1.5)
            full = any(a.process.uncollected > UNCOLLECTED_RECORDS for a in self._attached)
            if full or time.monotonic() >= due:
                if events := self.collect(now_ns):
                    emit(events)
                due = time.monotonic() + interval_s
        if events := self.finish(self._clock_ns()):
            emit(events)


def _attachment(run: int, process: int, facts: RingFacts, now_ns: int) -> ProcessAttached:
    return ProcessAttached(
        time_ns=now_ns,
        run=run,
        process=process,
        pid=facts.pid,
        parent_pid=facts.parent_pid,
        rank=facts.rank,
        local_rank=facts.local_rank,
        command=facts.command,
        cuda_status=facts.cuda_text,
        cupti_version=facts.cupti_version,
        visible_devices=facts.visible_devices,
        unseen_forks=facts.unseen_forks,
        annotated=facts.annotated,
    )
