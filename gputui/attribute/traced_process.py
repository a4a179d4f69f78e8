"""One traced process: batches of ring records in, events out.

`TracedProcess` attributes and sums up records wherever they come from: a ring, or a file that is
imported. `AttachedProcess` reads the ring of a process that runs, and how its threads fare.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from gputui.attribute.accounting.account import Accounting
from gputui.attribute.accounting.line_readings import LineReading
from gputui.attribute.accounting.python_lines import FETCHES, LEAF_OF_KIND, RECOMPUTES, PythonLines
from gputui.attribute.accounting.sharing import Member
from gputui.attribute.accounting.thread_states import MAX_THREADS, ThreadStates
from gputui.attribute.allocation import keep_freed_memory
from gputui.attribute.arrays import Slots, stack, times_ns
from gputui.attribute.calls import NESTED_NS, Calls
from gputui.attribute.collection import (
    Collection,
    Collector,
    DeltaParts,
    has_news,
    merge_parts,
)
from gputui.attribute.collectives.matching import Matching
from gputui.attribute.core_time import CoreTime
from gputui.attribute.definitions import KernelNames, Marks, Resources, Shapes, Threads
from gputui.attribute.graph_nodes import GraphNodes
from gputui.attribute.instances import Instances
from gputui.attribute.job import job_of_process
from gputui.attribute.losses import Losses
from gputui.attribute.numbering import Numbering
from gputui.attribute.operations import Operations
from gputui.attribute.range_deltas import KernelsOfRanges, RangeDeltas
from gputui.attribute.range_tree import Nodes
from gputui.attribute.ranges import Ranges
from gputui.attribute.records import RecordsByUse, Strings, separate_by_use
from gputui.attribute.step_timeline import Steps
from gputui.attribute.streams import Streams
from gputui.attribute.trace_sink import TraceSink
from gputui.attribute.windows import Windows
from gputui.model.events import (
    AnyEvent,
    CaptureDelta,
    LineDefined,
    OpenRange,
    ProcessAttached,
    ProcessDetached,
)
from gputui.ring.layout import SLOT, RecordKind
from gputui.ring.reader import NO_RING, RingFacts, RingHealth, RingReader, StringDefinitions
from gputui.store.trace import TraceWriter

BATCH_RECORDS = 1 << 15
"""Records processed at once: 2 MiB, the size of a core's own cache."""

STATES_NS = 50_000_000
"""How often threads are looked at, and the lines that they are at."""

_BATCHES_A_POLL = 8
"""How much is processed before other rings have their turn: about 0.2 s."""


class TracedProcess:
    """Attribution and statistics of one process.

    Batches come in ring order. Times in records are CLOCK_REALTIME; `now_ns` is when the batch was
    read, on the same clock.
    """

    def __init__(
        self,
        number: int,
        pid: int,
        numbering: Numbering,
        step_range: str | None = None,
        trace: TraceWriter | None = None,
        thread_name: Callable[[int], str | None] | None = None,
        nested_ns: int = NESTED_NS,
    ) -> None:
        """`trace` also receives every range, call and operation; `thread_name` returns the
        operating system's name of a thread; a driver call waits at most `nested_ns` for the runtime
        call around it, which is 0 if calls come in the order of their starts.
        """
        keep_freed_memory()
        self.number = number
        self._strings = strings = Strings()
        self._nodes = nodes = Nodes(number, pid, numbering, step_range)
        self._instances = instances = Instances()
        self._trace = None
        if trace is not None:
            self._trace = TraceSink(trace, number, lambda: nodes.number)
        self.ranges = Ranges(nodes, instances, strings)
        stacks, start_end = self.ranges.stacks, self.ranges.start_end
        self.accounting = Accounting(number, pid, stacks, live=nested_ns > 0)
        """Where its time goes."""
        holes = self.accounting.holes
        self.calls = Calls(pid, stacks, start_end, instances, strings, nested_ns, self.accounting)
        self.graph_nodes = GraphNodes(nodes, stacks, pid)
        self.streams = Streams(holes)
        self.losses = Losses(strings, holes)
        self.range_deltas = RangeDeltas(instances, self.losses.holes)
        self.names = KernelNames(strings, numbering, KernelsOfRanges(instances), self.accounting)
        self.operations = Operations(
            instances,
            self.calls,
            self.names,
            self.streams,
            self.accounting,
            self.graph_nodes,
            self.range_deltas.gpu_time,
            Shapes(numbering, self.accounting.define_shape),
            self._trace,
        )
        self.threads = Threads(number, strings, thread_name)
        self.resources = Resources(number, strings)
        self.steps = Steps(number, nodes)
        self.windows = Windows(nodes, holes)
        """Where kernels are traced part of the time."""
        self.marks = Marks(number, strings, numbering, self._trace)
        # Any order will do: what must come before or after is in `collect`.
        self.collectors: tuple[Collector, ...] = (
            self.range_deltas,
            self.ranges,
            self.calls,
            self.calls.intervals,
            *self.operations.collectors,
            self.streams,
            self.accounting,
            self.marks,
            self.losses,
            self.windows,
        )
        self._records = 0
        self._sees_gpu = False
        self._open: tuple[OpenRange, ...] = ()
        self._flushed_ns = 0
        self._step_string = 0

    @property
    def uncollected(self) -> int:
        """Records added since the last `collect`."""
        return self._records

    @property
    def step_string(self) -> int:
        """The number of the string that names the range whose turns are compared; 0 if none is."""
        step = self.windows.costs.step
        if not self._step_string and step is not None:
            self._step_string = self._strings.number(self._nodes.attributes[step].name)
        return self._step_string

    def feed(self, records: Slots, strings: dict[int, str], now_ns: int) -> None:
        """Add a batch, without its STRING slots, and the strings they defined."""
        self._strings.add(strings)
        for start in range(0, max(1, len(records)), BATCH_RECORDS):
            batch = separate_by_use(records[start : start + BATCH_RECORDS])
            self._note_progress(batch)
            # Ranges come before the calls inside them, calls before the operations they launched,
            # shapes before the kernels that have them.
            self.ranges.start_end.feed(batch.start_ends, now_ns)
            self.accounting.collectives.add_ranges(batch.ranges, self._strings)
            self.ranges.feed(batch.ranges, now_ns)
            self.ranges.start_end.link()
            self.graph_nodes.feed(batch.graphs)
            new_calls = self.calls.feed(batch.calls, now_ns)
            if self._trace is not None:
                self._trace.calls(new_calls, self.calls.names)
            self.operations.shapes.define(batch.shapes)
            self.threads.define(batch.threads)
            self.resources.define(batch.resources)
            self.resources.define_devices(batch.devices)
            self.losses.refuse(batch.refused)
            self.losses.lose(batch.lost, batch.flushes)
            self.windows.feed(batch.windows)
            self.operations.feed(batch.operations, new_calls, now_ns)
            self.marks.feed(batch.marks, now_ns)

    def _note_progress(self, batch: RecordsByUse) -> None:
        """How many records there were, up to when they go, and whether CUDA was used."""
        self._records += sum(map(len, batch))
        flushes = len(batch.flushes)
        if flushes or len(batch.calls) or len(batch.operations):
            self._sees_gpu = True
        self._instances.flushes += flushes
        if flushes:
            asked_ns = int(times_ns(batch.flushes["start"].max(keepdims=True))[0])
            self._flushed_ns = max(self._flushed_ns, asked_ns)
        for moments in (batch.ranges, batch.start_ends, batch.marks):
            if len(moments):
                newest_ns = int(times_ns(moments["start"].max(keepdims=True))[0])
                self._instances.now_ns = max(self._instances.now_ns, newest_ns)

    def complete_until_ns(self, now_ns: int, ended: bool) -> int | None:
        """Before which everything that had ended has come; None where all has."""
        return None if ended else self._flushed_ns or now_ns

    def collect(
        self,
        now_ns: int,
        *,
        ended: bool = False,
        open_until_ns: int = 0,
        added: RingHealth = NO_RING,
        unread: int = 0,
        more: DeltaParts | None = None,
    ) -> list[AnyEvent]:
        """The events since the last call: definitions first, then what happened.

        `ended` means that nothing more will arrive, so nothing is waited for: as in nsys, open
        ranges then last until the program's last record, or until `open_until_ns` if that is later.
        `added` is what was added to the ring's counters since the last call; the records `unread`
        in the ring are among its losses; `more` are further fields of the CaptureDelta.
        """
        collection = self._finish_instances(now_ns, ended, open_until_ns, added, unread)
        parts = merge_parts(collector.collect_parts(collection) for collector in self.collectors)
        parts |= more or {}
        step = self.steps.draw(collection)
        # Not before: accounting finds the ranges of past moments in the stacks' timelines.
        self.ranges.stacks.forget()
        if len(collection.finalised.ids):
            self.ranges.start_end.forget()
        events = self._take_definitions(now_ns, [row.thread for row in parts["launching_threads"]])
        opened: tuple[OpenRange, ...] = parts["open_ranges"]
        if ended or self._records or has_news(parts) or opened != self._open:
            events.append(
                CaptureDelta(
                    time_ns=now_ns,
                    process=self.number,
                    records=self._records,
                    callback_ns=added.callback_ns,
                    traced_ns=added.traced_ns,
                    paused_ns=added.paused_ns,
                    **parts,
                )
            )
        self._open, self._records = opened, 0
        if step is not None:
            events.append(step)
        return events

    def _finish_instances(
        self, now_ns: int, ended: bool, open_until_ns: int, added: RingHealth, unread: int
    ) -> Collection:
        """Find the instances that are complete. What they launched is counted first: afterwards
        their rows are used again."""
        self.feed(np.empty(0, SLOT), {}, now_ns)  # whatever has waited long enough waits no more
        if ended:
            self.operations.give_up_waiting(now_ns)
            self.ranges.close_open(max(open_until_ns, self._instances.now_ns), now_ns)
        until_ns = self.complete_until_ns(now_ns, ended)
        self.operations.count_waiting(until_ns, now_ns)
        self.operations.gather()
        wrong_since_ns = self.operations.wrong_calls.since_ns
        sees_gpu = self._sees_gpu and wrong_since_ns is None
        finalised = self._instances.finalise(now_ns, sees_gpu, ended)
        if self._trace is not None:
            self._trace.ranges(finalised)
        return Collection(
            process=self.number,
            nodes=self._nodes,
            now_ns=now_ns,
            ended=ended,
            until_ns=until_ns,
            finalised=finalised,
            launched=self.operations.take_launched(),
            known_until_ns=wrong_since_ns,
            ring=added,
            unread=unread,
            unplaced=self.ranges.refused + self.ranges.start_end.refused,
        )

    def _take_definitions(self, now_ns: int, launching: list[int]) -> list[AnyEvent]:
        """What the delta's numbers stand for, marks one by one, and steps in parts. `launching` are
        threads whose names are wanted."""
        self.threads.see(node.thread for node in self._nodes.defined)
        self.threads.see([*launching, *self.accounting.sampled])
        events: list[AnyEvent] = [*self.threads.collect(now_ns)]
        events += self.resources.collect(now_ns)
        for defined in (
            self._nodes.defined,
            self.names.defined,
            self.operations.shapes.defined,
            self.marks.defined,
            self.marks.newest,
        ):
            events += defined
            defined.clear()
        events += self.accounting.take_lanes(now_ns)
        return events


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
        """As of the last delta."""
        self._cpu_ns = 0
        self.drained = False
        """Everything the process wrote has been read, and it writes no more."""
        self.behind = False
        """The last poll left records waiting."""

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
        self.drained = False
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
        states = {thread: self._states.read(thread) for thread in {*watched, *together}}
        for thread in watched:
            if (found := states[thread]) is not None:
                self.process.accounting.add_state(thread, now_ns, *found)
        read = {thread: found[:2] for thread in together if (found := states[thread]) is not None}
        self._core_time.add(now_ns, read)
        for sample in self._lines.read():
            leaf, fetches = LEAF_OF_KIND.get(sample.kind), sample.kind == FETCHES
            reading = LineReading(sample.time_ns, sample.line, leaf, fetches, sample.inside)
            if sample.kind == RECOMPUTES:
                self.process.accounting.add_recomputation(reading)
            else:
                self.process.accounting.add_line(sample.thread, reading)
            self._lines_seen.add(sample.line)

    def _new_lines(self, now_ns: int) -> list[AnyEvent]:
        known = self._lines.lines
        new = sorted(n for n in self._lines_seen - self._lines_defined if n in known)
        self._lines_defined.update(new)
        return [
            LineDefined(
                time_ns=now_ns,
                process=self.process.number,
                line=number,
                path=known[number].path,
                number=known[number].line,
                function=known[number].function,
            )
            for number in new
        ]

    def prepare(self, matching: Matching, now_ns: int, ended: bool) -> Member:
        """Process what waits, and hand over the collectives so far: those of all ranks are matched
        before any process is collected. Returns the process among those that may share its GPUs.
        """
        began = time.thread_time_ns()
        self._process_waiting(now_ns)
        report = self.process.accounting.collectives.take()
        self._core_time.keep(bool(report.collectives or report.entered))
        until_ns = self.process.complete_until_ns(now_ns, ended)
        matching.add(self.process.number, report, until_ns)
        self._cpu_ns += time.thread_time_ns() - began
        visible = self.ring.facts.visible_devices
        return Member(self.process.number, self.process.accounting, visible, until_ns)

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
                **self._core_time.parts,
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
        command=facts.command,
        cuda_status=facts.cuda_text,
        cupti_version=facts.cupti_version,
        visible_devices=facts.visible_devices,
        launch_blocking=facts.launch_blocking,
        unseen_forks=facts.unseen_forks,
        annotated=facts.annotated,
        began_ns=min(facts.start_ns, now_ns) or None,
    )
