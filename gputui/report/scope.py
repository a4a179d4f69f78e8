"""The part of a run to which shares refer. A run that is cut to a part gives that part's figures by
the same rules as a whole run: its time tree, its verdict, and the length of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from statistics import median
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from gputui.model.events import (
    Distribution,
    LeafTime,
    LoopDelta,
    Mark,
    Scope,
    StepBlock,
    StepLanes,
    StepOperations,
    StepTimeline,
)
from gputui.model.leaves import LEAVES, Leaf
from gputui.model.merge import declared_fields, key_fields, merged_by
from gputui.model.steps import PAUSE, PAUSE_NS, SLOW, StepBlocks
from gputui.model.units import count, duration
from gputui.report.explain.finding import rank_names
from gputui.report.explain.launches import micro_batches_of, steady_loops
from gputui.report.explain.rank_waits import matched, rank_processes
from gputui.report.explain.time_tree import (
    LAYER,
    TimeTree,
    benchmark_rows,
    device_trees,
    main_loops,
)
from gputui.report.phases import is_step_name
from gputui.state import Run
from gputui.state.history import History
from gputui.state.run import MARKS, FoldedTable, TableOf


class ScopeKind(Enum):
    """Which steps of a run a scope keeps."""

    STEADY = "steady steps"
    TURNS = "all steps"
    STEPS = "some steps"
    RUN = "the whole run"


@dataclass(frozen=True, slots=True)
class RunScope:
    """A part of a run; of STEPS the first and the last of the steady steps, counted from 1."""

    part: ScopeKind = ScopeKind.STEADY
    first: int = 0
    last: int = 0


# The default: warm-up, evaluation and pauses would change what a step costs.
STEADY = RunScope()

TURNS = (Scope.WARMUP, Scope.EVALUATION, Scope.PAUSE)
"""Turns of the main loop that the steady steps leave out."""


def scopes(run: Run) -> list[RunScope]:
    """The scopes that a run has besides a stretch of steps; only one if no steps were found."""
    loops = main_loops(run)
    if not loops:
        return [STEADY]
    places = [RunScope(ScopeKind.STEADY), RunScope(ScopeKind.TURNS), RunScope(ScopeKind.RUN)]
    if not any(_turns_beside(run, loops).values()):
        places.remove(RunScope(ScopeKind.TURNS))
    return places


def why_no_stretch(run: Run) -> str | None:
    """Why shares cannot be of a few steps; None where they can."""
    if len(rank_processes(run)) > 1:
        return "of several ranks only all steps: who waited for whom is not known of a few"
    return None


def scope_in_words(run: Run, scope: RunScope) -> str:
    """The scope, as a person reads it."""
    if scope.part is ScopeKind.STEPS:
        return f"steps {scope.first:,} to {scope.last:,} of the steady ones"
    if scope.part is ScopeKind.TURNS:
        beside = _turns_beside(run, main_loops(run))
        words = [f"{count(steps)} {_NAMES[kind]}" for kind, steps in beside.items() if steps]
        return f"all steps, with {', '.join(words)}"
    return "all time since the first kernel" if scope.part is ScopeKind.RUN else scope.part.value


_Row = TypeVar("_Row", LoopDelta, LeafTime)

_NAMES = {Scope.WARMUP: "of warm-up", Scope.EVALUATION: "of evaluation", Scope.PAUSE: "pauses"}


def cut_to_scope(run: Run, scope: RunScope) -> Run:
    """The run as if it had been nothing but its scope."""
    if scope.part is ScopeKind.STEADY:
        return run
    if scope.part is ScopeKind.RUN:
        return replace(
            run,
            loops=_merged(LoopDelta, run.loops.values(), _unstepped),
            step_blocks={},
            marked_steps={},
        )
    loops = main_loops(run)
    if scope.part is ScopeKind.STEPS:
        return _cut_to_steps(run, loops, scope)

    def turned(row: LoopDelta | LeafTime) -> Scope:
        is_main = loops.get((row.process, row.device)) == row.loop and row.scope in TURNS
        return Scope.STEADY if is_main else row.scope

    # The steady ones last: theirs are the newest lengths.
    ordered = sorted(run.loops.values(), key=lambda loop: loop.scope == Scope.STEADY)
    return replace(
        run,
        leaf_times=_merged(LeafTime, run.leaf_times.values(), turned),
        loops=_merged(LoopDelta, ordered, turned),
    )


PHASE_TABLES = (
    "phases", "phase_names", "step_profile", "kernel_categories", "cuda_gpu_kern_sum",
    "cuda_gpu_mem_time_sum", "cuda_gpu_mem_size_sum", "cuda_gpu_sum", "cuda_api_sum",
    "cuda_api_gpu_sum", "nvtx_sum", "nvtx_pushpop_sum", "nvtx_startend_sum", "nvtx_kern_sum",
    "nvtx_gpu_proj_sum",
)  # fmt: skip
"""Tables that are wholly of ranges, and of the kernels, calls and copies in them."""


def phase_names(run: Run) -> list[str]:
    """The names of a run's ranges, each once."""
    return sorted({node.definition.name for node in run.ranges.values()})


def of_phase(run: Run, name: str) -> Run:
    """The run as if it had been only what its ranges called `name` hold (`of_ranges`)."""
    named = [number for number, node in run.ranges.items() if node.definition.name == name]
    return of_ranges(run, named)


def of_ranges(run: Run, numbers: Iterable[int]) -> Run:
    """The run as if it had been only what these ranges hold: they, the ranges inside them, and the
    kernels, copies and calls that count there. What another thread launched, as in a backward pass,
    counts in the range that was open on the main one.
    """
    kept: set[int] = set()
    outermost = []
    for number in sorted(numbers):
        # Ranges are numbered from the outside in: one inside another of these is kept with it.
        if number not in kept:
            outermost.append(number)
            waiting = [number]
            while waiting:
                inside = waiting.pop()
                kept.add(inside)
                waiting += run.ranges[inside].children
    return replace(
        run,
        ranges={number: node for number, node in run.ranges.items() if number in kept},
        roots=outermost,
        kernels={key: row for key, row in run.kernels.items() if row.phase in kept},
        range_kernels={key: row for key, row in run.range_kernels.items() if row.range in kept},
        secondary_domain_kernels={
            key: row for key, row in run.secondary_domain_kernels.items() if row.range in kept
        },
        memory_operations={
            key: row for key, row in run.memory_operations.items() if row.phase in kept
        },
        api={key: row for key, row in run.api.items() if row.range in kept},
    )


def tables_of_processes(
    holder: msgspec.Struct, processes: Container[int], ranges: Container[int]
) -> dict[str, dict[Any, Any]]:
    """Every table of captured facts that `holder` (a Run, or its GpuTiming) declares, by the
    field's name, with only the rows of these processes. Of tables whose rows name no process, the
    rows of these ranges are kept. Launch shapes are left out: they are counted over all
    processes."""

    def own(table: dict[Any, Any]) -> dict[Any, Any]:
        if hasattr(next(iter(table.values()), None), "process"):
            return {key: row for key, row in table.items() if row.process in processes}
        return {key: row for key, row in table.items() if row.range in ranges}

    return {
        name: {} if name == "shapes" else own(getattr(holder, name))
        for name in declared_fields(type(holder), TableOf)
    }


def of_ranks(run: Run, ranks: Collection[int]) -> Run:
    """The run as if it had been only the processes of these ranks. Launch shapes are left out:
    they are counted over all processes."""
    processes = {
        number: value for number, value in run.processes.items() if value.attached.rank in ranks
    }
    ranges = {
        number: node for number, node in run.ranges.items() if node.definition.process in processes
    }

    own_tables = tables_of_processes(run, processes, ranges)
    # What ranks wait for one another is known of each if collectives were matched, else only of
    # all together.
    trees = {} if matched(run) else device_trees(run, {})
    waited = {
        place: sum(moved.ns for moved in tree.moves if moved.target is Leaf.RANK)
        for place, tree in trees.items()
    }
    leaf_times: FoldedTable[LeafTime] = own_tables["leaf_times"]
    for key, time in list(leaf_times.items()):
        place = time.process, time.device
        if time.leaf == Leaf.COMMUNICATION and waited.get(place):
            all_ns = trees[place].leaves[Leaf.COMMUNICATION] + waited[place]
            ns = min(time.ns, round(time.ns * waited[place] / all_ns))
            leaf_times[key] = replace(time, ns=time.ns - ns)
            leaf_times[*key[:-1], Leaf.RANK] = replace(time, leaf=Leaf.RANK, ns=ns)
    return replace(
        run,
        **own_tables,
        is_of_some_ranks=True,
        processes=processes,
        ranges=ranges,
        roots=[number for number in run.roots if number in ranges],
        timing=replace(run.timing, **tables_of_processes(run.timing, processes, ranges)),
        lines={key: line for key, line in run.lines.items() if key[0] in processes},
        steps={number: value for number, value in run.steps.items() if number in processes},
        step_blocks={n: value for n, value in run.step_blocks.items() if n in processes},
        step_lanes=[value for value in run.step_lanes if value.process in processes],
        step_operations={n: value for n, value in run.step_operations.items() if n in processes},
        newest_marks=History(
            Mark, MARKS, (value for value in run.newest_marks if value.process in processes)
        ),
    )


def _cut_to_steps(run: Run, loops: dict[tuple[int, int], int], scope: RunScope) -> Run:
    """The run with only those parts of its blocks of steps that lie in the scope. The steps of a
    block are taken to be alike."""
    leaf_times: FoldedTable[LeafTime] = {}
    kept_loops: FoldedTable[LoopDelta] = {}
    kept: dict[int, StepBlocks] = {}
    for (process, device), loop in loops.items():
        blocks = list(_within(_blocks(run, (process, device), loop), scope))
        steps, ns = sum(block.steps for block in blocks), sum(block.ns for block in blocks)
        if not steps:
            continue
        steady = process, device, Scope.STEADY, loop
        times: dict[int, int] = {}
        for leaf, part_ns in (pair for block in blocks for pair in block.leaves):
            times[leaf] = times.get(leaf, 0) + part_ns
        for leaf, leaf_ns in times.items():
            leaf_times[*steady, leaf] = LeafTime(*steady, leaf, leaf_ns)
        whole = run.loops[steady]
        part = steps / max(1, whole.steps)
        kept_loops[steady] = LoopDelta(
            *steady,
            steps=steps,
            operations=round(whole.operations * part),
            first_ns=0,
            last_ns=0,
            step_ns=Distribution(steps, ns, 0.0, 0, 0, ()),
            waited_ns=None if whole.waited_ns is None else round(whole.waited_ns * part),
        )
        # Calls are counted over all steps of the run: so are the steps that they are shared among.
        beside = process, device, Scope.EVALUATION, loop
        kept_loops[beside] = LoopDelta(*beside, max(0, whole.steps - steps), 0, 0, 0)
        kept.setdefault(process, StepBlocks()).loops[device, loop] = blocks
    return replace(run, leaf_times=leaf_times, loops=kept_loops, step_blocks=kept, marked_steps={})


def _within(blocks: Iterable[StepBlock], scope: RunScope) -> Iterable[StepBlock]:
    first = 1
    for block in blocks:
        inside = min(scope.last, first + block.steps - 1) - max(scope.first, first) + 1
        first += block.steps
        if inside > 0:
            part = inside / block.steps
            yield msgspec.structs.replace(
                block,
                steps=inside,
                ns=round(block.ns * part),
                leaves=tuple((leaf, round(ns * part)) for leaf, ns in block.leaves),
                longest=block.longest if part == 1.0 else (),
                pauses=0,
                paused=(),
            )


def _blocks(run: Run, place: tuple[int, int], loop: int) -> tuple[StepBlock, ...]:
    """The blocks of a loop, if they have their time by leaf; none otherwise."""
    kept = run.step_blocks.get(place[0])
    blocks = tuple(kept.loops.get((place[1], loop), ())) if kept is not None else ()
    return blocks if all(block.leaves for block in blocks) else ()


def _turns_beside(run: Run, loops: dict[tuple[int, int], int]) -> dict[Scope, int]:
    """Turns of the main loops that are no steady steps, by what they are; of one device."""
    steps_beside: dict[Scope, int] = {}
    for kind in TURNS:
        turns = [run.loops.get((*place, kind, loop)) for place, loop in loops.items()]
        steps_beside[kind] = max((sums.steps for sums in turns if sums is not None), default=0)
    return steps_beside


def _unstepped(row: LoopDelta) -> Scope:
    return Scope.UNSTEPPED if row.scope == Scope.STEADY else row.scope


def _merged(
    kind: type[_Row], rows: Iterable[_Row], scope_of: Callable[[_Row], Scope]
) -> FoldedTable[_Row]:
    """The rows with new scopes. Rows whose keys become equal are added up."""
    moved = [replace(row, scope=scope_of(row)) for row in rows]
    return merged_by(moved, attrgetter(*key_fields(kind)), kind)


# --- What a step is: of the program, or of something that repeats within its steps, such as a
# layer.
#
# Steps are recognized by what a program launches again and again. Also how a single step that was
# kept in detail compares with the others: a usual one, or a slow one.

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


# What people suspect first: worth a word where it costs nothing.
_RULED_OUT = (Leaf.INPUT, Leaf.RANK, Leaf.COMMUNICATION, Leaf.COMPILE, Leaf.ALLOCATION)


def beside_benchmark(run: Run, tree: TimeTree) -> str:
    """A sentence for steps that may not be what the program calls a step, and one that names ranks
    whose steps are left out; empty where neither is so. A benchmark's rows: `of_benchmark`."""
    return " ".join(filter(None, (_named_step(run, tree), _ranks_apart(tree))))


def of_benchmark(run: Run, tree: TimeTree) -> str:
    """A sentence that says that a benchmark's steps are rows of different work; otherwise empty."""
    if not tree.benchmark_rows:
        return ""
    tables = run.result.tables if run.result is not None else ()
    # Each part's table is the first that has as many rows.
    names = dict.fromkeys(
        next((table.name for table in tables if len(table.rows) == rows), None)
        for rows in benchmark_rows(run)
    )
    named = [name for name in names if name is not None] or [table.name for table in tables[:1]]
    have = "has" if len(named) == 1 else "have"
    each = f", which --table {' and '.join(named)} {have} one by one" if named else ""
    return f"These are steps of {tree.benchmark_rows} rows of different work{each}."


def _ranks_apart(tree: TimeTree) -> str:
    """A sentence that names the ranks whose steps are not in the figures; otherwise empty."""
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
    if run.started.captured_part is not None:
        return ""  # its ranges are of the whole program
    own = Counter[str]()
    for each in run.ranges.values():
        name = each.definition.name
        if run.processes[each.definition.process].attached.rank in tree.apart:
            continue
        if name == run.started.step_range or is_step_name(name):
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
    main = steady_loops(tree)
    sources = {each.source for each in run.loops.values() if (each.device, each.loop) in main}
    is_marked = bool(sources - {"repetition", None})
    micro_batches = micro_batches_of(run, tree)
    if micro_batches and not is_marked:
        of_one = f"{operations / micro_batches:,.0f} operations"
        return f"A step here is {micro_batches} micro-batches of some {of_one}, by their losses."
    # Micro-batches, or the moves of a game, or an attack on the model.
    update = f"an update after {micro_batches} calls of the model" if micro_batches else ""
    around = _around_a_step(run, tree)
    if "loop" in sources and (line := _line_of_loop(run, tree)):
        inside = f", with {update}" if update else _in_a_turn(run, tree)
        return f"A step here is a turn of the program's loop at {line}{inside}. {around}".rstrip()
    if update:
        return f"A step here is {update}. {around}".rstrip()
    if operations > LAYER or is_marked:
        return around
    what = "1 operation" if round(operations) <= 1 else f"{operations:.0f} operations"
    return f"A step here is {what}, repeated: yours may hold many of them."


def _line_of_loop(run: Run, tree: TimeTree) -> str:
    """The line of the loop whose turns are the steps; empty if there is none. Of loops with turns
    of this length, it is one with as many turns, and of several such the last."""
    step_ns = tree.turn_mean_ns
    turns = tree.of_program(tree.turns)
    alike = [
        marks
        for marks in run.marked_steps.values()
        if marks.source == "loop" and step_ns / ANOTHER < (marks.mean_ns or 0) < step_ns * ANOTHER
    ]
    # The last turn of a `while` has no mark of its end.
    likeliest = min(
        alike, key=lambda marks: (abs(marks.marks - turns) > 1, -marks.last_ns), default=None
    )
    return likeliest.site if likeliest is not None else ""


_IN_WORDS = {
    "optimizer": "updates by {site}",
    "jax": "calls of {site}",
    "token": "tokens",
    "module": "calls of {site}",
}
"""What a turn of a loop may hold several of, by the source of its marks, the first ones first."""

SEVERAL = 1.5
ALIKE = 0.3
"""How far, in parts, two ways to count may be apart: how many there were a turn, with those of a
warm-up, and how many fit into one."""


MOSTLY = 0.5
"""A turn may hold several updates. Their mean length is given only if they fill at least this part
of the turn: after a rollout, an update takes less than the mean time from one to the next."""

OPERATORS = 3
"""Jitted functions that a turn calls several times each, from which these are JAX's operators: of
a step of 500 ms four calls of its broadcast were told."""


def _in_a_turn(run: Run, tree: TimeTree) -> str:
    """What a turn of the loop holds several of, as a clause: one of them may be what the program
    calls a step. Empty where it holds one of each."""
    turns = tree.of_program(tree.turns)
    step_ns = tree.turn_mean_ns
    for source, words in _IN_WORDS.items():
        of_source = [its for its in run.marked_steps.values() if its.source == source]
        most = max(of_source, key=lambda its: its.marks, default=None)
        if most is None or not most.mean_ns or not most.lengths_ns or not turns:
            continue
        several = step_ns / most.mean_ns
        if several < SEVERAL or abs(most.marks / turns / several - 1) > ALIKE:
            return ""
        if source == "jax":
            called = sum(its.marks >= SEVERAL * turns for its in of_source)
            if called >= OPERATORS:
                return ""
        clause = f", with some {several:,.0f} {words.format(site=most.site)}"
        # Two a turn: one distance of two is within.
        within_ns = sorted(most.lengths_ns)[len(most.lengths_ns) // 3]
        fills = several * within_ns >= MOSTLY * step_ns
        return f"{clause}, {duration(most.mean_ns)} each" if fills else clause
    return ""


def _around_a_step(run: Run, tree: TimeTree) -> str:
    """A sentence on the loop whose turns hold several steps each, the next one around them: it may
    be what the program counts, as texts and not their tokens; empty where there is none."""
    turns = tree.of_program(tree.turns)
    step_ns = tree.turn_mean_ns
    if not turns or not step_ns:
        return ""
    middle_ns = (tree.first_ns + tree.last_ns) / 2
    around = [
        (each_ns, its.site)
        for its in run.marked_steps.values()
        if its.source == "loop"
        and its.marks > 1
        # One beside the steps, as of an evaluation, turns fast and then not for long.
        and median(its.lengths_ns or [0]) >= SEVERAL * step_ns
        and its.first_ns < middle_ns < its.last_ns
        and (each_ns := (its.last_ns - its.first_ns) / (its.marks - 1)) >= SEVERAL * step_ns
        and abs(its.marks * each_ns / step_ns / turns - 1) <= ALIKE
    ]
    if not around:
        return ""
    each_ns, site = min(around)
    several = each_ns / step_ns
    return f"Some {several:,.0f} of them are a turn of its loop at {site}, {duration(each_ns)}."


def _turns(run: Run, tree: TimeTree) -> int:
    """How often the main loops went round: a program has others, before and after."""
    main = steady_loops(tree)
    return sum(
        sums.steps for sums in run.loops.values() if not main or (sums.device, sums.loop) in main
    )


def beside_words(tree: TimeTree, *, has_all: bool = False) -> str:
    """The times that are not in steps, the longest first; "" without any. `has_all` is whether
    those around the main loop's steady ones are."""
    beside = sorted(tree.beside_ns.items(), key=lambda item: -item[1])
    return ", ".join(
        f"{_BESIDE[kind]}{' of other loops' if has_all and kind in TURNS else ''} {duration(ns)}"
        for kind, ns in beside
        if ns and kind in _BESIDE
    )


def scope_words(tree: TimeTree, scope: RunScope | None = None) -> list[str]:
    """Which steps all shares refer to, and which times are not in them, the longest first. If the
    scope is all turns of the main loop, its warm-up, evaluation and pauses are included, and only
    those of other loops are not."""
    if not tree.has_steps:
        return []
    each = tree.operations / tree.steps
    has_all = scope is not None and scope.part is ScopeKind.TURNS
    steps = "turns of the main loop" if has_all else "steady steps"
    lines = [f"Mean of {count(tree.program_steps)} {steps} of {each:,.0f} operations."]
    if absent_times := beside_words(tree, has_all=has_all):
        lines.append(f"Not in them: {absent_times}.")
    absent = [LEAVES[leaf].label for leaf in _RULED_OUT if not tree.leaves.get(leaf)]
    return [*lines, f"Ruled out (0 %): {', '.join(absent)}."] if absent else lines


# What a step that was kept in parts is among the others: a usual one, a slow one, none of them.


def step_in_words(step: StepLanes | StepOperations | StepTimeline, tree: TimeTree | None) -> str:
    """What a step is compared with the others, in a few words, by its length and place among the
    steps of its device; empty if these are not known."""
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
