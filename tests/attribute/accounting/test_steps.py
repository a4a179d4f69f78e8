"""Steps from the launch sequence, disturbed in many ways, and what belongs to which scope."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gputui.attribute.accounting import tracker
from gputui.attribute.accounting.repetition import Cue, Cues, Tokens, find_step
from gputui.attribute.accounting.steps import Classified, Step, StepScopes
from gputui.attribute.accounting.tracker import MOST_OF_TIME, WINDOW, StepTracker
from gputui.model.events import Scope
from gputui.model.leaves import Leaf
from gputui.playback.opening import open_recording
from tests.conftest import DATA
from tests.imports.nsys_for_tests import REAL

LAUNCHES = DATA / "launches"


def step_of(generator: np.random.Generator, layers: int = 24) -> Tokens:
    """A training step: embedding, layers, a head and an optimizer."""
    layer = generator.integers(100, 120, 25)
    return np.concatenate(
        [
            generator.integers(0, 60, 20),
            *[layer] * layers,
            generator.integers(200, 260, 40),
            generator.integers(300, 310, 30),
        ]
    ).astype(np.uint32)


def _unnamed(tokens: Tokens) -> tuple[Tokens, Cues]:
    """Each token is a family of its own, and says nothing."""
    return tokens, np.zeros(len(tokens), np.uint8)


def track(parts: list[Tokens], size: int = 4096) -> tuple[list[int], list[int]]:
    """Boundaries that were found, and where each part begins."""
    tokens = np.concatenate(parts)
    starts = np.cumsum([0, *map(len, parts[:-1])]).tolist()
    tracker = StepTracker(_unnamed, measured=False)
    found: list[int] = []
    times = np.arange(len(tokens), dtype=np.int64)
    for at in range(0, len(tokens), size):
        part = slice(at, at + size)
        marks, renewed = tracker.feed(tokens[part], times[part])
        if renewed and marks:
            found = [mark for mark in found if mark < marks[0]]
        found += marks
    return found, starts


def hits(found: list[int], starts: list[int], total: int) -> float:
    """Share of the steps, from the first one found, with exactly one boundary."""
    ends = [*starts[1:], total]
    counts = [
        sum(begin <= mark < end for mark in found) for begin, end in zip(starts, ends, strict=True)
    ]
    first = next((at for at, count in enumerate(counts) if count == 1), len(counts))
    rest = counts[first:]
    return sum(count == 1 for count in rest) / max(1, len(rest))


def test_even_steps_have_one_boundary_each() -> None:
    step = step_of(np.random.default_rng(1))
    parts = [step] * 200
    found, starts = track(parts)
    assert hits(found, starts, len(step) * 200) > 0.99


def test_after_a_warm_up_of_random_launches() -> None:
    generator = np.random.default_rng(2)
    step = step_of(generator)
    noise = generator.integers(1000, 1200, 20_000).astype(np.uint32)
    found, starts = track([noise, *[step] * 200])
    assert hits(found, starts[1:], len(noise) + 200 * len(step)) > 0.95


@pytest.mark.parametrize(("lost", "least"), [(0.01, 0.95), (0.05, 0.85)])
def test_lost_records(lost: float, least: float) -> None:
    generator = np.random.default_rng(3)
    step = step_of(generator)
    parts = [step[generator.random(len(step)) >= lost] for _ in range(200)]
    found, starts = track(parts)
    assert hits(found, starts, sum(map(len, parts))) > least


def test_threads_that_race() -> None:
    generator = np.random.default_rng(4)
    step = step_of(generator)
    parts = []
    for _ in range(200):
        part = step.copy()
        for at in np.flatnonzero(generator.random(len(part) - 1) < 0.02).tolist():
            part[at], part[at + 1] = part[at + 1], part[at]
        parts.append(part)
    found, starts = track(parts)
    assert hits(found, starts, sum(map(len, parts))) > 0.95


def test_one_token_a_step() -> None:
    """A CUDA graph and the copy of its result."""
    step = np.array([5, 9, 5 + (1 << 24)], np.uint32)
    found, starts = track([step] * 3000)
    assert hits(found, starts, 9000) > 0.99


@pytest.mark.parametrize("named", [True, False])
def test_with_gradient_accumulation_the_optimizer_ends_a_step(named: bool) -> None:
    """One of many kernels; where nothing says that they are one, each micro-batch is a step."""
    micro, optimizer = np.arange(100, 400), np.arange(400, 500)
    step = np.concatenate([micro] * 4 + [optimizer])
    tokens = np.tile(step, 10).astype(np.uint32)
    cues = np.where(named & (tokens >= 400), Cue.OPTIMIZER, 0).astype(np.uint8)
    found = find_step(tokens, tokens, cues)
    assert found is not None
    assert found.period == (len(step) if named else len(micro))


@pytest.mark.parametrize("kernels", [1, 3])
@pytest.mark.parametrize("micro_batches", [2, 4, 16])
@pytest.mark.parametrize("alike", [True, False])
def test_a_fused_optimizer_ends_a_step_of_several_micro_batches(
    micro_batches: int, kernels: int, alike: bool
) -> None:
    """They end with a loss each, and the first may have no gradients to add to."""
    forward, backward, loss = np.arange(100, 200), np.arange(200, 300), [50]
    later = np.concatenate([forward, loss, np.column_stack((backward, backward % 5)).ravel()])
    first = later if alike else np.concatenate([forward, loss, backward])
    step = np.concatenate([first, *[later] * (micro_batches - 1), np.full(kernels, 400)])
    tokens = np.tile(step, 20).astype(np.uint32)
    cues = np.select([tokens == 400, tokens == 50], [Cue.OPTIMIZER, Cue.HEAD]).astype(np.uint8)
    found = find_step(tokens, tokens, cues)
    assert found is not None
    assert found.period == len(step)
    assert found.micro_batches == micro_batches


@pytest.mark.parametrize("losses", [1, 3])
def test_losses_of_one_pass_make_no_micro_batches(losses: int) -> None:
    """Of three heads, one after the other."""
    step = [*range(100, 200), *[50, 60] * losses, *range(200, 300), 400]
    tokens = np.tile(step, 20).astype(np.uint32)
    cues = np.select([tokens == 400, tokens == 50], [Cue.OPTIMIZER, Cue.HEAD]).astype(np.uint8)
    found = find_step(tokens, tokens, cues)
    assert found is not None
    assert found.period == len(step)
    assert found.micro_batches is None


def test_another_loop_is_found_when_the_first_is_over() -> None:
    generator = np.random.default_rng(5)
    first, second = step_of(generator), step_of(generator, layers=6)
    parts = [first] * 100 + [second] * 200
    found, starts = track(parts)
    assert hits(found, starts[110:], sum(map(len, parts))) > 0.95


def test_nothing_is_found_in_noise() -> None:
    noise = np.random.default_rng(6).integers(0, 500, 100_000).astype(np.uint32)
    found, _ = track([noise])
    assert found == []


def test_looking_for_steps_keeps_to_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing repeats and each look takes 0.2 s."""
    clock = SimpleNamespace(now_s=0.0, looks=0)

    def look(*_: object) -> None:
        clock.now_s += 0.2
        clock.looks += 1

    monkeypatch.setattr(tracker, "time", SimpleNamespace(perf_counter=lambda: clock.now_s))
    monkeypatch.setattr(tracker, "find_step", look)
    of = StepTracker(lambda tokens: (tokens, tokens.astype(np.uint8)))
    launches = np.arange(WINDOW, dtype=np.uint32)
    for _ in range(100):
        of.feed(launches, launches.astype(np.int64))
        clock.now_s += 1.0
    # One look may begin while there is time left, and 0.1 s are free.
    assert 8 <= clock.looks <= (MOST_OF_TIME * clock.now_s + 0.1) / 0.2 + 1


def test_steps_of_few_launches_are_found_after_a_long_set_up() -> None:
    """As XLA's, which tries kernels by the hundred before a loop of a copy, a graph and two more.
    After less of a set-up all launches show them."""
    for set_up in (300, 1200):
        tries = 10 + np.random.default_rng(1).integers(0, 700, set_up).astype(np.uint32)
        launches = np.concatenate((tries, np.tile(np.arange(4, dtype=np.uint32), 100)))
        of = StepTracker(lambda tokens: (tokens, np.zeros(len(tokens), np.uint8)))
        marks, _ = of.feed(launches, np.arange(len(launches), dtype=np.int64), ended=True)
        assert len(marks) > 50
        assert set(np.diff(marks).tolist()) == {4}
        assert marks[0] >= set_up


@pytest.fixture(scope="module", params=sorted(path.stem for path in LAUNCHES.glob("*.npz")))
def trace(request: pytest.FixtureRequest) -> Any:
    """Launches of a real program, and where its annotated steps begin."""
    return np.load(LAUNCHES / f"{request.param}.npz")


def follow(trace: Any, rows: npt.NDArray[np.intp], **how: Any) -> list[int]:
    """The boundaries found in launches of a trace, each marked by its place in `rows`."""
    said = np.zeros((int(trace["tokens"].max()) + 1, 2), np.int64)
    said[trace["tokens"]] = np.stack((trace["families"], trace["cues"]), axis=1)

    def meanings(tokens: Tokens) -> tuple[Tokens, Cues]:
        return said[tokens, 0].astype(np.uint32), said[tokens, 1].astype(np.uint8)

    tracker = StepTracker(meanings, measured=False, **how)
    found: list[int] = []
    tokens = trace["tokens"].astype(np.uint32)[rows]
    times = np.arange(len(rows), dtype=np.int64)
    for at in range(0, len(rows), 2048):
        part = slice(at, at + 2048)
        ended = at + 2048 >= len(rows)
        marks, renewed = tracker.feed(tokens[part], times[part], ended=ended)
        if renewed and marks:
            found = [mark for mark in found if mark < marks[0]]
        found += marks
    return found


def test_the_steps_of_real_programs_are_those_they_annotate(trace: Any) -> None:
    """A file is looked at as a whole: 4 to 6 steps, each of 1,219 to 4,458 launches. A boundary
    lies anywhere in a step, so the first or the last may have none."""
    truth = trace["truth"]
    found = follow(trace, np.arange(len(trace["tokens"])), first_try=1 << 20)
    each = np.diff(truth)
    assert np.diff(found).tolist() == [each[0]] * (len(found) - 1)
    assert len(found) >= len(truth) - 1


@pytest.mark.parametrize("disturbed", ["lost", "swapped"])
def test_steps_of_real_programs_are_followed_live(trace: Any, disturbed: str) -> None:
    """Their steps again and again; one in a hundred launches lost, or one in fifty swapped with
    its neighbour, as threads that race do."""
    generator = np.random.default_rng(7)
    length = int(trace["truth"][1] - trace["truth"][0])
    parts = []
    for _ in range(30_000 // length):
        rows = int(generator.choice(trace["truth"][:-1])) + np.arange(length)
        if disturbed == "lost":
            rows = rows[generator.random(length) >= 0.01]
        if disturbed == "swapped":
            for at in np.flatnonzero(generator.random(length - 1) < 0.02).tolist():
                rows[at], rows[at + 1] = rows[at + 1], rows[at]
        parts.append(rows)
    found = follow(trace, np.concatenate(parts))
    starts = np.cumsum([0, *map(len, parts[:-1])])
    # Boundaries may lie anywhere in a step: from the first one on, one in each.
    offset = found[0] - int(starts[np.searchsorted(starts, found[0], side="right") - 1])
    shifted = [mark - offset + length // 2 for mark in found]
    assert hits(shifted, starts[:-1].tolist(), int(starts[-1])) >= 0.95


def classified(lengths: list[int], operations: list[int] | None = None) -> list[Classified]:
    scopes = StepScopes()
    steps, at = [], 0
    for number, length in enumerate(lengths):
        count = operations[number] if operations else 100
        steps.append(Step(at, at + length, count, np.zeros(1)))
        at += length
    known = scopes.add(steps) + scopes.end()
    return sorted(known, key=lambda one: one.step.start_ns)


def scoped(lengths: list[int], operations: list[int] | None = None) -> list[tuple[Scope, int]]:
    return [(one.scope, one.loop) for one in classified(lengths, operations)]


MS = 1_000_000


def test_every_step_counts_where_the_program_declares_its_steps() -> None:
    # A workload warms up before its steps, and rows of a sweep have other work than those before.
    lengths = [150 * MS, 90 * MS, *[60 * MS] * 8, *[2 * MS] * 20]
    operations = [100] * 10 + [1] * 20
    scopes = StepScopes()
    scopes.trust()
    # The first of them is judged by itself: nothing says yet what is usual.
    assert scopes.add_even(np.array(lengths[:1]), np.array(operations[:1])) is None
    at, judged = 0, []
    for length, count in zip(lengths, operations, strict=True):
        step = Step(at, at + length, count, np.zeros(1))
        judged += scopes.add([step])
        at += length
    judged += scopes.end()
    assert [(one.scope, one.loop) for one in judged] == [(Scope.STEADY, 0)] * 30
    assert not judged[0].slow


def test_warm_up_ends_where_steps_become_even() -> None:
    found = scoped([900 * MS, 300 * MS, 150 * MS] + [50 * MS] * 20)
    assert [scope for scope, _ in found] == [Scope.WARMUP] * 3 + [Scope.STEADY] * 20


def test_evaluation_and_pauses_are_apart() -> None:
    lengths = [50 * MS] * 40
    lengths[20] = 3_000 * MS
    operations = [100] * 40
    operations[30] = 20
    found = [scope for scope, _ in scoped(lengths, operations)]
    assert found[20] is Scope.PAUSE
    assert found[30] is Scope.EVALUATION
    assert found.count(Scope.STEADY) == 38


def test_a_slow_step_is_steady() -> None:
    lengths = [50 * MS] * 40
    lengths[20] = 120 * MS
    assert {scope for scope, _ in scoped(lengths)} == {Scope.STEADY}


def test_where_no_five_steps_in_a_row_are_alike_the_long_ones_are_slow_all_the_same() -> None:
    """Every fourth saves a checkpoint."""
    found = classified([13 * MS, 13 * MS, 13 * MS, 380 * MS] * 6)
    assert {one.scope for one in found} == {Scope.STEADY}
    assert [one.slow for one in found] == [False, False, False, True] * 6


def test_steps_as_long_as_those_before_are_of_their_loop_whatever_they_ran() -> None:
    """Operations that come too late are missed in five steps in a row."""
    operations = [300] * 50 + [1] * 6 + [300] * 30
    found = scoped([16 * MS + n % 3 * MS // 8 for n in range(86)], operations)
    assert {loop for _, loop in found} == {0}
    scopes = [scope for scope, _ in found]
    assert scopes[50:56] == [Scope.EVALUATION] * 6
    assert scopes.count(Scope.STEADY) == 80


def test_steps_of_another_kind_are_another_loop() -> None:
    found = scoped([1 * MS] * 30 + [180 * MS] * 30)
    assert found[0] == (Scope.STEADY, 0)
    assert found[-1] == (Scope.STEADY, 1)
    assert sum(loop == 1 for _, loop in found) == 30


@pytest.mark.skipif(not REAL.is_file(), reason="the report lies beside the checkout")
def test_the_steps_of_a_real_report() -> None:
    """The T4 report's loop: 87 operations a step, 44 steps of 41 ms, a third of it in CPU code."""
    found = Counter[tuple[Scope, Leaf]]()
    steps = 0
    for event in open_recording(REAL):
        for time in getattr(event, "leaf_times", ()):
            found[Scope(time.scope), Leaf(time.leaf)] += time.ns
        for loop in getattr(event, "loops", ()):
            steps += loop.steps if loop.scope == Scope.STEADY else 0
    wall_ns = sum(ns for (scope, _), ns in found.items() if scope is Scope.STEADY)
    assert 42 <= steps <= 44
    assert wall_ns / steps == pytest.approx(41.2e6, rel=0.02)
    assert found[Scope.STEADY, Leaf.HOST] / wall_ns == pytest.approx(0.36, abs=0.01)
