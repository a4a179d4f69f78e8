"""Energy: the counter and power over a run, its GPU time, its steps, tokens and phases."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.model.events import (
    AnyEvent,
    CaptureDelta,
    DeviceDelta,
    GpuEnergy,
    GpuSample,
    HostSample,
    KernelDefined,
    KernelDelta,
    LeafTime,
    LoopDelta,
    MachineSample,
    RangeDelta,
    RunEnded,
    RunMetrics,
    Scope,
)
from gputui.model.leaves import Leaf
from gputui.model.units import Price
from gputui.model.units import configure_price as configure
from gputui.playback.opening import load
from gputui.render.text_tables import to_csv
from gputui.report.answer import answer
from gputui.report.comparable import Subject
from gputui.report.compare import compare
from gputui.report.explain.time_tree import time_tree
from gputui.report.summary_document import summary_document
from gputui.report.tables import metric_text
from gputui.report.tables.energy import (
    COUNTER,
    GPU_ENERGY,
    POWER,
    RunEnergy,
    energy_joules,
    joules_per_kernel_ns,
    run_energy,
)
from gputui.report.tables.machine import DEVICES
from gputui.state import Run
from gputui.state.series import POINTS, Integral
from tests.conftest import DATA
from tests.events_for_tests import at, attached, defined, gpu, header, run_ended, run_started, times
from tests.sessions_for_tests import folded

IDLE_W, BUSY_W = 80.0, 400.0


def energies(run: Run) -> list[RunEnergy]:
    return run_energy(run, time_tree(run))


def test_rest_in_use_is_that_of_a_gpu_in_use() -> None:
    """A GPU takes 70 W before the program uses it, 120 W idle in its hands, 400 W at work."""

    def found(active: bool) -> Iterator[AnyEvent]:
        for event in events(counter=False, every=0.25):
            if isinstance(event, MachineSample):
                second = (event.time_ns - at(0)) / 1e9
                works = 6 < second <= 8
                watts = 70.0 if second <= 5 or second > 8 else 400.0 if works else 120.0
                sample = GpuSample(
                    index=0, power_watts=watts,
                    utilization_percent=(100.0 if works else 0.0) if active else None,
                )  # fmt: skip
                event = replace(event, gpus=(sample,))
            yield event

    (row,) = energies(folded(found(active=True))[1])
    assert row.busy_joules == pytest.approx(2 * 400 + 120 - 120, rel=0.02)
    (row,) = energies(folded(found(active=False))[1])
    assert row.busy_joules == pytest.approx(2 * 400 + 120 - 70, rel=0.02)


def test_kernels_take_no_more_than_the_limit() -> None:
    """A second at rest at 80 W leaves them 1,120 J in 2 s, 560 W."""

    def limited(watts: float) -> Iterator[AnyEvent]:
        for event in events():
            if isinstance(event, MachineSample):
                (sample,) = event.gpus
                event = replace(event, gpus=(replace(sample, power_limit_watts=watts),))
            yield event

    (row,) = energies(folded(limited(700.0))[1])
    assert row.busy_joules == pytest.approx(3 * BUSY_W - IDLE_W, rel=1e-6)
    (row,) = energies(folded(limited(450.0))[1])
    assert row.busy_joules == pytest.approx(2 * 450)
    assert row.used_idle_joules == pytest.approx(3 * BUSY_W - 2 * 450)


def power(second: float) -> float:
    """A run from 1 to 9 s: its GPU works from 5 to 8 s."""
    return BUSY_W if 5 <= second < 8 else IDLE_W


def joules(second: float) -> float:
    """The counter at a moment, from when the driver was loaded."""
    return 1e6 + IDLE_W * second + (BUSY_W - IDLE_W) * (min(max(second, 5), 8) - 5)


def events(counter: bool = True, every: float = 0.5, extra: float = 10.0) -> Iterator[AnyEvent]:
    """Samples, the counter beside them and where the run starts and ends, and what it did."""
    yield header(gpu())
    steps = [number * every for number in range(int(extra / every) + 1)]
    found: list[AnyEvent] = [run_started(), attached(), run_ended()]
    for second in steps:
        figures = GpuSample(index=0, power_watts=power(second - every / 2), sm_active_percent=(
            90.0 if 5 < second <= 8 else 0.0
        ))  # fmt: skip
        found.append(MachineSample(time_ns=at(second), host=HostSample(), gpus=(figures,)))
    moments = [*steps, 1.01, 8.99] if counter else []
    found += [GpuEnergy(time_ns=at(s) + 1, gpu=0, joules=joules(s)) for s in moments]
    found.append(defined(1, "step"))
    found.append(defined(2, "load"))
    found.append(KernelDefined(time_ns=at(0.1), kernel=1, name="gemm", mangled="gemm"))
    found.append(
        CaptureDelta(
            time_ns=at(8.5),
            process=1,
            ranges=(
                RangeDelta(range=1, cpu=times(*[10**9] * 3), gpu_busy_ns=15 * 10**8),
                RangeDelta(range=2, cpu=times(10**9), gpu_busy_ns=5 * 10**8),
            ),
            kernels=(
                KernelDelta(process=1, range=1, kernel=1, device=0, time=times(10**9)),
                KernelDelta(
                    process=1, range=1, kernel=1, device=0, inherited=True, time=times(5 * 10**8)
                ),
                KernelDelta(process=1, range=2, kernel=1, device=0, time=times(5 * 10**8)),
            ),
            devices=(
                DeviceDelta(
                    process=1, device=0, busy_ns=2 * 10**9, operations=30, first_start_ns=at(5),
                    last_end_ns=at(8),
                ),
            ),
            leaf_times=(LeafTime(1, 0, Scope.STEADY, 1, Leaf.MATMUL, 3 * 10**9),),
            loops=(LoopDelta(1, 0, Scope.STEADY, 1, 6, 30, at(5), at(8)),),
        )
    )  # fmt: skip
    yield from sorted(found, key=lambda event: event.time_ns)


def test_the_counter_gives_the_energy_of_a_run_to_its_edges() -> None:
    (row,) = energies(folded(events())[1])
    assert row.source == COUNTER
    # 8 s at rest and 3 s at work, as added up by hand.
    assert row.joules == pytest.approx(5 * IDLE_W + 3 * BUSY_W, rel=1e-6)
    assert row.watts == pytest.approx(row.joules / 8)
    assert row.used_joules == pytest.approx(3 * BUSY_W, rel=1e-6)
    assert row.used_watts == pytest.approx(BUSY_W, rel=1e-6)
    # It worked in 2 of its 3 s, and rested in the third and in the five around them. The parts add
    # up: what is idle in use is no second part beside the use.
    assert row.used_joules is not None
    assert row.busy_joules is not None
    assert row.used_idle_joules is not None
    assert row.unused_joules is not None
    assert row.unused_joules == pytest.approx(5 * IDLE_W, rel=1e-6)
    assert row.used_idle_joules == pytest.approx(IDLE_W, rel=1e-6)
    assert row.used_joules + row.unused_joules == pytest.approx(row.joules)
    assert row.busy_joules + row.used_idle_joules == pytest.approx(row.used_joules)
    assert row.step_joules == pytest.approx(3 * BUSY_W / 6, rel=1e-6)


def test_power_is_one_figure_for_each_time() -> None:
    """The driver's samples lag behind its counter: what they are integrated to is another figure,
    which stands nowhere beside it."""

    def lagging() -> Iterator[AnyEvent]:
        for event in events():
            if isinstance(event, MachineSample):
                (sample,) = event.gpus
                late = power((event.time_ns - at(0)) / 1e9 - 1.25)
                event = replace(event, gpus=(replace(sample, power_watts=late),))
            yield event

    session, run = folded(lagging())
    (row,) = energies(run)
    assert row.used_watts is not None
    assert row.watts is not None
    document = summary_document(session, run)
    figures = document["devices"][0]["figures"]["power_watts"]
    assert figures["mean_in_use"] == pytest.approx(row.used_watts)
    assert figures["mean"] == pytest.approx(row.watts)
    assert document["roofline"][0]["power_watts"] == pytest.approx(BUSY_W, rel=1e-6)
    subject = Subject("a", session, run)
    (gpu0,) = (one for one in compare([subject, subject]).of_kind("device") if one.name == "gpu0")
    means = [gpu0.figures[name].values[0] for name in ("power_watts", "in_use_power_watts")]
    assert [one and one.amount for one in means] == pytest.approx([row.watts, row.used_watts])
    line = next(one for group in answer(session, run) for one in group if one.label == "GPU 0")
    assert f"in use {BUSY_W:.0f} W, SM active 90 %" in line.text
    assert f"{row.watts:.0f} W" not in line.text


def test_power_is_integrated_where_there_is_no_counter() -> None:
    (row,) = energies(folded(events(counter=False))[1])
    assert row.source == POWER
    assert row.joules == pytest.approx(5 * IDLE_W + 3 * BUSY_W)


def test_a_counter_read_every_five_seconds_is_not_carried_on() -> None:
    # What a recording has that was made before the counter was read at each sample: it rests when
    # the counter is read first, and works after that.
    old = [one for one in events(counter=False) if not isinstance(one, GpuEnergy)]
    sparse: list[AnyEvent] = [
        GpuEnergy(time_ns=at(second), gpu=0, joules=joules(second)) for second in (0.2, 5.0)
    ]
    found = sorted([*old[1:], *sparse], key=lambda event: event.time_ns)
    (row,) = energies(folded(iter([old[0], *found]))[1])
    assert row.joules == pytest.approx(5 * IDLE_W + 3 * BUSY_W, rel=0.01)
    assert row.source == f"{COUNTER}; power samples for the other 4.0 s"


def test_the_reading_after_the_end_counts_to_the_end() -> None:
    found = [one for one in events() if not isinstance(one, GpuEnergy) or one.time_ns < at(8.6)
             or one.time_ns > at(9.4)]  # fmt: skip
    (row,) = energies(folded(iter(found))[1])
    assert row.source == COUNTER
    assert row.joules == pytest.approx(5 * IDLE_W + 3 * BUSY_W, rel=1e-6)


@pytest.mark.parametrize(
    ("metrics", "joules_a_token"),
    [
        ({"tokens_per_step": 50}, 3 * BUSY_W / 6 / 50),
        ({"tokens_per_s": 100.0}, BUSY_W / 100),
        ({}, None),
        ({"tokens_per_step": 0, "tokens_per_s": True}, None),
    ],
)
def test_a_token(metrics: dict[str, float], joules_a_token: float | None) -> None:
    found = [*events()]
    at_end = next(n for n, one in enumerate(found) if isinstance(one, RunEnded))
    found.insert(at_end, RunMetrics(time_ns=at(8.9), run=1, metrics=dict(metrics)))
    (row,) = energies(folded(iter(found))[1])
    assert row.token_joules == (joules_a_token and pytest.approx(joules_a_token, rel=1e-6))


def test_phases_tables_json_compare_and_cost() -> None:
    session, run = folded(events())
    busy = 3 * BUSY_W - IDLE_W
    assert joules_per_kernel_ns(run, time_tree(run)) == pytest.approx(busy / 2e9, rel=1e-6)
    configure(Price(0.36, "EUR"))
    try:
        document = summary_document(session, run)
    finally:
        configure(None)
    (row,) = document["energy"]
    assert row["cost"] == pytest.approx(row["energy_joules"] * 1e-7, rel=1e-6)
    phases = {one["path"]: one for one in document["phase_energy"]}
    assert phases["step"]["energy_joules"] == pytest.approx(0.75 * busy, rel=1e-6)
    assert phases["step"]["instance_joules"] == pytest.approx(0.25 * busy, rel=1e-6)
    assert phases["load"]["energy_joules"] == pytest.approx(0.25 * busy, rel=1e-6)
    figures = document["devices"][0]["figures"]
    assert figures["sm_active_percent"]["mean_in_use"] == pytest.approx(90)
    assert figures["sm_active_percent"]["mean"] < 40
    assert summary_document(session, run)["energy"][0]["cost"] is None
    # Means are written in full: a share of 0.168 is not 0.2.
    (csv_row,) = [
        line for line in to_csv(DEVICES.table(session, run)).splitlines() if "sm_active" in line
    ]
    assert float(csv_row.split(",")[4]) == figures["sm_active_percent"]["mean"]
    comparison = compare([Subject("a", session, run), Subject("b", session, run)])
    assert "mJ" in metric_text("token_joules", 0.002)[1]
    named = {(item.kind, item.name, figure) for item in comparison.items for figure in item.figures}
    assert {
        ("device", "gpu0", "energy_joules"),
        ("device", "gpu0", "used_idle_joules"),
        ("device", "gpu0", "unused_joules"),
        ("device", "gpu0", "in_use_sm_active_percent"),
        ("phase", "step", "energy_joules"),
    } <= named


def test_without_readings_there_is_no_energy() -> None:
    only = [one for one in events() if not isinstance(one, GpuEnergy | MachineSample)]
    run = folded(iter(only))[1]
    assert energies(run) == []
    assert joules_per_kernel_ns(run, time_tree(run)) is None
    assert run.readings.series(0, "power_watts") is None


@given(st.lists(st.floats(0, 1e3), min_size=2, max_size=20 * POINTS), st.randoms())
def test_an_integral_of_many_readings_is_their_sum(
    values: list[float], chance: random.Random
) -> None:
    rate, counter, exact = Integral(), Integral(), [0.0]
    for second, value in enumerate(values):
        exact.append(exact[-1] + (value if second else 0.0))
        counter.add_total(at(second), exact[-1])
    del exact[0]
    moments = [at(second) for second in range(len(values))]
    cut = chance.randrange(len(values))
    rate.add_rates(moments[:cut], values[:cut])
    rate.add_rates(moments[cut:], values[cut:])
    assert len(rate.moments_ns) <= 2 * POINTS
    assert rate.moments_ns[-1] == at(len(values) - 1)
    for known in (rate, counter):
        assert known.between(at(0), at(len(values) - 1)) == pytest.approx(exact[-1])
    first = chance.randrange(len(values))
    last = chance.randrange(first, len(values))
    bound = 2 * rate.every * 1e3 if rate.every > 1 else 1e-6
    assert rate.between(at(first), at(last)) == pytest.approx(exact[last] - exact[first], abs=bound)
    distances = {b - a for a, b in zip(rate.moments_ns, rate.moments_ns[1:-1], strict=False)}
    assert len(distances) <= 1


def add_rate(known: Integral, time_ns: int, per_second: float) -> None:
    known.add_rates([time_ns], [per_second])


@pytest.mark.parametrize("add", [add_rate, Integral.add_total])
def test_an_integral_takes_no_reading_of_the_past(
    add: Callable[[Integral, int, float], None],
) -> None:
    known = Integral()
    for second, value in ((1, 5.0), (2, 6.0), (1.5, 100.0), (2, 100.0)):
        add(known, at(second), value)
    assert known.moments_ns == (at(1), at(2))


def step_joules(name: str) -> list[float | None]:
    loaded = load(str(DATA / name))
    assert loaded.run is not None
    return [row.step_joules for row in energies(loaded.run)]


def test_ranks_that_share_a_gpu_take_each_step_together() -> None:
    """Two ranks on an H200, 125 steps each: by hand the driver's counter rose by 1.37 kJ between
    the first steady step and the last."""
    loaded = load(str(DATA / "faults" / "ddp_small.gputui.gz"))
    assert loaded.run is not None
    tree = time_tree(loaded.run)
    assert tree is not None
    joules = energy_joules(loaded.run.readings, 0, (tree.first_ns, tree.last_ns))
    assert joules is not None
    assert tree.steps == 250
    assert step_joules("faults/ddp_small.gputui.gz") == [pytest.approx(joules[0] / 125)]
    assert joules[0] / 125 == pytest.approx(10.97, rel=0.005)


def test_the_energy_of_a_step_is_unknown_where_another_program_takes_other_steps_on_the_gpu() -> (
    None
):
    """Training, and an evaluation beside it with ten steps for each of its own."""
    assert step_joules("faults/with_eval.gputui.gz") == [None]
    loaded = load(str(DATA / "faults" / "with_eval.gputui.gz"))
    table = GPU_ENERGY.table(loaded.session, loaded.run)
    assert table.unavailable["step_joules"].startswith("processes whose steps are not alike")
    assert table.note == table.unavailable["step_joules"]
