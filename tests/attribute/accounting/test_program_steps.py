"""The steps that a program marks: records of a ring in, a session's marked steps out."""

from __future__ import annotations

from gputui.model.events import MARKED_LENGTHS, STEP_SOURCES, CaptureDelta, StepMarks
from gputui.ring.layout import RecordKind
from gputui.state import Session
from tests.attribute.capture_program import MAIN, START_NS, Program, Traced
from tests.events_for_tests import attached, run_started

OPTIMIZER = STEP_SOURCES.index("optimizer") + 1
TOKEN = STEP_SOURCES.index("token") + 1
TOKENS = 2
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
            "jax", "request", "nvtx", "repetition"} == set(STEP_SOURCES)  # fmt: skip
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
