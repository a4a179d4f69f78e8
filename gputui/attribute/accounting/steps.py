"""Steps of a loop: which are usual, which are pauses, and blocks of steady ones.

For `device_steps`, which knows where they begin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gputui.attribute.accounting.device import FETCHING, LEAVES
from gputui.attribute.arrays import Bools, Int64s
from gputui.model.events import Scope, StepBlock
from gputui.model.leaves import Leaf
from gputui.model.steps import FEW, MOST_PARTS, PAUSE, PAUSE_NS, SLOW, parts_of

# --- Which steps are steady: set-up, warm-up, evaluation and pauses are no part of how a step
# goes.

# Chosen, not measured; five in a row keeps one lucky step of a warm-up from ending it.
SETTLED_STEPS = 5
SETTLED_WITHIN = 0.2
"""Warm-up ends with the first five steps in a row that lie within 20 % of the median of the last
twenty."""

EVALUATION = 0.7
"""A step with less than this share of the usual operations is no step: evaluation, a checkpoint."""

WITHOUT = 0.1
"""The same, of steps as long as usual, for operations that came too late: 1 of 333 in five of 63
steps (JAX)."""

WHOLE_WITHIN = 0.1
"""The last step ends with the program: it is one if it has this nearly the usual operations."""

MOST_EARLY = 10_000
# Chosen, not measured: few during warm-up, to follow it; more afterwards, to be steady.
_WARMUP_MEDIAN = 20
_TYPICAL_MEDIAN = 50


class Step(NamedTuple):
    """One step on one device: its place on the time axis, its operations, its time by leaf and
    by the tracks beside them (tracks)."""

    start_ns: int
    end_ns: int
    operations: int
    leaves: npt.NDArray[np.int64]

    @property
    def length_ns(self) -> int:
        """How long a step takes: from its start to the start of the next."""
        return self.end_ns - self.start_ns


class StepColumns(NamedTuple):
    """Many of them, in order: a column a fact."""

    starts: Int64s
    ends: Int64s
    operations: Int64s
    leaves: npt.NDArray[np.int64]

    @property
    def lengths(self) -> Int64s:
        """How long the steps take, each from its start to the start of the next."""
        return self.ends - self.starts

    @classmethod
    def from_steps(cls, steps: list[Step]) -> StepColumns:
        """Steps one by one as columns."""
        starts, ends, operations, leaves = zip(*steps, strict=True)
        return cls(np.array(starts), np.array(ends), np.array(operations), np.array(leaves))

    def each(self) -> list[Step]:
        """The steps one by one, in order."""
        columns = (self.starts.tolist(), self.ends.tolist(), self.operations.tolist(), self.leaves)
        return [Step(*row) for row in zip(*columns, strict=True)]


class Classified(NamedTuple):
    """A step: the scope and the loop to which it belongs, and whether it is slow."""

    step: Step
    scope: Scope
    loop: int
    slow: bool = False


class StepScopes:
    """Decides of the steps of one device, which come in order, what each is, and returns them as
    soon as that is known."""

    def __init__(self) -> None:
        self.loop = 0
        self.are_marked = False
        """Whether the program marks the steps: one that is as long as usual is a step then, also
        where operations are missing, as of a buffer that came too late."""
        self._early: list[Step] = []
        self._odd: list[Classified] = []
        self._settled = False
        self._is_trusted = False
        self._lengths: deque[int] = deque(maxlen=_TYPICAL_MEDIAN)
        self._operations: deque[int] = deque(maxlen=_TYPICAL_MEDIAN)
        self._typical_ns = 0.0
        self._usual_operations = 0.0
        self._learned = 0

    @property
    def has_begun(self) -> bool:
        """Whether there was a step in this loop or an earlier one."""
        return self._settled or bool(self._early) or self.loop > 0

    @property
    def are_open(self) -> bool:
        """Whether steps wait until it is clear which of them are warm-up."""
        return bool(self._early)

    def trust(self) -> None:
        """Takes the steps as they are declared: none is warm-up, evaluation for its few operations,
        or a pause for its length."""
        if not self._early:
            self._is_trusted = self._settled = True

    def restart(self) -> list[Classified]:
        """Something else repeats from here on."""
        classified = self.end()
        self._begin_loop()
        return classified

    def add(self, steps: list[Step]) -> list[Classified]:
        """Judge the steps that have ended; early ones wait until warm-up is over."""
        classified: list[Classified] = []
        for step in steps:
            if not self._settled:
                self._early.append(step)
                classified += self._settle()
                continue
            judged = self._classify(step)
            if self._is_trusted:
                classified.append(judged)
                continue
            if judged.scope is Scope.STEADY and step.length_ns > self._typical_ns / PAUSE:
                classified += [*self._odd, judged]
                self._odd = []
                continue
            # Five odd steps in a row that are like each other are the steps of another loop.
            self._odd.append(judged)
            newest = [odd.step for odd in self._odd[-SETTLED_STEPS:]]
            if (
                len(newest) == SETTLED_STEPS
                and _alike(newest, newest)
                and not self._are_without_operations(newest)
            ):
                classified += self._odd[:-SETTLED_STEPS]
                self._begin_loop()
                for again in newest:
                    self._early.append(again)
                    classified += self._settle()
        return classified

    def add_even(self, lengths: Int64s, operations: Int64s) -> Bools | None:
        """Many steps at once, where all of them are steady: which are slow. None where one is not
        plainly so: then they have to be added one by one."""
        if not self._settled or self._odd or not self._lengths:
            return None
        longest = max(PAUSE * self._typical_ns, PAUSE_NS)
        if (
            operations.min() < EVALUATION * self._usual_operations
            or lengths.min() <= self._typical_ns / PAUSE
            or lengths.max() > longest
        ):
            return None
        slow = np.zeros(len(lengths), np.bool_)
        for first in range(0, len(lengths), _TYPICAL_MEDIAN):
            part = slice(first, first + _TYPICAL_MEDIAN)
            slow[part] = lengths[part] > SLOW * self._typical_ns
            self._lengths.extend(lengths[part].tolist())
            self._operations.extend(operations[part].tolist())
            self._typical_ns = median(self._lengths)
            self._usual_operations = median(self._operations)
        return slow

    def is_whole(self, operations: int) -> bool:
        """Whether what came after the last boundary has the operations of a step."""
        usual = self._usual_operations
        if not self._settled:
            usual = median(step.operations for step in self._early) if self._early else 0
        return usual > 0 and abs(operations - usual) <= WHOLE_WITHIN * usual

    def end(self) -> list[Classified]:
        """Nothing more comes. Steps that never settled are what there is: the first is warm-up
        unless it is like the others."""
        first = 0 if not self._early or _alike(self._early[:1], self._early[1:]) else 1
        steady = self._early[first:]
        typical = median(step.length_ns for step in steady) if steady else 0.0
        classified = self._odd + [
            Classified(step, Scope.WARMUP, self.loop) for step in self._early[:first]
        ]
        classified += [
            Classified(step, Scope.STEADY, self.loop, step.length_ns > SLOW * typical)
            for step in steady
        ]
        self._early, self._odd = [], []
        return classified

    def _are_without_operations(self, steps: list[Step]) -> bool:
        """Whether steps are of this loop, and their operations came too late to be counted."""
        middle_ns = median(step.length_ns for step in steps)
        operations = median(step.operations for step in steps)
        is_as_long = abs(middle_ns - self._typical_ns) <= SETTLED_WITHIN * self._typical_ns
        return is_as_long and operations < WITHOUT * self._usual_operations

    def _begin_loop(self) -> None:
        self.loop += 1
        self._settled = False
        self._early, self._odd = [], []
        self._lengths.clear()
        self._operations.clear()

    def _settle(self) -> list[Classified]:
        early = self._early
        if len(early) <= SETTLED_STEPS:
            return []
        newest = early[-SETTLED_STEPS:]
        if not _alike(newest, early[-_WARMUP_MEDIAN:]):
            if len(early) > MOST_EARLY:
                return [Classified(early.pop(0), Scope.WARMUP, self.loop)]
            return []
        self._settled = True
        self._early = []
        typical = median(step.length_ns for step in early[-_WARMUP_MEDIAN:])
        # Uneven programs settle late although they were steady all along: what is alike is steady.
        first = len(early) - SETTLED_STEPS
        while first and abs(early[first - 1].length_ns - typical) <= 3 * SETTLED_WITHIN * typical:
            first -= 1
        for step in early[first:]:
            self._learn(step)
        return [
            Classified(step, Scope.WARMUP, self.loop)
            if number < first
            else Classified(step, Scope.STEADY, self.loop, step.length_ns > SLOW * typical)
            for number, step in enumerate(early)
        ]

    def _learn(self, step: Step) -> None:
        self._lengths.append(step.length_ns)
        self._operations.append(step.operations)
        self._learned += 1
        if self._learned % 8 == 0 or len(self._lengths) <= SETTLED_STEPS:
            self._typical_ns = median(self._lengths)
            self._usual_operations = median(self._operations)

    def _classify(self, step: Step) -> Classified:
        if self._is_trusted and not self._lengths:
            self._learn(step)
            return Classified(step, Scope.STEADY, self.loop)
        # Of steps that a program declares all count: five of ten measured ones were taken for warm-
        # up, and an answer's step was 68 ms where the workload's was 83.
        is_usual = abs(step.length_ns - self._typical_ns) <= SETTLED_WITHIN * self._typical_ns
        has_few = step.operations < EVALUATION * self._usual_operations
        if not self._is_trusted and has_few and not (self.are_marked and is_usual):
            return Classified(step, Scope.EVALUATION, self.loop)
        if not self._is_trusted and step.length_ns > max(PAUSE * self._typical_ns, PAUSE_NS):
            return Classified(step, Scope.PAUSE, self.loop)
        slow = step.length_ns > SLOW * self._typical_ns
        self._learn(step)
        return Classified(step, Scope.STEADY, self.loop, slow)


def _alike(steps: list[Step], among: list[Step]) -> bool:
    if not among:
        return False
    typical = median(step.length_ns for step in among)
    return all(abs(step.length_ns - typical) <= SETTLED_WITHIN * typical for step in steps)


# --- Steps that waited for a better idea of what a step is, and come all at once, in blocks.

BLOCK_STEPS = 4
BLOCK_NS = 250_000_000
"""Least of such a block."""

BLOCKS = 16
"""A loop has about as many at least (batch means, as state.series): a block takes at least
this part of its time so far."""

DIGITS = 4
"""Of a block's time, to which its leaves are rounded: all digits would be half of what is written
for it, and blocks differ by more."""


class LoopBlocks:
    """The blocks of the newest loop of a device."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._loop = -1
        self._ns = 0
        self._count = 0

    @property
    def are_few(self) -> bool:
        """Whether blocks are so few that the newest steps one by one say more than they do."""
        return self._count < FEW

    def divide(self, loop: int, steps: StepColumns, pauses: Sequence[Step]) -> list[StepBlock]:
        """Blocks of the steps and the pauses among them; none where they are few: else the steps
        of one delta are a block."""
        if loop != self._loop:
            self._loop, self._ns, self._count = loop, 0, 0
        whole_ns = int(steps.ends[-1] - steps.starts[0])
        self._ns += whole_ns
        least_ns = max(BLOCK_NS, self._ns // BLOCKS)
        count = min(len(steps.starts) // BLOCK_STEPS, whole_ns // least_ns)
        self._count += max(1, count)
        return _divided(self._device, loop, steps, pauses, count) if count > 1 else []


def _divided(
    device: int, loop: int, steps: StepColumns, pauses: Sequence[Step], count: int
) -> list[StepBlock]:
    whole = len(steps.starts)
    bounds = [whole * cut // count for cut in range(count + 1)]
    of_pauses = np.searchsorted(
        steps.starts[bounds[1:-1]], [pause.start_ns for pause in pauses], side="right"
    ).tolist()
    blocks = []
    for cut in range(count):
        part = slice(bounds[cut], bounds[cut + 1])
        lengths = steps.lengths[part].tolist()
        paused = [
            pause.leaves for pause, block in zip(pauses, of_pauses, strict=True) if block == cut
        ]
        blocks.append(
            StepBlock(
                device,
                loop,
                len(lengths),
                sum(lengths),
                _of_leaves(steps.leaves[part].sum(axis=0)),
                longest_parts(lengths, MOST_PARTS) or ((len(lengths), max(lengths)),),
                len(paused),
                _of_leaves(in_a_pause(np.sum(paused, axis=0))) if paused else (),
            )
        )
    return blocks


def in_a_pause(leaves: Int64s) -> Int64s:
    """The leaves of a pause. INPUT that is not known to be fetching becomes WAIT: the queue or
    socket that is read may be a server's, which has no requests."""
    moved = leaves.copy()
    moved[Leaf.INPUT] = min(leaves[Leaf.INPUT], leaves[FETCHING])
    moved[Leaf.WAIT] += leaves[Leaf.INPUT] - moved[Leaf.INPUT]
    return moved


def longest_parts(lengths: Sequence[int], most: int) -> tuple[tuple[int, int], ...]:
    """The parts of steps that are not alike; none of others: it would be ten times the bytes."""
    return parts_of(lengths, most) if max(lengths) >= SLOW * min(lengths) else ()


def _of_leaves(sums: Int64s) -> tuple[tuple[int, int], ...]:
    """The amounts, rounded so that they keep their exact sum: the largest takes the rest."""
    sums = sums[:LEAVES]
    total = int(sums.sum())
    unit = 10 ** max(0, len(str(total)) - DIGITS)
    rounded = (sums + unit // 2) // unit * unit
    # Rounded to what blocks of steps differ by, they take a quarter less of a recording; the
    # largest leaf has the rest, so that all add up.
    rounded[sums.argmax()] += total - rounded.sum()
    return tuple((leaf, int(rounded[leaf])) for leaf in np.flatnonzero(rounded).tolist())
