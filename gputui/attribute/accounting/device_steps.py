"""One device's steps: time by leaf is divided among them, and summed up by what they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.device import LEAVES, WAITED, DeviceTime
from gputui.attribute.accounting.lanes import Lanes
from gputui.attribute.accounting.operations import Columns
from gputui.attribute.accounting.steps import (
    Classified,
    LoopBlocks,
    Step,
    Steps,
    StepScopes,
    in_a_pause,
    longest_parts,
)
from gputui.attribute.accounting.thread_readings import Inside
from gputui.attribute.arrays import Bools, Int64s, distinct
from gputui.attribute.distributions import grouped, in_buckets
from gputui.model.events import (
    OUTSIDE_STEPS,
    Distribution,
    LeafTime,
    LineLaunches,
    LineSamples,
    LoopDelta,
    Scope,
    StepBlock,
    StepLanes,
    Stretch,
)
from gputui.model.sketch import FINE
from gputui.model.step_kinds import HELD_NS

Part = LeafTime | LineSamples | LoopDelta | StepBlock

HELD_INTERVALS = 1 << 18
"""How much of the time axis waits for steps to be found in it, for HELD_NS at most."""

NEWEST_STEPS = 16
"""Lengths of the newest steps that a delta carries one by one."""

WHOLE_PARTS = 2
"""Parts in which the longest steps of a delta without blocks are known."""

EXACT_LENGTHS = 16
"""A delta with more different lengths puts them into buckets: a third of what it writes else."""


class DeviceSteps:
    """One device: its time axis, the part of it that waits for steps, its steps."""

    def __init__(self, process: int, device: int, time: DeviceTime) -> None:
        self._process = process
        self._device = device
        self.time = time
        self._boundaries = np.empty(0, np.int64)
        self._open_ns: int | None = None
        self._scopes = StepScopes()
        self._blocks = LoopBlocks(device)
        self._restarts_ns: int | None = None
        self.lanes = Lanes(process, device)
        self._inside: dict[tuple[int, int, int], Inside] = {}
        self.until_ns: int | None = None
        """Up to where it is known what other processes ran on the device."""
        self.micro_batches: int | None = None
        """Of a training step, if it has several."""

    def add(self, operations: Columns) -> None:
        """Operations, in any order."""
        self.time.add(operations)

    def mark(self, boundaries: Sequence[int] | Int64s, renewed: bool) -> None:
        """Moments at which steps begin; `renewed` ones stand for those known from there on."""
        if not len(boundaries):
            return
        known, new = self._boundaries, np.asarray(boundaries, np.int64)
        if renewed:
            self._restarts_ns = int(new[0])
            known = known[known < new[0]]
        if self._open_ns is not None:
            new = new[new > self._open_ns]
        self._boundaries = distinct(np.concatenate((known, new)))

    def collect(self, until_ns: int | None, may_wait: bool) -> list[Part]:
        """What is known up to `until_ns`; steps may wait for a better idea of what a step is."""
        if until_ns is not None and self.until_ns is not None:
            self.time.account(min(until_ns, self.until_ns))
        else:
            self.time.account(until_ns)
        ended = until_ns is None
        deltas: list[Part] = []
        if ended or not may_wait or self._held() > 1:
            deltas += self._take_steps()
        if ended or self._held() > 1:
            deltas += self._give_up(ended)
        if ended:
            deltas += self._sum_up(self._scopes.end())
        return deltas

    def take_line_launches(self) -> list[LineLaunches]:
        """GPU time by the line that launched it, since the last call."""
        found = [
            LineLaunches(self._device, line, readings, gpu_ns)
            for line, (readings, gpu_ns) in sorted(self.time.samples.line_launches.items())
        ]
        self.time.samples.line_launches.clear()
        return found

    def take_stretch(self) -> Stretch | None:
        """How far kernels were stretched since the last call; None if none were compared."""
        samples = self.time.samples
        if not samples.compared_ns:
            return None
        found = Stretch(self._process, self._device, samples.compared_ns, samples.stretched_ns)
        samples.compared_ns = samples.stretched_ns = 0
        return found

    def take_lanes(self, time_ns: int) -> list[StepLanes]:
        """The steps that were kept in parts since the last call."""
        return self.lanes.take(time_ns)

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
        rows = self.lanes.take_steps(self.time, self._open_ns, moments)
        counts = self.time.take_starts(moments)
        began_ns, self._open_ns = self._open_ns, int(moments[-1])
        deltas: list[Part] = []
        if began_ns is None:
            # Up to the first boundary: loading, set-up, whatever came before the loop.
            if rows[0].any():
                deltas += self._without_steps(Scope.SETUP, rows[0], int(counts[0]))
            began_ns, moments, rows, counts = int(moments[0]), moments[1:], rows[1:], counts[1:]
        if not len(moments):
            return deltas
        begins = np.concatenate(([began_ns], moments[:-1]))
        steps = Steps(begins, moments, counts, rows)
        holed = self.time.holes.touch(begins, moments)
        if holed.any():
            # A step of which a part is not known is none.
            steps = Steps(*(column[~holed] for column in steps))
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
        known: list[Classified] = []
        if self._restarts_ns is not None:
            # What repeated before is another loop than what does from here on.
            before = [step for step in one_by_one if step.start_ns < self._restarts_ns]
            known += self._scopes.add(before)
            if len(before) < len(one_by_one):
                known += self._scopes.restart()
                self._restarts_ns = None
            one_by_one = one_by_one[len(before) :]
        return deltas + self._sum_up(known + self._scopes.add(one_by_one))

    def _give_up(self, ended: bool) -> list[Part]:
        """What is held has no steps, but for a last one that ended with the program."""
        if not len(self.time.tracks):
            return []
        began_ns, end_ns, self._open_ns = self._open_ns, self.time.accounted_ns, None
        count = int(self.time.take_starts(np.array([end_ns], np.int64))[0])
        times = self.time.tracks.take_all()
        if began_ns is None:
            return self._without_steps(Scope.UNSTEPPED, times, count)
        holed = self.time.holes.touch(np.array([began_ns]), np.array([end_ns])).any()
        if ended and self._scopes.is_whole(count) and not holed:
            return self._sum_up(self._scopes.add([Step(began_ns, end_ns, count, times)]))
        return self._without_steps(Scope.TAIL, times, count)

    def _sum_up(self, known: list[Classified]) -> list[Part]:
        deltas: list[Part] = []
        groups: dict[tuple[int, Scope], list[Classified]] = {}
        for entry in known:
            groups.setdefault((entry.loop, entry.scope), []).append(entry)
        for (loop, scope), entries in groups.items():
            slow = np.array([entry.slow for entry in entries])
            steps = Steps.of([entry.step for entry in entries])
            pauses = groups.get((loop, Scope.PAUSE), ()) if scope is Scope.STEADY else ()
            deltas += self._sum(scope, loop, steps, slow, [entry.step for entry in pauses])
        if known:
            self.time.blame.forget_lines(max(entry.step.end_ns for entry in known))
        return deltas

    def _sum(
        self, scope: Scope, loop: int, steps: Steps, slow: Bools, pauses: Sequence[Step] = ()
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
            )
        )
        return deltas

    def _lines_of(self, starts: Int64s, ends: Int64s, loop: int) -> list[Part]:
        """At which lines the program was while the device idled in these intervals."""
        hits = self.time.blame.line_hits
        if not hits:
            return []
        moments = np.array([hit.time_ns for hit in hits])
        at = np.searchsorted(starts, moments, side="right") - 1
        within = (at >= 0) & (moments < ends[at])
        counts = Counter[tuple[int, int]]()
        for hit in (hits[row] for row in np.flatnonzero(within).tolist()):
            place = hit.line, hit.leaf
            counts[place] += 1
            self._inside.setdefault((loop, *place), Inside()).add(hit.inside)
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
            for (line, leaf), count in sorted(counts.items())
        ]

    def _without_steps(
        self, scope: Scope, leaves: npt.NDArray[np.int64], operations: int
    ) -> list[Part]:
        end_ns = self.time.accounted_ns
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
    """Of one value, or more."""
    if len(distinct(lengths)) > EXACT_LENGTHS and lengths.min() >= FINE.exact_below:
        return in_buckets(lengths)
    [(_, found)] = grouped(np.zeros(len(lengths), np.int64), lengths, EXACT_LENGTHS)
    return found
