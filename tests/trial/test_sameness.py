"""Whether results stayed the same, by losses."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.collect.child import ChildEnding
from gputui.cures import DIFFERENT, EXACT, ROUNDING
from gputui.trial.blocks import Block, Steps
from gputui.trial.runs import ProgramResult
from gputui.trial.sameness import printed_values, sameness_by_scatter, sameness_of
from gputui.trial.sameness import sameness_of_outputs as of_outputs
from gputui.trial.sameness import sameness_of_prints as of_prints
from gputui.trial.sameness import sameness_of_runs as of_runs
from gputui.trial.sameness import sameness_within_a_run as within_a_run

FALLING = [2.0 * 0.99**n for n in range(100)]


def test_equal_losses_are_the_same() -> None:
    assert of_runs(FALLING, FALLING[:60], EXACT) == ("same", "losses identical in 60 steps", 0.0)


def test_rounding_is_told_from_another_result_by_the_class() -> None:
    near = [value * (1 + 3e-3 * (n > 20)) for n, value in enumerate(FALLING)]
    assert of_runs(FALLING, near, ROUNDING).kind == "rounding"
    assert of_runs(FALLING, near, ROUNDING).text == "losses differ by 0.3 %, as rounding does"
    assert of_runs(FALLING, near, EXACT).kind == "other"
    far = [value * (1 + 0.2 * (n > 20)) for n, value in enumerate(FALLING)]
    assert of_runs(FALLING, far, ROUNDING, alike_until=20).kind == "other"
    assert of_runs(FALLING, far, DIFFERENT, alike_until=20).kind == "other"


def test_a_loss_that_is_no_number_is_another_result() -> None:
    broken = [None if n > 30 else value for n, value in enumerate(FALLING)]
    assert of_runs(FALLING, broken, ROUNDING).kind == "other"


def test_a_program_without_a_seed_is_compared_by_the_mean() -> None:
    rng = random.Random(0)
    first = [2.0 + rng.gauss(0, 0.3) for _ in range(200)]
    second = [2.0 + rng.gauss(0, 0.3) for _ in range(200)]
    assert of_runs(first, second, EXACT).kind == "same"
    assert of_runs(first, [value + 0.5 for value in second], ROUNDING).kind == "other"
    assert of_runs(first, second, EXACT, alike_until=50).kind == "same"


def test_without_a_seed_losses_from_before_the_cure_say_nothing_of_it() -> None:
    rng = random.Random(1)
    first, second = ([2.0 + rng.gauss(0, 0.02) for _ in range(26)] for _ in range(2))
    worse = [value + 0.05 * (n >= 14) for n, value in enumerate(second)]
    assert of_runs(first, second, EXACT, alike_until=14).kind == "same"
    assert of_runs(first, worse, EXACT, alike_until=14).kind == "other"


def test_without_a_seed_a_loss_that_is_no_number_is_another_result() -> None:
    rng = random.Random(2)
    first, second = ([2.0 + rng.gauss(0, 0.1) for _ in range(60)] for _ in range(2))
    broken = [None if n > 50 else value for n, value in enumerate(second)]
    assert of_runs(first, broken, DIFFERENT).kind == "other"
    assert of_runs(broken, broken[:50] + [None] * 10, DIFFERENT).kind != "other"


def test_losses_that_scatter_so_that_any_would_do_are_not_called_the_same() -> None:
    rng = random.Random(3)
    first, second = ([2.0 + rng.gauss(0, 1.0) for _ in range(12)] for _ in range(2))
    assert of_runs(first, second, EXACT).kind == "unknown"


def test_losses_that_fall_fast_at_first_are_compared_once_they_do_not() -> None:
    """As of a speech model, whose items are changed at random as a loader makes them: with workers
    it leaves its first plateau some steps later."""
    rng = random.Random(0)

    def falling(until: int) -> list[float]:
        return [3.8 + 10.0 / (1.0 + math.exp((n - until) / 3.0)) + rng.gauss(0, 0.03)
                for n in range(100)]  # fmt: skip

    without, with_workers = falling(10), falling(32)
    assert of_runs(without, with_workers, EXACT).kind == "same"
    assert of_runs(without, [1.02 * value for value in with_workers], EXACT).kind == "other"
    few = without[:44], with_workers[:44]
    assert of_runs(*few, EXACT).kind == "other", "the cure itself may be what changes them"
    assert of_runs(*few, EXACT, redraws=True).kind == "unknown"
    later = without[:3] + with_workers[3:44]
    assert of_runs(few[0], later, EXACT, redraws=True).kind == "unknown", "items of later epochs"
    still = [with_workers[0]] * 44
    assert of_runs(without[:44], still, EXACT, redraws=True).kind == "other", "it learns nothing"
    flat = [[-level + rng.gauss(0, 0.01) for _ in range(40)] for level in (1.0, 1.5)]
    assert of_runs(*flat, EXACT, redraws=True).kind == "other", "below zero nothing fell"


def test_outputs_are_compared_where_the_same_was_given() -> None:
    plain = {(float(n), 64): 10.0 + n for n in range(20)}
    few = {given: plain[given] for given in [*plain][3:6]}
    assert of_outputs(plain, few, EXACT).kind == "same"
    near = {(n + 4.0, 64): (14.0 + n) * (1 + 3e-3) for n, _ in plain}
    assert of_outputs(plain, near, ROUNDING) == (
        "rounding", "outputs of 16 calls differ by 0.3 %, as rounding does", pytest.approx(3e-3),
    )  # fmt: skip
    assert of_outputs(plain, {n: 2 * plain[n] for n in plain}, ROUNDING).kind == "other"
    others = {(n + 0.5, 64): plain[n, 64] for n, _ in plain}
    assert of_outputs(plain, others, EXACT).kind == "unknown"
    fewer = {(n, 32): plain[n, 64] / 2 for n, _ in plain}
    assert of_outputs(plain, fewer, EXACT).kind == "unknown", "those that are padding are not made"


def test_outputs_are_compared_while_a_cure_is_on() -> None:
    """Those of the warm-up had been, in which what is held was not."""
    ending = ChildEnding(0, None, "")

    def ran(outputs: list[float], held: list[float]) -> ProgramResult:
        every = {(float(n), 64): value for n, value in enumerate((*outputs, *held))}
        keys = [*every]
        steps = Steps(
            1, outputs={key: every[key] for key in keys[: len(outputs)]},
            held_outputs={key: every[key] for key in keys[len(outputs) :]},
        )  # fmt: skip
        return ProgramResult(steps, frozenset(), {}, {}, ending, "", 1.0, 1.0, ())

    plain, first = ran([3.0] * 8, [3.0] * 8), [3.0] * 8
    assert (
        sameness_of(plain, ran(first, [3.0] * 8), EXACT, constant=False, held=True).kind == "same"
    )
    wrong = ran(first, [4.0] * 8)
    assert sameness_of(plain, wrong, ROUNDING, constant=False, held=True).kind == "other"
    # Zeros for padding are no other result: then they say nothing.
    unsaid = sameness_of(plain, wrong, ROUNDING, constant=False, held=True, by_outputs=False)
    assert unsaid.kind == "unknown"
    assert sameness_of(plain, ran(first, []), EXACT, constant=False, held=True).kind == "unknown"
    # One that draws random numbers gives others each time.
    drawn = ran([3.3] * 8, [4.0] * 8)
    assert sameness_of(plain, drawn, EXACT, constant=False, held=True).kind == "unknown"


def test_too_few_steps_say_nothing() -> None:
    assert of_runs(FALLING[:5], FALLING, EXACT).kind == "unknown"


def _alternated(change: float) -> Steps:
    rng = random.Random(1)
    steps = Steps(1)
    for pair in range(12):
        for on in (False, True):
            block = Block(pair, "tf32", on, 5, 1000, len(steps.losses))
            steps.blocks.append(block)
            steps.losses += [2.0 + rng.gauss(0, 0.05) + change * on for _ in range(5)]
    return steps


def test_within_a_run_only_what_goes_wrong_is_seen() -> None:
    assert within_a_run(_alternated(0.0), "tf32", ROUNDING).kind == "same"
    assert within_a_run(_alternated(1.0), "tf32", ROUNDING).kind == "other"
    assert within_a_run(_alternated(0.0), "gc_off", ROUNDING).kind == "unknown"


def test_what_a_program_prints_is_compared_where_it_calls_no_backward() -> None:
    lines = [
        f"[{n:4}] loss {2.0 / (n + 1):.4f} acc: 0.{n}5, {n}.3 ms, error 12 ms" for n in range(6)
    ]
    values = printed_values(lines)
    assert list(values) == ["loss", "acc"]
    assert values["acc"] == [0.05, 0.15, 0.25, 0.35, 0.45, 0.55]
    assert of_prints(lines, lines[:3], EXACT).kind == "same"
    near = [line.replace("loss 2.0", "loss 2.001") for line in lines]
    assert of_prints(lines, near, ROUNDING).kind == "rounding"
    other = [line.replace("loss 0", "loss 5") for line in lines]
    assert of_prints(lines[1:], other[1:], ROUNDING).kind == "other"
    wrong = [f"loss: {n}.5" for n in range(9)]
    assert of_prints([f"loss: {n}.1e2" for n in range(9)], wrong, ROUNDING).kind == "other"
    assert of_prints(lines, ["nothing"], EXACT).kind == "unknown"
    lost = [line.replace("loss 0", "loss nan or 0") for line in lines]
    assert of_prints(lines, lost, ROUNDING).kind == "other"
    assert of_prints(lost, lost, ROUNDING).kind == "same"
    assert list(printed_values(["loss info", "error infinite", "loss -inf"])) == ["loss"]


@given(st.lists(st.text(max_size=80), max_size=20))
def test_whatever_is_printed_is_read(lines: list[str]) -> None:
    for values in printed_values(lines).values():
        assert all(isinstance(value, float) for value in values)


def test_gradients_of_several_batches_are_one_step() -> None:
    """Each of eight batches has an eighth of the loss, as Trainer scales them: 3 steps before
    anything is timed, then blocks of 2 with one step between."""
    losses: list[float | None] = [value / 8 for value in FALLING for _ in range(8)]
    blocks = [
        Block(n, "", False, 2, 10**6, first=8 * (3 + 3 * n), settled_steps=min(n, 1))
        for n in range(5)
    ]
    steps = Steps(0, blocks=blocks, losses=losses[:-3])
    assert steps.losses_a_step == 8
    assert steps.losses_by_step == pytest.approx(FALLING[:-1])
    alone = Steps(0, blocks=blocks[:1], losses=losses)
    assert (alone.losses_a_step, alone.losses_by_step) == (1, losses)
    lost = Steps(0, blocks=blocks, losses=[None, *losses[1:]])
    assert lost.losses_by_step[:2] == [None, pytest.approx(FALLING[1])]


def _run(*factors: float) -> ProgramResult:
    """Whose losses differ by so much more in each hundredth step."""
    losses: list[float | None] = [
        value * (1 + factor * n / 100) for factor in factors for n, value in enumerate(FALLING)
    ]
    ended = ChildEnding(0, None, "")
    return ProgramResult(Steps(0, losses=losses), frozenset(), {}, {}, ended, "", 1.0, None, ())


def test_a_program_that_adds_up_in_another_order_each_time_is_its_own_measure() -> None:
    same = sameness_by_scatter(_run(0), _run(3e-3), _run(-4e-3))
    assert same is not None
    assert (same.kind, same.text) == ("rounding", "losses differ by 0.2 %, runs as it is by 0.15 %")
    assert sameness_by_scatter(_run(0), _run(3e-3), _run(-2e-2)) is None
    assert sameness_by_scatter(_run(0), _run(0), _run(4e-3)) is None
    assert sameness_by_scatter(_run(0), _run(0.3), _run(0.3)) is None
