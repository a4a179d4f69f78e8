"""Where a run's time went: the leaves of every device in steady state, which add up to 100 %, and
the pauses of the main loop, which lie beside them.

A server that nobody asks sleeps in the pauses; a training loop saves, logs, starts the workers of
its next epoch or waits for a request that it made. Waiting for input counts as sleep there only
where no frame of the program says that it fetches input (`DeviceSteps`).
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple, TypeVar

from gputui.model.events import Scope, StepBlock
from gputui.model.events.distributions import Accumulator, Statistics
from gputui.model.leaves import Leaf, idle_sum, is_kernel, leaf_of_number
from gputui.model.steps import SLOW, SOURCES_FIRST
from gputui.model.units import duration, percent
from gputui.report.explain.leaves import (
    Counted,
    Moved,
    Part,
    is_marked,
    marked_steps,
    overlapping,
    scope_of,
    settle,
    settled_block,
    step_lengths,
    together,
)
from gputui.report.explain.rank_waits import (
    STEPS_ALIKE,
    Exposed,
    Matched,
    Place,
    beside_the_loop,
    matched,
    ranks_of,
)
from gputui.report.phases import WARM_UP
from gputui.report.statistics import FEWEST_BLOCKS, Mean, mean_of_blocks
from gputui.state import Run
from gputui.state.run import MarkedSteps

LAYER = 40
"""Operations up to which a step may be a layer: layers of transformers launch ten to forty."""

NEWEST_MARKED = 16
"""Lengths of the newest marked steps, as many as a loop's newest ones."""

MOSTLY = 0.5
"""Share of its time that a rank waits beside the steps of another and is then in none of them."""


class LoopSteps(NamedTuple):
    """The steps of one process on one device, and the operations in all of them."""

    steps: int
    operations: int
    mean_ns: float


@dataclass(frozen=True, slots=True)
class TimeTree:
    """Where the time of a run, or of a part of it (its scope), went: the time by leaf.

    `wall_ns` is the wall time of all devices together; every share is a share of it. Without steps
    the scope is all time since the first kernel. `beside_ns` is time outside the scope.

    `steps`, `operations` and `slow_steps` are sums over devices and processes, as `wall_ns` is.
    `program_steps` is what a user counts: a step that all ranks of a job take together is one.
    """

    wall_ns: int
    leaves: dict[Leaf, int]
    devices: int
    steps: int
    operations: int
    step_ns: Accumulator
    slow_steps: int
    slow_ns: int
    newest: tuple[int, ...] = ()
    first_ns: int = 0
    last_ns: int = 0
    beside_ns: dict[Scope, int] = field(default_factory=dict)
    pauses: int = 0
    paused: dict[Leaf, int] = field(default_factory=dict)
    """Time in the pauses of the loop, by leaf. It is in no share, unless `with_pauses`."""
    with_pauses: bool = False
    turns: int = 0
    """The number of the loop's turns, as the program's own clock has them: steps and pauses, where
    the program marks its steps also those before they were steady, but not those at its beginning
    that took longer than any later one. `turns_ns` is their time."""
    turns_ns: int = 0
    blocks: tuple[tuple[StepBlock, ...], ...] = ()
    """The steps of the main loop in order, in blocks, for each device."""
    moves: tuple[Moved, ...] = ()
    """The times that the capture counted under another leaf, with the reason why each was moved."""
    program_steps: int = 0
    """The number of the program's steps: those of one rank, since the ranks take each step
    together, and of one of a process's devices. Processes that are no ranks have steps of their
    own, which are added."""
    steps_by_place: Mapping[Place, LoopSteps] = field(default_factory=dict)
    apart: Mapping[int, LoopSteps] = field(default_factory=dict)
    """Ranks whose loop is not the one that most ranks run. They take other steps, and are in none
    of the figures here."""
    marked_by: str = ""
    """What marks the steps, if the recognized steps are something else. The leaves then divide the
    steps' time in the proportions of the time around the marks."""
    is_marked: bool = False
    """Whether the program marks where each step begins: a pause is then a step that took long."""
    of_processes: float = 1.0
    """The time of the devices over the time of all processes on them, which is larger if several
    processes share a device."""
    benchmark_rows: int = 0
    """The number of rows of the benchmark whose rows the steps are (`benchmark_rows`), 0 if they
    are none. Each row does other work: no step is slow compared with another row's, and the time
    between rows is no pause."""

    @property
    def step_mean(self) -> Mean:
        """The mean length of a step, with its error."""
        times = [[(block.steps, float(block.ns)) for block in blocks] for blocks in self.blocks]
        mean = self._mean(self.step_mean_ns, times)
        if mean.error is None and len(self.newest) >= 2 * FEWEST_BLOCKS:
            # One delta of many steps, as of an imported report: its newest ones, eight at a time.
            size = max(1, len(self.newest) // 8)
            rows = [self.newest[start : start + size] for start in range(0, len(self.newest), size)]
            mean = self._mean(self.step_mean_ns, [[(len(row), float(sum(row))) for row in rows]])
        return mean

    def leaf_mean(self, leaf: Leaf) -> Mean | None:
        """The time under a leaf in ns for each step of one device, with its error; None without
        steps."""
        a_step = self.a_step(self.leaves.get(leaf, 0))
        if a_step is None:
            return None
        return self._mean(
            a_step,
            [
                [(block.steps, float(dict(block.leaves).get(leaf, 0))) for block in blocks]
                for blocks in self.blocks
            ],
        )

    @staticmethod
    def _mean(amount: float, devices: list[list[tuple[int, float]]]) -> Mean:
        """A mean with the error of the least certain device: ranks go in step, so that more of them
        add no certainty."""
        means = [mean for blocks in devices if blocks and (mean := mean_of_blocks(blocks)).error]
        if not means:
            still = [mean_of_blocks(blocks) for blocks in devices if len(blocks) >= FEWEST_BLOCKS]
            return Mean(amount, 0.0, still[0].freedom) if still else Mean(amount)
        worst = max(means, key=lambda mean: mean.error or 0.0)
        return Mean(amount, worst.error, worst.freedom)

    @property
    def own_steps(self) -> LoopSteps:
        """The steps of the tree, if it is of one process on one device."""
        return LoopSteps(self.steps, self.operations, self.step_mean_ns)

    @property
    def has_steps(self) -> bool:
        """Whether there are steps, to which the shares then refer."""
        return self.steps > 0

    def of_program(self, amount: float) -> float:
        """For an amount that is summed over devices and processes, as their steps are, the amount
        for `program_steps`."""
        return amount * self.program_steps / self.steps if self.steps else amount

    @property
    def slow_program_steps(self) -> int:
        """How many of the `program_steps` are slow, as model.steps.SLOW has it."""
        return round(self.of_program(self.slow_steps))

    @property
    def idle_ns(self) -> int:
        """Time in which nothing ran."""
        return idle_sum(self.leaves)

    @property
    def kernels_share(self) -> float:
        """Share of the time, 0 to 1, in which kernels ran."""
        return self.share(sum(ns for leaf, ns in self.leaves.items() if is_kernel(leaf)))

    @property
    def slowed_ns(self) -> float:
        """By how much slow steps take longer than usual ones, together."""
        return max(0.0, self.slow_ns - self.slow_steps * (self.step_ns.median or 0.0))

    @property
    def step_mean_ns(self) -> float:
        """Mean length of a step."""
        return self.step_ns.total / self.step_ns.count if self.step_ns.count else 0.0

    @property
    def turn_mean_ns(self) -> float:
        """The mean length of the loop's turns, its pauses divided among them."""
        return self.turns_ns / (self.turns * self.of_processes) if self.turns else 0.0

    def share(self, ns: float) -> float:
        """The share of a time in the wall time, 0 to 1."""
        return ns / self.wall_ns if self.wall_ns else 0.0

    def a_step(self, ns: float) -> float | None:
        """A time of all devices, as ns for each step of one device; None without steps."""
        return ns / (self.steps * self.of_processes) if self.steps else None


def time_tree(run: Run) -> TimeTree | None:
    """The tree of a run; None where no operation was captured. Rules have it from an Analysis."""
    return tree_of(run, device_trees(run, matched(run)))


def tree_of(run: Run, trees: Mapping[Place, TimeTree], gpu: int | None = None) -> TimeTree | None:
    """The tree of a run, or of one GPU in it, from the trees of all devices (`device_trees`); None
    if no operation was captured."""
    apart: dict[int, LoopSteps] = {}
    if gpu is None:
        trees = _in_the_loop(run, trees)
        trees, apart = _in_one_step(run, trees)
    trees = {place: tree for place, tree in trees.items() if gpu in (None, place[1])}
    shared = together(run, {place: tree.leaves for place, tree in trees.items()})
    seen_ns = sum(tree.wall_ns for tree in trees.values())
    if not seen_ns:
        return None
    leaves: dict[Leaf, int] = defaultdict(int)
    beside: dict[Scope, int] = defaultdict(int)
    paused: dict[Leaf, int] = defaultdict(int)
    for place, tree in trees.items():
        for leaf, ns in (shared[place].leaves if place in shared else tree.leaves).items():
            leaves[leaf] += ns
        for scope, ns in tree.beside_ns.items():
            beside[scope] += ns
        for leaf, ns in tree.paused.items():
            paused[leaf] += ns
    wall_ns = sum(leaves.values())
    alone = [place for place in trees if place not in shared]
    stepped = [tree for tree in trees.values() if tree.has_steps]
    steps_by_place = {place: tree.own_steps for place, tree in trees.items() if tree.has_steps}
    return TimeTree(
        wall_ns=wall_ns,
        leaves={leaf: ns for leaf, ns in leaves.items() if ns},
        devices=len(alone) + len({part.gpu for part in shared.values()}),
        steps=sum(tree.steps for tree in trees.values()),
        operations=sum(tree.operations for tree in trees.values()),
        step_ns=Accumulator.merged(tree.step_ns for tree in stepped),
        slow_steps=sum(tree.slow_steps for tree in trees.values()),
        slow_ns=sum(tree.slow_ns for tree in trees.values()),
        newest=stepped[-1].newest if stepped else (),
        first_ns=min((tree.first_ns for tree in trees.values() if tree.first_ns), default=0),
        last_ns=max(tree.last_ns for tree in trees.values()),
        beside_ns=dict(beside),
        pauses=sum(tree.pauses for tree in trees.values()),
        paused=dict(paused),
        turns=sum(tree.turns for tree in trees.values()),
        turns_ns=sum(tree.turns_ns for tree in trees.values()),
        blocks=tuple(blocks for tree in trees.values() for blocks in tree.blocks),
        moves=tuple(moved for tree in trees.values() for moved in tree.moves),
        program_steps=steps_of_program(run, steps_by_place),
        steps_by_place=steps_by_place,
        apart=apart,
        marked_by=next((tree.marked_by for tree in trees.values() if tree.marked_by), ""),
        is_marked=bool(stepped) and all(tree.is_marked for tree in stepped),
        of_processes=wall_ns / seen_ns,
        benchmark_rows=sum(benchmark_rows(run)),
    )


def benchmark_rows(run: Run) -> tuple[int, ...]:
    """How many rows of its tables the steps which a workload declares are of, which do different
    work: the outermost ranges that hold steps, or where no table has as many rows, but tables do
    for each of these, the ranges inside each. Empty where all steps are in one range or in none,
    warm-up and the first one (a prefill) left out."""
    if run.started.step_range is None:
        return ()
    steps = Counter[str]()
    inside: dict[str, set[str]] = defaultdict(set)
    for each in run.ranges.values():
        if each.definition.name == run.started.step_range:
            outer = inner = each
            while outer.definition.parent in run.ranges:
                inner, outer = outer, run.ranges[outer.definition.parent]
            name = outer.definition.name
            if outer is not each and name != WARM_UP:
                steps[name] += each.cpu.count
                inside[name].add(inner.definition.name)
    # One phase of many steps is no row of a benchmark, nor is a prefill.
    if sum(count > 1 for count in steps.values()) <= 1:
        return ()
    lengths = {len(table.rows) for table in run.result.tables} if run.result is not None else set()
    counts = tuple(len(names) for names in inside.values())
    return counts if len(steps) not in lengths and set(counts) <= lengths else (len(steps),)


def steps_of_program(run: Run, steps: Mapping[Place, LoopSteps]) -> int:
    """The steps of the program in which these processes and devices take part."""
    by_process: dict[int, int] = defaultdict(int)
    for (process, _), loop in steps.items():
        by_process[process] = max(by_process[process], loop.steps)
    ranks = ranks_of(run)
    of_ranks = [count for process, count in by_process.items() if process in ranks]
    of_others = sum(count for process, count in by_process.items() if process not in ranks)
    return of_others + (round(median(of_ranks)) if of_ranks else 0)


def _in_one_step(
    run: Run, trees: Mapping[Place, TimeTree]
) -> tuple[Mapping[Place, TimeTree], dict[int, LoopSteps]]:
    """Without ranks whose steps are others than those of most, and these. Ranks that go in step
    take as many: where their numbers differ, loops were recognized that are not the same, as where
    one rank also does something by itself in between."""
    ranks = ranks_of(run)
    counts = {
        place: tree.steps for place, tree in trees.items() if place[0] in ranks and tree.has_steps
    }
    alike = {
        place: [
            other
            for other, count in counts.items()
            if min(count, steps) >= STEPS_ALIKE * max(count, steps)
        ]
        for place, steps in counts.items()
    }

    def weight(places: list[Place]) -> tuple[int, int, int]:
        """Of as many, those that take more steps come first, then the first rank's."""
        steps = sum(counts[place] for place in places)
        return len(places), steps, max(-ranks[place[0]] for place in places)

    most = max(alike.values(), key=weight, default=[])
    apart = {ranks[place[0]]: trees[place].own_steps for place in counts if place not in most}
    kept = {place: tree for place, tree in trees.items() if place not in counts or place in most}
    return kept, dict(sorted(apart.items()))


def _in_the_loop(run: Run, trees: Mapping[Place, TimeTree]) -> dict[Place, TimeTree]:
    """Without ranks that only wait beside the steps of another, as for its baseline."""
    beside = beside_the_loop(run, exposed_of(trees))
    waiting = {
        place: tree.share(tree.leaves.get(Leaf.RANK, 0) + tree.leaves.get(Leaf.COMMUNICATION, 0))
        for place, tree in trees.items()
        if place[0] in beside
    }
    return {place: tree for place, tree in trees.items() if waiting.get(place, 0.0) < MOSTLY}


def shared_gpus(run: Run, trees: Mapping[Place, TimeTree]) -> list[Part]:
    """What each process has of a GPU that several of the run used at once, by GPU."""
    seen = {place: tree.leaves for place, tree in trees.items()}
    return sorted(together(run, seen).values(), key=lambda part: (part.gpu, part.process))


def device_trees(run: Run, by_match: Mapping[int, Matched]) -> dict[Place, TimeTree]:
    """The tree of each device of each process, empty ones too. `by_match` is what matched
    collectives say of each process (`rank_waits.matched`)."""
    devices = {place: _device(run, *place, times) for place, times in _by_place(run).items()}
    settled = settle(run, {place: counted for place, (_, counted) in devices.items()}, by_match)
    trees: dict[Place, TimeTree] = {}
    for place, (tree, _) in devices.items():
        leaves, moves = settled[place].leaves, settled[place].moves
        transfer_ns = None
        if settled[place].waits_are_known:
            transfer_ns = leaves.get(Leaf.COMMUNICATION, 0) / max(1, tree.steps)
        blocks = tuple(
            tuple(settled_block(block, moves, transfer_ns) for block in row) for row in tree.blocks
        )
        trees[place] = dataclasses.replace(
            tree, wall_ns=sum(leaves.values()), leaves=leaves, moves=tuple(moves), blocks=blocks
        )
    return trees


Key = TypeVar("Key")


def exposed_of(trees: Mapping[Key, TimeTree]) -> dict[Key, Exposed]:
    """The steps of each, and how long collectives ran in them while nothing else did."""
    return {
        place: Exposed(tree.steps, tree.leaves.get(Leaf.COMMUNICATION, 0))
        for place, tree in trees.items()
    }


def main_loops(run: Run) -> dict[Place, int]:
    """The loop whose steps count, of each device that has one."""
    scopes = {place: scope_of(run, *place, times) for place, times in _by_place(run).items()}
    return {place: main for place, (main, _) in scopes.items() if main is not None}


def _by_place(run: Run) -> dict[Place, dict[tuple[int, Scope], dict[Leaf, int]]]:
    """The leaves of each device, by loop and scope."""
    by_device: dict[Place, dict[tuple[int, Scope], dict[Leaf, int]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for time in run.leaf_times.values():
        leaves = by_device[time.process, time.device][time.loop, Scope(time.scope)]
        leaf = leaf_of_number(time.leaf)
        leaves[leaf] = leaves.get(leaf, 0) + time.ns
    return by_device


def _device(
    run: Run,
    process: int,
    device: int,
    times: dict[tuple[int, Scope], dict[Leaf, int]],
) -> tuple[TimeTree, Counted]:
    """The tree of a process on a device, still without leaves, and what was counted of these."""
    main, scopes = scope_of(run, process, device, times)
    if (marks := marked_steps(run, process, device, main)) is not None:
        return _by_marks(run, process, device, times, marks)
    inside: list[Mapping[Leaf, int]] = []
    beside: dict[Scope, int] = defaultdict(int)
    paused: Mapping[Leaf, int] = {}
    lengths: list[Statistics] = []
    newest: tuple[int, ...] = ()
    blocks: list[tuple[StepBlock, ...]] = []
    steps = operations = slow_steps = slow_ns = pauses = 0
    first_ns = last_ns = 0
    waited_ns: int | None = None
    if main is not None and process in run.step_blocks:
        blocks.append(tuple(run.step_blocks[process].loops.get((device, main), ())))
    for (loop, scope), leaves in times.items():
        if (main is None or loop == main) and scope in scopes:
            inside.append(leaves)
        else:
            beside[scope] += sum(leaves.values())
            if loop == main and scope is Scope.PAUSE:
                paused = leaves
    for sums in run.loops.values():
        if (sums.process, sums.device) != (process, device):
            continue
        if main is not None and sums.loop != main:
            continue
        if sums.scope == Scope.PAUSE:
            pauses += sums.steps
        if Scope(sums.scope) not in scopes:
            continue
        operations += sums.operations
        if sums.waited_ns is not None:
            waited_ns = (waited_ns or 0) + sums.waited_ns
        began_ns, ended_ns = sums.first_ns, sums.last_ns
        first_ns = min(first_ns or began_ns, began_ns)
        last_ns = max(last_ns, ended_ns)
        if main is not None:
            steps += sums.steps
            slow_steps += sums.slow_steps
            slow_ns += sums.slow_ns
            if sums.step_ns is not None:
                lengths.append(sums.step_ns)
            newest = sums.newest
    step_ns = Accumulator.merged(lengths)
    if not slow_steps:
        # The capture measures a step by those around it: a loop that slows down as a whole has no
        # slow steps. Where it counted none, the lengths of all may still say otherwise: of 47 steps
        # that never settled it once called none of the 12 slow that took 14 to 30 times as long.
        slow_steps, slow_ns = slow(step_ns)
    turns, turns_ns = _turns(run, process, device, main, times)
    tree = TimeTree(
        wall_ns=0,
        leaves={},
        devices=1,
        steps=steps,
        operations=operations,
        step_ns=step_ns,
        slow_steps=slow_steps,
        slow_ns=slow_ns,
        newest=newest,
        first_ns=first_ns,
        last_ns=last_ns,
        beside_ns=dict(beside),
        pauses=pauses,
        paused=dict(paused),
        turns=turns,
        turns_ns=turns_ns,
        blocks=tuple(blocks),
        is_marked=main is not None and is_marked(run.loops[process, device, Scope.STEADY, main]),
    )
    return tree, Counted(inside, steps, waited_ns)


def _turns(
    run: Run,
    process: int,
    device: int,
    main: int | None,
    times: Mapping[tuple[int, Scope], Mapping[Leaf, int]],
) -> tuple[int, int]:
    """The number of turns of a device's main loop, and their time; see `TimeTree.turns`."""
    if main is None:
        return 0, 0
    loops = {
        scope: sums
        for scope in TURNS
        if (sums := run.loops.get((process, device, scope, main))) is not None
    }
    if loops[Scope.STEADY].source not in SOURCES_FIRST:
        loops = {scope: loops[scope] for scope in (Scope.STEADY, Scope.PAUSE) if scope in loops}
    turns = sum(sums.steps for sums in loops.values())
    turns_ns = sum(sum(times.get((main, scope), {}).values()) for scope in loops)
    steady, pause = loops[Scope.STEADY], loops.get(Scope.PAUSE)
    each = steady.operations / max(1, steady.steps)
    if pause is not None and pause.steps == 1 and pause.last_ns > steady.last_ns:
        # What the last mark that was seen begins goes on to the end, however many turns that are.
        several = pause.operations / each if each else 0.0
        if several > SLOW:
            turns += round(several) - 1
    lengths = {scope: sums.step_ns for scope, sums in loops.items() if sums.step_ns is not None}
    if (early := lengths.pop(Scope.WARMUP, None)) is not None:
        longest_ns = max((its.maximum or 0 for its in lengths.values()), default=0)
        longer = [(ns, count) for ns, count in early.counted() if ns > SLOW * longest_ns]
        turns -= sum(count for _, count in longer)
        turns_ns -= sum(ns * count for ns, count in longer)
    return turns, turns_ns


def _by_marks(
    run: Run,
    process: int,
    device: int,
    times: Mapping[tuple[int, Scope], Mapping[Leaf, int]],
    marks: MarkedSteps,
) -> tuple[TimeTree, Counted]:
    """The same of steps that the program marks: their time divided as that of the loops and scopes
    around the marks is."""
    loops = [
        each for each in run.loops.values() if (each.process, each.device) == (process, device)
    ]
    around = overlapping(loops, marks) & times.keys() or set(times)
    whole_ns = sum(sum(times[key].values()) for key in around)
    steps, lengths = marks.marks - 1, step_lengths(marks)
    share = lengths.total / max(1, whole_ns)
    waited = [loop.waited_ns for loop in loops if (loop.loop, loop.scope) in around]
    waited_ns = [ns for ns in waited if ns is not None]
    beside: dict[Scope, int] = defaultdict(int)
    for key, leaves in times.items():
        if key not in around:
            beside[key[1]] += sum(leaves.values())
    slow_steps, slow_ns = slow(lengths)
    operations = sum(loop.operations for loop in loops if (loop.loop, loop.scope) in around)
    tree = TimeTree(
        wall_ns=0,
        leaves={},
        devices=1,
        steps=steps,
        operations=round(operations * min(1.0, share)),
        step_ns=lengths,
        slow_steps=slow_steps,
        slow_ns=slow_ns,
        newest=tuple(marks.lengths_ns)[-NEWEST_MARKED:],
        first_ns=marks.first_ns,
        last_ns=marks.last_ns,
        beside_ns=dict(beside),
        turns=steps,
        turns_ns=lengths.total,
        marked_by=" ".join(filter(None, (marks.source, marks.site))),
    )
    inside = [{leaf: round(share * ns) for leaf, ns in times[key].items()} for key in around]
    return tree, Counted(inside, steps, round(share * sum(waited_ns)) if waited_ns else None)


def slow(lengths: Statistics) -> tuple[int, int]:
    """How many steps take more than SLOW times as long as the median one, and their time in ns."""
    limit = SLOW * (lengths.median or 0.0)
    longer = [(value, times) for value, times in lengths.counted() if value > limit > 0]
    return sum(times for _, times in longer), sum(value * times for value, times in longer)


def in_words(tree: TimeTree, leaves: Iterable[Leaf]) -> tuple[str, str]:
    """What the shares of a tree are of, and what to say of so much of it: the time a step, or what
    of it lies in pauses."""
    some = list(leaves)
    ns = sum(tree.leaves.get(leaf, 0) for leaf in some)
    if tree.with_pauses:
        paused_ns, asleep_ns = sum(tree.paused.values()), tree.paused.get(Leaf.WAIT, 0)
        awake = [tree.paused.get(leaf, 0) for leaf in some if leaf is not Leaf.WAIT]
        rest_ns = tree.wall_ns - (paused_ns - asleep_ns)
        pauses = percent(100 * paused_ns / (tree.wall_ns + asleep_ns))
        without = (ns - sum(awake)) / rest_ns if rest_ns else 0.0
        beside = f"; the steps alone have {percent(100 * without)}" if without >= LITTLE else ""
        between = f"{tree.pauses:,} pauses between steps take"
        if tree.pauses == 1:
            between = "1 pause between steps takes"
        return "the time", f": {between} {pauses} of all time{beside}"
    if (longer := in_few_steps(tree, some)) is not None:
        return "the time", f": {longer}"
    return _of_steps(tree), _time(tree, ns)


TURNS = (Scope.WARMUP, Scope.STEADY, Scope.PAUSE, Scope.EVALUATION)
"""What turns of a loop are said to be."""

LITTLE = 0.01
"""Share of the steps without their pauses from which it is worth saying."""

FEW = 0.9
"""Part of a cause's time that the mean step has over the median one from which usual steps have
none of it."""

MOST_SLOW = 0.35
"""Share of slow steps up to which these are few: of more, the usual step is none of the others."""

FEW_STEPS = "longer than the others"


def in_few_steps(tree: TimeTree, leaves: Sequence[Leaf]) -> str | None:
    """Where the time of these leaves lies in slow steps only: how many these are, and how much
    longer they take; None where most steps have it, and where the others are different work."""
    a_step = tree.a_step(sum(tree.leaves.get(leaf, 0) for leaf in leaves))
    usual = tree.step_ns.median
    if not a_step or usual is None or tree.with_pauses or tree.benchmark_rows:
        return None
    # By the lengths of all: of a program that alternates, the steps around one are no measure.
    steps, slow_ns = slow(tree.step_ns)
    if not 0 < steps <= MOST_SLOW * tree.steps or tree.step_mean_ns - usual < FEW * a_step:
        return None
    if _in_short_blocks(tree, leaves) > OF_USUAL * a_step:
        return None
    verb = "takes" if steps == 1 else "take"
    longer = duration(slow_ns / steps - usual)
    return f"{steps:,} of {tree.steps:,} steps {verb} {longer} {FEW_STEPS}"


OF_USUAL = 0.5
"""Part of a cause's mean time a step that the shorter half of the steps has, from which these have
it, too: launching, 14 of 17 ms, was told to lie in the steps with Python's garbage collections."""


def _in_short_blocks(tree: TimeTree, leaves: Sequence[Leaf]) -> float:
    """Time of these leaves a step, in ns, in the blocks whose steps are shorter, as many as have
    half of all steps; 0 where blocks are few, or have long steps each."""
    blocks = sorted(
        (block for row in tree.blocks for block in row if block.steps),
        key=lambda block: block.ns / block.steps,
    )
    if len(blocks) < FEWEST_BLOCKS:
        return 0.0
    ns = whole_ns = steps = 0
    half = sum(block.steps for block in blocks) / 2
    for block in blocks:
        ns += sum(each for leaf, each in block.leaves if leaf in leaves)
        whole_ns, steps = whole_ns + block.ns, steps + block.steps
        if steps >= half:
            break
    return ns / steps if whole_ns <= SLOW * steps * (tree.step_ns.median or 0.0) else 0.0


def of_scope(tree: TimeTree, share: float) -> str:
    """A share of a tree without pauses, in words."""
    return f"{100 * share:.0f} % of {_of_steps(tree)}{_time(tree, share * tree.wall_ns)}"


def _of_steps(tree: TimeTree) -> str:
    return "each step" if tree.has_steps else "the time since its first kernel"


def _time(tree: TimeTree, ns: float) -> str:
    a_step = tree.a_step(ns)
    if a_step is None or not tree.step_mean_ns:
        return ""
    return f": {duration(a_step)} of {duration(tree.step_mean_ns)}"
