"""The source over all rings of one run: finds them, drains them, and emits events.

For `collect`, through `CaptureReader`. What records mean is the business of `traced_process`; here
is what only a living process has: its ring, its environment, its threads.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from gputui.attribute.accounting import GpuSharing, SharingProcess
from gputui.attribute.accounting.thread_readings import (
    FETCHES,
    HOLDS_LOCK,
    LEAF_OF_KIND,
    MAX_THREADS,
    RECOMPUTES,
    LineReading,
    PythonLines,
    ThreadStates,
)
from gputui.attribute.arrays import Slots, stack
from gputui.attribute.local_collectives import CoreTime
from gputui.attribute.matched_collectives import Matching
from gputui.attribute.traced_process import BATCH_RECORDS, TracedProcess
from gputui.base.sanitize import masked_line, sanitize
from gputui.counters import CountedOperations, CountedProcess, RunCounters
from gputui.model.cards import entry_of
from gputui.model.events import (
    AnyEvent,
    CaptureDelta,
    CaptureRefused,
    JobFacts,
    LineDefined,
    ProcessAttached,
    ProcessDetached,
    RunOutput,
)
from gputui.model.hub import Numbering
from gputui.ring import SLOT, RecordKind, WindowEdge
from gputui.ring.reader import (
    NO_RING,
    RingError,
    RingFacts,
    RingFolder,
    RingReader,
    RingWatch,
    StringDefinitions,
)
from gputui.store.trace import TraceWriter

# --- Which job a rank belongs to, by its environment as it was at its start.
#
# Read from `/proc/PID/environ` from outside: nothing in the program is touched. Variables:
# torchrun's TORCHELASTIC_RUN_ID, WORLD_SIZE, GROUP_RANK, MASTER_ADDR and MASTER_PORT (PyTorch,
# "torchrun"), Slurm's SLURM_JOB_ID and SLURM_NTASKS (srun(1)), Open MPI's OMPI_COMM_WORLD_SIZE.

# What a hostile program sets may be of any size.
MOST_BYTES = 1 << 20
MOST_CHARACTERS = 128


def job_of_process(pid: int) -> JobFacts | None:
    """The job that the process belongs to, by its environment; None if that says nothing or may not
    be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            raw = file.read(MOST_BYTES)
    except OSError:
        return None
    pairs = (entry.partition("=") for entry in raw.decode("utf-8", "replace").split("\0"))
    return job_in({name: value for name, _, value in pairs})


def job_in(environment: Mapping[str, str]) -> JobFacts | None:
    """The job that an environment describes."""

    def text(name: str) -> str | None:
        return sanitize(environment.get(name, ""), MOST_CHARACTERS) or None

    def number(*names: str) -> int | None:
        for name in names:
            value = environment.get(name, "")
            if value.isascii() and value.isdigit() and len(value) < 10:
                return int(value)
        return None

    elastic = text("TORCHELASTIC_RUN_ID")
    if elastic == "none":  # torchrun's own word where no --rdzv-id was given
        elastic = None
    address, port = text("MASTER_ADDR"), text("MASTER_PORT")
    meeting = f"{address}:{port}" if address and port else None
    name = elastic or text("SLURM_JOB_ID") or text("PBS_JOBID") or meeting
    world = number("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")
    if name is None and world is None:
        return None
    return JobFacts(id=name, world_size=world, node_rank=number("GROUP_RANK", "SLURM_NODEID"))


# --- One ring and the process behind it, and how the threads of the process fare.

STATES_NS = 50_000_000
"""How often threads are looked at, and the lines that they are at."""

# How much is processed before other rings have their turn: about 0.2 s.
_BATCHES_A_POLL = 8


class AttachedProcess:
    """One ring and the process behind it: slots in, events out."""

    def __init__(self, ring: RingReader, process: TracedProcess, seen_ns: int) -> None:
        self.ring = ring
        self._seen_ns = seen_ns
        self._gone_ns: int | None = None
        self._goodbye_ns: int | None = None
        self.process = process
        self.facts: RingFacts | None = None
        self._definitions = StringDefinitions()
        self._states_ns = 0
        self._lines = PythonLines(ring.path.parent, ring.facts.pid)
        self._lines_seen: set[int] = set()
        self._lines_defined: set[int] = set()
        self._states = ThreadStates(ring.facts.pid)
        self._core_time = CoreTime()
        self._waiting: list[Slots] = []
        self._strings: dict[int, str] = {}
        self._slots = 0
        self._health = NO_RING
        """The ring's counters as of the last delta."""
        self._cpu_ns = 0
        self.drained = False
        """Everything the process wrote has been read, and it writes no more."""
        self.behind = False
        """The last poll left records waiting."""
        self.opened_window = False
        """The last poll saw a window of tracing open."""

    def poll(self, now_ns: int) -> int:
        """Take records out of the ring and process them; small batches wait for more.

        Returns the number of slots read; `behind` says whether more are waiting.
        """
        began = time.thread_time_ns()
        self._read_states(now_ns)
        before = self._slots
        gone = self.ring.exited or self.ring.gone
        if gone and self._gone_ns is None:
            self._gone_ns = now_ns
        # Only after the process has died may slots that were never filled be skipped.
        dead = gone and self.ring.gone
        self.drained = self.opened_window = False
        self.behind = True
        for _ in range(_BATCHES_A_POLL):
            slots = self.ring.read(BATCH_RECORDS, dead)
            if not len(slots):
                self.drained = dead or (gone and self.ring.health().written <= self._slots)
                self.behind = False
                break
            self._slots += len(slots)
            records, strings = self._definitions.split(slots)
            self._strings.update(strings)
            self._waiting.append(records)
            windows = records["sub"][records["kind"] == RecordKind.WINDOW]
            self.opened_window |= bool((windows == WindowEdge.ON).any())
            if sum(map(len, self._waiting)) >= BATCH_RECORDS // 2:
                self._process_waiting(now_ns)
        self._cpu_ns += time.thread_time_ns() - began
        return self._slots - before

    def _read_states(self, now_ns: int) -> None:
        """How the threads fare that launch or wait for other ranks, while the process lives."""
        if now_ns - self._states_ns < STATES_NS or self._gone_ns is not None:
            return
        self._states_ns = now_ns
        watched = self.process.accounting.watched[:MAX_THREADS]
        together = self.process.accounting.collectives.threads[:MAX_THREADS]
        # Each thread is looked at once a reading, whoever asks.
        states = {thread: self._states.read(thread) for thread in {*watched, *together}}
        for thread in watched:
            if (state := states[thread]) is not None:
                self.process.accounting.add_state(thread, now_ns, *state)
        read = {thread: state[:2] for thread in together if (state := states[thread]) is not None}
        self._core_time.add(now_ns, read)
        for sample in self._lines.read():
            leaf, fetches = LEAF_OF_KIND.get(sample.kind), sample.kind == FETCHES
            reading = LineReading(sample.time_ns, sample.line, leaf, fetches, sample.inside)
            if sample.kind == RECOMPUTES:
                self.process.accounting.add_recomputation(reading)
            elif sample.kind == HOLDS_LOCK:
                self.process.accounting.add_lock_holder(sample.thread, reading)
            else:
                self.process.accounting.add_line(sample.thread, reading)
            self._lines_seen.add(sample.line)
        facts, self._lines.facts = self._lines.facts, []
        for text in facts:
            with contextlib.suppress(ValueError):
                self._lines_seen.add(self.process.facts.add(text, bool(watched)))

    def _new_lines(self, now_ns: int) -> list[AnyEvent]:
        lines = self._lines.lines
        new = sorted(n for n in self._lines_seen - self._lines_defined if n in lines)
        self._lines_defined.update(new)
        return [
            LineDefined(
                time_ns=now_ns,
                process=self.process.number,
                line=number,
                path=lines[number].path,
                number=lines[number].line,
                function=lines[number].function,
            )
            for number in new
        ]

    def prepare(self, matching: Matching, now_ns: int, ended: bool) -> SharingProcess:
        """Processes the records that wait, and hands over the collectives so far: the collectives
        of all ranks are matched before any process is collected. Returns the process as one of
        those that may share its GPUs."""
        began = time.thread_time_ns()
        self._process_waiting(now_ns)
        report = self.process.accounting.collectives.take_report()
        self._core_time.keep(bool(report.collectives or report.entered))
        until_ns = self.process.complete_until_ns(now_ns, ended)
        matching.add(self.process.number, report, until_ns)
        self._cpu_ns += time.thread_time_ns() - began
        visible = self.ring.facts.visible_devices
        return SharingProcess(self.process.number, self.process.accounting, visible, until_ns)

    def collect(self, run: int, now_ns: int, ended: bool, matching: Matching) -> list[AnyEvent]:
        """What is new, after `prepare`. With `ended`, for the last time: records still waiting are
        then lost."""
        began = time.thread_time_ns()
        health = self.ring.health()
        unread = self.ring.waiting if ended and self.behind else 0
        events: list[AnyEvent] = []
        facts = self.ring.facts
        if facts != self.facts:
            # A process may start and end between two collections.
            moment_ns = now_ns if self.facts else self._seen_ns
            self.facts = facts
            events.append(_attachment(run, self.process.number, facts, moment_ns))
        self._cpu_ns += time.thread_time_ns() - began
        cpu_ns, self._cpu_ns = self._cpu_ns, 0
        began = time.thread_time_ns()
        collected = self.process.collect(
            now_ns,
            ended=ended,
            added=health.since(self._health),
            unread=unread,
            more={
                "reader_cpu_ns": cpu_ns,
                **self._core_time.delta_parts,
                **matching.take_parts(self.process.number),
            },
        )
        for delta in (event for event in collected if isinstance(event, CaptureDelta)):
            self._lines_seen.update(part.inside for part in delta.line_samples)
            cpu_ns = 0
            self._core_time.forget()
            self._health = health
        events += collected + self._new_lines(now_ns)
        self._cpu_ns = cpu_ns + time.thread_time_ns() - began
        if ended:
            self._states.close()
            gone_ns = now_ns if self._gone_ns is None else self._gone_ns
            events.append(
                ProcessDetached(
                    time_ns=gone_ns,
                    process=self.process.number,
                    clean=self.ring.exited,
                    ended_ns=self._goodbye_ns,
                )
            )
        return events

    def _process_waiting(self, now_ns: int) -> None:
        if not self._waiting and not self._strings:
            return
        records = stack(self._waiting) if self._waiting else np.empty(0, SLOT)
        self._waiting = []
        strings, self._strings = self._strings, {}
        goodbyes = records["start"][records["kind"] == RecordKind.EXIT]
        if len(goodbyes):
            self._goodbye_ns = min(int(goodbyes[-1]), now_ns)  # it may hold anything
        self.process.feed(records, strings, now_ns)


def _attachment(run: int, process: int, facts: RingFacts, now_ns: int) -> ProcessAttached:
    return ProcessAttached(
        time_ns=now_ns,
        run=run,
        process=process,
        pid=facts.pid,
        parent_pid=facts.parent_pid,
        rank=facts.rank,
        local_rank=facts.local_rank,
        job=job_of_process(facts.pid) if facts.rank is not None else None,
        command=masked_line(facts.command),
        cuda_status=facts.cuda_text,
        cupti_version=facts.cupti_version,
        visible_devices=facts.visible_devices,
        launch_blocking=facts.launch_blocking,
        unseen_forks=facts.unseen_forks,
        annotated=facts.annotated,
        began_ns=min(facts.start_ns, now_ns) or None,
    )


# --- The source over all rings of one run: finds them, drains them, and emits events.

# Chosen, not measured.
POLL_S = 0.05
IDLE_POLL_S = 0.25
"""How often rings are read, busy and idle. RingWatch empties rings that fill up in between."""

FIRST_PAUSE_S = 0.1
"""The time between the first collections; it doubles each time until it is the interval."""

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
    windows of tracing are kept within `max_cost_percent` of the processes' time. `counters` are
    of the GPUs that the run uses, and are closed with it.
    """

    def __init__(
        self,
        folder: Path,
        run: int,
        step_range: str | None = None,
        numbering: Numbering | None = None,
        trace: TraceWriter | None = None,
        max_cost_percent: float | None = None,
        counters: RunCounters | None = None,
    ) -> None:
        self._folder = RingFolder(folder)
        self._run = run
        self._step_range = step_range
        self._numbering = numbering or Numbering()
        self._trace = trace
        self._max_cost_percent = max_cost_percent
        self._counters = counters
        self._attached: list[AttachedProcess] = []
        self._matching = Matching()
        self._sharing = GpuSharing()
        # Rings are looked for in the reader's thread and in the watch's.
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
            rings, self._found = self._found, []
        for ring in rings:
            number = self._numbering.process()
            process = TracedProcess(
                number,
                ring.facts.pid,
                self._numbering,
                self._step_range,
                self._trace,
                ring.thread_name,
                counted=self._counted(number, ring),
                keeps_operations=True,
                thread_priority=ring.thread_priority,
            )
            self._attached.append(AttachedProcess(ring, process, now_ns))
        slots = sum(attached.poll(now_ns) for attached in self._attached)
        # A signal tells the sampler that a window is open: it sleeps up to ten seconds between
        # bursts, which outside of windows nobody can use.
        if self._counters is not None and any(each.opened_window for each in self._attached):
            self._counters.hurry()
        return slots

    def _counted(
        self, process: int, ring: RingReader
    ) -> Callable[[CountedOperations], None] | None:
        counters = self._counters
        if counters is None:
            return None

        def add(operations: CountedOperations) -> None:
            facts = ring.facts
            counters.add(
                process,
                facts.pid,
                operations,
                lambda device: entry_of(device, facts.visible_devices),
            )

        return add

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
            # First: the watch's thread may be emptying it.
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
        if self._counters is not None:
            users = [
                CountedProcess(member.number, member.until_ns, member.accounting.holes.touch)
                for member in members
            ]
            counted = self._counters.collect(now_ns, users, detach)
        else:
            counted = []
        for attached, is_last in ended.items():
            events += attached.collect(self._run, now_ns, is_last, self._matching)
            if is_last:
                self._attached.remove(attached)
                self._close(attached.ring)
        self._keep_within_cost()
        return events + counted + self._matched_later(now_ns)

    def _matched_later(self, now_ns: int) -> list[AnyEvent]:
        """The collectives of processes that had ended before the other ranks' collectives matched
        theirs."""
        going = {attached.process.number for attached in self._attached}
        return [
            CaptureDelta(time_ns=now_ns, process=process, **self._matching.take_parts(process))
            # A rank that ended first has been collected for the last time before the others'
            # collectives match: one run in forty named no late rank.
            for process in sorted(self._matching.untaken - going)
        ]

    def _keep_within_cost(self) -> None:
        """Lets all ranks of a job open their windows at the same times, as seldom as the rank to
        which windows cost the most."""
        if self._max_cost_percent is None or not self._attached:
            return
        percent = self._max_cost_percent
        wanted = max(
            process_attached.process.windows.costs.period_ns(percent)
            for process_attached in self._attached
        )
        for attached in self._attached:
            attached.ring.wish(wanted, attached.process.step_string)

    def _refusals(self, now_ns: int) -> list[AnyEvent]:
        """How many processes could not make a ring, if there are more than before."""
        refusals = self._folder.refusals
        if refusals.total() == self._refused:
            return []
        self._refused = refusals.total()
        # A process that cannot make a ring leaves an empty file with the error's number in its
        # name: it was reported as one that loaded neither NVTX nor CUDA.
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
        """Reads what is left, waits for nothing more, and detaches all rings."""
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
        # After 0.1, 0.3, 0.7 s, so that the first kernels of a program that was attached to show
        # sooner.
        pause = min(FIRST_PAUSE_S, interval_s)
        due = time.monotonic() + pause
        wait = POLL_S
        # A window of tracing that is seen after a quarter of a second has hardly a sample.
        idle_s = IDLE_POLL_S if self._counters is None else POLL_S
        while not self._stopping.wait(min(wait, max(0.0, due - time.monotonic()))):
            now_ns = time.time_ns()
            # A program that does nothing is looked at less and less often.
            wait = POLL_S if self.poll(now_ns) else min(idle_s, wait * 1.5)
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
        if self._counters is not None:
            self._counters.close()
