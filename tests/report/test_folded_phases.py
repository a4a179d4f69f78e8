"""Phases of ranges that number themselves: one row, its names one option away, nsys's tables as
ever."""

from __future__ import annotations

import msgspec

from gputui.model.events import CaptureDelta, KernelDelta, RangeDelta
from gputui.render import formats
from gputui.render.prometheus import prometheus_text
from gputui.report.phases import IN_ORDER, PhaseRow, phase_rows
from gputui.report.tables import table
from gputui.state import Run, Session
from tests.events_for_tests import at, attached, defined, header, run_started, times

STEPS = 100


def session_of_steps() -> Session:
    """Steps with two modules inside each, every one slower than the one before."""
    session = Session.from_events([header(), run_started(step_range=None), attached()])
    for step in range(STEPS):
        first = 3 * step + 1
        session.apply(
            [
                defined(first, f"Step {step}"),
                defined(first + 1, "h.0", parent=first),
                defined(first + 2, "h.1", parent=first),
                CaptureDelta(
                    time_ns=at(3 + step),
                    process=1,
                    ranges=tuple(
                        RangeDelta(range=first + inside, cpu=times((3 - inside) * (step + 1)))
                        for inside in range(3)
                    ),
                    kernels=(
                        KernelDelta(process=1, range=first + 2, kernel=1, device=0, time=times(1)),
                    ),
                ),
            ]
        )
    return session


def by_path(run: Run) -> dict[str, PhaseRow]:
    return {row.path: row for row in phase_rows(run)}


def test_steps_are_one_phase_and_modules_two() -> None:
    run = session_of_steps().run
    assert run is not None
    rows = by_path(run)
    assert list(rows) == ["Step #", "Step #/h.0", "Step #/h.1"]
    step = rows["Step #"]
    assert (step.instances, step.names, step.kernels) == (STEPS, STEPS, STEPS)
    assert step.cpu_total_ns == 3 * STEPS * (STEPS + 1) // 2
    assert (step.cpu.minimum, step.cpu.maximum) == (3, 3 * STEPS)
    assert rows["Step #/h.1"].per_step_ns == (STEPS + 1) / 2
    in_order = step.in_order_ns
    assert in_order is not None
    assert len(in_order) <= IN_ORDER
    assert in_order == sorted(in_order)
    assert rows["Step #/h.0"].in_order_ns is None


def test_the_names_are_in_a_table_and_raw_names_undo_the_folding() -> None:
    session = session_of_steps()
    run = session.run
    assert run is not None
    names = table(session, run, "phase_names").cells
    assert [row[1] for row in names] == [f"Step {step}" for step in range(STEPS)]
    raw = msgspec.structs.replace(run, raw_names=True)
    assert len(by_path(raw)) == 3 * STEPS
    assert "Step 7/h.1" in by_path(raw)
    assert table(session, raw, "phase_names").rows == []


def test_exports_are_as_short_as_the_phases_and_nsys_tables_are_whole() -> None:
    session = session_of_steps()
    run = session.run
    assert run is not None
    assert (
        table(session, run, "nvtx_sum").cells
        == table(session, msgspec.structs.replace(run, raw_names=True), "nvtx_sum").cells
    )
    assert len(table(session, run, "nvtx_sum").rows) == STEPS + 2
    texts = [formats.summary(session, run, key) for key in ("html", "table")]
    for text in (*texts, prometheus_text(session)):
        assert "Step #" in text
        assert "Step 42" not in text
