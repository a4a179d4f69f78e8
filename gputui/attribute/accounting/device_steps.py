"""One device's time divided into steps: the sums of its steps, and the newest ones kept in parts.

For `account`, which says where steps begin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from gputui.attribute.accounting.device import LEAVES, WAITED, DeviceTime
from gputui.attribute.accounting.operations import Columns
from gputui.attribute.accounting.step_rows import bounds_of
from gputui.attribute.accounting.steps import (
    EVALUATION,
    Classified,
    LoopBlocks,
    Step,
    StepColumns,
    StepScopes,
    in_a_pause,
    longest_parts,
)
from gputui.attribute.accounting.thread_readings import InsideFunctions
from gputui.attribute.arrays import Bools, Int64s, distinct, median
from gputui.attribute.distributions import grouped, in_buckets
from gputui.model.events import (
    OUTSIDE_STEPS,
    Distribution,
    IdleLane,
    LeafTime,
    LineLaunches,
    LineSamples,
    LoopDelta,
    Scope,
    StepBlock,
    StepLanes,
    StepSource,
    Stretch,
)
from gputui.model.events.distributions import FINE
from gputui.model.leaves import LEAVES as LEAF_MEANINGS
from gputui.model.leaves import Leaf
from gputui.model.steps import HELD_NS

# --- Steps of a device in parts, for the timeline: how busy each was, and why it idled.

LANE_PARTS = 96
"""Parts of a step that is kept for the timeline."""

LEAST_PART_NS = 200
"""Shorter parts say nothing: a step below 19 µs is not kept."""

STANDS_OUT = 1.5
"""Length over the median of its delta from which the longest step is kept beside a usual one."""

_IS_BUSY = np.zeros(LEAVES, np.bool_)
_IS_BUSY[[leaf for leaf, meaning in LEAF_MEANINGS.items() if not meaning.is_idle]] = True


class Lanes:
    """Steps of one device in; in parts a usual one out, and the longest if it stands out."""

    def __init__(self, process: int, device: int) -> None:
        self._process = process
        self._device = device
        self._kept: list[StepLanes] = []

    def take_steps(
        self,
        time: DeviceTime,
        open_ns: int | None,
        moments: Int64s,
        gaps: Int64s,
        operations: Int64s,
    ) -> npt.NDArray[np.int64]:
        """Time by leaf up to each moment, taken from the device's; of the steps that end at the
        moments, the first of which began at `open_ns`, some are kept in parts on the way: none
        that begins at one of `gaps`, which is none. `operations` began up to each moment."""
        drawn = _drawn(open_ns, moments, gaps, operations) if len(time.tracks) else []
        if not drawn:
            return time.tracks.take_up_to(moments)
        # The parts are cut with the steps: what ends a step ends its last part.
        every = np.sort(np.concatenate((moments, *(_part_bounds(*step)[:-1] for step in drawn))))
        rows = time.tracks.take_up_to(every)
        self._kept = []
        for start_ns, end_ns in drawn:
            last = int(np.searchsorted(every, end_ns))
            self._kept.append(
                self._in_parts(time, start_ns, end_ns, rows[last + 1 - LANE_PARTS : last + 1])
            )
        ends = np.searchsorted(every, moments)
        return np.add.reduceat(rows, np.concatenate(([0], ends[:-1] + 1)))

    def take_kept(self, time_ns: int) -> list[StepLanes]:
        """The steps that were kept since the last call, the usual one last."""
        kept, self._kept = self._kept, []
        return [replace(step, time_ns=time_ns) for step in kept]

    def _in_parts(
        self, time: DeviceTime, start_ns: int, end_ns: int, rows: npt.NDArray[np.int64]
    ) -> StepLanes:
        lengths = np.diff(_part_bounds(start_ns, end_ns))
        some = np.flatnonzero(rows[:, :LEAVES].any(axis=0))
        held = rows[:, some]
        shares = _thousandths(held, lengths[:, None])
        shares_by_leaf = dict(zip(some.tolist(), map(tuple, shares.T.tolist()), strict=True))
        busy = _thousandths(held[:, _IS_BUSY[some]].sum(axis=1), lengths)
        idle = [part for part in shares_by_leaf.items() if not _IS_BUSY[part[0]] and any(part[1])]
        alone = shares_by_leaf.get(Leaf.COMMUNICATION, ())
        threads, streams = time.rows(bounds_of(start_ns, end_ns))
        return StepLanes(
            time_ns=0,
            process=self._process,
            device=self._device,
            start_ns=start_ns,
            duration_ns=end_ns - start_ns,
            busy=tuple(busy.tolist()),
            idle=tuple(IdleLane(*part) for part in idle),
            threads=threads,
            streams=streams,
            alone=alone if any(alone) else (),
        )


def _drawn(
    open_ns: int | None, moments: Int64s, gaps: Int64s, operations: Int64s
) -> list[tuple[int, int]]:
    """The steps to keep in parts: one that is longer than usual, if there is one, then the newest
    of those nearest to the median; none if all are too short. One with few operations is no usual
    step: the only one that was kept had copies alone, for its kernels came too late (JAX)."""
    begins = moments[:-1] if open_ns is None else np.concatenate(([open_ns], moments[:-1]))
    lengths = moments[len(moments) - len(begins) :] - begins
    operations = operations[len(moments) - len(begins) :]
    if not len(lengths):
        return []
    is_step = operations >= EVALUATION * median(operations)
    if len(gaps):
        is_step &= ~np.isin(begins, gaps)
    begins, lengths = begins[is_step], lengths[is_step]
    if not len(lengths):
        return []
    middle = median(lengths)
    usual = len(lengths) - 1 - int(np.abs(lengths - middle)[::-1].argmin())
    longest = int(lengths.argmax())
    stands_out = longest != usual and lengths[longest] > STANDS_OUT * middle
    chosen = [longest, usual] if stands_out else [usual]
    return [
        (int(begins[row]), int(begins[row] + lengths[row]))
        for row in chosen
        if lengths[row] >= LEAST_PART_NS * LANE_PARTS
    ]


def _part_bounds(start_ns: int, end_ns: int) -> Int64s:
    """The bounds of its parts."""
    # A step may have any length in a damaged file: no product of it.
    each, rest = divmod(end_ns - start_ns, LANE_PARTS)
    numbers = np.arange(LANE_PARTS + 1, dtype=np.int64)
    bounds: Int64s = start_ns + each * numbers + rest * numbers // LANE_PARTS
    return bounds


def _thousandths(amounts: Int64s, lengths: Int64s) -> Int64s:
    # Thousandths: of a part busy and idle add up, and whole percents did not.
    shares: Int64s = np.rint(1000 * amounts / lengths).clip(0, 1000).astype(np.int64)
    return shares


# --- One device's steps: time by leaf is divided among them, and summed up by what they are.

Part = LeafTime | LineSamples | LoopDelta | StepBlock

HELD_INTERVALS = 1 << 18
"""How much of the time axis waits for steps to be found in it, for HELD_NS at most."""

STEPS_ARRIVE_NS = 3_000_000_000
"""How much of the waiting time axis may belong to steps whose ranges have not arrived: of 20 steps
after 30 s of compiling, 5 to 15 had none yet."""

# Chosen, not measured.
NEWEST_STEPS = 16
"""Lengths of the newest steps that a delta carries one by one."""

MOST_WAITING = 8
"""Steps kept in parts, the newest ones, that wait until warm-up is over."""

WHOLE_PARTS = 2
"""Parts in which the longest steps of a delta without blocks are known."""

EXACT_LENGTHS = 16
"""A delta with more different lengths writes them as buckets, which takes a third of the bytes."""


class DeviceSteps:
    """The steps of one device: its time axis, the part of that axis which waits for steps, and the
    sums by step."""

    def __init__(self, process: int, device: int, time: DeviceTime) -> None:
        self._process = process
        self._device = device
        self.time = time
        self._boundaries = np.empty(0, np.int64)
        self._open_ns: int | None = None
        # Moments among the boundaries at which a step ends, and no other begins.
        self._gaps = np.empty(0, np.int64)
        self._left_ns: tuple[int, int] | None = None
        self._scopes = StepScopes()
        self._blocks = LoopBlocks(device)
        self._restarts_ns: int | None = None
        self.lanes = Lanes(process, device)
        self._waiting_lanes: list[StepLanes] = []
        self._steady_loop = 0
        self._steady_ns: int | None = None
        """When the first steady step of the newest loop began."""
        self._inside: dict[tuple[int, int, int], InsideFunctions] = {}
        self.until_ns: int | None = None
        """The moment up to which it is known what other processes ran on the device."""
        self.micro_batches: int | None = None
        """How many micro-batches a training step has; None where it has one or is none."""
        self.source: StepSource | None = None
        """What marks the beginning of steps."""
        self.readings: int | None = None
        """In how many ways the repetition could be read as steps."""
        self.awaits_declared = False
        """Whether a range is declared to be the step: all before the first one is set-up."""

    def add(self, operations: Columns) -> None:
        """Add operations of this device, in any order."""
        self.time.add(operations)

    def forget_boundaries(self) -> None:
        """Drops the boundaries that were only supposed: from here on something else marks the
        steps."""
        self._boundaries = np.empty(0, np.int64)

    def mark(
        self, boundaries: Sequence[int] | Int64s, renewed: bool, another: bool = False
    ) -> None:
        """Adds times at which steps begin. If `renewed`, they replace the known ones from their
        first on. If they are of `another` loop, they replace those even if steps of the loop before
        were seen after it."""
        if not len(boundaries):
            return
        boundaries_before, new = self._boundaries, np.asarray(boundaries, np.int64)
        if renewed and (another or self._open_ns is not None or self._scopes.has_begun):
            self._restarts_ns = int(new[0])
            boundaries_before = boundaries_before[boundaries_before < new[0]]
        if self._open_ns is not None:
            new = new[new > self._open_ns]
        self._boundaries = distinct(np.concatenate((boundaries_before, new)))

    def mark_ends(self, moments: Int64s) -> None:
        """Moments at which steps end: what follows, up to the next one's beginning, is in none."""
        if self._open_ns is not None:
            moments = moments[moments > self._open_ns]
        self._gaps = distinct(np.concatenate((self._gaps, moments)))
        self._boundaries = distinct(np.concatenate((self._boundaries, moments)))

    def leave_loop(self, over_ns: int, next_ns: int) -> None:
        """The program left the loop: its last step ends then, or once its operations are over, of
        which none begins at `next_ns` or later."""
        self._left_ns = over_ns, next_ns

    def trust_steps(self) -> None:
        """The program declares its steps and has warmed up before: each of them counts."""
        self._scopes.trust()

    def collect(self, until_ns: int | None, may_wait: bool) -> list[Part]:
        """The deltas up to `until_ns`; with `may_wait`, steps stay until it is clear how they
        begin."""
        if until_ns is not None and self.until_ns is not None:
            self.time.account(min(until_ns, self.until_ns))
        else:
            self.time.account(until_ns)
        ended = until_ns is None
        self._scopes.are_marked = self.source not in (None, "repetition", "nvtx")
        if self._left_ns is not None and (ended or self._left_ns[1] <= self.time.accounted_ns):
            over_ns, next_ns = self._left_ns
            done_ns = self.time.tracks.busy_until(next_ns)
            self.mark_ends(np.array([max(over_ns, done_ns)]))
            self._left_ns = None
        deltas: list[Part] = []
        if ended or not may_wait or self._held() > 1:
            deltas += self._take_steps()
        if ended or len(self.time.tracks) > HELD_INTERVALS:
            deltas += self._give_up(self.time.accounted_ns, ended)
        elif self._held() > 1:
            deltas += self._give_up(self.time.accounted_ns - STEPS_ARRIVE_NS, ended)
        if ended:
            deltas += self._sum_up(self._scopes.end())
        return deltas

    def take_line_launches(self) -> list[LineLaunches]:
        """GPU time by the line that launched it, since the last call."""
        launches = [
            LineLaunches(self._device, line, readings, gpu_ns, kernel)
            for (line, kernel), (readings, gpu_ns) in sorted(
                self.time.samples.line_launches.items()
            )
        ]
        self.time.samples.line_launches.clear()
        return launches

    def take_stretch(self) -> Stretch | None:
        """How far kernels were stretched since the last call; None if none were compared."""
        samples = self.time.samples
        if not samples.compared_ns:
            return None
        stretch = Stretch(self._process, self._device, samples.compared_ns, samples.stretched_ns)
        samples.compared_ns = samples.stretched_ns = 0
        return stretch

    def take_lanes(self, time_ns: int) -> list[StepLanes]:
        """The steady steps that were kept in parts since the last call. While it is not known which
        steps are steady, they wait."""
        waiting = [*self._waiting_lanes, *self.lanes.take_kept(time_ns)]
        if self._scopes.are_open:
            self._waiting_lanes = waiting[-MOST_WAITING:]
            return []
        self._waiting_lanes = []
        since_ns = self._steady_ns
        return [lanes for lanes in waiting if since_ns is None or lanes.start_ns >= since_ns]

    @property
    def holds_much(self) -> bool:
        """Whether half of what may wait for steps waits."""
        return self._held() > 0.5

    def _held(self) -> float:
        """How much waits for steps, of what may."""
        first_ns = self.time.tracks.first_ns
        held_ns = 0 if first_ns is None else self.time.accounted_ns - first_ns
        return max(len(self.time.tracks) / HELD_INTERVALS, held_ns / HELD_NS)

    def _take_steps(self) -> list[Part]:
        passed = int(np.searchsorted(self._boundaries, self.time.accounted_ns, side="right"))
        if not passed or not len(self.time.tracks):
            return []
        moments, self._boundaries = self._boundaries[:passed], self._boundaries[passed:]
        if self._open_ns is None:
            # What begins before everything that is accounted for is no step.
            first = int(np.searchsorted(moments, self.time.tracks.first_ns or 0))
            moments = moments[min(first, passed - 1) :]
        counts = self.time.take_starts(moments)
        rows = self.lanes.take_steps(self.time, self._open_ns, moments, self._gaps, counts)
        began_ns, self._open_ns = self._open_ns, int(moments[-1])
        deltas: list[Part] = []
        if began_ns is None:
            # Up to the first boundary: loading, set-up, whatever came before the loop.
            if rows[0].any():
                deltas += self._without_steps(
                    Scope.SETUP, rows[0], int(counts[0]), self.time.accounted_ns
                )
            began_ns, moments, rows, counts = int(moments[0]), moments[1:], rows[1:], counts[1:]
        if not len(moments):
            return deltas
        begins = np.concatenate(([began_ns], moments[:-1]))
        steps = StepColumns(begins, moments, counts, rows)
        is_gap = np.isin(begins, self._gaps)
        self._gaps = self._gaps[self._gaps >= self._open_ns]
        if is_gap.any():
            deltas += self._between(StepColumns(*(column[is_gap] for column in steps)))
            steps = StepColumns(*(column[~is_gap] for column in steps))
            if not len(steps.starts):
                return deltas
            counts = steps.operations
        holed = self.time.holes.touch(steps.starts, steps.ends)
        if holed.any():
            # A step of which a part is not known is none.
            steps = StepColumns(*(column[~holed] for column in steps))
            if not len(steps.starts):
                return deltas
            counts = steps.operations
        slow = None
        if self._restarts_ns is None:
            slow = self._scopes.add_even(steps.lengths, counts)
        if slow is not None:
            deltas += self._sum(Scope.STEADY, self._scopes.loop, steps, slow)
            self.time.blame.forget_lines(int(steps.ends[-1]))
            return deltas
        one_by_one = steps.each()
        classified: list[Classified] = []
        if self._restarts_ns is not None:
            # What repeated before is another loop than what does from here on.
            before = [step for step in one_by_one if step.start_ns < self._restarts_ns]
            classified += self._scopes.add(before)
            if len(before) < len(one_by_one):
                classified += self._scopes.restart()
                self._restarts_ns = None
            one_by_one = one_by_one[len(before) :]
        return deltas + self._sum_up(classified + self._scopes.add(one_by_one))

    def _give_up(self, end_ns: int, ended: bool) -> list[Part]:
        """Sum up what waited for steps up to `end_ns` outside of any, except a last step that ended
        with the program."""
        if not len(self.time.tracks):
            return []
        began_ns, self._open_ns = self._open_ns, None
        moments = np.array([end_ns], np.int64)
        count = int(self.time.take_starts(moments)[0])
        times = self.time.tracks.take_up_to(moments)[0]
        if began_ns is None:
            is_set_up = self.awaits_declared and not ended and not self._scopes.has_begun
            scope = Scope.SETUP if is_set_up else Scope.UNSTEPPED
            return self._without_steps(scope, times, count, end_ns)
        holed = self.time.holes.touch(np.array([began_ns]), np.array([end_ns])).any()
        if began_ns in self._gaps:
            return self._without_steps(Scope.TAIL, times, count, end_ns)
        if ended and self._scopes.is_whole(count) and not holed:
            return self._sum_up(self._scopes.add([Step(began_ns, end_ns, count, times)]))
        return self._without_steps(Scope.TAIL, times, count, end_ns)

    def _between(self, gaps: StepColumns) -> list[Part]:
        """What lies between the end of a step and the next one."""
        leaves = gaps.leaves.sum(axis=0)
        return [
            *self._leaves(Scope.UNSTEPPED, self._scopes.loop, leaves),
            *self._lines_of(gaps.starts, gaps.ends, OUTSIDE_STEPS),
            LoopDelta(
                self._process,
                self._device,
                Scope.UNSTEPPED,
                self._scopes.loop,
                0,
                int(gaps.operations.sum()),
                int(gaps.starts[0]),
                int(gaps.ends[-1]),
                waited_ns=int(leaves[WAITED]),
            ),
        ]

    def _sum_up(self, classified: list[Classified]) -> list[Part]:
        deltas: list[Part] = []
        steady = [entry for entry in classified if entry.scope is Scope.STEADY]
        # Steps in parts are kept where they are steady: the longest one shown was often warm-up.
        if steady and (self._steady_ns is None or steady[-1].loop != self._steady_loop):
            self._steady_loop = steady[-1].loop
            its = (entry.step.start_ns for entry in steady if entry.loop == self._steady_loop)
            self._steady_ns = min(its)
        groups: dict[tuple[int, Scope], list[Classified]] = {}
        for entry in classified:
            groups.setdefault((entry.loop, entry.scope), []).append(entry)
        for (loop, scope), entries in groups.items():
            slow = np.array([entry.slow for entry in entries])
            steps = StepColumns.from_steps([entry.step for entry in entries])
            pauses = groups.get((loop, Scope.PAUSE), ()) if scope is Scope.STEADY else ()
            deltas += self._sum(scope, loop, steps, slow, [entry.step for entry in pauses])
        if classified:
            self.time.blame.forget_lines(max(entry.step.end_ns for entry in classified))
        return deltas

    def _sum(
        self, scope: Scope, loop: int, steps: StepColumns, slow: Bools, pauses: Sequence[Step] = ()
    ) -> list[Part]:
        lengths = steps.lengths
        leaves = steps.leaves.sum(axis=0)
        if scope is Scope.PAUSE:
            leaves = in_a_pause(leaves)
        deltas = self._leaves(scope, loop, leaves)
        newest: list[int] = []
        longest: tuple[tuple[int, int], ...] = ()
        if scope in (Scope.STEADY, Scope.PAUSE):
            deltas += self._lines_of(steps.starts, steps.ends, loop)
        if scope is Scope.STEADY:
            blocks = self._blocks.divide(loop, steps, pauses)
            deltas += blocks
            # Where blocks say more, no newest steps are kept: 2 ms steps of own lengths took 502
            # bytes a second packed, and 129 since.
            newest = lengths[-NEWEST_STEPS if self._blocks.are_few else -1 :].tolist()
            if not blocks and len(newest) < len(lengths):
                longest = longest_parts(lengths.tolist(), WHOLE_PARTS)
        deltas.append(
            LoopDelta(
                self._process,
                self._device,
                scope,
                loop,
                len(lengths),
                int(steps.operations.sum()),
                int(steps.starts[0]),
                int(steps.ends[-1]),
                _spread(lengths),
                int(np.count_nonzero(slow)),
                int(lengths[slow].sum()),
                tuple(newest),
                int(leaves[WAITED]),
                longest,
                self.micro_batches if scope is Scope.STEADY else None,
                self.source,
                self.readings,
            )
        )
        return deltas

    def _lines_of(self, starts: Int64s, ends: Int64s, loop: int) -> list[Part]:
        """At which lines the program was while the device idled in these intervals."""
        hits = self.time.blame.line_hits
        if not hits:
            return []
        moments = np.array([hit.time_ns for hit in hits])
        steps = np.searchsorted(starts, moments, side="right") - 1
        within = (steps >= 0) & (moments < ends[steps])
        counts = Counter[tuple[int, int]]()
        for hit in (hits[row] for row in np.flatnonzero(within).tolist()):
            place = hit.line, hit.leaf
            counts[place] += 1
            self._inside.setdefault((loop, *place), InsideFunctions()).add(hit.inside)
        return [
            LineSamples(
                self._process,
                self._device,
                loop,
                line,
                count,
                leaf,
                *self._inside[loop, line, leaf].mostly(),
            )
            # By the leaf that a line's frames speak of: INPUT-BOUND named the forward pass, at
            # which 58 % of all samples were.
            for (line, leaf), count in sorted(counts.items())
        ]

    def _without_steps(
        self, scope: Scope, leaves: npt.NDArray[np.int64], operations: int, end_ns: int
    ) -> list[Part]:
        start_ns = max(0, end_ns - int(leaves[:LEAVES].sum()))
        loop = self._scopes.loop
        lines: list[Part] = []
        if scope is not Scope.SETUP:
            lines = self._lines_of(np.array([start_ns]), np.array([end_ns]), OUTSIDE_STEPS)
            self.time.blame.forget_lines(end_ns, start_ns)
        return [
            *self._leaves(scope, loop, leaves),
            *lines,
            LoopDelta(
                self._process,
                self._device,
                scope,
                loop,
                0,
                operations,
                start_ns,
                end_ns,
                waited_ns=int(leaves[WAITED]),
            ),
        ]

    def _leaves(self, scope: Scope, loop: int, sums: npt.NDArray[np.int64]) -> list[Part]:
        return [
            LeafTime(self._process, self._device, scope, loop, leaf, int(sums[leaf]))
            for leaf in np.flatnonzero(sums[:LEAVES]).tolist()
        ]


def _spread(lengths: Int64s) -> Distribution:
    """The distribution of at least one length; of many different ones, in buckets."""
    if len(distinct(lengths)) > EXACT_LENGTHS and lengths.min() >= FINE.exact_below:
        return in_buckets(lengths)
    [(_, distribution)] = grouped(np.zeros(len(lengths), np.int64), lengths, EXACT_LENGTHS)
    return distribution
