"""The sampling thread: its order of events, its rate, and calls that hang under it."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.collect.live import Sampler, Schedule, emissions
from gputui.collect.machine_reader import ClockSteps
from gputui.collect.nvml.gpus import Worker, _coarse
from gputui.model.events import (
    AnyEvent,
    GpuEnergy,
    GpuSample,
    GpuStatus,
    GpuUnavailable,
    Header,
    HostUnavailable,
    MachineSample,
)
from tests.collect.fake_machine import (
    GUARD_S,
    H200_REASONS,
    LOST,
    NOT_SUPPORTED,
    FakeMachine,
    Probe,
)


@given(
    start=st.integers(0, 10**18),
    interval=st.integers(10**8, 10**14),
    later=st.lists(st.integers(0, 10**13), min_size=1),
)
def test_ticks_neither_drift_nor_burst(start: int, interval: int, later: list[int]) -> None:
    schedule, now = Schedule(start, interval), start
    for step in later:
        now += step
        due = schedule.after(now)
        assert (due - start) % interval == 0
        assert now < due <= now + interval
        now = due


@pytest.mark.parametrize("interval_s", [0, 0.05, -1, float("nan"), float("inf")])
def test_an_impossible_interval_is_refused(interval_s: float) -> None:
    with pytest.raises(ValueError, match=r"give a number of seconds from 0\.1"):
        Sampler(interval_s)


def test_a_sampler_that_cannot_import_what_it_needs_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gputui.collect.machine_reader", None)
    emitted: queue.Queue[object] = queue.Queue()
    sampler = Sampler()
    heard = emissions(sampler)
    threading.Thread(target=lambda: emitted.put(next(heard)), daemon=True).start()
    (event,) = cast("list[AnyEvent]", emitted.get(timeout=GUARD_S))
    sampler.stop()
    assert isinstance(event, HostUnavailable)
    assert event.reasons["sampler"].startswith("sampling stopped: ModuleNotFoundError")


def test_stop_before_start_and_twice_does_nothing() -> None:
    sampler = Sampler()
    sampler.stop()
    sampler.stop()


def test_the_first_emission_is_the_header_and_stop_is_the_end(
    machine: FakeMachine, own_probe: Callable[[], Probe]
) -> None:
    probe = own_probe()
    probe.send(do="start", interval_s=0.1)
    (header,) = probe.events()
    assert isinstance(header, Header)
    assert (header.interval_s, header.arguments) == (0.1, ("--once", "x"))
    assert abs(header.time_ns - time.time_ns()) < GUARD_S * 1e9
    assert abs(header.monotonic_ns - time.monotonic_ns()) < GUARD_S * 1e9
    seen: list[AnyEvent] = [header]
    first = probe.until(seen, lambda _: True)
    assert first.gpu().sm_active_percent == 97.0
    probe.until(seen, lambda reading: len(reading.events) >= 6)
    # Also at the shortest interval every window is long enough for the counters.
    samples = [event for event in seen if isinstance(event, MachineSample)]
    assert {sample.gpus[0].sm_active_percent for sample in samples} == {97.0}
    # What is missing never changed, so it was said once.
    said = [e.reasons for e in seen if isinstance(e, GpuUnavailable | HostUnavailable)]
    assert said == [H200_REASONS]
    probe.send(do="stop")
    while "sampler_alive" not in (line := probe.line()):
        pass
    assert json.loads(line) == {"sampler_alive": False}
    assert machine.unfreed_samples == 0


def test_the_interval_changes_live(own_probe: Callable[[], Probe]) -> None:
    probe = own_probe()
    probe.send(do="start", interval_s=3600, energy=False)
    seen = probe.events()
    probe.until(seen, lambda _: True)
    # Without the change, the next tick would come in an hour.
    probe.send(do="interval", interval_s=0.1)
    probe.until(seen, lambda reading: len(reading.events) >= 5)
    # Where nothing is recorded, energy is read with the status only.
    energies = [event for event in seen if isinstance(event, GpuEnergy)]
    assert len(energies) == sum(isinstance(event, GpuStatus) for event in seen) > 0


def test_reasons_are_said_when_they_change_and_only_then(
    machine: FakeMachine, own_probe: Callable[[], Probe]
) -> None:
    probe = own_probe()
    probe.send(do="start", interval_s=0.1)
    seen = probe.events()
    probe.until(seen, lambda reading: reading.gpu().power_watts is not None)
    machine.gpus[0]["nvmlDeviceGetPowerUsage"] = NOT_SUPPORTED
    machine.write()
    reading = probe.until(seen, lambda reading: reading.gpu().power_watts is None)
    assert reading.reasons() == {"power_watts": "not supported by this GPU"}
    count = len(seen)
    probe.until(seen, lambda reading: len(reading.events) >= count + 2)
    machine.reset()
    machine.write()
    reading = probe.until(seen, lambda reading: reading.gpu().power_watts is not None)
    assert reading.reasons() == {}
    said = [event.reasons for event in seen if isinstance(event, GpuUnavailable)]
    power = {"power_watts": "not supported by this GPU"}
    assert said == [H200_REASONS, H200_REASONS | power, H200_REASONS]


def test_a_gpu_that_is_lost_and_comes_back(
    machine: FakeMachine, own_probe: Callable[[], Probe]
) -> None:
    machine.reset(2)
    machine.write()
    probe = own_probe()
    probe.send(do="start", interval_s=0.1)
    seen = probe.events()
    probe.until(seen, lambda reading: reading.gpu(1).power_watts is not None)
    machine.gpus[1] |= dict.fromkeys(machine.gpus[1], LOST)
    machine.write()
    reading = probe.until(seen, lambda reading: reading.gpu(1) == GpuSample(index=1))
    assert "lost" in reading.reasons(1)["device"]
    assert reading.gpu(0).power_watts == 612.345
    machine.reset(2)
    machine.write()
    reading = probe.until(seen, lambda reading: reading.gpu(1).sm_active_percent is not None)
    assert reading.reasons(1) == {}


def test_a_call_that_hangs_stops_no_other_gpu(
    machine: FakeMachine, own_probe: Callable[..., Probe], tmp_path: Path
) -> None:
    fifo = tmp_path / "hang"
    os.mkfifo(fifo)
    machine.reset(2)
    machine.write()
    probe = own_probe(hasty=True)
    probe.send(do="start", interval_s=0.1)
    seen = probe.events()
    probe.until(seen, lambda reading: reading.gpu(0).power_watts is not None)
    machine.gpus[0]["nvmlDeviceGetPowerUsage"] = f"@{fifo}"
    machine.gpus[1]["nvmlDeviceGetPowerUsage"] = 5000
    machine.write()
    reading = probe.until(
        seen,
        lambda reading: (
            reading.gpu(0) == GpuSample(index=0) and reading.gpu(1).power_watts == 5.0
        ),
    )
    assert reading.reasons(0)["device"].startswith("no answer for ")
    machine.gpus[1]["nvmlDeviceGetPowerUsage"] = 6000
    machine.write()
    reading = probe.until(seen, lambda reading: reading.gpu(1).power_watts == 6.0)
    assert reading.gpu(0) == GpuSample(index=0)
    machine.reset(2)
    machine.write()
    os.close(os.open(fifo, os.O_WRONLY))
    reading = probe.until(seen, lambda reading: reading.gpu(0).power_watts is not None)
    assert "device" not in reading.reasons(0)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.5, "a moment"), (1, "1 s"), (4.9, "2 s"), (29, "20 s"), (59, "30 s"), (125, "2 min")],
)
def test_how_long_a_gpu_gives_no_answer_is_told_coarsely(seconds: float, told: str) -> None:
    assert _coarse(seconds) == told


def test_a_worker_that_hangs_is_left_and_used_again_when_it_is_back() -> None:
    worker: Worker[str] = Worker("test")
    entered, leave = threading.Event(), threading.Event()

    def hang() -> str:
        entered.set()
        leave.wait(GUARD_S)
        return "late"

    assert worker.ask(hang)
    assert entered.wait(GUARD_S)
    with pytest.raises(TimeoutError):
        worker.answer(time.monotonic())
    assert not worker.ask(lambda: "refused")
    assert worker.waiting_s > 0
    leave.set()
    until = time.monotonic() + GUARD_S
    assert worker.answer(until) == "late"
    assert worker.ask(lambda: "fresh")
    assert worker.answer(until) == "fresh"
    assert worker.waiting_s == 0
    worker.stop()


def test_what_a_call_raises_is_raised_where_it_is_waited_for() -> None:
    worker: Worker[int] = Worker("test")
    worker.ask(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        worker.answer(time.monotonic() + GUARD_S)
    worker.stop()


def test_a_wall_clock_that_is_set_is_told_from_a_pause_and_from_a_slow_reading() -> None:
    wall, steady = [100], [0]
    slow = [0]

    def steadily() -> int:
        steady[0] += slow[0]
        return steady[0]

    clock = ClockSteps(lambda: wall[0], steadily)
    found = []
    for passed_ns, set_ns, slow_ns in (
        (0, 0, 0),
        (10**12, 0, 0),  # a pause
        (10**9, 10**9, 0),
        (10**9, -(10**9), 10**7),  # read again at the next tick
        (10**9, 0, 0),
        (10**9, 10**6, 0),
    ):
        slow[0] = slow_ns
        wall[0] += passed_ns + set_ns
        steady[0] += passed_ns
        found.append(clock.read())
        wall[0] += 2 * slow_ns
    assert found == [None, None, 10**9, None, -(10**9), None]
