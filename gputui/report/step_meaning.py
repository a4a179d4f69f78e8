"""What a step is: of the program, or of something that repeats within its steps, such as a layer.

Steps are recognized by what a program launches again and again. Also how a single step that was
kept in detail compares with the others: a usual one, or a slow one.
"""

from __future__ import annotations

from collections import Counter

from gputui.model.events import Scope, StepLanes
from gputui.model.leaves import LEAVES, Leaf
from gputui.model.steps import PAUSE, PAUSE_NS, SLOW
from gputui.model.units import count, duration
from gputui.report.explain.finding import rank_names
from gputui.report.explain.time_tree import LAYER, TimeTree
from gputui.report.phases import STEP_NAMES
from gputui.report.scope import TURNS, RunScope, ScopeKind
from gputui.state import Run

ANOTHER = 1.5
"""Found steps for each step of the program, or the other way round, from which they differ."""

_BESIDE = {
    Scope.SETUP: "set-up",
    Scope.WARMUP: "warm-up",
    Scope.STEADY: "other loops",
    Scope.EVALUATION: "evaluation",
    Scope.PAUSE: "pauses",
    Scope.TAIL: "the end",
    Scope.UNSTEPPED: "no loop",
}


_RULED_OUT = (Leaf.INPUT, Leaf.RANK, Leaf.COMMUNICATION, Leaf.COMPILE, Leaf.ALLOCATION)
"""What people suspect first: worth a word where it costs nothing."""


def step_meaning(run: Run, tree: TimeTree) -> str:
    """Where a step may not be what the program calls one: a sentence about it; else ""."""
    if not tree.has_steps:
        return ""
    return " ".join(filter(None, (_named_step(run, tree), _ranks_apart(tree))))


def _ranks_apart(tree: TimeTree) -> str:
    """Whose steps are not those that the figures are of."""
    if not tree.apart:
        return ""
    others = [f"{loop.steps:,} of {duration(loop.mean_ns)}" for loop in tree.apart.values()]
    names = rank_names(tree.apart)
    have = "takes others" if len(others) == 1 else "take others"
    return (
        f"{names[0].upper()}{names[1:]} {have}, which are in no figure here: {', '.join(others)}."
    )


def _named_step(run: Run, tree: TimeTree) -> str:
    if tree.marked_by:
        return (
            f"The program marks these steps ({tree.marked_by}). They were not recognized one by"
            " one: shares are of the time around them."
        )
    own = Counter[str]()
    for each in run.ranges.values():
        name = each.definition.name
        if name == run.started.step_range or STEP_NAMES.match(name):
            own[name.rstrip(" #_:0123456789")] += each.cpu.count
    if own:
        [(name, times)] = own.most_common(1)
        turns = _turns(run, tree) / max(1, sum(own.values()))
        if times and turns >= ANOTHER:
            return f"A step here is one of {turns:.0f} similar parts of each {name} of the program."
        if turns and turns <= 1 / ANOTHER:
            return f"A step here holds {1 / turns:.0f} of what the program calls {name}."
        return ""
    operations = tree.operations / tree.steps
    if micro_batches := _micro_batches(run, tree):
        of_one = f"{operations / micro_batches:,.0f} operations"
        return f"A step here is {micro_batches} micro-batches of some {of_one}, by their losses."
    if operations > LAYER:
        return ""
    what = "1 operation" if round(operations) <= 1 else f"{operations:.0f} operations"
    return f"A step here is {what}, repeated: yours may hold many of them."


def _main_loops(tree: TimeTree) -> set[tuple[int, int]]:
    """The loops that steady steps are of, by device and number."""
    return {(block.device, block.loop) for blocks in tree.blocks for block in blocks}


def _micro_batches(run: Run, tree: TimeTree) -> int | None:
    main = _main_loops(tree)
    counts = (sums.micro_batches for sums in run.loops.values() if (sums.device, sums.loop) in main)
    return max((number for number in counts if number), default=None)


def _turns(run: Run, tree: TimeTree) -> int:
    """How often the main loops went round: a program has others, before and after."""
    main = _main_loops(tree)
    return sum(
        sums.steps for sums in run.loops.values() if not main or (sums.device, sums.loop) in main
    )


def scope_words(tree: TimeTree, scope: RunScope | None = None) -> list[str]:
    """Which steps all shares are of, and what is not in them, the longest first. Of all turns of
    the main loop warm-up, evaluation and pauses are in them: what is left is of other loops."""
    if not tree.has_steps:
        return []
    each = tree.operations / tree.steps
    has_all = scope is not None and scope.part is ScopeKind.TURNS
    steps = "turns of the main loop" if has_all else "steady steps"
    lines = [f"Mean of {count(tree.program_steps)} {steps} of {each:,.0f} operations."]
    beside = sorted(tree.beside_ns.items(), key=lambda item: -item[1])
    absent_times = [
        f"{_BESIDE[kind]}{' of other loops' if has_all and kind in TURNS else ''} {duration(ns)}"
        for kind, ns in beside
        if ns and kind in _BESIDE
    ]
    if absent_times:
        lines.append(f"Not in them: {', '.join(absent_times)}.")
    absent = [LEAVES[leaf].label for leaf in _RULED_OUT if not tree.leaves.get(leaf)]
    return [*lines, f"Ruled out (0 %): {', '.join(absent)}."] if absent else lines


# What a step that was kept in parts is among the others: a usual one, a slow one, none of them.


def what_it_is(step: StepLanes, tree: TimeTree | None) -> str:
    """In a few words, by its length and place among the steps of its device; empty where these are
    not known."""
    usual_ns = tree.step_ns.median if tree is not None else None
    if tree is None or not usual_ns:
        return ""
    if step.start_ns < tree.first_ns:
        return "before the steady steps"
    times = step.duration_ns / usual_ns
    if 1 / SLOW <= times <= SLOW:
        return "usual"
    if step.duration_ns > max(PAUSE * usual_ns, PAUSE_NS):
        return f"with a pause, {times:,.0f}× a usual one"
    return f"{'slow' if times > SLOW else 'short'}, {times:.1f}× a usual one"
