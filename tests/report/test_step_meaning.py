"""What a step is: the program's own, or what repeats in it."""

from __future__ import annotations

import msgspec
import pytest

from gputui.model.events import CaptureDelta, LeafTime, LoopDelta, Scope, StepMarks
from gputui.model.leaves import Leaf
from gputui.playback.opening import load
from gputui.report.answer import answer
from gputui.report.explain.time_tree import time_tree
from gputui.report.scope import RunScope, ScopeKind, beside_benchmark, scope_words
from tests.attribute.capture_program import Program, Traced
from tests.conftest import DATA
from tests.events_for_tests import times
from tests.report.test_verdict import a_run


def test_found_steps_are_compared_with_the_programs_own() -> None:
    loaded = load(str(DATA / "h100-graphs.gputui.gz"))
    run = loaded.run
    assert run is not None
    tree = time_tree(run)
    assert tree is not None
    assert beside_benchmark(run, tree) == ""  # 54 found, 54 ranges named step
    own = [one for one in run.ranges.values() if one.definition.name == "step"]
    for each in own:
        each.cpu.count *= 4
    assert beside_benchmark(run, tree) == "A step here holds 4 of what the program calls step."
    for each in own:
        each.cpu.count //= 48
    assert "similar parts of each step of the program" in beside_benchmark(run, tree)
    assert scope_words(tree)[0] == "Mean of 47 steady steps of 150 operations."
    tree.beside_ns.update({Scope.SETUP: 2_000_000_000, Scope.TAIL: 0})
    assert scope_words(tree)[1].startswith("Not in them: set-up 2.00 s")
    tree.beside_ns[Scope.WARMUP] = 3_000_000_000
    turns = scope_words(tree, RunScope(ScopeKind.TURNS))
    assert turns[0] == "Mean of 47 turns of the main loop of 150 operations."
    assert turns[1].startswith("Not in them: warm-up of other loops 3.00 s, set-up 2.00 s")


def test_a_short_sequence_may_be_a_layer() -> None:
    loaded = load(str(DATA / "faults" / "tensor_cores.gputui.gz"))
    assert loaded.run is not None
    lines = [line.text for group in answer(loaded.session, loaded.run) for line in group]
    assert "A step here is 1 operation, repeated: yours may hold many of them." in lines


def test_a_training_step_of_several_micro_batches_says_so() -> None:
    """Three passes with a loss each, and a fused optimizer, 100 times."""
    one_pass = [f"gemm_{number}" for number in range(20)]
    one_pass += ["nll_loss_forward", *(f"gemm_back_{number}" for number in range(20))]
    names = [*one_pass * 3, "multi_tensor_apply_kernel"]
    program = Program()
    slots = []
    for number in range(100 * len(names)):
        at, name = number * 50_000, names[number % len(names)]
        slots += [
            program.call(at, at + 4_000, number + 1),
            program.kernel(at + 6_000, at + 46_000, number + 1, name=name),
        ]
    run = Traced(program).finish(*slots, program.flush(100 * len(names) * 50_000))
    tree = time_tree(run)
    assert tree is not None
    meaning = "A step here is 3 micro-batches of some 41 operations, by their losses."
    assert beside_benchmark(run, tree) == meaning


MS = 1_000_000


def loop_of(
    number: int, steps: int, each_ns: int, first_ns: int, source: str | None = "repetition"
) -> CaptureDelta:
    """Steady turns of a loop, a fifth of their time launch-bound."""
    wall_ns = steps * each_ns
    return CaptureDelta(
        time_ns=1,
        process=1,
        leaf_times=tuple(
            LeafTime(1, 0, Scope.STEADY, number, leaf, round(share * wall_ns))
            for leaf, share in ((Leaf.LAUNCH, 0.2), (Leaf.MATMUL, 0.8))
        ),
        loops=(
            LoopDelta(1, 0, Scope.STEADY, number, steps, 4 * steps, first_ns, first_ns + wall_ns,
                      times(*[each_ns] * steps), source=source),
        ),
    )  # fmt: skip


def marks_of(source: str, site: str, marks: int, each_ns: int, first_ns: int) -> StepMarks:
    return StepMarks(
        time_ns=first_ns + (marks - 1) * each_ns, process=1, thread=7, source=source, site=site,
        first=1, marks=marks, span_ns=(marks - 1) * each_ns,
        lengths_ns=(each_ns,) * min(64, marks - 1),
    )  # fmt: skip


def test_a_loop_that_the_program_marks_comes_before_what_repeated_in_set_up() -> None:
    """As of JAX: three turns of 137 ms while it compiled, then 300 steps of 0.8 ms."""
    compiling = loop_of(1, 3, 137 * MS, MS)
    _, run = a_run(compiling, loop_of(2, 300, 800_000, 500 * MS, "jax"))
    tree = time_tree(run)
    assert tree is not None
    assert (tree.program_steps, tree.step_mean_ns) == (300, 800_000)
    # Not where it is but a little of what comes after its beginning.
    _, run = a_run(loop_of(1, 3, 999 * MS, MS), loop_of(2, 300, 800_000, 500 * MS, "jax"))
    tree = time_tree(run)
    assert tree is not None
    assert tree.program_steps == 3


def test_a_last_step_that_goes_on_to_the_end_is_as_many_turns_as_it_holds() -> None:
    """As of JAX, whose last launches came after their marks: 12 turns in what the last began."""
    each = loop_of(0, 48, 48 * MS, MS, "jax")
    ending = CaptureDelta(
        time_ns=1,
        process=1,
        leaf_times=(LeafTime(1, 0, Scope.PAUSE, 0, Leaf.MATMUL, 12 * 48 * MS),),
        loops=(
            LoopDelta(1, 0, Scope.PAUSE, 0, 1, 12 * 4, 48 * 48 * MS, 60 * 48 * MS,
                      times(12 * 48 * MS), source="jax"),
        ),
    )  # fmt: skip
    tree = time_tree(a_run(each, ending)[1])
    assert tree is not None
    assert (tree.turns, tree.turn_mean_ns) == (60, 48 * MS)


def test_steps_are_those_that_the_program_marks_where_others_were_recognized() -> None:
    """As of tqdm: 18 turns of 13 ms, each of 25 iterations; the shares are of the time around."""
    # The moments of set-up are those up to which it was accounted: it was before the marks.
    copying = CaptureDelta(
        time_ns=1,
        process=1,
        leaf_times=(LeafTime(1, 0, Scope.SETUP, 0, Leaf.HOST, 135 * MS),),
        loops=(LoopDelta(1, 0, Scope.SETUP, 0, 0, 9, 100 * MS, 235 * MS),),
    )
    session, run = a_run(
        copying, loop_of(1, 18, 13 * MS, MS), marks_of("tqdm", "train.py:4", 451, 520_000, MS)
    )
    tree = time_tree(run)
    assert tree is not None
    assert (tree.program_steps, tree.step_mean_ns) == (450, 520_000)
    assert tree.share(tree.leaves[Leaf.LAUNCH]) == pytest.approx(0.2)
    assert tree.a_step(tree.leaves[Leaf.LAUNCH]) == pytest.approx(104_000)
    lines = "\n".join(line.text for group in answer(session, run) for line in group)
    assert "The program marks these steps (tqdm train.py:4)." in lines


@pytest.mark.parametrize(
    "marks",
    [
        marks_of("module", "Net", 18, 13 * MS, MS),
        marks_of("module", "Captured", 30, 500_000, MS),
        marks_of("module", "Evaluated", 40, 500_000, 220 * MS),
    ],
    ids=["same steps", "only while a graph is captured", "a short evaluation at the end"],
)
def test_marks_of_the_same_steps_or_of_little_leave_the_recognized_ones(marks: StepMarks) -> None:
    _, run = a_run(loop_of(1, 18, 13 * MS, MS), marks)
    tree = time_tree(run)
    assert tree is not None
    assert (tree.program_steps, tree.step_mean_ns, tree.marked_by) == (18, 13 * MS, "")


def test_marks_alone_give_a_run_steps() -> None:
    """Nothing that repeats was found in 5 s, of which the optimizer marked the last 3 s."""
    unstepped = CaptureDelta(
        time_ns=1,
        process=1,
        leaf_times=(
            LeafTime(1, 0, Scope.UNSTEPPED, 0, Leaf.LAUNCH, 1000 * MS),
            LeafTime(1, 0, Scope.UNSTEPPED, 0, Leaf.MATMUL, 4000 * MS),
        ),
        loops=(LoopDelta(1, 0, Scope.UNSTEPPED, 0, 0, 5000, 1, 5000 * MS + 1),),
    )
    _, run = a_run(unstepped, marks_of("optimizer", "Adam", 301, 10 * MS, 2000 * MS))
    tree = time_tree(run)
    assert tree is not None
    assert (tree.program_steps, tree.step_mean_ns, tree.wall_ns) == (300, 10 * MS, 3000 * MS)
    assert tree.a_step(tree.leaves[Leaf.LAUNCH]) == pytest.approx(2 * MS)
    assert tree.operations / tree.steps == pytest.approx(10)


@pytest.mark.parametrize(
    ("source", "said"),
    [("optimizer", "an"), ("loop", "a turn of the program's loop at run.py:7, with an")],
)
def test_marks_do_not_say_that_calls_before_an_update_are_micro_batches(
    source: str, said: str
) -> None:
    """They may be the moves of a game of which all is learned at once."""
    delta = loop_of(1, 20, 100 * MS, MS, source)
    loops = [msgspec.structs.replace(loop, micro_batches=16) for loop in delta.loops]
    delta = msgspec.structs.replace(delta, loops=tuple(loops))
    _, run = a_run(delta, marks_of("loop", "run.py:7", 20, 100 * MS, MS))
    tree = time_tree(run)
    assert tree is not None
    assert (
        beside_benchmark(run, tree) == f"A step here is {said} update after 16 calls of the model."
    )


def test_the_loop_around_the_steps_is_told_where_it_goes_on() -> None:
    """As texts of 96 tokens; loops of the set-up are none of it, and none that turn in bursts."""
    beside = marks_of("loop", "run.py:13", 480, 20 * MS, 5000 * MS)
    lengths_ns = ((3 * MS,) * 19 + (343 * MS,)) * 3
    _, run = a_run(
        msgspec.structs.replace(beside, lengths_ns=lengths_ns),
        loop_of(1, 960, 10 * MS, 5000 * MS, "loop"),
        marks_of("loop", "run.py:20", 960, 10 * MS, 5000 * MS),
        marks_of("loop", "run.py:3", 11, 400 * MS, MS),
        marks_of("loop", "run.py:28", 11, 960 * MS, 5000 * MS),
        marks_of("loop", "run.py:27", 3, 4800 * MS, 5000 * MS),
    )
    tree = time_tree(run)
    assert tree is not None
    assert beside_benchmark(run, tree) == (
        "A step here is a turn of the program's loop at run.py:20. "
        "Some 96 of them are a turn of its loop at run.py:28, 960 ms."
    )


@pytest.mark.parametrize(
    ("source", "sites", "said"),
    [("optimizer", 1, ", with some 4 updates by f0"), ("jax", 3, "")],
)
def test_what_a_turn_calls_at_once_does_not_take_all_of_it(
    source: str, sites: int, said: str
) -> None:
    """Four calls in 8 ms, then 92 ms of something else: updates after a rollout; of several
    functions they are the operators of JAX."""
    turns = marks_of("loop", "run.py:7", 20, 100 * MS, MS)
    marks = [marks_of(source, f"f{n}", 80, 25 * MS, MS) for n in range(sites)]
    lengths_ns = (2 * MS, 2 * MS, 2 * MS, 94 * MS) * 16
    marks = [msgspec.structs.replace(each, lengths_ns=lengths_ns) for each in marks]
    _, run = a_run(loop_of(1, 20, 100 * MS, MS, "loop"), turns, *marks)
    tree = time_tree(run)
    assert tree is not None
    expected = f"A step here is a turn of the program's loop at run.py:7{said}."
    assert beside_benchmark(run, tree) == expected


@pytest.mark.parametrize(
    ("marks", "each_ns", "said"),
    [
        (216, 10 * MS, ", with some 10 calls of jit_update, 10.0 ms each"),  # 16 to warm up
        (20, 100 * MS, ""),
        (500, 10 * MS, ""),  # most of them elsewhere
    ],
)
def test_what_a_turn_of_a_loop_holds_several_of_is_said(
    marks: int, each_ns: int, said: str
) -> None:
    """One of them may be what the program calls a step."""
    _, run = a_run(
        loop_of(1, 20, 100 * MS, MS, "loop"),
        marks_of("loop", "run.py:7", 20, 100 * MS, MS),
        marks_of("jax", "jit_update", marks, each_ns, MS),
    )
    tree = time_tree(run)
    assert tree is not None
    assert (
        beside_benchmark(run, tree)
        == f"A step here is a turn of the program's loop at run.py:7{said}."
    )
