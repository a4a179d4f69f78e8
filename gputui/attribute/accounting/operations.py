"""Operations as the accounting sees them, columns with a leaf each, refined by the patterns around
them; and why a device idled between two: what the thread that launched next was doing, and the
lines it was at.

For `device`, which finds the gaps, and `tracker`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gputui.attribute import NO_KERNEL, TimedOperations
from gputui.attribute.accounting.host_threads import LEAF_OF_CALL, Doing, HostThreads, Pieces, Rows
from gputui.attribute.accounting.repetition import cue_of, family
from gputui.attribute.accounting.thread_readings import AWAY_LEAVES, COLUMN, LineHit
from gputui.attribute.arrays import Bools, Int64s, Slots, pick, rows_of, run_starts, take_rows
from gputui.attribute.distributions import sorted_pairs
from gputui.model.events import BESIDE_ASLEEP, BESIDE_RUNNING
from gputui.model.leaves import CHANGES_LAYOUT, Leaf, leaf_of_kernel
from gputui.ring import RecordKind

# --- Operations of a device as the accounting sees them: when, from which call, under which leaf.

_MEMCPY = int(RecordKind.MEMCPY)  # NumPy compares with an enum three times as slowly
FIRST_KERNEL = 64
"""Codes of kernels, and of their families, begin here; below are directions of copies."""

# Above all directions of copies (CUpti_ActivityMemcpyKind ends at 13).
_MEMSET = 32
_PAGEABLE = 1
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2


class Columns(NamedTuple):
    """Operations as columns. `called_ns` is 0 if the launch is not known. `codes` from FIRST_KERNEL
    on are kernels' numbers, smaller ones are codes of copies. `shapes` are the launch shapes of
    kernels, `nodes` the ranges around the calls. `goes_on` marks the rest of an operation whose
    beginning was already accounted for."""

    starts: Int64s
    ends: Int64s
    called_ns: Int64s
    returned_ns: Int64s
    threads: npt.NDArray[np.uint32]
    streams: npt.NDArray[np.uint32]
    codes: npt.NDArray[np.uint32]
    shapes: npt.NDArray[np.uint32]
    nodes: Int64s
    leaves: npt.NDArray[np.uint8]
    goes_on: Bools

    @property
    def are_apart(self) -> bool:
        """Whether each operation begins after the one before it has ended."""
        return bool((self.starts[1:] >= self.ends[:-1]).all())

    def pick(self, rows: npt.NDArray[Any]) -> Columns:
        """The operations of these row numbers."""
        return Columns._make(column.take(rows) for column in self)

    @classmethod
    def join(cls, columns: list[Columns]) -> Columns:
        """All of them, one after the other."""
        if len(columns) == 1:
            return columns[0]
        return cls._make(np.concatenate(column) for column in zip(*columns, strict=True))


class Kernels:
    """What names say, by kernel number: leaf, family, cue, whether it is no link of a chain; and by
    the number of a shape, how many threads it has."""

    def __init__(self) -> None:
        self.leaves = np.full(256, Leaf.OTHER, np.uint8)
        self.families = np.zeros(256, np.uint32)
        self.cues = np.zeros(256, np.uint8)
        self.unlinked = np.zeros(256, np.bool_)
        self._numbers: dict[str, int] = {}
        self._threads = np.zeros(1, np.int64)

    def define(self, number: int, name: str) -> None:
        """Note a kernel's demangled name, from which its leaf and its family follow."""
        while number >= len(self.leaves):
            self.leaves = np.concatenate((self.leaves, np.full_like(self.leaves, Leaf.OTHER)))
            self.families = np.concatenate((self.families, np.zeros_like(self.families)))
            self.cues = np.concatenate((self.cues, np.zeros_like(self.cues)))
            self.unlinked = np.concatenate((self.unlinked, np.zeros_like(self.unlinked)))
        self.leaves[number] = leaf_of_kernel(name)
        families = self._numbers.setdefault(family(name), len(self._numbers))
        self.families[number] = FIRST_KERNEL + families
        self.cues[number] = cue_of(name)
        # In no chain: layout changes are a finding of their own, and Triton's kernels are fused.
        self.unlinked[number] = name.startswith("triton_") or bool(CHANGES_LAYOUT.search(name))

    def define_shape(self, number: int, threads: int) -> None:
        """Notes with how many threads a kernel of this launch shape is launched."""
        if number >= len(self._threads):
            more = np.zeros(number + 1 - len(self._threads), np.int64)
            self._threads = np.append(self._threads, more)
        self._threads[number] = threads

    def widths(self, codes: npt.NDArray[np.uint32], shapes: npt.NDArray[np.uint32]) -> Int64s:
        """With how many threads these kernels were launched. 0 if that is not known; also 0 where a
        compiler has fused all that it could, and for changes of layout, which have a cure of their
        own."""
        widths = self._threads.take(np.where(shapes < len(self._threads), shapes, 0))
        widths[self.unlinked.take(codes.astype(np.int64) - FIRST_KERNEL, mode="clip")] = 0
        return widths


def columns(
    records: Slots,
    timed: TimedOperations,
    defined: Kernels,
) -> Columns:
    """Operations as the accounting sees them."""
    kernels = timed.kernels
    leaves = defined.leaves.take(kernels, mode="clip")
    codes = kernels.astype(np.uint32)
    codes += FIRST_KERNEL
    others = np.flatnonzero(kernels == NO_KERNEL)
    if len(others):
        copied = pick(records, others)
        directions = _COPY_CODES.take(copied["sub"])
        directions[copied["kind"] != _MEMCPY] = _MEMSET
        codes[others] = directions
        pageable = copied["source_kind"] == _PAGEABLE
        pageable |= copied["destination_kind"] == _PAGEABLE
        leaves[others] = _COPY_LEAVES[pageable.view(np.uint8), directions]
    return Columns(
        timed.starts,
        timed.ends,
        timed.called_ns,
        timed.returned_ns,
        timed.threads,
        timed.streams,
        codes,
        records["d"].copy(),
        timed.nodes,
        leaves,
        np.zeros(len(records), np.bool_),
    )


_COPY_LEAVES = np.full((2, _MEMSET + 1), Leaf.COPY_DEVICE, np.uint8)
_COPY_LEAVES[0, [_HOST_TO_DEVICE, _DEVICE_TO_HOST]] = Leaf.COPY_PINNED
_COPY_LEAVES[1, [_HOST_TO_DEVICE, _DEVICE_TO_HOST]] = Leaf.COPY_PAGEABLE
"""The leaf of a copy, by whether pageable memory is involved and by the copy's code."""

# The leaf of a copy, by CUPTI's number of its direction.
_COPY_CODES = np.minimum(np.arange(256), _MEMSET - 1).astype(np.uint8)


# --- What kernels in a row are together: a chain that one kernel could do, attention by hand.

CHAIN = 3
"""Elementwise kernels in a row over as many threads that are called a chain."""

CHAIN_NS = 20_000
"""Least time of each: shorter ones are bound by their launch, not by memory."""

BLOCK = 128
"""Threads of a block of PyTorch's elementwise kernels, up to which a width is rounded."""

BETWEEN = 12
"""Most kernels between the two matrix products of attention written out. One that is launched
several times in a row counts once: PyTorch divides what 32 bits cannot index, such as scores of
4 GiB."""

PIECES = 16
"""Most launches of each then."""

# NumPy compares with an enum three times as slowly.
_SOFTMAX, _ELEMENTWISE = int(Leaf.SOFTMAX), int(Leaf.ELEMENTWISE)

_PRODUCTS = np.array([Leaf.MATMUL, Leaf.MATMUL_SIMT, Leaf.MATMUL_UNALIGNED], np.uint8)
_INSIDE = np.array([Leaf.ELEMENTWISE, Leaf.SOFTMAX, Leaf.OTHER, Leaf.COPY_DEVICE], np.uint8)


def refine(
    leaves: npt.NDArray[np.uint8],
    starts: Int64s,
    ends: Int64s,
    streams: npt.NDArray[np.uint32],
    codes: npt.NDArray[np.uint32],
    widths: Callable[[Rows], Int64s],
) -> npt.NDArray[np.uint8]:
    """Leaves of operations in order of start, where their neighbours on the stream say more.

    `codes` number the kernels by name. `widths` gives how many GPU threads the kernels at some rows
    were launched with, 0 where one is no link of a chain: alike, for elementwise kernels, where
    they go over as many elements of one size.
    """
    if (streams == streams[0]).all():
        refined = leaves.copy()
        _mark_attention(refined, streams, codes)
        _mark_chains(refined, starts, ends, streams, widths)
        return refined
    order = np.argsort(streams, kind="stable")
    refined, streams = leaves[order], streams[order]
    _mark_attention(refined, streams, codes[order])
    _mark_chains(refined, starts[order], ends[order], streams, lambda rows: widths(order[rows]))
    out = np.empty_like(leaves)
    out[order] = refined
    return out


def _mark_attention(
    leaves: npt.NDArray[np.uint8], stream: npt.NDArray[np.uint32], codes: npt.NDArray[np.uint32]
) -> None:
    softmax = np.flatnonzero(leaves == _SOFTMAX)
    if not len(softmax):
        return
    products = np.isin(leaves, _PRODUCTS)
    inside = np.isin(leaves, _INSIDE)
    # The number of the last product, and of the last kernel that breaks a run, before each.
    rows = np.arange(len(leaves))
    last_product = np.maximum.accumulate(np.where(products, rows, -1))
    last_break = np.maximum.accumulate(np.where(~products & ~inside, rows, -1))
    following = np.where(products, rows, len(leaves))
    next_product = np.minimum.accumulate(following[::-1])[::-1]
    next_break = np.minimum.accumulate(np.where(~products & ~inside, rows, len(leaves))[::-1])[::-1]
    for row in softmax.tolist():
        first, last = int(last_product[row]), int(next_product[row])
        if (
            first >= 0
            and last < len(leaves)
            and _different(codes[first + 1 : last]) <= BETWEEN
            and last_break[row] < first
            and next_break[row] > last
            and stream[first] == stream[last]
        ):
            leaves[first + 1 : last] = Leaf.ATTENTION_UNFUSED


def _different(codes: npt.NDArray[np.uint32]) -> int:
    """How many kernels, each as often in a row as it may be."""
    if len(codes) <= BETWEEN or len(codes) > PIECES * BETWEEN:
        return len(codes)
    return 1 + int(np.count_nonzero(codes[1:] != codes[:-1]))


def _mark_chains(
    leaves: npt.NDArray[np.uint8],
    starts: Int64s,
    ends: Int64s,
    streams: npt.NDArray[np.uint32],
    widths: Callable[[Rows], Int64s],
) -> None:
    rows = np.flatnonzero(leaves == _ELEMENTWISE)
    rows = rows[ends.take(rows) - starts.take(rows) >= CHAIN_NS]
    if len(rows) < CHAIN:
        return
    width, stream = widths(rows), streams.take(rows)
    follows = (
        (rows[1:] == rows[:-1] + 1)
        & (width[1:] > 0)
        & (width[:-1] > 0)
        & (stream[1:] == stream[:-1])
        & _as_many(width[1:], width[:-1])
    )
    begins = np.flatnonzero(np.concatenate(([True], ~follows)))
    lengths = np.diff(np.append(begins, len(rows)))
    long = np.repeat(lengths >= CHAIN, lengths)
    leaves[rows[long]] = Leaf.ELEMENTWISE_CHAIN


def _as_many(first: Int64s, other: Int64s) -> Bools:
    """Whether two kernels go over as many elements: a thread of one takes as many as a thread of
    the other, or twice or four times as many where theirs are smaller (a cast of FP32 to BF16)."""
    most, least = np.maximum(first, other), np.minimum(first, other)
    alike: Bools = most == least
    for times in (2, 4):
        alike |= np.abs(most - times * least) <= times * BLOCK
    return alike


# --- Why a device idled: what the thread that launched next was doing, and the lines it was at.
#
# For `device`, which finds the gaps.

# --- What operations of a device show of others: lines that launch, kernels that are stretched.

NEAREST_WITHIN_NS = 50_000
"""The launch nearest to a reading is of its very line: eager ones are 5 to 60 µs apart."""

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
    """The time of kernels that are compared with others of the same shape, and how much of it is
    stretched."""
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
        self.line_launches: dict[tuple[int, int], tuple[int, int]] = {}
        """Line, and kernel or 0 → readings and GPU time launched around them, not taken yet."""
        self.compared_ns = self.stretched_ns = 0
        """The time of kernels that were compared with kernels of the same shape, since the last
        report."""

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
                self._add_launch(line, 0, int(sums[row]))
                its = rows[reading == row]
                away = np.abs(operations.called_ns.take(its) - times[row])
                nearest = its[away.argmin()]
                code = int(operations.codes[nearest])
                if code >= FIRST_KERNEL and away.min() <= NEAREST_WITHIN_NS:
                    took = int(operations.ends[nearest] - operations.starts[nearest])
                    self._add_launch(line, code - FIRST_KERNEL, took)

    def _add_launch(self, line: int, kernel: int, ns: int) -> None:
        readings, gpu_ns = self.line_launches.get((line, kernel), (0, 0))
        self.line_launches[line, kernel] = readings + 1, gpu_ns + ns

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
"""The share of time on a core from which a thread counts as running."""

# Chosen, not measured.
RESTART_NS = 1_000_000
"""A gap up to this long that begins in a call which waits for the GPU is the price of that call:
the CPU has to wake, run on and launch again."""

# Twice what launches to an idle GPU take: under 10 µs, docs/measuring.md.
LATENCY_NS = 20_000
"""The time from a launch to its kernel's start on an idle GPU. A longer time is a wait for
something else."""


class Gaps(NamedTuple):
    """Gaps in order, and for each the call whose operation ended it."""

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
    """Divides gaps among causes. Time that no cause takes is launching."""

    def __init__(self, lengths: Int64s) -> None:
        self._lengths = lengths
        self._left = lengths.copy()
        self._parts: dict[Leaf, list[tuple[Rows, Int64s]]] = {}
        self._fetching: list[tuple[Rows, Int64s]] = []

    def add_fetching(self, rows: Rows, amounts: Int64s) -> None:
        """Adds how much of the gaps' time under INPUT the program spent fetching its input, by its
        frames."""
        if len(rows):
            self._fetching.append((rows, amounts))

    @property
    def fetches(self) -> bool:
        """Whether any of the gaps' time was spent fetching input."""
        return bool(self._fetching)

    def fetching(self) -> Int64s:
        """How much of each gap was spent fetching input."""
        sums = np.zeros(len(self._lengths), np.int64)
        for rows, amounts in self._fetching:
            sums[rows] += amounts
        return sums

    def add_whole(self, leaf: Leaf, rows: Rows) -> None:
        """Gives whole gaps, each named once, to a leaf."""
        self.add(leaf, rows, take_rows(self._lengths, rows))

    def add(self, leaf: Leaf, rows: Rows, amounts: Int64s) -> None:
        """Gives `amounts` of the gaps at `rows` to a leaf. The rows are in order, each once."""
        if len(rows):
            self._left[rows] -= amounts
            self._parts.setdefault(leaf, []).append((rows, amounts))

    def move(self, leaf: Leaf, to: Leaf, shares: npt.NDArray[np.float64]) -> None:
        """Moves this share of each gap's amount from one leaf to another."""
        if not shares.any():
            return
        for rows, amounts in self._parts.pop(leaf, []):
            moved = np.floor(amounts * shares.take(rows)).astype(np.int64)
            self._parts.setdefault(to, []).append((rows, moved))
            self._parts.setdefault(leaf, []).append((rows, amounts - moved))

    def amounts_by_leaf(self) -> Iterator[tuple[Leaf, Rows, Int64s]]:
        """For each leaf, the rows of its gaps, in order and each once, and its amounts in them,
        above 0."""
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
        """The lines at which the launching thread was while the device idled and the thread was not
        in CUDA, or while it waited for the device or allocated; and the lines at which other
        threads were while it slept."""
        self._lines_read_ns: dict[tuple[int, Doing], int] = {}

    def forget_lines(self, until_ns: int, since_ns: int = 0) -> None:
        """Drops the lines of steps that ended by then, or those of an interval: they were
        counted."""
        self.line_hits = [hit for hit in self.line_hits if not since_ns <= hit.time_ns < until_ns]

    def add(self, causes: Causes, thread: int, gaps: Gaps) -> None:
        """Finds the causes of gaps that ended with an operation which `thread` launched after the
        gap had begun."""
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
        """Notes the lines at which a thread made calls of this kind. For a worker that runs no
        Python (autograd's), they are the lines of the main thread, which waits for it."""
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
        """Notes where other threads were during gaps in which `thread` slept. A thread that itself
        sleeps in a library's function is left out: it waits for work, or for other threads to
        end."""
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
    """The positions in `rows`, which are distinct, that are not in `without`."""
    if not len(without):
        return np.arange(len(rows))
    return np.flatnonzero(np.isin(rows, without, assume_unique=True, invert=True))
