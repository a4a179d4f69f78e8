"""Steps of a loop: which are usual, which are pauses, and blocks of steady ones; and by which of
the sites at which a program marks its steps they go.

For `device_steps`, which knows where they begin, and `program_steps`, which keeps the marks.
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
from gputui.model.events import Scope, StepBlock, StepSource
from gputui.model.leaves import Leaf
from gputui.model.steps import BELIEVED, FEW, HELD_NS, MOST_PARTS, PAUSE, PAUSE_NS, SLOW, parts_of

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


# --- Which of the sites at which a program marks its steps these go by: the site of a source, the
# loop whose turns are the steps, and what turns hold. Functions of the moments of marks, by site.

_NO_MOMENTS = np.empty(0, np.int64)


class Site(NamedTuple):
    """Where a program marks its steps: a thread, a source and the name of the site."""

    thread: int
    source: StepSource
    name: str


RANKS = {source: rank for rank, equals in enumerate(BELIEVED) for source in equals}
"""Of each source: those with lower ones are believed first."""

SETTLED_MARKS = 8
"""Marks after which it is clear what the steps go by."""

SPEAKS_FOR = 0.1
"""Share of a source's time that a site has at least: as often as it was marked, what usually passes
until the next mark of any. The optimizer of a generator that runs once in five has a sixth."""

JITTED_SHARE = 0.5
"""The same of a jitted function: in a program of single operators none is the step. Compiling takes
seconds between the first marks, hence what usually passes."""


def shares_of_time(moments: dict[Site, Int64s]) -> dict[Site, float]:
    """How much of the time lies after the marks of each site: as often as it was marked, what
    usually passes until the next mark of any."""
    every = np.sort(np.concatenate(list(moments.values())))
    gaps = np.diff(np.append(every, every[-1]))
    return {
        # The heaviest of the jitted functions that recur: JAX's set-up has some that recur, too.
        site: len(its) * float(np.median(gaps[np.searchsorted(every, its)]))
        for site, its in moments.items()
    }


def site_of_source(source: StepSource, moments: dict[Site, Int64s]) -> Site | None:
    """The site of a source by which the steps go, None where no one does: the least frequent of
    those that much of the time lies after, of progress bars the one that most lies after."""
    shares = shares_of_time(moments)
    whole = sum(shares.values()) or 1.0
    if source == "jax":  # what runs a few times before the loop says nothing
        shares = {
            site: share for site, share in shares.items() if len(moments[site]) >= SETTLED_MARKS
        }
        if not shares:
            return None
        whole = sum(shares.values()) or 1.0
    heaviest = max(shares, key=lambda site: shares[site])
    if source == "jax":
        return heaviest if shares[heaviest] >= JITTED_SHARE * whole else None
    if source in ("tqdm", "token"):
        return heaviest
    heavy = [site for site in moments if shares[site] >= SPEAKS_FOR * whole]
    # Of a dozen optimizers that take as long each none has a tenth.
    return min(heavy or [heaviest], key=lambda site: (len(moments[site]), site != heaviest))


SILENT_NS = 500_000_000
SILENT_STEPS = 100
"""A module, token, bar or function that is not marked for this long, and for as many steps, while
the program launches on, is not what its steps go by any more: it was captured in a CUDA graph,
which is replayed now. A training step comes back after an evaluation, however long that takes, once
there were SETTLED_MARKS."""

SILENT_WARM_UP = 10
"""The same of what was marked a few times only: 4 updates that warm up before an update is captured
were 14 to 48 ms apart, the replays that followed never marked (an H200)."""


def is_silent(source: StepSource, moments: Int64s, launched_ns: int) -> bool:
    """Whether a site is marked no more, while the program launches on at `launched_ns`."""
    usual_ns = float(np.median(np.diff(moments)))
    # Marks count only while the program makes them: a module that was captured in a graph stood for
    # steps.
    is_settled = len(moments) >= SETTLED_MARKS
    stays = source == "loop" or RANKS[source] < RANKS["token"]
    least_ns = HELD_NS if stays and is_settled else SILENT_NS
    steps = SILENT_STEPS if is_settled else SILENT_WARM_UP
    return launched_ns - int(moments[-1]) > max(least_ns, steps * usual_ns)


LOOP_NS = HELD_NS // 3
"""Longest usual turn of a loop that others lie in: of a longer one, an epoch, the inner ones are
steps. Three turns are seen before anything is decided."""

LOOP_TURNS = 3
AHEAD_TURNS = 64

OVER = 0.1
"""Part of a loop's time for which the next one has turned once it has taken over."""

OF_TIME = 0.02
"""Part of the time that its usual turns take: a list of 24 layers that is made once a request turns
24 times in a few µs."""

LOOP_ALIKE = 2.0
"""Turns of a loop that others lie in are steps where two of three are within this factor of the
usual one."""


def steps_loop(
    moments: dict[Site, Int64s], depths: dict[Site, int], chosen: Site | None
) -> Site | None:
    """The loop whose turns are the steps: the outermost one of those that go on and whose turns are
    alike and short enough, which it then stays; None where none is."""
    moments = {site: its for site, its in moments.items() if not _is_left(its, moments)}
    if not moments:
        return None
    deepest = max(depths[site] for site in moments)
    for depth in sorted({depths[site] for site in moments}):
        sites = [site for site in moments if depths[site] == depth]
        going_on = [site for site in sites if not _is_over(site, sites, moments, depth)]
        if chosen in going_on:
            return chosen
        site = max(going_on, key=lambda site: int(moments[site][-1] - moments[site][0]))
        if depth == deepest or _are_steps(moments[site]):
            return site
    return None


def _is_over(site: Site, sites: list[Site], moments: dict[Site, Int64s], depth: int) -> bool:
    """Whether another loop of those as deep has taken over, as the steps do after a warm-up: at the
    program's top once it turned a few times, inside of another loop, where an evaluation comes and
    goes, once it took as long as this one."""
    its = moments[site]
    newest = max(sites, key=lambda site: int(moments[site][-1]))
    after = moments[newest][moments[newest] > its[-1]]
    taken_ns = after[-1] - its[-1] if len(after) else 0
    if not depth:  # a few turns of something at the program's end take next to nothing
        return len(after) >= LOOP_TURNS and bool(taken_ns >= OVER * (its[-1] - its[0]))
    return bool(taken_ns > its[-1] - its[0])


def _is_left(moments: Int64s, others: dict[Site, Int64s]) -> bool:
    """Whether a loop turns no more, whatever the depths are said to be: another one goes on for
    longer than this one ever turned and than a hundred of its turns take, which would lie in one
    of them. A loop of 40 launches that was called twice before the one that calls it in each turn
    was the step to the end (CuPy)."""
    last_ns = int(moments[-1])
    least_ns = max(int(last_ns - moments[0]), SILENT_STEPS * float(np.median(np.diff(moments))))
    return any(
        its[-1] - last_ns > least_ns and np.count_nonzero(its > last_ns) >= LOOP_TURNS
        for its in others.values()
    )


def _are_steps(moments: Int64s) -> bool:
    lengths = np.diff(moments)
    # The first ones fill the queue of launches, which takes next to nothing.
    lengths = lengths[min(AHEAD_TURNS, len(lengths) // 4) :]
    if len(lengths) < LOOP_TURNS - 1:
        return False
    usual_ns = float(np.median(lengths))
    alike = (lengths <= LOOP_ALIKE * usual_ns) & (lengths >= usual_ns / LOOP_ALIKE)
    if lengths[alike].sum() < OF_TIME * lengths.sum():
        return False
    return usual_ns <= LOOP_NS and bool(alike.mean() >= 2 / 3)


FILLED = 0.95
"""Part of a loop's turn that the turns of a loop inside have, from which these are the steps: the
batches of an epoch, and not the updates after a short rollout (0.90 to 0.93)."""

FILLING_TURNS = 0.5
"""Part of the turns that are several of the loop inside, of an epoch: a learner that updates itself
50 times in one of 50 turns has steps without any."""


def marks_per_turn(turns: Int64s, inner: Int64s, least: int) -> int:
    """How many marks of something else the turns of a loop hold, where each has as many; 0 where
    not, and of fewer turns."""
    counts = np.diff(np.searchsorted(inner, turns))
    if len(counts) < least:
        return 0
    usual = int(np.median(counts))
    return usual if (counts == usual).mean() >= 0.9 else 0


def calls_per_turn(moments: dict[Site, Int64s], turns: Int64s) -> float:
    """How often a turn of a loop calls the outermost module that is called most; 0 without one."""
    modules = (its for site, its in moments.items() if site.source == "module")
    calls = np.searchsorted(max(modules, key=len, default=_NO_MOMENTS), turns)
    return float(np.median(np.diff(calls)))


def fills_turns(its: Int64s, turns: Int64s) -> bool:
    """Whether the turns of a loop inside another one are nearly all that this one does."""
    rows = np.searchsorted(its, turns)
    counts = np.diff(rows)
    several = counts > 1
    if several.mean() < FILLING_TURNS:
        return False
    first, last = rows[:-1][several], rows[1:][several] - 1
    # A turn's mark is its end: the first one of each begins before.
    held = (its[last] - its[first]) * counts[several] / (counts[several] - 1)
    return bool(np.median(held / np.diff(turns)[several]) >= FILLED)


EPOCH = 64
"""Calls of a jitted function, or of a model that is not trained, from which a turn of a loop is an
epoch or a text where another loop makes one a turn: of layers that are called one by one, and of
what a sampler denoises, there are fewer."""


def token_loop(
    loop: Site, moments: dict[Site, Int64s], depths: dict[Site, int], called: list[Int64s]
) -> Site | None:
    """The loop over the tokens of a text inside another one, where each calls several layers of a
    model that is itself not called; None where there is none."""
    for site, depth in depths.items():
        if (
            depth == depths[loop] + 1
            and marks_per_turn(moments[loop], moments[site], LOOP_TURNS) > EPOCH
            and any(marks_per_turn(moments[site], calls, SETTLED_MARKS) > 1 for calls in called)
        ):
            return site
    return None


def is_as_good(chosen: Site, other: Site, moments: dict[Site, Int64s]) -> bool:
    """Whether another site marks the same steps, so that there is no reason to change."""
    counts = len(moments[chosen]), len(moments[other])
    if chosen.source == "loop" != other.source:
        return marks_per_turn(moments[chosen], moments[other], SETTLED_MARKS) == 1
    return (
        chosen.source == other.source != "loop"
        and abs(counts[0] - counts[1]) <= 0.1 * max(counts) + 1
    )
