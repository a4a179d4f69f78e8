"""The steps that a program marks: records of a ring in, a session's marked steps out."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from gputui.model.events import MARKED_LENGTHS, STEP_SOURCES, CaptureDelta, Scope, StepMarks
from gputui.report.explain.time_tree import time_tree
from gputui.report.scope import beside_benchmark
from gputui.ring import ENDS, LEARNS, RecordKind
from gputui.state import Session
from tests.attribute.capture_program import MAIN, START_NS, Program, Traced
from tests.events_for_tests import attached, run_started

OPTIMIZER = STEP_SOURCES.index("optimizer") + 1
TOKEN = STEP_SOURCES.index("token") + 1
MODULE = STEP_SOURCES.index("module") + 1
TQDM = STEP_SOURCES.index("tqdm") + 1
LOOP = STEP_SOURCES.index("loop") + 1
SAMPLES, TOKENS = 1, 2
MS = 1_000_000


def _mark(program, ordinal, time, source=OPTIMIZER, site="AdamW", items=0, thread=MAIN):
    return program.slot(
        RecordKind.STEP, sub=source, start=time, name=program.id(site), value=ordinal,
        end=items - START_NS, source_kind=TOKENS if items else 0, thread=thread,
    )  # fmt: skip


def test_marks_say_who_where_when_and_how_many():
    program = Program()
    traced = Traced(program)
    traced.feed([_mark(program, n, n * 10 * MS, items=512) for n in range(1, 4)], seconds=1)
    last = _mark(program, 4, 45 * MS, items=512)
    run = traced.finish(last, _mark(program, 1, MS, TOKEN, "GPT2"), seconds=1)
    steps = run.marked_steps[1, MAIN, "optimizer", "AdamW"]
    assert (steps.marks, steps.newest_ordinal) == (4, 4)
    assert (steps.first_ns, steps.last_ns) == (START_NS + 10 * MS, START_NS + 45 * MS)
    assert steps.mean_ns == 35 * MS / 3
    assert [*steps.lengths_ns] == [10 * MS, 10 * MS, 15 * MS]
    assert (steps.items, steps.unit) == (2048, "tokens")
    (other,) = (key for key in run.marked_steps if key[2] == "token")
    assert other == (1, MAIN, "token", "GPT2")
    assert run.marked_steps[other].items is None, "unknown, not 0"


def test_of_many_marks_the_newest_distances_are_reported_and_all_are_counted():
    program = Program()
    run = Traced(program).finish(*(_mark(program, n, n * MS) for n in range(1, 1001)), seconds=2)
    steps = run.marked_steps[1, MAIN, "optimizer", "AdamW"]
    assert steps.marks == 1000
    assert steps.mean_ns == MS
    assert len([*steps.lengths_ns]) == MARKED_LENGTHS


def test_the_mean_of_marks_leaves_out_those_that_ran_ahead_of_the_gpu():
    """As of an optimizer on an H100: 14 steps filled the queue of launches, 79 waited for it."""
    program = Program()
    moments = [4 * MS * n for n in range(1, 15)]
    moments += [56 * MS + 50 * MS * n for n in range(1, 80)]
    marks = [_mark(program, n, moment) for n, moment in enumerate(moments, 1)]
    traced = Traced(program)
    traced.feed(marks[:30], seconds=1)
    traced.collect(seconds=1)
    run = traced.finish(*marks[30:], seconds=5)
    steps = run.marked_steps[1, MAIN, "optimizer", "AdamW"]
    assert steps.marks == 93
    assert steps.mean_ns == 50 * MS


def test_what_a_rotated_recording_repeats_is_counted_once():
    event = StepMarks(
        time_ns=START_NS + 3 * MS, process=1, thread=5, source="module", site="Net", first=1,
        marks=3, span_ns=2 * MS, lengths_ns=(MS, MS),
    )  # fmt: skip
    session = Session.from_events([run_started(), attached(), event, event])
    assert session.run.marked_steps[1, 5, "module", "Net"].marks == 3


def test_marks_of_a_source_that_this_gputui_does_not_know_are_ignored():
    program = Program()
    run = Traced(program).finish(_mark(program, 1, MS, 200), _mark(program, 1, MS, 0))
    assert not run.marked_steps


def test_a_loop_says_what_its_steps_go_by():
    assert {"optimizer", "module", "token", "tqdm", "lightning", "trainer", "accelerate", "keras",
            "loop", "jax", "request", "nvtx", "repetition"} == set(STEP_SOURCES)  # fmt: skip
    assert CaptureDelta(time_ns=1, process=1).loops == ()


def test_the_call_of_a_jitted_function_is_a_mark_by_xlas_range():
    program = Program()
    records = []
    for n in range(3):
        name = f"XlaModule:#prefix=jit(step),hlo_module=jit_step,program_id={7 + n // 2}#"
        records += [program.push((2 * n + 1) * MS, name, domain="TSL"),
                    program.pop((2 * n + 2) * MS, domain="TSL")]  # fmt: skip
    records += [program.push(20 * MS, "XlaCompile:#module=jit_step#", domain="TSL"),
                program.pop(21 * MS, domain="TSL")]  # fmt: skip
    run = Traced(program).finish(*records, seconds=1)
    ((key, steps),) = run.marked_steps.items()
    assert key == (1, MAIN, "jax", "jit_step")
    assert (steps.marks, steps.mean_ns) == (3, 2 * MS)


# --- The steps of a device go by the marks.


_correlations = itertools.count(1)


def _launches(program, start, count, kernel=MS // 100, gap=MS // 100, name="gemm"):
    """Launches of `count` kernels one after the other, with what they launch."""
    records = []
    for n in range(count):
        number = next(_correlations)
        at = start + n * (kernel + gap)
        records += [
            program.call(at, at + 1000, number),
            program.kernel(at + 2000, at + 2000 + kernel, number, name=f"{name}{n % 7}"),
        ]
    return records


def _loops(run):
    """(scope, source) → steps and their whole time, over all loops."""
    sums = {}
    for loop in run.loops.values():
        steps, total = sums.get((loop.scope, loop.source), (0, 0))
        added = loop.step_ns.total if loop.step_ns else 0
        sums[loop.scope, loop.source] = steps + loop.steps, total + added
    return sums


def _run(program, steps, ticks_every=20, step_range=None):
    """Feeds the records of each step, in batches with a flush at the end of each."""
    traced = Traced(program, step_range)
    for first in range(0, len(steps), ticks_every):
        batch = [record for step in steps[first : first + ticks_every] for record in step]
        seconds = (int(max(record["start"] for record in batch)) - START_NS) / 1e9 + 0.001
        traced.feed([*batch, program.flush(int(seconds * 1e9))], seconds)
        traced.collect(seconds)
    traced.collect(seconds + 1, ended=True)
    return traced.run


def test_the_steps_are_those_of_the_optimizer_not_what_repeats_inside():
    program = Program()
    steps = [
        [*_launches(program, n * 20 * MS, 280), _mark(program, n + 1, (20 * n + 19) * MS)]
        for n in range(100)
    ]  # fmt: skip
    run = _run(program, steps)
    ((steps_in_all, total_ns),) = (
        value for (scope, _), value in _loops(run).items() if scope in (Scope.STEADY, Scope.WARMUP)
    )
    assert steps_in_all in (98, 99)
    assert abs(total_ns / steps_in_all - 20 * MS) < 0.01 * 20 * MS
    assert {source for (_, source), (count, _) in _loops(run).items() if count} == {"optimizer"}


@pytest.mark.parametrize(("source", "learned"), [("optimizer", 0), ("loop", 2000), ("loop", 500)])
def test_micro_batches_are_the_calls_of_the_model_within_a_step(source, learned):
    """Where it learns from all of them: one that also plays and asks what is best has none."""
    program = Program()
    steps = []
    for n in range(60):
        at = n * 40 * MS
        records = []
        for micro in range(4):
            begin = at + micro * 9 * MS
            records += [_mark(program, 4 * n + micro + 1, begin, MODULE, "Net", learned and 500),
                        *_launches(program, begin + 1000, 100)]  # fmt: skip
        records.append(_mark(program, n + 1, at + 38 * MS, items=learned))
        if source == "loop":
            records.append(_turn(program, n + 1, at + 39 * MS, "train.py:7", 0))
        steps.append(records)
    run = _run(program, steps, 8)
    steady = [loop for loop in run.loops.values() if loop.scope == Scope.STEADY]
    assert {loop.source for loop in steady} == {source}
    assert [loop.micro_batches for loop in steady] == [None if learned == 500 else 4]


@pytest.mark.parametrize("asked", [15, 25])
def test_steps_whose_operations_come_after_those_of_later_ones_are_as_long_as_they_are(asked):
    """A flush brings one buffer later than another: five steps of 160 were one, and others had
    half of their operations."""
    program, late = Program(), []
    traced = Traced(program)
    for first in range(0, 250, 25):
        records, late = late, []
        for n in range(first, first + 25):
            (late if 15 <= n - first < 20 else records).extend(_launches(program, n * 4 * MS, 25))
            records.append(_mark(program, n + 1, n * 4 * MS + 3 * MS))
        read_s = (first + 25) * 0.004
        traced.feed([*records, program.flush((first + asked) * 4 * MS)], read_s)
        traced.collect(read_s)
    run = traced.finish(*late, seconds=1.1)
    source, mean_ns, count = _mean_ns(run)
    assert (source, count) == ("optimizer", 249)
    assert mean_ns == pytest.approx(4 * MS, rel=0.01)
    assert sum(loop.operations for loop in run.loops.values()) == 250 * 25


def test_marked_steps_that_lack_operations_begin_no_other_loop():
    """Half of those of seven steps in a row were lost."""
    program = Program()
    steps = [
        [*_launches(program, n * 20 * MS, 45 if 60 <= n < 67 else 90),
         _mark(program, n + 1, n * 20 * MS + 19 * MS)]
        for n in range(120)
    ]  # fmt: skip
    assert _mean_ns(_run(program, steps, 8))[2] in (118, 119)


def test_a_pause_for_input_is_of_the_step_it_is_in():
    program = Program()
    steps, at = [], 0
    for n in range(120):
        steps.append([*_launches(program, at, 100), _mark(program, n + 1, at + 3 * MS)])
        at += (9 if n % 6 == 5 else 4) * MS
    run = _run(program, steps)
    count, total_ns = map(sum, zip(*(
        value for (scope, source), value in _loops(run).items() if source == "optimizer"
    ), strict=True))  # fmt: skip
    loop_ns = at - (4 + 9 - 2) * MS  # from the end of the first step to that of the last launch
    assert count == 119
    assert abs(total_ns - loop_ns) <= 0.01 * loop_ns


@pytest.mark.parametrize("second_ms", [300, 5000])
def test_the_mean_turn_times_their_count_is_the_loops_time(second_ms):
    """Batches wait for the loader, most often at first; or the second one compiles, which no later
    one does: the program's clock begins after it."""
    program, steps, moments = Program(), [], [0]
    for n in range(120):
        waits = n % 2 == 0 if n < 16 else n % 10 == 0
        length = (second_ms if n == 1 else 300 if waits else 12) * MS
        records = _launches(program, moments[-1], 90)
        moments.append(moments[-1] + length)
        steps.append([*records, _mark(program, n + 1, moments[-1] - 1000)])
    tree = time_tree(_run(program, steps, 8))
    assert tree is not None
    # The first turn ends with the first mark, the last one with the last launch.
    first = 1 if second_ms == 300 else 2
    assert tree.turns == 120 - first
    end_ns = moments[-2] + 2 * MS
    assert tree.turns * tree.turn_mean_ns == pytest.approx(end_ns - moments[first], rel=0.01)
    assert tree.turn_mean_ns > 2 * tree.step_mean_ns, "which is without pauses"


def test_a_step_whose_operations_were_missed_is_not_the_one_that_is_kept():
    """The last one of each collection has a hundredth of them, and the length nearest to all."""
    program, steps, at = Program(), [], 0
    for n in range(80):
        is_missed = n % 8 == 6
        count = 1 if is_missed else 100
        steps.append([*_launches(program, at, count), _mark(program, n + 1, at + 19 * MS)])
        at += (200 if is_missed else 195 if n % 2 else 205) * MS // 10
    run = _run(program, steps, 8)
    assert run.step_lanes
    for kept in run.step_lanes:
        assert sum(kept.busy) / len(kept.busy) > 40, "thousandths: 1 ms of 20"


def test_a_bar_over_epochs_is_no_step_and_a_bar_over_batches_is():
    for per_bar, expected in ((1, "tqdm"), (30, "module")):
        program = Program()
        steps = []
        for n in range(120):
            at = n * 4 * MS
            records = [_mark(program, n + 1, at, MODULE, "Net"), *_launches(program, at + 1000, 90)]
            if n % per_bar == per_bar - 1:
                number = (n + 1) // per_bar
                records.append(_mark(program, number, at + 3 * MS, TQDM, "train.py:7"))
            steps.append(records)
        run = _run(program, steps)
        sources = {loop.source for loop in run.loops.values() if loop.scope == Scope.STEADY}
        assert sources == {expected}


def _turn(program, ordinal, time, site, depth):
    return program.slot(
        RecordKind.STEP, sub=LOOP, start=time, name=program.id(site), value=ordinal,
        end=depth - START_NS, thread=MAIN,
    )  # fmt: skip


@pytest.mark.parametrize("inner", [MODULE, TOKEN])
def test_the_turn_of_the_outermost_loop_is_the_step_not_what_it_calls_four_times(inner):
    program = Program()
    steps = [[*_launches(program, n * 10 * MS, 90), _turn(program, n + 1, (n * 10 + 9) * MS,
              "run.py:20", 0)] for n in range(3)]  # fmt: skip
    for n in range(60):
        records, at = [], (30 + n * 40) * MS
        for part in range(4):
            begin = at + part * 9 * MS
            records += [_mark(program, 4 * n + part + 1, begin, inner, "Net"),
                        *_launches(program, begin + 1000, 60)]  # fmt: skip
            if n < 16:
                records.append(_turn(program, 4 * n + part + 1, begin + 8 * MS, "run.py:7", 1))
        steps.append([*records, _turn(program, n + 1, at + 39 * MS, "run.py:30", 0)])
    run = _run(program, steps, 8)
    steady = [loop for loop in run.loops.values() if loop.scope == Scope.STEADY]
    assert {loop.source for loop in steady} == {"loop"}
    assert sum(loop.steps for loop in steady) >= 50
    mean_ns = sum(loop.step_ns.total for loop in steady) / sum(loop.steps for loop in steady)
    assert abs(mean_ns - 40 * MS) < 0.02 * 40 * MS


def _mean_ns(run):
    """Of the steady steps of the newest loop."""
    steady = [each for each in run.loops.values() if each.scope == Scope.STEADY]
    newest = max(steady, key=lambda each: each.loop)
    return newest.source, newest.step_ns.total / newest.steps, newest.steps


def test_turns_that_run_ahead_of_the_gpu_and_inner_ones_as_many_leave_the_outer_loop_the_step():
    """A stencil in CuPy: 50 of 150 turns fill the queue of launches, the inner loop is marked 128
    times."""
    program = Program()
    steps = []
    for n in range(150):
        called = n * MS if n < 50 else (n - 50) * 34 * MS
        records = [*_launches(program, n * 34 * MS, 60)]
        if n < 64:
            records += [_turn(program, 2 * n + part + 1, called + part * MS // 2, "run.py:7", 1)
                        for part in (0, 1)]  # fmt: skip
        steps.append([*records, _turn(program, n + 1, called + MS - 1000, "run.py:30", 0)])
    source, mean_ns, count = _mean_ns(_run(program, steps, 8))
    assert source == "loop"
    assert count > 60
    assert mean_ns > 15 * MS


@pytest.mark.parametrize("ahead_ms", [0, 100])
@pytest.mark.parametrize("is_while", [False, True])
def test_the_last_turn_of_a_loop_ends_with_it(is_while, ahead_ms):
    """A function compiles for a second and a half before the next operation. A `while` has no mark
    at its last turn's end; the GPU may be behind the program."""
    program, turns = Program(), 40
    steps = [[_turn(program, 1, 1_000_000, "run.py:30", 0)]]
    for n in range(turns):
        called = n * 40 * MS + 2 * MS
        its = _launches(program, called, 90, kernel=MS * 2 // 5, gap=MS // 50)
        for record in its:
            if record["kind"] == RecordKind.KERNEL:
                record["start"] += ahead_ms * MS
                record["end"] += ahead_ms * MS
        if n < turns - is_while:
            its.append(_turn(program, n + 2, called + 38 * MS, "run.py:30", 0))
        steps.append(its)
    left = turns * 40 * MS + 2_000
    over = _turn(program, turns + 1, left, "run.py:30", 0)
    over["source_kind"] = ENDS
    steps.append(
        [over, *_launches(program, left + 1500 * MS, 3), *_launches(program, left + 3000 * MS, 3)]
    )
    tree = time_tree(_run(program, steps, 4))
    assert tree is not None
    assert tree.turns in (turns - 1, turns)
    assert tree.step_ns.maximum < 42 * MS
    assert tree.turn_mean_ns == pytest.approx(40 * MS, rel=0.01)


def test_a_warm_up_that_takes_longer_than_the_loop_after_it_is_over_when_that_turns():
    program = Program()
    steps = [
        [*_launches(program, n * 20 * MS, 90),
         _turn(program, n + 1 if n < 64 else n - 63, (n * 20 + 19) * MS,
               "run.py:7" if n < 64 else "run.py:30", 0)]
        for n in range(120)
    ]  # fmt: skip
    run = _run(program, steps, 8)
    assert _mean_ns(run)[2] in range(45, 57)
    tree = time_tree(run)
    assert tree is not None
    assert tree.steps == _mean_ns(run)[2], "not the warm-up, which does the same"
    said = beside_benchmark(run, tree)
    assert said == "A step here is a turn of the program's loop at run.py:30."
    warm_up = max((loop for loop in run.loops.values() if loop.loop == 0), key=lambda it: it.steps)
    assert warm_up.step_ns.maximum < 30 * MS, "its last turns are no one step"


def test_a_loop_that_sums_up_at_the_end_takes_no_step_from_the_one_before():
    """All records of a short program may come at once."""
    program = Program()
    steps = [
        [
            *_launches(program, n * 20 * MS, 90),
            _turn(program, n + 1, (n * 20 + 19) * MS, "a.py:3", 0),
        ]
        for n in range(60)
    ]
    steps[-1] += [_turn(program, n + 1, 1199_500_000 + n * 10_000, "a.py:9", 0) for n in range(5)]
    source, mean_ns, count = _mean_ns(_run(program, steps, 60))
    assert source == "loop"
    assert count in (58, 59)
    assert abs(mean_ns - 20 * MS) < 0.02 * 20 * MS


@pytest.mark.parametrize("depths", [(0, 1), (1, 1), (1, 0)])
def test_a_loop_that_turned_before_the_steps_and_within_them_is_none(depths):
    """As of a stencil in CuPy, whose set-up loops before anything is launched."""
    program, (inner, outer) = Program(), depths
    set_up = [_turn(program, n + 1, n * 80 * MS, "run.py:58", 0) for n in range(12)]
    steps, begin = [], 1000 * MS
    for n in range(128):
        at = begin + n * MS // 2
        steps.append([*_launches(program, at, 5), _turn(program, n + 1, at, "run.py:7", inner)])
    for n in range(60):
        at = begin + (70 + n * 34) * MS
        steps.append([*_launches(program, at, 60), _turn(program, n + 1, at, "run.py:30", outer)])
    steps[0] = [*set_up, *steps[0]]
    source, mean_ns, count = _mean_ns(_run(program, steps, 8))
    assert (source, count) == ("loop", 60)
    assert abs(mean_ns - 34 * MS) < 0.02 * 34 * MS


def test_a_list_that_is_made_once_a_request_is_no_step():
    program, steps = Program(), []
    for n in range(200):
        at = n * 20 * MS
        step = [*_launches(program, at, 60), _turn(program, n + 1, at, "run.py:103", 1)]
        if not n % 64:
            step += [_turn(program, n + k, at + k * 1000, "run.py:89", 0) for k in range(24)]
        steps.append(step)
    source, mean_ns, count = _mean_ns(_run(program, steps, 8))
    assert source == "loop"
    assert count > 180
    assert abs(mean_ns - 20 * MS) < 0.02 * 20 * MS


@pytest.mark.parametrize(("updates", "turns", "expected"), [(8, 30, "loop"), (20, 10, "optimizer")])
def test_several_updates_are_a_step_and_many_are_an_epoch(updates, turns, expected):
    program = Program()
    steps = []
    for n in range(updates * turns):
        at = n * 8 * MS
        records = [*_launches(program, at + 1000, 80), _mark(program, n + 1, at + 7 * MS)]
        if n % updates == updates - 1:
            records.append(_turn(program, n // updates + 1, at + 7 * MS + 1000, "ppo.py:9", 0))
        steps.append(records)
    source, mean_ns, _ = _mean_ns(_run(program, steps))
    assert source == expected
    each_ns = 8 * MS * (updates if expected == "loop" else 1)
    assert abs(mean_ns - each_ns) < 0.02 * each_ns


def _call(program, ordinal, time, items, learns=False):
    mark = _mark(program, ordinal, time, MODULE, "Policy", items)
    mark["source_kind"] = SAMPLES | LEARNS * learns
    return mark


@pytest.mark.parametrize(("played", "expected_ms"), [(16, 320), (128, 8)])
def test_a_turn_that_plays_is_a_step_with_any_number_of_updates(played, expected_ms):
    """As of PPO: 32 updates of 128 samples after 40 observations of 16 environments; an evaluation
    of 40 batches is none."""
    program, steps = Program(), []
    for n in range(16 * 32):
        at = (n // 32 * 320 + n % 32 * 8) * MS
        records = [_call(program, 72 * (n // 32) + n % 32 + 1, at + 1_000, 128, learns=True),
                   *_launches(program, at + 2_000, 20), _mark(program, n + 1, at + 7 * MS),
                   _turn(program, n + 1, at + 8 * MS - 2_000, "ppo.py:37", 2)]  # fmt: skip
        if n % 32 == 31:
            for k in range(40):
                begin = at + (8 + k) * MS
                records += [_call(program, 72 * (n // 32) + 33 + k, begin, played),
                            *_launches(program, begin + 1_000, 4, name="play"),
                            _turn(program, 40 * (n // 32) + k + 1, begin + MS - 2_000,
                                  "ppo.py:20", 1)]  # fmt: skip
            records.append(_turn(program, n // 32 + 1, at + 64 * MS, "ppo.py:46", 0))
        steps.append(records)
    tree = time_tree(_run(program, steps, 64))
    assert tree is not None
    assert tree.step_ns.median == pytest.approx(expected_ms * MS, rel=0.02)


def test_the_turns_in_which_a_learner_plays_are_its_steps_though_it_learns_in_one_of_four():
    program, steps = Program(), []
    for n in range(400):
        at = n * 4 * MS
        records = [
            _call(program, n + n // 4 + 1, at + 1_000, 1),
            *_launches(program, at + 2_000, 20),
        ]
        if n % 4 == 3:
            records += [_call(program, n + n // 4 + 2, at + MS, 64, learns=True),
                        *_launches(program, at + MS + 1_000, 40),
                        _mark(program, n // 4 + 1, at + 3 * MS)]  # fmt: skip
        steps.append([*records, _turn(program, n + 1, at + 4 * MS - 2_000, "dqn.py:14", 0)])
    source, mean_ns, count = _mean_ns(_run(program, steps))
    assert source == "loop"
    assert count > 390
    assert mean_ns == pytest.approx(4 * MS, rel=0.01)


def test_a_loop_that_marks_the_same_steps_as_an_optimizer_stays_what_they_go_by():
    """Evaluations that become longer: it is an epoch's turn no more that is nearly all batches."""
    program, steps, at = Program(), [], 0
    for n in range(20 * 12):
        records = [*_launches(program, at + 2_000, 80), _mark(program, n + 1, at + 7 * MS),
                   _turn(program, n + 1, at + 8 * MS - 2_000, "run.py:8", 1)]  # fmt: skip
        at += 8 * MS
        if n % 20 == 19:
            rest = 4 * MS if n < 120 else 60 * MS
            records += [*_launches(program, at, 40, name="evaluate"),
                        _turn(program, n // 20 + 2, at + rest - 1_000, "run.py:7", 0)]  # fmt: skip
            at += rest
        steps.append(records)
    steps[0] = [_turn(program, 1, 1_000, "run.py:7", 0), *steps[0]]
    source, _, count = _mean_ns(_run(program, steps))
    assert source == "loop"
    assert count >= 238


def test_few_long_turns_with_their_updates_are_the_steps_from_the_third_on():
    """A learner: seven turns of half a second, each with 16 updates in two epochs; the updates were
    the steps until it had turned eight times, and so of all that was recorded."""
    program, steps = Program(), []
    for n in range(7 * 16):
        at = (n // 16 * 500 + n % 16 * 6) * MS
        records = [_mark(program, n + 1, at + 5 * MS), *_launches(program, at + 2_000, 80),
                   _turn(program, n + 1, at + 6 * MS - 2_000, "run.py:111", 2)]  # fmt: skip
        if n % 8 == 7:
            records.append(_turn(program, n // 8 + 1, at + 6 * MS - 1_500, "run.py:110", 1))
        if n % 16 == 15:
            records += _launches(program, at + 10 * MS, 900, gap=MS * 43 // 100, name="rollout")
            records.append(_turn(program, n // 16 + 1, at + 405 * MS, "run.py:153", 0))
        steps.append(records)
    tree = time_tree(_run(program, steps, 32))
    assert tree is not None
    assert tree.turns >= 4
    assert tree.turn_mean_ns == pytest.approx(500 * MS, rel=0.03)


@pytest.mark.parametrize(
    ("inside", "calls", "rest_ms", "expected_ms"),
    [("optimizer", 0, 1, 8), ("optimizer", 0, 64, 128), ("jax", 0, 1, 65),
     ("optimizer", 1, 64, 16), ("optimizer", 4, 64, 128)],
)  # fmt: skip
def test_the_batches_of_an_epoch_are_its_steps_and_the_updates_after_a_rollout_are_none(
    inside, calls, rest_ms, expected_ms
):
    """Of 64 ms after 8 updates of 8 ms: workers that start again, or a model that plays."""
    program, steps = Program(), []
    source = STEP_SOURCES.index(inside) + 1
    for n in range(240):
        at = (n * 8 + n // 8 * rest_ms) * MS
        records = [_mark(program, n + 1, at + 1_000, source, "Adam"),
                   *_launches(program, at + 2_000, 80),
                   _turn(program, n + 1, at + 8 * MS - 2_000, "run.py:8", 1)]  # fmt: skip
        records += [_mark(program, calls * n + k, at + 3_000 + k, MODULE, "Net")
                    for k in range(calls)]  # fmt: skip
        if n % 8 == 7:
            end = at + (8 + rest_ms) * MS - 1_000
            records += _launches(program, at + 8 * MS, 40, name="rollout")
            records.append(_turn(program, n // 8 + 1, end, "run.py:7", 0))
        steps.append(records)
    run = _run(program, steps)
    source, mean_ns, _ = _mean_ns(run)
    assert source == "loop"
    assert abs(mean_ns - expected_ms * MS) < 0.05 * expected_ms * MS


@pytest.mark.parametrize(("source", "calls"), [("jax", 1), ("module", 1), ("module", 12)])
@pytest.mark.parametrize(("updates", "expected"), [(100, "run.py:8"), (24, "run.py:7")])
def test_the_updates_of_an_epoch_of_a_jitted_function_are_steps_and_its_layers_are_none(
    source, calls, updates, expected
):
    """So are the tokens of a text, also of a model that is called layer by layer, and what a
    sampler does is not."""
    program, steps = Program(), []
    called = STEP_SOURCES.index(source) + 1
    for n in range(updates * 12):
        at = n * 2 * MS
        records = [*(_mark(program, calls * n + k + 1, at + 1_000 * k + 1_000, called, "step")
                     for k in range(calls)),
                   *_launches(program, at + 2_000, 30),
                   _turn(program, n + 1, at + 2 * MS - 2_000, "run.py:8", 1)]  # fmt: skip
        if n % updates == updates - 1:
            records.append(_turn(program, n // updates + 1, at + 2 * MS - 1_000, "run.py:7", 0))
        steps.append(records)
    run = _run(program, steps, 100)
    expected_ns = 2 * MS * (updates if expected == "run.py:7" else 1)
    assert abs(_mean_ns(run)[1] - expected_ns) < 0.05 * expected_ns


@pytest.mark.parametrize("queued_ms", [0, 40])
def test_the_first_turn_of_a_loop_begins_where_the_program_comes_to_it(queued_ms):
    """It waits 80 ms for its batch, as each fourth turn does; not where what was launched before
    the loop is still in the queue, for then the mark is no moment of the GPU's."""
    program, at = Program(), 100 * MS
    number = next(_correlations)
    before = [program.call(90 * MS, 90 * MS + 1000, number),
              program.kernel((91 + queued_ms) * MS, (92 + queued_ms) * MS, number, name="warm"),
              _turn(program, 1, at, "run.py:7", 0)]  # fmt: skip
    steps = [before]
    for n in range(60):
        length = (90 if n % 4 == 0 else 10) * MS
        steps.append([*_launches(program, at + length - 9 * MS, 90),
                      _turn(program, n + 2, at + length - 1000, "run.py:7", 0)])  # fmt: skip
        at += length
    tree = time_tree(_run(program, steps, 8))
    assert tree is not None
    whole_ns = at - 6 * MS - 100 * MS  # the last launch ends before its turn does
    expected_ns = whole_ns - (81 * MS if queued_ms else 0)
    assert tree.turns * tree.turn_mean_ns == pytest.approx(expected_ns, rel=0.005)


def test_a_step_waits_for_its_launches_though_a_later_one_of_another_stream_has_come():
    """As of JAX: the CPU is 20 turns ahead, and what it reads back at last has a stream of its own,
    on which it runs at once; the kernels of the last turns come at the process's end."""
    program, calls, kernels = Program(), [], []
    for n in range(60):
        called, at = n * 2 * MS, n * 10 * MS
        for k in range(40):
            number = next(_correlations)
            calls.append(program.call(called + k * 20_000, called + k * 20_000 + 1000, number))
            ran = program.kernel(at + k * 200_000 + 50_000, at + k * 200_000 + 240_000, number)
            ran["b"] = 7
            kernels.append(ran)
        calls.append(_turn(program, n + 1, called + MS + 900_000, "run.py:7", 0))
    number = next(_correlations)
    calls.append(program.call(121 * MS, 121 * MS + 1000, number))
    early = program.copy(122 * MS, 123 * MS, number)
    early["b"] = 9
    traced = Traced(program)
    done = [each for each in kernels if each["end"] < START_NS + 300 * MS]
    traced.feed([*calls, *done, early, program.flush(300 * MS)], 0.3)
    traced.collect(0.3)
    traced.feed([*kernels[len(done) :], program.flush(700 * MS)], 0.7)
    traced.collect(0.7, ended=True)
    source, mean_ns, count = _mean_ns(traced.run)
    assert (source, count) == ("loop", 59)
    assert mean_ns == pytest.approx(10 * MS, rel=0.01)


def test_layers_that_encode_what_tokens_are_decoded_from_are_no_step():
    """Four turns for each text, of which the reader still believes that they lie in no loop."""
    program, steps, mark = Program(), [], itertools.count(1)
    for n in range(96 * 8):
        at, depth = n * 7 * MS, int(n >= 96)
        records = []
        for k in range(4 if n % 96 == 0 else 0):
            records += [
                _mark(program, next(mark), at + k * 4_000, MODULE, "EncoderLayer"),
                _turn(program, n // 24 + k + 1, at + k * 4_000 + 3_000, "run.py:98", 0),
            ]
        records += [*(_mark(program, next(mark), at + 50_000 + k * 400_000, MODULE, "DecoderLayer")
                      for k in range(12)),
                    *_launches(program, at + 20_000, 60),
                    _turn(program, n + 1, at + 7 * MS - 3_000, "run.py:134", depth)]  # fmt: skip
        if depth and n % 96 == 95:
            records.append(_turn(program, n // 96, at + 7 * MS - 2_000, "run.py:141", 0))
        steps.append(records)
    tree = time_tree(_run(program, steps, 16))
    assert tree is not None
    assert abs(tree.turn_mean_ns - 7 * MS) < 0.02 * 7 * MS


def test_turns_that_are_launched_in_bursts_are_alike_by_what_they_call():
    """Nine batches in 27 ms, then a full queue: half a second for one."""
    program, steps, begin = Program(), [], 0
    for n in range(120):
        end = begin + (500 if n % 10 == 9 else 3) * MS
        layers = [begin + 2_000 + (k + 1) * (end - begin - 4_000) // 8 for k in range(8)]
        steps.append([
            _mark(program, n + 1, begin + 1_000, MODULE, "Encoder"),
            *_launches(program, begin, 60),
            *(_turn(program, 8 * n + k + 1, at, "run.py:90", 1)
              for k, at in enumerate(layers) if n < 64),
            _turn(program, n + 1, end - 1_000, "run.py:106", 0),
        ])  # fmt: skip
        begin = end
    tree = time_tree(_run(program, steps, 8))
    assert tree is not None
    assert tree.turns == 119, "all but the last one, which nothing follows"
    assert abs(tree.turn_mean_ns - (11 * 500 + 108 * 3) / 119 * MS) < 0.01 * 49 * MS


@pytest.mark.parametrize("at_once", [8, 500])
def test_turns_before_the_loop_that_they_lie_in_are_of_a_warm_up(at_once):
    """A text of 100 tokens first, then texts of any length in a loop: its tokens are the steps."""
    program, steps, text = Program(), [], 0
    for n in range(400):
        at = n * 50 * MS
        records = _launches(program, at + 1000, 60)
        if n == 100 or (n > 100 and n * n % 97 < 3):
            text += 1
            records.insert(0, _turn(program, text, at, "run.py:124", 0))
        depth = 0 if n < 100 else 1
        records.append(_turn(program, n + 1, at + 49 * MS, "run.py:103", depth))
        steps.append(records)
    tree = time_tree(_run(program, steps, at_once))
    assert tree is not None
    assert tree.turns in range(297, 301)
    assert abs(tree.turn_mean_ns - 50 * MS) < 0.01 * 50 * MS


def test_of_a_warm_up_and_the_loop_after_it_the_updates_of_the_loop_are_the_steps():
    """One optimizer makes all of them."""
    program, steps = Program(), []
    for n in range(80):
        at = n * 20 * MS
        site = "run.py:7" if n < 16 else "run.py:30"
        ordinal = n + 1 if n < 16 else n - 15
        steps.append([*_launches(program, at, 90), _mark(program, n + 1, at + 18 * MS),
                      _turn(program, ordinal, at + 19 * MS, site, 0)])  # fmt: skip
    source, mean_ns, count = _mean_ns(_run(program, steps, 8))
    assert source == "loop"
    assert count in range(60, 65)
    assert abs(mean_ns - 20 * MS) < 0.02 * 20 * MS


def test_a_loop_over_epochs_is_no_step_and_one_over_texts_of_any_length_is_none():
    for texts in (False, True):
        program = Program()
        steps = []
        for n in range(200):
            at = n * 10 * MS
            records = [*_launches(program, at + 1000, 90)]
            if texts:
                records.append(_mark(program, n + 1, at + 9 * MS, TOKEN, "generate"))
                ends = n % 7 in (1, 6)
            else:
                records.append(_turn(program, n + 1, at + 9 * MS, "train.py:8", 1))
                ends = n % 150 == 149
            if ends:
                records.append(_turn(program, n + 1, at + 9 * MS + 1000, "train.py:7", 0))
            steps.append(records)
        run = _run(program, steps)
        steady = [loop for loop in run.loops.values() if loop.scope == Scope.STEADY]
        assert {loop.source for loop in steady} == {"token" if texts else "loop"}
        mean_ns = sum(each.step_ns.total for each in steady) / sum(each.steps for each in steady)
        assert abs(mean_ns - 10 * MS) < 0.02 * 10 * MS


def test_of_two_optimizers_the_one_that_runs_less_often_ends_a_step():
    program = Program()
    steps = []
    for n in range(60):
        at = n * 12 * MS
        records = []
        for critic in range(5):
            begin = at + critic * 2 * MS
            end = _mark(program, 5 * n + critic + 1, begin + 1_800_000, site="Adam 2")
            records += [*_launches(program, begin, 80), end]
        records += [
            *_launches(program, at + 10 * MS, 80),
            _mark(program, n + 1, at + int(11.8 * MS)),
        ]
        steps.append(records)
    run = _run(program, steps, 10)
    count, total_ns = map(sum, zip(*(
        value for (scope, source), value in _loops(run).items()
        if source == "optimizer" and scope == Scope.STEADY
    ), strict=True))  # fmt: skip
    assert abs(total_ns / count - 12 * MS) < 0.01 * 12 * MS


def test_of_a_dozen_optimizers_that_take_as_long_each_one_ends_a_step():
    """And what no program marks is none: `repetition` is a source of steps, not of records."""
    program, steps = Program(), []
    for n in range(60):
        records = [_mark(program, n + 1, n * 24 * MS, STEP_SOURCES.index("repetition") + 1)]
        for each in range(12):
            begin = (n * 24 + each * 2) * MS
            end = _mark(program, n + 1, begin + int(1.9 * MS), site=f"SGD {each}")
            records += [*_launches(program, begin, 20), end]
        steps.append(records)
    source, mean_ns, _ = _mean_ns(_run(program, steps, 10))
    assert source == "optimizer"
    assert abs(mean_ns - 24 * MS) < 0.01 * 24 * MS


def test_where_a_range_is_declared_the_step_nothing_before_it_is_one():
    program = Program()
    loading = [_launches(program, n * MS, 40, name="init") for n in range(400)]
    steps = []
    for n in range(60):
        at = (500 + 10 * n) * MS
        steps.append([program.push(at, "step"), *_launches(program, at + 1000, 200),
                      program.pop(at + 9 * MS)])  # fmt: skip
    run = _run(program, [*loading, *steps], step_range="step")
    assert {source for (scope, source), (count, _) in _loops(run).items() if count} == {"nvtx"}
    steady = [loop for loop in run.loops.values() if loop.scope == Scope.STEADY]
    assert sum(loop.steps for loop in steady) >= 55
    assert {loop.loop for loop in steady} == {0}


def test_where_nothing_speaks_repetition_says_how_many_ways_there_are():
    program = Program()
    steps = [
        [record for layer in range(12) for record in _launches(
            program, n * 20 * MS + layer * MS, 30, name="layer")]
        + _launches(program, n * 20 * MS + 13 * MS, 60, name="head")
        for n in range(80)
    ]  # fmt: skip
    run = _run(program, steps)
    steady = [loop for loop in run.loops.values() if loop.scope == Scope.STEADY]
    assert {loop.source for loop in steady} == {"repetition"}
    assert all(loop.readings is not None and loop.readings >= 1 for loop in steady)


def test_a_module_that_is_captured_in_a_graph_says_nothing_of_its_replays():
    program = Program()
    steps = []
    for n in range(300):
        at = n * 10 * MS
        warm_up = [_mark(program, n + 1, at, MODULE, "Net")] if n < 20 else []
        steps.append([*warm_up, *_launches(program, at + 1000, 100),
                      *_launches(program, at + 3 * MS, 30, name="head")])  # fmt: skip
    run = _run(program, steps, 10)
    counts = {}
    for (scope, source), (count, _) in _loops(run).items():
        if scope == Scope.STEADY:
            counts[source] = counts.get(source, 0) + count
    assert counts["repetition"] > 200


@pytest.mark.parametrize(("warm_up", "source"), [(4, "repetition"), (40, "optimizer")])
def test_updates_that_warm_up_before_they_are_captured_are_no_steps(warm_up, source):
    """Four, as torch's documents have it; an evaluation of 2 s after forty is one."""
    program = Program()
    steps = []
    for n in range(240):
        at = n * 10 * MS
        marks = [_mark(program, n + 1, at)] if n < warm_up else []
        steps.append([*marks, *_launches(program, at + 1000, 100),
                      *_launches(program, at + 3 * MS, 30, name="head")])  # fmt: skip
    run = _run(program, steps, 10)
    counts = Counter()
    for (scope, its), (count, _) in _loops(run).items():
        if scope == Scope.STEADY:
            counts[its] += count
    assert counts[source] == max(counts.values())
    assert (counts["repetition"] > 100) is (source == "repetition")


def test_what_is_jitted_and_runs_once_before_the_loop_is_no_step():
    program = Program()
    jax = STEP_SOURCES.index("jax") + 1
    steps = [[_mark(program, n + 1, n * 1500 * MS, jax, "jit_seed")] for n in range(2)]
    for n in range(90):
        at = (3200 + n * 35) * MS
        steps.append([_mark(program, n + 1, at, jax, "jit_play"),
                      *_launches(program, at + 1000, 80)])  # fmt: skip
    run = _run(program, steps, 10)
    steady = [loop for loop in run.loops.values() if loop.scope == Scope.STEADY]
    assert {loop.source for loop in steady} == {"jax"}
    assert sum(loop.steps for loop in steady) >= 85
