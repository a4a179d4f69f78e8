"""What each kernel did of what the counters of a whole GPU counted: samples and operations on one
clock, separated by least squares.

A sample's count is the sum, over what ran during it, of a rate × how long that ran in it. With many
samples, in which operations of all kinds lie differently, the rates follow: also those of kernels
far shorter than a sample. Where kernels always run together in the same proportions the counts
cannot tell them apart, and their intervals say so.

Intervals are by the jackknife: the samples are dealt into blocks in turn, and the rates that the
rest gives without each block vary by as much as they are uncertain, whatever the errors are
(delete-a-group jackknife, Miller 1974; Student's t for the number of blocks).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BLOCKS = 16
BLOCK_SAMPLES = 25
"""Neighbours have errors in common, such as a clock that is off: blocks take turns of so many.
A kernel that runs in one phase only is in most blocks after 400 samples, two bursts."""

# Student's t, two-sided 90 %, for BLOCKS - 1 degrees of freedom.
_T_90 = 1.753

MOST_COLUMNS = 128
"""Kinds of operations distinguished at a time. Of more, those with the least time become one."""

KEPT_COLUMNS = 92
"""Of too many, and those that are solved for: OpenBLAS takes all cores for a system of 100."""

_MOST_AT_ONCE = 192
"""Columns before those with the least time become one again: their products have 9 MB."""

_WORTH_A_COLUMN = 0.003
"""Share of the time of what comes at once from which a new key is distinguished."""

_WORTH_ANOTHER = 0.02
"""The same of a key that was among those with the least time before: a program of 140 kernels would
have its columns merged in each burst, which took three times as long as all else."""

_MOST_DROPPED = 1 << 14

NOTHING_RAN = -1
OTHERS = -2
"""Keys of the time in which no operation ran, and of all operations that are not distinguished."""

EDGE_NS = 500.0
"""How far off CUPTI's times of an operation are taken to be: with 200 the intervals of the bytes of
3 of 5 kernels of a decode (5 to 20 µs) held what ncu counted, with 500 all (H200)."""

_UNLIKE_ALONE = 0.03
"""Share of an amount by which an operation among others may differ from the same one alone, or from
itself at other moments: with what the samples tell alone, intervals held what ncu counted of 68 of
81 kernels of five decodes, with this of 77; chosen without each decode, of 75 (H200)."""

# Share of the time from which a key's rate counts as that of a neighbour.
_NEIGHBOUR = 0.02

# Where the parts of an operation begin and end. Those of so many ns, and at least this share of
# the time, are taken in parts: shorter ones are too short, and of long ones the edges are little.
_PART_EDGES = (0.0, 0.1, 0.3, 0.7, 0.9, 1.0)
_PARTS = len(_PART_EDGES) - 1
_PARTED_NS = 12_000, 400_000
_WORTH_PARTS = 0.01

# Columns are of a key's number times this, plus that of the part, from 1, or 0 of what has none.
_CODES = _PARTS + 1

# Share of the time below which a key is not distinguished: solving takes the third power of them.
_NEGLIGIBLE = 0.0005

# Columns of which others explain all but this share are the same as those: of durations that are
# known to a nanosecond in samples of 200 µs.
_ALIKE = 1e-6

# Multiplied at a time: OpenBLAS takes all cores from 64³ on.
_FEW_COLUMNS = 32

# Samples at a time: their matrix has 0.7 MB.
_CHUNK = 512

# Added to the diagonal, as a share of its mean, so that columns that never differ have a solution:
# the jackknife then shows that it is none.
_RIDGE = 1e-9


Rows = slice | Int64s | npt.NDArray[np.bool_]


class Operations(NamedTuple):
    """What ran on one GPU: start, end, and a key of what it is, which is not negative."""

    starts_ns: Int64s
    ends_ns: Int64s
    keys: Int64s

    def pick(self, rows: Rows) -> Operations:
        """The operations of these rows."""
        return Operations(self.starts_ns[rows], self.ends_ns[rows], self.keys[rows])

    def in_order(self) -> Operations:
        """The same operations, sorted by their starts."""
        return self.pick(np.argsort(self.starts_ns, kind="stable"))

    def during(self, start_ns: int, end_ns: int) -> Operations:
        """Those that ran at some moment between."""
        return self.pick((self.ends_ns > start_ns) & (self.starts_ns < end_ns))


class CounterSamples(NamedTuple):
    """Counts in intervals of time: `amounts` has a row each, and a column for each counter."""

    starts_ns: Int64s
    ends_ns: Int64s
    amounts: Floats

    def pick(self, rows: Rows) -> CounterSamples:
        """The samples of these rows."""
        return CounterSamples(self.starts_ns[rows], self.ends_ns[rows], self.amounts[rows])

    def moved(self, offset_ns: int) -> CounterSamples:
        """The samples with their times moved to another clock's."""
        return CounterSamples(self.starts_ns + offset_ns, self.ends_ns + offset_ns, self.amounts)


def joined_samples(batches: Sequence[CounterSamples], counters: int) -> CounterSamples:
    """The samples of all batches, in their order, as one batch."""
    nothing = np.empty(0, np.int64)
    starts, ends, amounts = zip(*batches, (nothing, nothing, np.empty((0, counters))), strict=True)
    return CounterSamples(np.concatenate(starts), np.concatenate(ends), np.concatenate(amounts))


def joined_operations(batches: Sequence[Operations]) -> Operations:
    """The operations of all batches, in their order, as one batch."""
    nothing: Int64s = np.empty(0, np.int64)
    starts, ends, keys = zip(*batches, (nothing, nothing, nothing), strict=True)
    return Operations(np.concatenate(starts), np.concatenate(ends), np.concatenate(keys))


class Rates(NamedTuple):
    """Of each key: how long it ran in the samples, how much of that nothing else did, how long one
    operation is, and of each counter the rate a nanosecond and half of its 90 % interval, infinite
    where nothing is known."""

    keys: Int64s
    time_ns: Floats
    alone_ns: Floats
    mean_ns: Floats
    rates: Floats
    errors: Floats


class _Sums(NamedTuple):
    """What separates: normal equations by block, and of each column its time, the time alone, how
    many operations there were and their lengths."""

    products: Floats
    """In shape (2, blocks, columns, columns): by time, and by launch."""
    sums: Floats
    of_columns: Floats
    """In shape (4, columns)."""

    @classmethod
    def zero(cls, columns: int, counters: int) -> _Sums:
        return cls(
            np.zeros((2, BLOCKS, columns, columns)),
            np.zeros((BLOCKS, columns, counters)),
            np.zeros((4, columns)),
        )

    def widened(self, more: int) -> _Sums:
        """With `more` columns, of which nothing is counted yet."""
        return _Sums(
            np.pad(self.products, ((0, 0), (0, 0), (0, more), (0, more))),
            np.pad(self.sums, ((0, 0), (0, more), (0, 0))),
            np.pad(self.of_columns, ((0, 0), (0, more))),
        )

    def merged(self, kept: Int64s) -> _Sums:
        """Those columns in that order, all others added to the second, which is exact."""
        rest = np.setdiff1d(np.arange(self.of_columns.shape[1]), kept)
        products = self.products[:, :, kept[:, None], kept]
        beside = self.products[:, :, kept[:, None], rest].sum(3)
        products[:, :, _SECOND] += beside
        products[:, :, :, _SECOND] += beside
        of_rest = self.products[:, :, rest[:, None], rest].sum((2, 3))
        products[:, :, _SECOND, _SECOND] += of_rest
        sums, of_columns = self.sums[:, kept], self.of_columns[:, kept]
        sums[:, _SECOND] += self.sums[:, rest].sum(1)
        of_columns[:, _SECOND] += self.of_columns[:, rest].sum(1)
        return _Sums(products, sums, of_columns)


_SECOND = 1
_TIME, _ALONE, _COUNT, _LENGTH = range(4)


class Separation:
    """Samples and operations of one GPU in, rates out. Memory is bounded."""

    def __init__(self, counters: int, by_launch: Sequence[bool] = ()) -> None:
        """`by_launch` says of which counters an operation of a key counts as much however long it
        takes, as it does bytes; of the others as much in each nanosecond. Where three of a kernel
        moved 73 MB each, in 20 to 25 µs, they seemed to move 67 (H200)."""
        self._counters = counters
        self._by_launch = np.array(by_launch or [False] * counters, np.bool_)
        self._usual_ns: dict[int, float] = {}
        """How long an operation or part of each key was in the mean when it first came."""
        self._is_parted: dict[int, bool] = {}
        self._columns: dict[int, int] = {NOTHING_RAN: 0, OTHERS: 1}
        self._sums = _Sums.zero(len(self._columns), counters)
        self._dropped: set[int] = set()
        """Keys that had a column once, and count among OTHERS."""
        self.samples = 0

    def add(self, samples: CounterSamples, operations: Operations) -> None:
        """Add samples, in order and disjoint, and every operation that ran during them; what of the
        operations lies outside of the samples does not count."""
        if not len(samples.starts_ns):
            return
        operations = self._in_parts(operations).in_order()
        columns, scales = self._columns_of(operations)
        for first in range(0, len(samples.starts_ns), _CHUNK):
            self._add(samples.pick(slice(first, first + _CHUNK)), operations, columns, scales)
        if len(self._columns) > MOST_COLUMNS:
            kept = self._largest(KEPT_COLUMNS, 0.0)
            self._sums = self._sums.merged(self._places(kept))
            self._dropped |= self._columns.keys() - set(kept)
            self._usual_ns = {key: self._usual_ns[key] for key in kept if key >= 0}
            if len(self._dropped) > _MOST_DROPPED:
                self._dropped.clear()
            self._columns = {key: place for place, key in enumerate(kept)}

    def _in_parts(self, operations: Operations) -> Operations:
        """The same, those of many keys in five parts: a kernel reads less while it begins and
        ends, and what it writes leaves the cache later. Of 42 kernels of five decodes 36 were
        within 10 % of ncu with one rate for all of it, 39 with three equal parts and 41 with five,
        short at the edges; of four recordings that this was not chosen on 33 of 35, then 35 (H200).
        """
        keys, rows = np.unique(operations.keys, return_inverse=True)
        lengths_ns = operations.ends_ns - operations.starts_ns
        time_ns = np.bincount(rows, lengths_ns, len(keys))
        means_ns = time_ns / np.bincount(rows, minlength=len(keys))
        shares = time_ns / max(1.0, time_ns.sum())
        is_worth = (shares >= _WORTH_PARTS) & (means_ns >= _PARTED_NS[0])
        is_worth &= (means_ns <= _PARTED_NS[1]) & (keys >= 0) & self._by_launch.any()
        is_parted = np.array(
            [
                self._is_parted.setdefault(key, worth)
                for key, worth in zip(keys.tolist(), is_worth.tolist(), strict=True)
            ],
            np.bool_,
        )[rows]
        coded = np.where(operations.keys >= 0, operations.keys * _CODES, operations.keys)
        operations = operations._replace(keys=coded)
        parted, lengths_ns = operations.pick(is_parted), lengths_ns[is_parted]
        edges = [parted.starts_ns + np.rint(lengths_ns * edge).astype(np.int64)
                 for edge in _PART_EDGES]  # fmt: skip
        of_parts = [
            Operations(edges[part], edges[part + 1], parted.keys + part + 1)
            for part in range(_PARTS)
        ]
        return joined_operations([operations.pick(~is_parted), *of_parts])

    def _columns_of(self, operations: Operations) -> tuple[Int64s, Floats]:
        """The column of each operation, and what to multiply its time by for the time that those of
        its column usually take."""
        distinct, rows = np.unique(operations.keys, return_inverse=True)
        lengths_ns = np.maximum(1, operations.ends_ns - operations.starts_ns)
        time_ns = np.bincount(rows, lengths_ns, len(distinct))
        means_ns = time_ns / np.bincount(rows, minlength=len(distinct))
        whole = np.where(distinct >= 0, distinct // _CODES, distinct)
        wholes = np.unique(whole, return_inverse=True)[1]
        shares = np.bincount(wholes, time_ns)[wholes] / max(1.0, time_ns.sum())
        for place in np.argsort(-shares, kind="stable").tolist():
            key = int(distinct[place])
            if len(self._columns) >= _MOST_AT_ONCE and key not in self._columns:
                continue
            if shares[place] >= (_WORTH_ANOTHER if key in self._dropped else _WORTH_A_COLUMN):
                self._columns.setdefault(key, len(self._columns))
                if key >= 0:
                    self._usual_ns.setdefault(key, float(means_ns[place]))
        more = len(self._columns) - self._sums.of_columns.shape[1]
        if more:
            self._sums = self._sums.widened(more)
        others = self._columns[OTHERS]
        # Kernels that hardly ran share the column of the others, and are not merged again and
        # again.
        columns = np.array([self._columns.get(key, others) for key in distinct.tolist()], np.int64)
        usual_ns = np.array([self._usual_ns.get(key, 0.0) for key in distinct.tolist()])[rows]
        return columns[rows], np.where(usual_ns > 0, usual_ns / lengths_ns, 1.0)

    def _add(
        self, samples: CounterSamples, operations: Operations, columns: Int64s, scales: Floats
    ) -> None:
        size = len(self._columns)
        during = (operations.ends_ns > samples.starts_ns[0]) & (
            operations.starts_ns < samples.ends_ns[-1]
        )
        starts, ends = operations.starts_ns[during], operations.ends_ns[during]
        columns = columns[during]
        durations, alone = overlaps(samples, starts, ends, columns, size)
        launches = overlaps(samples, starts, ends, columns, size, scales[during])[0]
        self._sums.of_columns[_TIME] += durations.sum(0)
        self._sums.of_columns[_ALONE] += alone
        self._sums.of_columns[_COUNT] += np.bincount(columns, minlength=size)
        self._sums.of_columns[_LENGTH] += np.bincount(columns, ends - starts, size)
        blocks = (self.samples + np.arange(len(durations))) // BLOCK_SAMPLES % BLOCKS
        self.samples += len(durations)
        for block in np.unique(blocks).tolist():
            rows = blocks == block
            for by_launch, table in enumerate((durations, launches)):
                part, are_so = table[rows], self._by_launch == bool(by_launch)
                products = self._sums.products[by_launch, block]
                for first in range(0, size, _FEW_COLUMNS):
                    few = slice(first, first + _FEW_COLUMNS)
                    products[:, few] += part.T @ part[:, few]
                self._sums.sums[block][:, are_so] += part.T @ samples.amounts[rows][:, are_so]

    def _largest(self, most: int, least_share: float) -> list[int]:
        """The keys that are distinguished where there are so many: those with most time, all parts
        of one or none."""
        columns_of: dict[int, list[int]] = {}
        for key in self._columns:
            if key >= 0:
                columns_of.setdefault(key // _CODES, []).append(key)
        time_ns = self._sums.of_columns[_TIME]
        least_ns = least_share * time_ns[1:].sum()
        times_ns = {
            whole: sum(float(time_ns[self._columns[key]]) for key in keys)
            for whole, keys in columns_of.items()
        }
        kept = [NOTHING_RAN, OTHERS]
        for whole in sorted(columns_of, key=lambda whole: -times_ns[whole]):
            keys = columns_of[whole]
            is_whole = len(keys) == _PARTS or keys[0] % _CODES == 0
            if is_whole and times_ns[whole] >= least_ns and len(kept) + len(keys) <= most:
                kept += keys
        return kept

    def _places(self, kept: list[int]) -> Int64s:
        """The columns of these keys."""
        return np.array([self._columns[key] for key in kept], np.int64)

    def rates(self) -> Rates:
        """The rates of all samples so far; what hardly ran is among OTHERS."""
        codes = self._largest(KEPT_COLUMNS, _NEGLIGIBLE)
        merged = self._sums.merged(self._places(codes))
        time_ns, alone_ns, counts, lengths_ns = merged.of_columns
        mean_ns = lengths_ns / np.maximum(1, counts)
        firsts = [code == OTHERS or (code >= 0 and code % _CODES < 2) for code in codes]
        mean_ns[0] = time_ns[0] / max(1.0, counts[firsts].sum())  # a gap
        # Each key's columns, by their shares of its time.
        of_codes = np.array([code // _CODES if code >= 0 else code for code in codes], np.int64)
        keys = np.array(list(dict.fromkeys(of_codes.tolist())), np.int64)
        members = (of_codes == keys[:, None]).astype(np.float64)
        shares = members * time_ns
        shares /= np.maximum(shares.sum(1, keepdims=True), 1e-300)
        usual_ns = np.array([self._usual_ns.get(code, 0.0) for code in codes])
        is_usual = (usual_ns > 0) & (mean_ns > 0)
        scales = np.where(is_usual, usual_ns / np.where(is_usual, mean_ns, 1.0), 1.0)
        shape = len(keys), self._counters
        rates, errors = np.zeros(shape), np.full(shape, np.inf)
        for by_launch in (0, 1):
            are_so = self._by_launch == bool(by_launch)
            if are_so.any():
                products, sums = merged.products[by_launch], merged.sums[:, :, are_so]
                weights = shares * (scales if by_launch else 1.0)
                rates[:, are_so], errors[:, are_so] = _solved(products, sums, weights)
        mean_ns, time_ns, alone_ns = members @ mean_ns, members @ time_ns, members @ alone_ns
        errors += _edge_errors(rates, mean_ns, time_ns, keys >= 0)
        errors += np.where(self._by_launch, _UNLIKE_ALONE * rates, 0.0)
        return Rates(keys, time_ns, alone_ns, mean_ns, rates, errors)


def _solved(blocks: Floats, block_sums: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Rates of columns, added up by their weights in shape (keys, columns), and half of their 90 %
    intervals, infinite where nothing is known."""
    products, sums = blocks.sum(0), block_sums.sum(0)
    ran = np.diagonal(products) > 0
    both = np.ix_(ran, ran)
    rates = np.zeros(sums.shape)
    errors = np.full((len(weights), sums.shape[1]), np.inf)
    if ran.any():
        rates[ran] = solve_nonnegative(products[both], sums[ran])
    if all(block.any() for block in blocks):
        without = np.stack(
            [
                weights[:, ran] @ solve((products - block)[both], (sums - of_block)[ran])
                for block, of_block in zip(blocks, block_sums, strict=True)
            ]
        )
        spread = ((without - without.mean(0)) ** 2).sum(0) * (BLOCKS - 1) / BLOCKS
        errors = _T_90 * np.sqrt(spread)
        # In fewer than half of the blocks: its error is not seen.
        seldom = np.count_nonzero(np.diagonal(blocks, axis1=1, axis2=2) > 0, 0) < BLOCKS // 2
        seldom[np.flatnonzero(ran)[~_are_told(products[both])]] = True
        errors[((weights > 0) & seldom).any(1) | ~((weights > 0) & ran).any(1)] = np.inf
    return weights @ rates, errors


def _edge_errors(
    rates: Floats, mean_ns: Floats, time_ns: Floats, is_operation: npt.NDArray[np.bool_]
) -> Floats:
    """What the times of operations may be wrong by, as an error of the rates: at an edge that is
    off, some of what a neighbour did is taken for an operation's own, or the reverse."""
    ran = (time_ns > _NEIGHBOUR * time_ns[is_operation].sum()) & is_operation
    largest = rates[ran].max(0, initial=0.0)
    share = EDGE_NS / np.maximum(mean_ns, EDGE_NS)
    errors: Floats = share[:, None] * np.maximum(np.abs(rates), np.abs(largest - rates))
    return errors


def _are_told(products: Floats) -> npt.NDArray[np.bool_]:
    """Which columns the samples tell from all others: of columns that are always in the same
    proportion least squares knows the sum alone, and shares it out. By the variance inflation
    factors: what of a column the others do not explain is one over them."""
    scale = 1 / np.sqrt(np.diagonal(products))
    scaled = products * scale[:, None] * scale
    scaled[np.diag_indices_from(scaled)] += _RIDGE
    return np.asarray(np.diagonal(np.linalg.inv(scaled)) < 1 / _ALIKE)


def overlaps(
    samples: CounterSamples,
    starts: Int64s,
    ends: Int64s,
    columns: Int64s,
    size: int,
    scales: Floats | float = 1.0,
) -> tuple[Floats, Floats]:
    """How long, in ns, what belongs to each column ran in each sample, in shape (samples, columns),
    column 0 being that nothing ran; and how long each ran alone. Operations are in order of starts,
    and the time of each counts times its scale.
    """
    count = len(samples.starts_ns)
    starts = np.maximum(starts, samples.starts_ns[0])
    ends = np.minimum(ends, samples.ends_ns[-1])
    first = np.searchsorted(samples.ends_ns, starts, side="right")
    last = np.searchsorted(samples.starts_ns, ends, side="left") - 1
    spans = np.maximum(0, last - first + 1)
    operation = np.repeat(np.arange(len(starts)), spans)
    sample = (
        np.arange(len(operation)) - np.repeat(np.cumsum(spans) - spans, spans) + first[operation]
    )
    # Pieces: an operation in a sample.
    column = columns[operation]
    begins = np.maximum(starts[operation], samples.starts_ns[sample])
    stops = np.minimum(ends[operation], samples.ends_ns[sample])
    scaled = (stops - begins) * np.broadcast_to(scales, len(starts))[operation]
    durations = np.bincount(sample * size + column, scaled, count * size)
    durations = durations.reshape(count, size)
    edges, running = _running(starts, ends)
    busy_before = _integral(edges, running > 0)
    alone_before = _integral(edges, running == 1)
    durations[:, 0] = (samples.ends_ns - samples.starts_ns) - (
        busy_before(samples.ends_ns) - busy_before(samples.starts_ns)
    )
    alone = np.bincount(column, alone_before(stops) - alone_before(begins), size)
    return durations.astype(np.float64), alone.astype(np.float64)


def _running(starts: Int64s, ends: Int64s) -> tuple[Int64s, Int64s]:
    """Moments in order, and how many operations run from each on."""
    edges = np.concatenate((starts, ends))
    steps = np.concatenate((np.ones(len(starts), np.int64), np.full(len(ends), -1)))
    order = np.argsort(edges, kind="stable")
    return edges[order], np.cumsum(steps[order])


def _integral(edges: Int64s, counts: npt.NDArray[np.bool_]) -> Callable[[Int64s], Floats]:
    """A function: how much of the time before a moment counts."""
    lengths = np.diff(edges, append=edges[-1:]) * counts
    before = np.concatenate(([0], np.cumsum(lengths)))

    def until(moments: Int64s) -> Floats:
        if not len(edges):
            return np.zeros(len(moments))
        place = np.maximum(np.searchsorted(edges, moments, side="right") - 1, 0)
        inside = np.clip(moments - edges[place], 0, None) * counts[place]
        covered: Floats = (before[place] + inside).astype(np.float64)
        return covered

    return until


_MOST_PASSES = 40


def solve_nonnegative(products: Floats, sums: Floats) -> Floats:
    """Least squares without negative rates, by the normal equations (Lawson and Hanson, 1974).
    Where a short kernel always follows a long one, samples hardly tell them apart, and bytes below
    0 of the one were 3 to 6 % too many of the other (a decode on an H200)."""
    rates = solve(products, sums)
    for column in np.flatnonzero((rates < 0).any(0)).tolist():
        free = np.ones(len(products), np.bool_)
        solution = rates[:, column]
        for _ in range(_MOST_PASSES):
            below = free & (solution < 0)
            if below.any():
                free &= ~below
            else:
                # What would explain more if it were let free again.
                gain = np.where(free, 0.0, sums[:, column] - products @ solution)
                gain /= np.sqrt(np.maximum(np.diagonal(products), 1e-300))
                best = int(gain.argmax())
                if gain[best] <= 1e-9 * np.abs(sums[:, column]).max():
                    break
                free[best] = True
            solution = np.zeros(len(products))
            if free.any():
                only = np.ix_(free, free)
                solution[free] = solve(products[only], sums[free, column : column + 1])[:, 0]
        rates[:, column] = np.maximum(solution, 0.0)
    return rates


def solve(products: Floats, sums: Floats) -> Floats:
    """Least squares of the normal equations; columns that never differ share what they explain."""
    ridge = _RIDGE * np.trace(products) / max(1, len(products))
    # Columns differ in size by orders of magnitude: on one scale the ridge is small for all.
    scale = 1 / np.sqrt(np.maximum(np.diagonal(products), ridge))
    scaled = products * scale[:, None] * scale
    scaled[np.diag_indices_from(scaled)] += _RIDGE
    solved: Floats = np.linalg.solve(scaled, sums * scale[:, None]) * scale[:, None]
    return solved


# --- How far the samples' clock is from the operations': where both fit best.
#
# Both are CLOCK_REALTIME, each as its own process's CUPTI converts the GPU's clock to it. Rates of
# kernels of 20 µs are 6 % wrong where the two are 5 µs apart (simulated), so that it is measured:
# the offset with which operations explain the samples with the smallest residual.

REACHES_NS = (200_000, 3_000_000)
"""How far apart they are looked for: first near each other, and where nothing fits well, further.
Beyond that it is not the same clock."""

STEP_NS = 10_000
"""From one offset that is tried to the next, before the best are refined: kernels of this length
have a minimum of their own. Twice as much further away."""

FEWEST_SAMPLES = 300
MOST_SAMPLES = 1500
# For the search, which solves them up to 340 times.
_FEW_SAMPLES = 250

# Of the best offsets that were tried.
_REFINED = 3

MOST_KINDS = 24
"""Kinds of operations distinguished, those with most time; all others count as one."""

WELL_EXPLAINED = 0.9
LEAST_EXPLAINED = 0.5
"""Share of the samples' variance that operations explain at the best offset: from the one on it is
not looked for further away, below the other it says nothing."""

LIKELY_BETTER, SURELY_BETTER = 2.0, 4.0
"""Standard errors by which an offset must leave less of blocks of samples unexplained, in the mean
of ratios, than the one so far: less than a step from that, and further. A program that repeats
itself, or hardly runs yet, fits nearly as well with others: on H200s, whose clocks were 1 µs apart,
the best of programs' first two seconds were 9, 21, 51 and 170 µs off, and bytes by kernel up to
54 % wrong with 21."""

_FINEST_NS = 250
# Of a golden-section search, to a quarter of a microsecond.
_GOLDEN = (5**0.5 - 1) / 2


class ClockFit(NamedTuple):
    """What to add to samples' times, in ns, and how much of their variance is explained then."""

    offset_ns: int
    explained: float


def fit_clock(
    samples: CounterSamples, operations: Operations, near_ns: int | None = None
) -> ClockFit | None:
    """The offset that fits best; None where there is too little to tell, or nothing fits. With
    `near_ns`, one near an earlier fit. One that is not surely better than that, or 0, is not taken.
    """
    if len(samples.starts_ns) < FEWEST_SAMPLES or not len(operations.starts_ns):
        return None
    samples = samples.pick(slice(-MOST_SAMPLES, None))
    varying = samples.amounts.std(0) > 0
    if not varying.any():
        return None
    amounts = samples.amounts[:, varying]
    samples = samples._replace(amounts=amounts / amounts.std(0))
    few = samples.pick(slice(-_FEW_SAMPLES, None))
    best: ClockFit | None = None
    for reach_ns in REACHES_NS[: 1 if near_ns is not None else None]:
        step_ns = STEP_NS if reach_ns == REACHES_NS[0] else 2 * STEP_NS
        offsets = (near_ns or 0) + np.arange(-reach_ns, reach_ns + 1, step_ns)
        quick = _Residuals(few, operations, reach_ns + abs(near_ns or 0))
        left = np.array([quick.residual(offset) for offset in offsets.tolist()])
        exact = _Residuals(samples, operations, reach_ns + abs(near_ns or 0))
        for place in _minima(left)[:_REFINED]:
            middle = int(offsets[place])
            offset_ns, residual = _refined(exact.residual, middle - step_ns, middle + step_ns)
            if best is None or 1.0 - residual > best.explained:
                best = ClockFit(round(offset_ns), 1.0 - residual)
        if best is not None and best.explained >= WELL_EXPLAINED:
            break
    if best is None or best.explained < LEAST_EXPLAINED:
        return None
    so_far_ns = near_ns or 0
    beside_ns, _ = _refined(exact.residual, so_far_ns - STEP_NS, so_far_ns + STEP_NS)
    so_far = exact.by_block(so_far_ns)
    for offset_ns, errors in ((best.offset_ns, SURELY_BETTER), (round(beside_ns), LIKELY_BETTER)):
        better = np.log(so_far / exact.by_block(offset_ns))
        if better.mean() > errors * better.std(ddof=1) / math.sqrt(len(better)):
            return ClockFit(offset_ns, 1.0 - exact.residual(offset_ns))
    return ClockFit(so_far_ns, 1.0 - exact.residual(so_far_ns))


class _Residuals:
    """What operations leave unexplained of samples, as a share of their variance, by the offset."""

    def __init__(self, samples: CounterSamples, operations: Operations, reach_ns: int) -> None:
        self._samples = samples
        first, last = int(samples.starts_ns[0]) - reach_ns, int(samples.ends_ns[-1]) + reach_ns
        self._operations = operations.during(first, last).in_order()
        self._columns, self._size = _kinds(self._operations)

    def residual(self, offset_ns: float) -> float:
        """The share with samples moved by so much."""
        return float(self._squares(offset_ns).mean())

    def by_block(self, offset_ns: int) -> Floats:
        """The same of each block of samples, of about as many."""
        blocks = np.array_split(self._squares(offset_ns).mean(1), BLOCKS)
        return np.array([max(float(block.mean()), 1e-12) for block in blocks])

    def _squares(self, offset_ns: float) -> Floats:
        """What is left of each sample and counter, squared."""
        samples, operations = self._samples.moved(int(offset_ns)), self._operations
        rows = (operations.ends_ns > samples.starts_ns[0]) & (
            operations.starts_ns < samples.ends_ns[-1]
        )
        ran, _ = overlaps(
            samples,
            operations.starts_ns[rows],
            operations.ends_ns[rows],
            self._columns[rows],
            self._size,
        )
        # What runs takes no activity away, and where nothing does there is none: else the gap after
        # a kernel explains that it is less busy towards its end, with another offset.
        ran = ran[:, 1:][:, ran[:, 1:].any(0)]
        rates = solve_nonnegative(ran.T @ ran, ran.T @ samples.amounts)
        squares: Floats = (samples.amounts - ran @ rates) ** 2
        return squares


def _minima(values: npt.NDArray[np.float64]) -> list[int]:
    """Places that are lower than their neighbours, the lowest first."""
    padded = np.pad(values, 1, constant_values=np.inf)
    lowest = np.flatnonzero((values <= padded[:-2]) & (values <= padded[2:]))
    order: list[int] = lowest[np.argsort(values[lowest], kind="stable")].tolist()
    return order


def _kinds(operations: Operations) -> tuple[Int64s, int]:
    """A column for each of the kinds with the most time, 1 for the others; and how many."""
    keys, rows = np.unique(operations.keys, return_inverse=True)
    time = np.bincount(rows, operations.ends_ns - operations.starts_ns)
    column = np.ones(len(keys), np.int64)
    largest = np.argsort(-time)[:MOST_KINDS]
    column[largest] = np.arange(2, 2 + len(largest))
    return column[rows], 2 + len(largest)


def _refined(residual: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """The smallest residual between two offsets, by golden section."""
    inner = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
    values = [residual(offset) for offset in inner]
    while high - low > _FINEST_NS:
        if values[0] < values[1]:
            high, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = high - _GOLDEN * (high - low)
            values[0] = residual(inner[0])
        else:
            low, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = low + _GOLDEN * (high - low)
            values[1] = residual(inner[1])
    return (low + high) / 2, min(values)
