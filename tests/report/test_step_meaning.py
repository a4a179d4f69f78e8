"""What a step is: the program's own, or what repeats in it."""

from __future__ import annotations

from gputui.model.events import Scope
from gputui.playback.opening import load
from gputui.report.answer import answer
from gputui.report.explain.time_tree import time_tree
from gputui.report.scope import RunScope, ScopeKind
from gputui.report.step_meaning import scope_words, step_meaning
from tests.attribute.capture_program import Program, Traced
from tests.conftest import DATA


def test_found_steps_are_compared_with_the_programs_own() -> None:
    loaded = load(str(DATA / "h100-graphs.gputui.gz"))
    run = loaded.run
    assert run is not None
    tree = time_tree(run)
    assert tree is not None
    assert step_meaning(run, tree) == ""  # 54 found, 54 ranges named step
    own = [one for one in run.ranges.values() if one.definition.name == "step"]
    for each in own:
        each.cpu.count *= 4
    assert step_meaning(run, tree) == "A step here holds 4 of what the program calls step."
    for each in own:
        each.cpu.count //= 48
    assert "similar parts of each step of the program" in step_meaning(run, tree)
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
    assert step_meaning(run, tree) == meaning
