"""What trials prove: intervals that hold although one stops early, gains that are real."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable

import pytest

from gputui.trial import proof
from gputui.trial.proof import (
    LOOKS,
    MeasuredGain,
    gain_of_pairs,
    gain_of_runs,
    student,
)

SERIES = 1000


def _stopped(draw: Callable[[], float], truth: float = 1.0, cures: int = 1) -> MeasuredGain:
    """A trial as it is made: pairs until a look decides it."""
    ratios: list[float] = []
    for look in LOOKS:
        while len(ratios) < look:
            ratios.append(truth * math.exp(draw()))
        gain = gain_of_pairs(ratios, cures)
        assert gain is not None
        if gain.is_decided:
            break
    return gain


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


def test_bursts_are_no_gain() -> None:
    """As often as not a block has a pause in it, which takes most of the time."""
    rng = random.Random(7)
    gains = [
        _stopped(lambda: math.log(30.0) * ((rng.random() < 0.35) - (rng.random() < 0.25)))
        for _ in range(SERIES)
    ]
    assert sum(gain.is_claimed for gain in gains) / SERIES <= 0.005


def test_a_gain_that_is_there_is_claimed_and_lies_in_its_interval() -> None:
    rng = random.Random(5)
    gains = [_stopped(lambda: _normal(rng), truth=1.3, cures=5) for _ in range(300)]
    assert all(gain.is_claimed for gain in gains)
    assert sum(gain.low <= 1.3 <= gain.high for gain in gains) >= 0.93 * 300
    assert sum(gain.pairs for gain in gains) / 300 < 15


def test_more_cures_need_more_to_be_claimed() -> None:
    rng = random.Random(1)
    ratios = [1.06 * math.exp(rng.gauss(0, 0.02)) for _ in range(8)]
    alone, among_many = gain_of_pairs(ratios, 1), gain_of_pairs(ratios, 30)
    assert alone is not None
    assert among_many is not None
    assert among_many.claimed < alone.claimed
    assert (among_many.low, among_many.high) == (alone.low, alone.high)


def test_fewer_pairs_than_the_first_look_say_nothing() -> None:
    assert gain_of_pairs([2.0] * (LOOKS[0] - 1), 1) is None


def test_pairs_between_two_looks_are_left_for_the_next() -> None:
    assert gain_of_pairs([2.0] * 6 + [1.0], 1) == gain_of_pairs([2.0] * 6, 1)


def test_runs_of_their_own_prove_what_is_larger_than_they_differ_by() -> None:
    proven = gain_of_runs([100.0, 101.0], [50.0, 50.4], 1)
    assert proven is not None
    assert proven.is_claimed
    assert proven.middle == pytest.approx(2.0, rel=0.01)
    unclear = gain_of_runs([100.0, 140.0], [90.0, 120.0], 1)
    assert unclear is not None
    assert not unclear.is_claimed
    assert unclear.low < 1.0 < unclear.high
    assert gain_of_runs([100.0], [], 1) is None
    by_others = gain_of_runs([100.0], [50.0], 1, [[70.0, 70.2], [30.0, 30.1]])
    assert by_others is not None
    assert by_others.low > 1.9


def test_one_run_each_proves_what_is_larger_than_runs_ever_differ_by() -> None:
    large, small = gain_of_runs([100.0], [50.0], 1), gain_of_runs([100.0], [75.0], 1)
    assert large is not None
    assert large.is_claimed
    assert small is not None
    assert not small.is_claimed
    assert small.low < 4 / 3 < small.high
    rng = random.Random(5)
    claimed = 0
    for _ in range(10 * SERIES):
        off, on = (math.exp(rng.gauss(0, 0.1)) for _ in range(2))
        gain = gain_of_runs([off], [on], 1)
        claimed += gain is not None and gain.is_claimed
    assert claimed <= 0.005 * 10 * SERIES


def test_runs_of_a_healthy_program_are_covered_as_often_as_said() -> None:
    rng = random.Random(3)
    covered = claimed = 0
    for _ in range(SERIES):
        off, on, other = ([math.exp(rng.gauss(0, 0.03)) for _ in range(2)] for _ in range(3))
        gain = gain_of_runs(off, on, 1, [other])
        assert gain is not None
        covered += gain.low <= 1.0 <= gain.high
        claimed += gain.is_claimed
    assert claimed <= 0.005 * SERIES
    noisy = gain_of_runs([100.0, 115.0], [40.0, 38.0], 1)
    assert noisy is not None
    assert noisy.is_claimed, "of two runs each alone nothing could be said"
    assert 0.93 <= covered / SERIES <= 0.98


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
