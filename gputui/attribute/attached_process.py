"""One ring and the process behind it: slots in, events out."""

from __future__ import annotations

import time

import numpy as np

from gputui.attribute.accounting.line_readings import LineReading
from gputui.attribute.accounting.python_lines import FETCHES, LEAF_OF_KIND, RECOMPUTES, PythonLines
from gputui.attribute.accounting.sharing import Member
from gputui.attribute.accounting.thread_states import MAX_THREADS, ThreadStates
from gputui.attribute.arrays import Slots, stack
from gputui.attribute.collectives.matching import Matching
from gputui.attribute.core_time import CoreTime
from gputui.attribute.deltas import Counters
from gputui.attribute.job import job_of_process
from gputui.attribute.traced_process import BATCH_RECORDS, TracedProcess
from gputui.model.events import (
    AnyEvent,
    CaptureDelta,
    LineDefined,
    ProcessAttached,
    ProcessDetached,
)
from gputui.ring.layout import SLOT, RecordKind
from gputui.ring.reader import NO_RING, RingFacts, RingReader
from gputui.ring.string_definitions import StringDefinitions

STATES_NS = 50_000_000
"""How often these threads are looked at."""

_BATCHES_A_POLL = 8
"""How much is processed before other rings have their turn: about 0.2 s."""


class Attached:
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
                self._feed(now_ns)
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

    def compare(self, matching: Matching, now_ns: int, ended: bool) -> None:
        """Hand over the collectives so far, before those of all ranks are matched."""
        began = time.thread_time_ns()
        self._feed(now_ns)
        found = self.process.accounting.collectives.take()
        self._core_time.keep(bool(found.collectives or found.entered))
        matching.add(
            self.process.number,
            found,
            self.process.complete_until_ns(now_ns, ended),
        )
        self._cpu_ns += time.thread_time_ns() - began

    def member(self, now_ns: int, ended: bool) -> Member:
        """The process among those that may share its GPUs."""
        return Member(
            self.process.number,
            self.process.accounting,
            self.ring.facts.visible_devices,
            self.process.complete_until_ns(now_ns, ended),
        )

    def collect(self, run: int, now_ns: int, ended: bool, matching: Matching) -> list[AnyEvent]:
        """What is new since `compare`. With `ended`, for the last time: records still waiting are
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
        core_time = self._core_time.kept
        collected = self.process.collect(
            now_ns,
            added=health.since(self._health),
            unread=unread,
            counters=Counters(
                reader_cpu_ns=cpu_ns,
                core_run_ns=core_time.run_ns,
                core_wait_ns=core_time.wait_ns,
                core_watched_ns=core_time.watched_ns,
            ),
            ended=ended,
            collectives=matching.take(self.process.number),
            peers=matching.peers.take(self.process.number),
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

    def _feed(self, now_ns: int) -> None:
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
