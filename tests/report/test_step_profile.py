"""A range's profile: its lines add up, and are those that other tables give of the same range."""

from __future__ import annotations

import pytest

from gputui.report.scope import of_phase
from gputui.report.statistics import api_rows, category_rows, memory_time_rows
from gputui.report.tables.time import ALL_KERNELS, REST, ProfileRow, step_profile
from gputui.state import Run, Session
from tests.sessions_for_tests import loaded_once

STEPS = 47


def recorded() -> tuple[Session, Run]:
    loaded = loaded_once("h100-graphs.gputui.gz")
    assert loaded.run is not None
    return loaded.session, loaded.run


def profile(phase: str) -> list[ProfileRow]:
    session, run = recorded()
    return step_profile(session, of_phase(run, phase))


def section(rows: list[ProfileRow], name: str) -> list[ProfileRow]:
    return [row for row in rows if row.section == name]


@pytest.mark.parametrize("phase", ["decode", "warmup", "prefill"])
def test_what_is_in_a_range_and_what_is_left_of_it_are_the_whole_range(phase: str) -> None:
    rows = section(profile(phase), "ranges")
    assert rows[0].name == phase
    for at, row in enumerate(rows):
        inside = []
        for other in rows[at + 1 :]:
            if other.depth <= row.depth:
                break
            if other.depth == row.depth + 1:
                inside.append(other)
        if inside:
            assert inside[-1].name == REST
            assert sum(other.cpu_ns or 0 for other in inside) == row.cpu_ns
            assert sum(other.share_percent or 0 for other in inside) == pytest.approx(100)
            assert {other.share_of for other in inside} == {row.name}


def test_kernels_calls_and_copies_are_those_of_the_range_alone() -> None:
    session, run = recorded()
    part = of_phase(run, "decode")
    rows = step_profile(session, part)
    kernels = section(rows, "kernels")
    assert kernels[0].name == ALL_KERNELS
    assert kernels[0].gpu_ns == sum(row.gpu_ns or 0 for row in kernels[1:])
    by_category = {name: total for name, _, total, _ in category_rows(session, part)}
    assert {row.name: row.gpu_ns for row in kernels[1:]} == by_category
    whole = sum(total for _, _, total, _ in category_rows(session, run))
    assert kernels[0].gpu_ns is not None
    assert kernels[0].gpu_ns < whole  # the run has others, before
    assert section(rows, "calls")[0].cpu_ns == sum(row.total for row in api_rows(part))
    assert section(rows, "copies")[0].gpu_ns == sum(row.total for row in memory_time_rows(part))


def test_a_step_has_its_part_of_everything() -> None:
    rows = profile("decode")
    assert {row.steps for row in rows} == {STEPS}
    for row in rows:
        if row.cpu_ns is not None:
            assert row.cpu_per_step_ns == pytest.approx(row.cpu_ns / STEPS)
        if row.gpu_ns is not None:
            assert row.gpu_per_step_ns == pytest.approx(row.gpu_ns / STEPS)


def test_a_whole_run_is_profiled_by_its_main_step() -> None:
    session, run = recorded()
    rows = step_profile(session, run)
    assert (rows[0].name, rows[0].instances, rows[0].steps) == ("step", STEPS, STEPS)
    decode = section(profile("decode"), "ranges")
    assert (rows[0].cpu_ns, rows[0].gpu_ns) == (decode[1].cpu_ns, decode[1].gpu_ns)
