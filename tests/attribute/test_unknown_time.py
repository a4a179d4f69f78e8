"""Steps, leaves and phases know where nothing is known: between windows, and where records were
lost."""

from __future__ import annotations

from gputui.model.events import Scope
from gputui.report.explain.time_tree import time_tree
from gputui.report.phases import phase_rows
from gputui.report.tables.phases import PHASES
from gputui.ring import RecordKind, WindowEdge
from tests.attribute.capture_program import MAIN, Program, Traced

STEP_NS, BUSY_NS = 10_000_000, 8_000_000
SECOND = 100
"""Steps in a second."""


def steps(program: Program, first: int, last: int, traced: bool = True) -> list:
    """Steps with a kernel each."""
    slots = []
    for number in range(first, last):
        at, correlation = number * STEP_NS, number + 1
        slots += [program.push(at, "step")]
        if traced:
            slots += [
                program.call(at + 1000, at + 2000, correlation),
                program.kernel(at + 3000, at + 3000 + BUSY_NS, correlation),
            ]
        slots += [program.pop(at + STEP_NS - 1000)]
    return [*slots, program.flush(last * STEP_NS)]


def window(program: Program, edge: WindowEdge, step: int):
    return program.slot(RecordKind.WINDOW, sub=edge, start=step * STEP_NS)


def test_time_between_windows_is_on_no_leaf_and_in_no_step() -> None:
    program = Program()
    traced = Traced(program)
    run = traced.finish(
        window(program, WindowEdge.OPENING, 0),
        window(program, WindowEdge.ON, 0),
        *steps(program, 0, SECOND),
        window(program, WindowEdge.OFF, SECOND),
        window(program, WindowEdge.CLOSED, SECOND),
        *steps(program, SECOND, 3 * SECOND, traced=False),
        window(program, WindowEdge.OPENING, 3 * SECOND),
        window(program, WindowEdge.ON, 3 * SECOND),
        *steps(program, 3 * SECOND, 4 * SECOND),
        window(program, WindowEdge.OFF, 4 * SECOND),
    )
    tree = time_tree(run)
    assert tree is not None
    # Of each window the last step has no end that is known.
    assert 2 * SECOND - 4 <= tree.steps <= 2 * SECOND
    assert tree.wall_ns <= 2 * SECOND * STEP_NS
    assert 0.19 < tree.idle_ns / tree.wall_ns < 0.21
    idle = next(use.idle for use in run.timing.devices.values())
    assert idle.maximum < STEP_NS
    (row,) = phase_rows(run)
    assert row.instances == 4 * SECOND
    estimate = row.gpu_estimate
    assert estimate is None  # the fixture says nothing of the time: all counts as traced
    assert run.processes[1].windows == 2
    assert run.processes[1].unattributed == 0
    # Ids that begin anew do not find the calls of the window before.
    assert row.gpu_busy_ns == 2 * SECOND * BUSY_NS


def test_steps_and_phases_know_what_was_lost_in_them() -> None:
    program = Program()
    traced = Traced(program)
    lost = program.slot(
        RecordKind.LOST, start=40 * STEP_NS + 5_000_000, end=44 * STEP_NS + 5_000_000, value=12
    )
    nothing = program.slot(RecordKind.LOST, start=60 * STEP_NS, end=61 * STEP_NS, value=0)
    whole = steps(program, 0, 41)
    missing = steps(program, 41, 44, traced=False)[:-1]
    run = traced.finish(
        program.flush(39 * STEP_NS), *whole, *missing, lost, nothing, *steps(program, 44, SECOND)
    )
    (row,) = phase_rows(run)
    assert row.instances == SECOND
    assert row.incomplete == 5  # 40 and 44 are cut, 41 to 43 lie in it
    table = PHASES.table(traced.session, run)
    assert any(column.title == "Incomplete" for _, column in table.headed)
    steady = sum(sums.steps for sums in run.loops.values() if sums.scope == Scope.STEADY)
    assert SECOND - 10 <= steady <= SECOND - 5
    tree = time_tree(run)
    assert tree is not None
    assert 0.19 < tree.idle_ns / tree.wall_ns < 0.21
    assert MAIN in {node.definition.thread for node in run.ranges.values()}
