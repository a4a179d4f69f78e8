"""What the threads of a program did at any moment: in their CUDA calls, and between them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.absence import COLUMN, States
from gputui.attribute.accounting.doing import Doing
from gputui.attribute.accounting.line_readings import LineReadings
from gputui.attribute.accounting.thread_calls import Kinds, Parts, Pieces, Rows, ThreadCalls
from gputui.attribute.arrays import Int64s, distinct
from gputui.model.leaves import Leaf

KEPT_NS = 1_000_000_000
"""Calls that ended this long before what is accounted for are forgotten."""

MAX_THREADS = 1024

_HOST, _WAIT, _SCHEDULER = COLUMN[Leaf.HOST], COLUMN[Leaf.WAIT], COLUMN[Leaf.SCHEDULER]


class HostThreads:
    """All threads of one process."""

    def __init__(self) -> None:
        self._threads: dict[int, ThreadCalls] = {}
        self._states: dict[int, States] = {}
        self.lines = LineReadings()
        """Where the Python ones were."""

    @property
    def launching(self) -> list[int]:
        """The threads that made CUDA calls."""
        return list(self._threads)

    def calls_in(self, thread: int, since_ns: int, until_ns: int) -> int:
        """How many outermost calls of a thread began within an interval."""
        found = self._threads[thread]
        found.settle()
        return found.begun(since_ns, until_ns)

    def add_state(
        self, thread: int, time_ns: int, run_ns: int, delay_ns: int, asleep_in: Leaf
    ) -> None:
        """A reading of a thread: what it ran and waited for a core so far."""
        self._states.setdefault(thread, States()).add(time_ns, run_ns, delay_ns, asleep_in)

    def away(self, thread: int, starts: Int64s, ends: Int64s) -> npt.NDArray[np.float64]:
        """What a thread was at in each interval in which it was away: shares by AWAY_LEAVES."""
        return self._states.get(thread, States()).shares(starts, ends)

    def absence(
        self, thread: int, starts: Int64s, ends: Int64s, worker: int | None = None
    ) -> npt.NDArray[np.float64]:
        """The same by what it is for the thread to blame.

        One that sleeps while another that launches is ready and has no core waits for that one, as
        for autograd's in a backward pass: the core is what is missing. One that sleeps while the
        `worker` that launches for it runs waits for what that one computes.
        """
        shares = self.away(thread, starts, ends)
        asleep, lacking = shares[:, _WAIT], np.zeros(len(starts))
        if asleep.any():
            for other in self._threads:
                if other != thread and other in self._states:
                    theirs = self._states[other].shares(starts, ends)[:, _SCHEDULER]
                    np.maximum(lacking, theirs, out=lacking)
            np.minimum(lacking, asleep, out=lacking)
            shares[:, _WAIT] -= lacking
            shares[:, _SCHEDULER] += lacking
        if worker in self._states and asleep.any():
            ran = self._states[worker].shares(starts, ends, unread=Leaf.WAIT)[:, _HOST]
            ran = np.minimum(ran, asleep)
            shares[:, _WAIT] -= ran
            shares[:, _HOST] += ran
        return shares

    def add(self, threads: Int64s, starts: Int64s, ends: Int64s, kinds: Kinds) -> None:
        """CUDA calls, in any order."""
        present = distinct(threads).tolist()
        for thread in present:
            if thread not in self._threads:
                if len(self._threads) >= MAX_THREADS:
                    continue
                self._threads[thread] = ThreadCalls()
            if len(present) == 1:
                self._threads[thread].add(Parts(starts, ends, kinds))
            else:
                of = threads == thread
                self._threads[thread].add(Parts(starts[of], ends[of], kinds[of]))

    def during(self, thread: int, starts: Int64s, ends: Int64s) -> tuple[Pieces, Rows]:
        """Time of each kind but launching in intervals that are disjoint and in order, and the
        rows of those at whose start a wait was under way."""
        found = self._threads.get(thread)
        if found is None:
            return {Doing.AWAY: (np.arange(len(starts)), ends - starts)}, np.empty(0, np.intp)
        found.settle()
        return found.during(starts, ends)

    def calls(
        self, thread: int, kind: Doing, since_ns: int, until_ns: int
    ) -> tuple[Int64s, Int64s]:
        """When a thread was in calls of a kind that does not launch, within an interval and in
        order."""
        found = self._threads.get(thread)
        if found is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        found.settle()
        return found.calls(kind, since_ns, until_ns)

    def forget(self, before_ns: int) -> None:
        """Drop calls that ended before."""
        for thread in self._threads.values():
            thread.settle()
            thread.forget(before_ns - KEPT_NS)
        self.lines.forget(before_ns - KEPT_NS)
