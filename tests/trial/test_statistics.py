"""What trials prove: intervals that hold although one stops early, gains that are real."""

from __future__ import annotations

import functools
import itertools
import json
import math
import queue
import random
import statistics
import sys
import threading
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from gputui.inject.hook import step_sites
from gputui.inject.hook import trial as in_program
from gputui.trial import proof
from gputui.trial.alternation import Alternation, Waiting
from gputui.trial.blocks import Block, BlockReader, Pair, Steps
from gputui.trial.proof import (
    LOOKS,
    WAITS,
    MeasuredGain,
    chance_of_signs,
    gain_of_pairs,
    gain_of_runs,
    student,
)
from gputui.trial.runs import RunInFolder, RunStep, step_of
from tests.trial.simulated import (
    KINDS,
    SPREADS,
    WAITING,
    Program,
    Simulated,
    Switches,
    by_runs,
    switched,
)

SERIES = 1000


def _block(step_ns: float, on: bool) -> Block:
    return Block(pair=0, cure="", on=on, steps=1, ns=round(step_ns), first=0)


def _pairs(ratios: Iterable[float]) -> list[Pair]:
    return [Pair(_block(1e9 * ratio, False), _block(1e9, True)) for ratio in ratios]


def _stopped(draw: Callable[[], float], truth: float = 1.0, cures: int = 1) -> MeasuredGain:
    """A trial as it is made: pairs until a look decides it."""
    ratios: list[float] = []
    for look in LOOKS:
        while len(ratios) < look:
            ratios.append(truth * math.exp(draw()))
        gain = gain_of_pairs(_pairs(ratios), cures)
        if gain is not None and (gain.is_decided or look == LOOKS[-1]):
            return gain
    raise AssertionError("there is a gain after the last look")


def _normal(rng: random.Random) -> float:
    return rng.gauss(0, 0.02)


def _noisy(rng: random.Random) -> float:
    return rng.gauss(0, 0.15)


def _laplace(rng: random.Random) -> float:
    return rng.choice((-1, 1)) * rng.expovariate(1 / 0.05)


def _interrupted(rng: random.Random) -> float:
    """Every tenth block has a checkpoint in it, with the cure or without."""
    jump = rng.choice((-1, 1)) * rng.uniform(0.2, 1.5) if rng.random() < 0.1 else 0.0
    return rng.gauss(0, 0.03) + jump


FAMILIES = [_normal, _noisy, _laplace, _interrupted]


@pytest.fixture(autouse=True, scope="module")
def quantiles_once() -> object:
    patch = pytest.MonkeyPatch()
    patch.setattr(proof, "student", functools.cache(proof.student))
    yield
    patch.undo()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__[1:])
def test_with_nothing_to_gain_intervals_hold_and_nothing_is_claimed(
    family: Callable[[random.Random], float],
) -> None:
    rng = random.Random(37)
    gains = [_stopped(lambda: family(rng)) for _ in range(SERIES)]
    covered = sum(gain.low <= 1.0 <= gain.high for gain in gains) / SERIES
    assert 0.93 <= covered <= 0.985
    assert sum(gain.is_claimed for gain in gains) / SERIES <= 0.005


OF_A_KIND = 24
"""Trials of each kind of program; `python -m tests.trial.simulated` makes thousands."""


def _claims(trials: Iterable[Simulated]) -> list[float]:
    return [trial.claimed for trial in trials if trial.claimed is not None]


def test_whatever_steps_take_a_cure_that_does_nothing_gains_nothing() -> None:
    """Trials as they are made, in blocks that the hook makes, of programs whose steps come in
    bursts, drift, have two speeds, warm up, pause or have no mean."""
    claims = {
        name: _claims(switched(kind, f"{name} {n}", cures=1 + n % 3) for n in range(OF_A_KIND))
        for name, kind in KINDS.items()
    }
    claimed = sum(map(len, claims.values()))
    assert claimed <= 0.01 * OF_A_KIND * len(KINDS), claims


@pytest.mark.parametrize("name", WAITING)
def test_what_is_waited_for_anyway_gains_nothing(name: str) -> None:
    """Work is half as long with it, but the program waits for its loader so much longer: blocks
    show a gain, because they empty a queue that blocks without it have filled."""
    trials = [switched(KINDS[name], f"{name} 2 {n}", gain=2.0) for n in range(OF_A_KIND)]
    assert len(_claims(trials)) <= 1
    assert any(gain is not None and gain.doubt for trial in trials for gain in trial.gains)
    runs = [by_runs(KINDS[name], f"{name} {n}", 2.0, with_pauses=True) for n in range(8)]
    assert not any(gain.is_claimed for gains in runs for gain in gains)


def test_a_switch_that_takes_long_is_no_gain() -> None:
    """A loader goes on meanwhile: blocks without the cure wait as long before they begin."""
    trials = [
        switched(KINDS["bursts"], f"switch {n}", cures=3, switch_s=0.1) for n in range(OF_A_KIND)
    ]
    assert len(_claims(trials)) <= 1


def test_a_gain_is_found_in_most_programs() -> None:
    """What soundness costs: the least share of trials of 60 s that claim a gain of 1.3."""
    for name, least in {"steady": 1.0, "warming": 0.95, "drifting": 0.95, "noisy": 0.8}.items():
        claims = _claims(switched(KINDS[name], f"{name} 1.3 {n}", gain=1.3) for n in range(10))
        assert len(claims) >= least * 10, name
        assert statistics.median(claims) == pytest.approx(1.3, rel=0.03), name


def test_what_coins_may_do_is_counted_over_all_throws() -> None:
    """Against a count of all throws, one by one."""
    rng = random.Random(3)
    for size in (1, 5, 9):
        values = [rng.choice((-7, -3, -1, 2, 4, 9)) for _ in range(size)]
        sums = [
            sum(sign * abs(value) for sign, value in zip(signs, values, strict=True))
            for signs in itertools.product((-1, 1), repeat=size)
        ]
        larger = sum(each >= sum(values) for each in sums) / len(sums)
        assert chance_of_signs(values) == pytest.approx(larger, abs=1e-12)
    assert chance_of_signs([]) == chance_of_signs([0, 0]) == 1.0


def test_a_gain_that_is_there_is_claimed_and_lies_in_its_interval() -> None:
    rng = random.Random(5)
    gains = [_stopped(lambda: _normal(rng), truth=1.3, cures=5) for _ in range(SERIES)]
    assert all(gain.is_claimed for gain in gains)
    assert 0.93 <= sum(gain.low <= 1.3 <= gain.high for gain in gains) / SERIES <= 0.98
    assert sum(gain.pairs for gain in gains) / SERIES < 15


def test_more_cures_need_more_to_be_claimed() -> None:
    rng = random.Random(1)
    pairs = _pairs(1.06 * math.exp(rng.gauss(0, 0.01)) for _ in range(11))
    alone, among_many = gain_of_pairs(pairs, 1), gain_of_pairs(pairs, 30)
    assert alone is not None
    assert among_many is not None
    assert (alone.is_claimed, among_many.is_claimed) == (True, False)
    assert (among_many.low, among_many.high) == (alone.low, alone.high)


def test_few_pairs_claim_nothing() -> None:
    """However large their gain: coins fall so now and then."""
    few = gain_of_pairs(_pairs([9.0] * LOOKS[0]), 1)
    assert few is not None
    assert not few.is_claimed
    assert few.middle == pytest.approx(9.0)


def test_fewer_pairs_than_the_first_look_say_nothing() -> None:
    assert gain_of_pairs(_pairs([2.0] * (LOOKS[0] - 1)), 1) is None


def test_pairs_between_two_looks_are_left_for_the_next() -> None:
    assert gain_of_pairs(_pairs([2.0] * 6 + [1.0]), 1) == gain_of_pairs(_pairs([2.0] * 6), 1)


def test_while_steps_wait_for_input_pairs_prove_nothing() -> None:
    pairs = _pairs([1.5 + n / 100 for n in range(15)])
    waited = [Pair(structs.replace(off, waited_ns=10**8), on) for off, on in pairs]
    alone, captured, timed = (
        gain_of_pairs(pairs, 1), gain_of_pairs(pairs, 1, 0.1), gain_of_pairs(waited, 1)
    )  # fmt: skip
    assert alone is not None
    assert captured is not None
    assert timed is not None
    assert (alone.is_claimed, captured.is_claimed, timed.is_claimed) == (True, False, False)
    assert (alone.doubt, captured.doubt, timed.doubt) == ("", WAITS, WAITS)


def _settled(pair: Pair, off_ns: float, on_ns: float) -> Pair:
    """After two steps without the cure, and two with it, that took so long."""
    replace = structs.replace
    off, on = (
        replace(each, settled_ns=round(ns), settled_steps=2)
        for each, ns in zip(pair, (off_ns, on_ns), strict=True)
    )
    return Pair(off, on)


def test_what_pauses_with_a_cure_could_be_due_to_it_bounds_its_gain() -> None:
    """Three times as fast, but of 56 s with it a pause takes 25; or all that is gained."""
    pairs = [_settled(pair, 6e9, 2e9) for pair in _pairs([3.0 + n / 100 for n in range(11)])]
    steady, loading, paused, waiting = (
        gain_of_pairs(each, 1)
        for each in (
            pairs,
            # Kernels are loaded.
            [_settled(pairs[0], 6e9, 99e9), *pairs[1:]],
            [*pairs[:-1], _settled(pairs[-1], 6e9, 27e9)],
            [_settled(pair, 6e9, (8 + n % 2) * 1e9) for n, pair in enumerate(pairs)],
        )
    )
    assert steady is not None
    assert loading is not None
    assert paused is not None
    assert waiting is not None
    assert (steady.is_claimed, loading.is_claimed) == (True, True)
    assert steady.low == loading.low > 3.0
    assert (paused.is_claimed, paused.middle) == (True, steady.middle)
    assert paused.low == pytest.approx(3.05 * 31 / 56, rel=0.001)
    assert not waiting.is_claimed
    assert waiting.doubt


def _runs(*times: float) -> list[RunStep]:
    return [RunStep(ns) for ns in times]


def test_runs_of_their_own_prove_what_is_larger_than_they_differ_by() -> None:
    proven = gain_of_runs(_runs(100.0, 101.0), _runs(50.0, 50.4), 1)
    assert proven is not None
    assert proven.is_claimed
    assert proven.middle == pytest.approx(2.0, rel=0.01)
    unclear = gain_of_runs(_runs(100.0, 140.0), _runs(90.0, 120.0), 1)
    assert unclear is not None
    assert not unclear.is_claimed
    assert unclear.low < 1.0 < unclear.high
    assert gain_of_runs(_runs(100.0), [], 1) is None
    by_others = gain_of_runs(_runs(100.0), _runs(50.0), 1, [_runs(70.0, 70.2), _runs(30.0, 30.1)])
    assert by_others is not None
    assert by_others.low > 1.7


def test_one_run_each_proves_what_is_larger_than_runs_ever_differ_by() -> None:
    large, small = (gain_of_runs(_runs(100.0), _runs(ns), 1) for ns in (50.0, 75.0))
    assert large is not None
    assert large.is_claimed
    assert small is not None
    assert not small.is_claimed
    assert small.low < 4 / 3 < small.high
    rng = random.Random(5)
    claimed = 0
    for _ in range(10 * SERIES):
        off, on = (math.exp(rng.gauss(0, 0.1)) for _ in range(2))
        gain = gain_of_runs(_runs(off), _runs(on), 1)
        claimed += gain is not None and gain.is_claimed
    assert claimed <= 0.005 * 10 * SERIES


def test_runs_of_healthy_programs_are_covered_as_often_as_said() -> None:
    """By what runs of programs differed by on H200s."""
    rng = random.Random(3)
    covered = claimed = 0
    for _ in range(SERIES):
        spread = rng.choice(SPREADS)
        off, on, other = (
            _runs(*(math.exp(rng.gauss(0, spread)) for _ in range(2))) for _ in range(3)
        )
        gain = gain_of_runs(off, on, 1, [other])
        assert gain is not None
        covered += gain.low <= 1.0 <= gain.high
        claimed += gain.is_claimed
    assert claimed <= 0.005 * SERIES
    noisy = gain_of_runs(_runs(100.0, 115.0), _runs(40.0, 38.0), 1)
    assert noisy is not None
    assert noisy.is_claimed, "of two runs each alone nothing could be said"
    assert 0.93 <= covered / SERIES <= 0.98


@pytest.mark.parametrize("alike", [0.0, 0.5, 0.8])
def test_a_run_may_be_off_by_what_its_error_says_however_alike_neighbours_are(alike: float) -> None:
    """Blocks of a quarter of a second, whose times depend on the one before, around a line."""
    rng = random.Random(7)
    held = 0
    for _ in range(SERIES // 2):
        value, blocks = rng.gauss(0.0, 1.0), []
        for number in range(48):
            value = alike * value + rng.gauss(0.0, math.sqrt(1.0 - alike**2))
            step = 1.0 + 0.1 * value + 0.01 * (number - 23.5)
            blocks.append(_block(0.25e9 * step, False))
        run = step_of(blocks)
        width = run.error * student(0.975, round(run.freedom, 1))
        held += abs(run.ns / 0.25e9 - 1.0) <= width
    assert 0.9 <= held / (SERIES // 2) <= 0.98


def test_two_speeds_within_runs_are_no_gain() -> None:
    """Of a run of three seconds that are all at the one, another at the other."""
    gains = [by_runs(KINDS["bimodal"], f"runs {n}") for n in range(2 * OF_A_KIND)]
    assert sum(runs[-1].is_claimed for runs in gains) <= 1
    assert sum(runs[-1].low <= 1.0 <= runs[-1].high for runs in gains) >= 0.85 * len(gains)


def test_a_run_that_differs_within_itself_proves_less() -> None:
    still = gain_of_runs(_runs(100.0), _runs(50.0), 1)
    restless = gain_of_runs([RunStep(100.0, 0.3)], [RunStep(50.0, 0.3)], 1)
    assert still is not None
    assert restless is not None
    assert (still.is_claimed, restless.is_claimed) == (True, False)
    assert restless.low < still.low < still.high < restless.high


def test_quantiles_of_students_t_are_those_of_its_density() -> None:
    """Against the integral of the density, by Simpson's rule."""
    for freedom in (1, 2, 3, 7, 30):
        for probability in (0.9, 0.975, 0.9995):
            t = student(probability, freedom)
            constant = math.exp(
                math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
            ) / math.sqrt(freedom * math.pi)
            # In the angle whose tangent is t / sqrt(n) the range is finite.
            end, pieces = math.atan(t / math.sqrt(freedom)), 2000
            values = [math.cos(end * n / pieces) ** (freedom - 1) for n in range(pieces + 1)]
            weights = [1] + [4, 2] * (pieces // 2 - 1) + [4, 1]
            whole = sum(w * v for w, v in zip(weights, values, strict=True))
            area = constant * math.sqrt(freedom) * whole * end / pieces / 3
            assert 0.5 + area == pytest.approx(probability, abs=1e-7)


def test_what_answers_the_finding_is_switched_before_the_rest(tmp_path: Path) -> None:
    plan = {"cures": ["for another", "for it"], "later": ["for another"], "warm_s": 0.0}
    asked = in_program.Plan(json.dumps({**plan, "block_s": 0.0}))
    trial = in_program.TrialInProgram(asked, str(tmp_path), Switches(), ())
    site = trial.sites.add("optimizer", "SGD")
    run = RunInFolder(tmp_path)

    def pairs(steps: int) -> tuple[int, int]:
        for _ in range(steps):
            trial.step(site, 0, 0)
        run.reader.poll()
        assert run.reader.steps is not None
        return len(run.reader.steps.pairs("for it")), len(run.reader.steps.pairs("for another"))

    first, later = pairs(60)
    assert first > 10
    assert not later
    run.keep(["for another"], 15)
    first, later = pairs(400)
    assert first <= 16
    assert later > 10


def test_ablations_come_last_and_nothing_is_saved_from_the_first_on(tmp_path: Path) -> None:
    """Once one was on no cure is switched any more, whatever is asked for."""
    names = {"cures": ["taken away", "cure"], "bounds": ["taken away"], "held_then": ["no_saves"]}
    switches = Switches()
    asked = in_program.Plan(json.dumps({**names, "warm_s": 0.0, "block_s": 0.0}))
    trial = in_program.TrialInProgram(asked, str(tmp_path), switches, ())
    site, run, is_saved = trial.sites.add("optimizer", "SGD"), RunInFolder(tmp_path), []

    def steps(count: int) -> dict[str, int]:
        for _ in range(count):
            trial.step(site, 0, 0)
            is_saved.append("no_saves" not in switches.undo)
        run.reader.poll()
        assert run.reader.steps is not None
        return {name: len(run.reader.steps.pairs(name)) for name in names["cures"]}

    before = steps(80)
    assert before["cure"] > 10
    assert not before["taken away"]
    assert all(is_saved)
    run.keep(["taken away"], before["cure"] + 2)
    then = steps(80)
    run.keep(["cure", "taken away"], 0)
    last = steps(80)
    assert before["cure"] <= then["cure"] == last["cure"]
    assert 0 < then["taken away"] < last["taken away"]
    assert is_saved == sorted(is_saved, reverse=True)
    assert not is_saved[-1]


def test_what_gains_is_proven_before_others_have_their_pairs() -> None:
    """Of twelve cures it takes less than twice the time that it takes alone, in the middle."""
    seconds = {
        cures: statistics.median(
            switched(KINDS["steady"], f"first {number}", 2.0, cures, until_claimed=True).seconds
            for number in range(5)
        )
        for cures in (1, 12)
    }
    assert seconds[12] < 2.5 * seconds[1]


def test_blocks_of_a_step_that_a_cure_makes_much_shorter_get_more_steps() -> None:
    """What steps next to one another do at once counts, as it does without a trial; but not where
    steps are as long with it, or blocks have many."""

    def most(step_s: float, gain: float) -> dict[bool, int]:
        blocks = switched(lambda _, gain: Program(lambda _: step_s, gain), "long", gain).blocks
        return {on: max(each.steps for each in blocks if each.on is on) for on in (False, True)}

    assert most(0.5, 10.0) == {False: 1, True: 8}
    assert most(0.5, 4.0) == {False: 1, True: 4}
    assert most(0.5, 1.2) == {False: 1, True: 1}
    assert most(0.01, 10.0) == {False: 25, True: 25}


def run_with(pairs: dict[str, list[float]]) -> RunInFolder:
    """A run in which blocks of these cures had such ratios, one pair a second."""
    run = RunInFolder(Path("/nowhere"))
    steps = run.reader.processes.setdefault(1, Steps(1, site="step"))
    number = itertools.count()
    for name, ratios in pairs.items():
        for ratio in ratios:
            pair = next(number)
            times = {False: round(ratio * 1e9), True: 10**9}
            steps.blocks += [Block(pair, name, on, 1, ns, 0) for on, ns in times.items()]
    return run


def test_who_gets_the_next_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cure that shows most; ablations once none does; and none that a run waits for."""
    kept: list[list[str]] = []
    monkeypatch.setattr(RunInFolder, "keep", lambda _, cures, *__: kept.append(cures))
    names = ["a", "b", "taken away", "taken, too"]

    def looked(
        pairs: dict[str, list[float]], seconds: float, longer_s: float = 0.0, whole_s: float = 60.0
    ) -> str:
        alternation = Alternation(
            {name: [] for name in names}, 30.0, bounds=names[2:], bounds_s=10.0,
            waiting={"run": Waiting({"taken, too"}, longer_s)}, whole_s=whole_s, promise={"a"},
        )  # fmt: skip
        run = run_with(pairs)
        alternation.look(run, 10.0)
        return alternation.look(run, seconds)

    assert looked({"a": [1.01], "b": [1.6]}, 12.0) == ""
    assert kept.pop() == ["b"]
    nothing = {"a": [1.0] * 3, "b": [0.98, 1.05, 0.99]}
    assert looked(nothing, 14.0) == ""
    assert kept.pop() == ["taken away"], "nothing is promised of b, and an ablation waits"
    assert looked(nothing, 50.0) == "its part of the budget is spent"
    assert looked({**nothing, "taken away": [1.0] * 3}, 14.0) == "the gains are known"
    little = {"a": [1.05] * 4}
    assert looked(little, 25.0, 40.0) == "", "there is no time for a run that compiles"
    assert looked(little, 25.0, 40.0, 95.0) == "its part of the budget is spent"


def test_torch_may_be_half_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that looks for steps had ended there in each program of torch."""
    torch = types.ModuleType("torch")
    for name in ("cupy", "jax", "numba.cuda", "warp", "taichi", "torch._dynamo.utils"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    uses_gpu = step_sites.uses_gpu
    assert not uses_gpu()
    torch.cuda = types.SimpleNamespace(is_initialized=lambda: True)  # type: ignore[attr-defined]
    assert uses_gpu()


def begun_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """A trial in this process that has seen ten steps, and where its steps are from; what it puts
    in the place of `Condition.wait` is taken back after the test."""
    monkeypatch.setattr(threading.Condition, "wait", threading.Condition.wait)
    plan = in_program.Plan(json.dumps({"warm_s": 0.0, "block_s": 0.0}))
    trial = in_program.TrialInProgram(plan, str(tmp_path), None, ())
    site = trial.sites.add("optimizer", "SGD")
    for _ in range(10):
        trial.step(site, 0, 0)
    return trial, site


@pytest.mark.parametrize(
    ("step", "chosen"), [("", "AdamW"), ("loop train.py:9", "train.py:9"), ("module Lost", "AdamW")]
)
def test_what_prepares_batches_is_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, chosen: str
) -> None:
    """A module that is called 64 times before each optimizer's step, and a loop around all."""
    monkeypatch.setattr(threading.Condition, "wait", threading.Condition.wait)
    clock = types.SimpleNamespace(now_ns=0)
    steps_clock = types.SimpleNamespace(perf_counter_ns=lambda: clock.now_ns)
    monkeypatch.setattr(in_program, "time", steps_clock)
    plan = in_program.Plan(json.dumps({"step": step}))
    trial = in_program.TrialInProgram(plan, str(tmp_path), None, ())
    transform, optimizer = (
        trial.sites.add(*place) for place in (("module", "Compose"), ("optimizer", "AdamW"))
    )
    loop = trial.sites.add("loop", "train.py:9")
    while not trial.has_begun:
        for _ in range(64):
            clock.now_ns += 10_000_000
            trial.step(transform, 0, 0)
        trial.step(optimizer, 0, 0)
        trial.step(loop, 0, 0)
    reader = BlockReader(tmp_path)
    reader.poll()
    assert reader.steps is not None
    assert reader.steps.site == chosen


def test_waits_for_a_programs_own_queue_are_timed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.data.dataloader", None)
    trial, site = begun_trial(tmp_path, monkeypatch)
    for _ in range(2):
        with pytest.raises(queue.Empty):
            queue.Queue[int]().get(timeout=0.01)
        trial.step(site, 0, 0)
    run = RunInFolder(tmp_path)
    run.reader.poll()
    assert run.reader.steps is not None
    waited = [block.waited_ns for block in run.reader.steps.blocks]
    assert waited[0] is None
    assert waited[-1] is not None
    assert waited[-1] > 0.9e7


def test_waits_for_a_loaders_workers_are_timed_whoever_makes_its_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cure puts another function in the place of the one that is timed, as repeat_batch does."""

    class Iterator:
        def __next__(self) -> str:
            return "made"

    class OfWorkers(Iterator):
        pass

    loaders = types.SimpleNamespace(_MultiProcessingDataLoaderIter=OfWorkers)
    monkeypatch.setitem(sys.modules, "torch.utils.data.dataloader", loaders)
    trial, site = begun_trial(tmp_path, monkeypatch)
    monkeypatch.setattr(Iterator, "__next__", lambda _: "repeated")
    batches = [next(OfWorkers()) for _ in range(3)]
    trial.step(site, 0, 0)
    assert batches == ["repeated"] * 3
    run = RunInFolder(tmp_path)
    run.reader.poll()
    assert run.reader.steps is not None
    waited = [block.waited_ns for block in run.reader.steps.blocks]
    assert waited[0] is None
    assert waited[-1] is not None
    assert waited[-1] > 0


class RankInStep(in_program.TrialInProgram):
    """A rank whose files are here."""

    said: dict[str, dict[str, Any]]

    def _say(self, row: dict[str, Any]) -> None:
        self.rows = [*getattr(self, "rows", ()), row]

    def _read(self, name: str) -> dict[str, Any] | None:
        return self.said.get(name)

    def _write_whole(self, name: str, row: dict[str, Any]) -> None:
        self.said[name] = row


@pytest.mark.parametrize("asked", [("a", "c"), ("a", "c", "d")])
def test_ranks_have_the_same_on_soon_after_one_has_refused_a_cure_or_heard_later(
    monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...]
) -> None:
    """What is asked for from a pair on may be written between two ranks' looks at it."""
    monkeypatch.setattr(threading.Condition, "wait", threading.Condition.wait)

    class Refuses(Switches):
        def switch(self, name: str, on: bool) -> bool:
            return not (on and name == "b" and refuses) and super().switch(name, on)

    refuses, said = False, {}
    plan = {"cures": ["a", "b", "c", "d"], "warm_s": 0.0, "block_s": 0.0, "seed": 3}
    ranks = []
    for rank, cures in enumerate((Switches(), Refuses())):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        trial = RankInStep(in_program.Plan(json.dumps(plan)), "", cures, ())
        trial.said = said
        ranks.append((trial, trial.sites.add("optimizer", "SGD"), cures))
    differed = []
    for step in range(1200):
        for trial, site, _ in ranks:
            trial.step(site, 0, 0)
            pair = max((row.get("pair", 0) for row in trial.rows), default=0)
            if step >= 600 and pair and "trial-active" not in said:
                said["trial-active"] = {"cures": [*asked], "from": pair}
        refuses = refuses or step == 300
        on = [{*cures.undo} for _, _, cures in ranks]
        if on[0] != on[1]:
            differed.append(step)
    assert {row["cure"] for row in ranks[0][0].rows[-50:] if "pair" in row} == {*asked}
    assert [step for step in differed if step < 300 or step > 630] == []
