"""Why a device idled: what the thread that launched next was doing, and the lines it was at.

For `device`, which finds the gaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.host_threads import LEAF_OF_CALL, Doing, HostThreads, Pieces, Rows
from gputui.attribute.accounting.operations import FIRST_KERNEL, Columns
from gputui.attribute.accounting.thread_readings import AWAY_LEAVES, COLUMN, LineHit
from gputui.attribute.distributions import sorted_pairs
from gputui.attribute.records import Int64s, rows_of, run_starts, take_rows
from gputui.model.events import BESIDE_ASLEEP, BESIDE_RUNNING
from gputui.model.leaves import Leaf

# --- What operations of a device show of others: lines that launch, kernels that are stretched.

LAUNCHED_WITHIN_NS = 250_000
"""What is launched this soon before or after a reading of a thread's line is that line's: shorter
than most lines of a program take, so that little is counted for their neighbours."""

COMPARED = 4096
"""Kernels of a round that are compared with their like."""

LIKE = 8
STRETCHED = 1.3
"""Mean over tenth percentile from which kernels of one shape are stretched, of at least so many:
undisturbed ones spread 4 to 11 %, beside a process at 60 % of the GPU the mean was 2.2 times the
least (one GEMM shape on an H200)."""


def stretch(alike: Int64s, took: Int64s) -> tuple[int, int]:
    """The time of kernels that have enough of their like, and how much of it is stretched."""
    if not len(alike):
        return 0, 0
    alike, took = sorted_pairs(alike, took)
    starts = run_starts(alike)
    counts = np.diff(np.append(starts, len(alike)))
    sums = np.add.reduceat(took, starts)
    usual = took[starts + counts // 10]
    many = counts >= LIKE
    # A time slice of 2 ms lies in the middle of a kernel, so that busy time grows and no gap shows
    # it: kernels are compared with their like.
    longer = many & (sums >= STRETCHED * usual * counts)
    return int(sums[many].sum()), int((sums - usual * counts)[longer].sum())


class OperationSamples:
    """Operations of one process on one device in, sums that wait to be taken out."""

    def __init__(self, threads: HostThreads, main_thread: int) -> None:
        self._threads = threads
        self._main_thread = main_thread
        self.line_launches: dict[int, tuple[int, int]] = {}
        """Line → readings and GPU time launched around them, not taken yet."""
        self.compared_ns = self.stretched_ns = 0
        """Time of the kernels compared with kernels of the same shape, since it was last
        reported."""

    def add(self, operations: Columns, threads: list[int]) -> None:
        """Operations of a round, which these threads launched."""
        self._compare(operations)
        self._add_launches_of_lines(operations, threads)

    def _add_launches_of_lines(self, operations: Columns, threads: list[int]) -> None:
        for thread in threads:
            # Autograd's threads run no Python: the line is that of who waits for them.
            times, lines = self._threads.lines.times_and_lines(thread)
            if not len(times):
                times, lines = self._threads.lines.times_and_lines(self._main_thread)
            if not len(times):
                continue
            rows = np.flatnonzero(operations.threads == thread)
            called = operations.called_ns.take(rows)
            reading = np.searchsorted(times - LAUNCHED_WITHIN_NS, called, side="right") - 1
            near = np.abs(called - times.take(reading)) < LAUNCHED_WITHIN_NS
            reading, rows = reading[near], rows[near]
            sums = np.bincount(
                reading, (operations.ends - operations.starts).take(rows), len(times)
            )
            for row in np.flatnonzero(sums).tolist():
                line = int(lines[row])
                readings, gpu_ns = self.line_launches.get(line, (0, 0))
                self.line_launches[line] = readings + 1, gpu_ns + int(sums[row])

    def _compare(self, operations: Columns) -> None:
        """How far kernels are stretched, by some of them: 0.1 µs each."""
        middle = len(operations.starts) // 2
        some = slice(max(0, middle - COMPARED // 2), middle + COMPARED // 2)
        codes = operations.codes[some]
        whole = ~operations.goes_on[some] & (codes >= FIRST_KERNEL)
        took = (operations.ends[some] - operations.starts[some])[whole]
        alike = codes[whole].astype(np.int64) << 32 | operations.shapes[some][whole]
        compared, stretched = stretch(alike, took)
        self.compared_ns += compared
        self.stretched_ns += stretched


# --- Why a device idled: each gap is laid at the door of the thread that launched what ends it.

_HOST, _WAIT = COLUMN[Leaf.HOST], COLUMN[Leaf.WAIT]

RUNS = 0.1
"""Share of the time on a core from which a thread is one of those that run."""

# Chosen, not measured.
RESTART_NS = 1_000_000
"""A gap up to this long that begins in a call which waits for the GPU is the price of that call:
the CPU has to wake, run on and launch again."""

# Twice what launches to an idle GPU take: under 10 µs, docs/measuring.md.
LATENCY_NS = 20_000
"""From a launch to its kernel's start on an idle GPU: more is a wait for something else."""


class Gaps(NamedTuple):
    """Gaps in order, and the calls whose operations end them."""

    rows: Rows
    starts: Int64s
    called_ns: Int64s
    returned_ns: Int64s
    ends: Int64s
    lengths: Int64s

    def pick(self, rows: Rows) -> Gaps:
        """The gaps of these row numbers."""
        return Gaps._make(column.take(rows) for column in self)


class Causes:
    """For gaps of these lengths: how much of each is whose. What nobody takes is launching."""

    def __init__(self, lengths: Int64s) -> None:
        self._lengths = lengths
        self._left = lengths.copy()
        self._parts: dict[Leaf, list[tuple[Rows, Int64s]]] = {}
        self._fetching: list[tuple[Rows, Int64s]] = []

    def add_fetching(self, rows: Rows, amounts: Int64s) -> None:
        """So much of what is under INPUT there was fetching it, by the program's frames."""
        if len(rows):
            self._fetching.append((rows, amounts))

    @property
    def fetches(self) -> bool:
        """Whether any of it was."""
        return bool(self._fetching)

    def fetching(self) -> Int64s:
        """The same of every gap."""
        sums = np.zeros(len(self._lengths), np.int64)
        for rows, amounts in self._fetching:
            sums[rows] += amounts
        return sums

    def add_whole(self, leaf: Leaf, rows: Rows) -> None:
        """Gaps that are one leaf's, each named once."""
        self.add(leaf, rows, take_rows(self._lengths, rows))

    def add(self, leaf: Leaf, rows: Rows, amounts: Int64s) -> None:
        """`amounts` of the gaps at `rows`, which are in order, each named once."""
        if len(rows):
            self._left[rows] -= amounts
            self._parts.setdefault(leaf, []).append((rows, amounts))

    def move(self, leaf: Leaf, to: Leaf, shares: npt.NDArray[np.float64]) -> None:
        """Give this share of each gap's amount to another leaf."""
        if not shares.any():
            return
        for rows, amounts in self._parts.pop(leaf, []):
            moved = np.floor(amounts * shares.take(rows)).astype(np.int64)
            self._parts.setdefault(to, []).append((rows, moved))
            self._parts.setdefault(leaf, []).append((rows, amounts - moved))

    def amounts_by_leaf(self) -> Iterator[tuple[Leaf, Rows, Int64s]]:
        """By leaf: rows in order, each once, and amounts above 0."""
        for leaf, pieces in self._parts.items():
            if len(pieces) == 1:
                [(rows, amounts)] = pieces
            else:
                sums = np.zeros(len(self._lengths), np.int64)
                for rows, amounts in pieces:
                    sums[rows] += amounts
                rows = np.flatnonzero(sums)
                amounts = sums.take(rows)
            if not amounts.all():
                some = np.flatnonzero(amounts)
                rows, amounts = rows.take(some), amounts.take(some)
            yield leaf, rows, amounts
        rows = rows_of(self._left)
        yield Leaf.LAUNCH, rows, take_rows(self._left, rows)


class Blame:
    """Gaps of a device in, causes out."""

    def __init__(self, threads: HostThreads, main_thread: int) -> None:
        self._threads = threads
        self._main_thread = main_thread
        self.line_hits: list[LineHit] = []
        """Where the thread was when the device idled and it was away from CUDA, when it waited for
        the device or allocated, and where others were while it slept."""
        self._lines_read_ns: dict[tuple[int, Doing], int] = {}

    def forget_lines(self, until_ns: int, since_ns: int = 0) -> None:
        """The lines of steps that ended by then are counted, or those of an interval."""
        self.line_hits = [hit for hit in self.line_hits if not since_ns <= hit.time_ns < until_ns]

    def add(self, causes: Causes, thread: int, gaps: Gaps) -> None:
        """Gaps that end with what `thread` launched after they had begun."""
        pieces, waited = self._threads.during(thread, gaps.starts, gaps.called_ns)
        if thread != self._main_thread and Doing.AWAY in pieces:
            self._follow(pieces, gaps)
        restarted = waited[gaps.lengths[waited] < RESTART_NS]
        causes.add_whole(Leaf.SYNC, gaps.rows[restarted])
        for kind in (Doing.WAITING, Doing.ALLOCATING):
            if kind in pieces:
                self._read_lines(thread, kind, gaps)
        long = np.flatnonzero(gaps.lengths > LATENCY_NS)
        long = long[_others(long, restarted)]
        called = np.maximum(gaps.returned_ns.take(long), gaps.called_ns.take(long))
        beyond = gaps.ends.take(long) - called - LATENCY_NS
        late = np.flatnonzero(beyond > 0)
        causes.add(Leaf.DEPENDENCY, gaps.rows[long[late]], beyond[late])
        for doing, (rows, amounts) in pieces.items():
            others = _others(rows, restarted)
            rows, amounts = rows[others], amounts[others]
            if doing == Doing.AWAY:
                self._add_absence(causes, thread, gaps.pick(rows), amounts)
            else:
                causes.add(LEAF_OF_CALL[doing], gaps.rows[rows], amounts)

    def _read_lines(self, thread: int, kind: Doing, gaps: Gaps) -> None:
        """The lines at which a thread was in calls of a kind: they are what makes them. Of a worker
        that runs no Python (autograd's) those of the main thread, which waits for it."""
        reads = self._threads.lines.threads
        asked = thread if thread in reads else self._main_thread
        if asked not in reads:
            return
        since_ns, until_ns = self._lines_read_ns.get((thread, kind), 0), int(gaps.called_ns.max())
        if until_ns <= since_ns:
            return
        # Lines that allocate and that copy pageable memory are named, too.
        self._lines_read_ns[thread, kind] = until_ns
        calls = self._threads.calls(thread, kind, since_ns, until_ns)
        # Of the main thread where a thread without Python waits: anomaly mode's waits are
        # autograd's and had no line.
        hits = self._threads.lines.within(asked, *calls)
        self.line_hits += [LineHit.from_reading(hit, LEAF_OF_CALL[kind]) for hit in hits]

    def _add_absence(self, causes: Causes, thread: int, gaps: Gaps, away: Int64s) -> None:
        """What a thread was at while it was `away` from CUDA in these gaps; where nothing is known,
        it ran the program's own code."""
        if not len(away):
            return
        # A worker thread that does not run waits for the main thread: what that one is at decides.
        asked, worker = self._main_thread, thread if thread != self._main_thread else None
        hits = self._threads.lines.within(asked, gaps.starts, gaps.called_ns)
        self.line_hits += map(LineHit.from_reading, hits)
        spoken = [hit.leaf for hit in hits if hit.leaf is not None]
        if fetching := sum(hit.fetches for hit in hits):
            causes.add_fetching(gaps.rows, np.floor(away * (fetching / len(hits))).astype(np.int64))
        left = away
        for leaf in dict.fromkeys(spoken):
            part = np.floor(away * (spoken.count(leaf) / len(hits))).astype(np.int64)
            causes.add(leaf, gaps.rows, part)
            left = left - part
        shares = self._threads.absence(asked, gaps.starts, gaps.called_ns, worker)
        for hit in hits:
            row = int(np.searchsorted(gaps.starts, hit.time_ns, side="right")) - 1
            if hit.leaf is None and shares[row, _WAIT] > 0.5:
                within = slice(row, row + 1)
                self._look_beside(asked, hit.time_ns, gaps.starts[within], gaps.called_ns[within])
        hosts = left
        for column, leaf in enumerate(AWAY_LEAVES):
            if leaf is not Leaf.HOST:
                part = np.floor(left * shares[:, column]).astype(np.int64)
                causes.add(leaf, gaps.rows, part)
                hosts = hosts - part
        causes.add(Leaf.HOST, gaps.rows, hosts)

    def _look_beside(self, thread: int, moment_ns: int, start: Int64s, end: Int64s) -> None:
        """Where other threads were at a moment of a gap at which `thread` slept. One that sleeps in
        a library's function waits itself, for work or for others' end."""
        others = [
            (reading, self._threads.away(other, start, end)[0, _HOST])
            for other, reading in self._threads.lines.beside(thread, moment_ns)
        ]
        # Several that compute share Python's lock: each runs a part of the time.
        if sum(ran for _, ran in others) > 0.5:
            readings, leaf = [seen for seen, ran in others if ran > RUNS], BESIDE_RUNNING
        else:
            readings = [seen for seen, _ in others if seen.leaf is None and not seen.inside]
            leaf = BESIDE_ASLEEP
        self.line_hits += [LineHit.from_reading(seen, leaf) for seen in readings]

    def _follow(self, pieces: Pieces, gaps: Gaps) -> None:
        """A worker thread that was away (autograd's, between two backward passes) waited for the
        main thread: what that one did meanwhile decides, one step and no further."""
        away_rows, away = pieces.pop(Doing.AWAY)
        starts, ends = gaps.starts.take(away_rows), gaps.called_ns.take(away_rows)
        theirs, _ = self._threads.during(self._main_thread, starts, ends)
        share = away / (ends - starts)
        for doing, (rows, amounts) in theirs.items():
            moved = np.floor(amounts * share.take(rows)).astype(np.int64)
            rows = away_rows.take(rows)
            if doing in pieces:
                sums = np.zeros(len(gaps.rows), np.int64)
                sums[rows] = moved
                own, amounts = pieces[doing]
                sums[own] += amounts
                rows = np.flatnonzero(sums)
                moved = sums.take(rows)
            pieces[doing] = rows, moved


def _others(rows: Rows, without: Rows) -> Rows:
    """Where `rows`, each named once, are none of `without`."""
    if not len(without):
        return np.arange(len(rows))
    return np.flatnonzero(np.isin(rows, without, assume_unique=True, invert=True))
