"""Recordings without a run: the machine over all of it, in every format, and compared."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from gputui.cli.dispatch import run as gputui
from gputui.model.events import (
    AnyEvent,
    GpuSample,
    GpuStatus,
    GpuUnavailable,
    HostSample,
    MachineSample,
    ProcessSample,
    RunMetrics,
)
from gputui.render import formats
from gputui.render.comparison import comparison_document
from gputui.render.summary import one_table
from gputui.report.comparable import Subject
from gputui.report.compare import Comparison, Condition, compare
from gputui.report.machine_now import machine_lines
from gputui.state import Session
from gputui.store.journal.writer import JournalWriter
from tests.events_for_tests import at, gpu, header, run_ended, run_started

Power = Callable[[int], float]


def machine(power: Power = lambda _: 100.0, seconds: int = 61) -> list[AnyEvent]:
    """A reading of two GPUs a second; the first one's power as told."""
    return [
        header(gpu(0), gpu(1)),
        *(
            MachineSample(
                time_ns=at(second),
                host=HostSample(cpu_percent=50.0),
                gpus=(
                    GpuSample(index=0, power_watts=power(second), memory_used_bytes=second << 30),
                    GpuSample(index=1, utilization_percent=10.0),
                ),
            )
            for second in range(seconds)
        ),
    ]


def written(path: Path, events: list[AnyEvent]) -> str:
    writer = JournalWriter(path)
    writer.write(events)
    writer.close()
    return str(path)


def rows(events: list[AnyEvent], name: str) -> list[dict[str, object]]:
    table = one_table(Session.from_events(events), None, name)
    headers = [column.header for column in table.columns]
    return [dict(zip(headers, row, strict=True)) for row in table.cells]


def test_each_gpu_has_means_peaks_and_energy() -> None:
    zero, one = rows(machine(lambda second: 200.0 if second % 2 else 100.0), "machine_gpus")
    assert zero["Power Mean (W)"] == pytest.approx(150)  # its energy over 60 s
    assert (zero["Power Peak (W)"], zero["Memory Peak (bytes)"]) == (200.0, 60 << 30)
    # No counter of the driver's: each sample is the mean of the second before it.
    assert zero["Energy (J)"] == 30 * 200 + 30 * 100
    assert (one["Util Mean (%)"], one["Power Mean (W)"], one["Energy (J)"]) == (10, None, None)


def test_energy_is_the_drivers_count_and_power_where_that_was_not_read() -> None:
    def energy(last: int, joules: float) -> object:
        counted = [
            GpuStatus(time_ns=at(0), gpu=0, energy_joules=5e6),
            GpuStatus(time_ns=at(last), gpu=0, energy_joules=5e6 + joules),
        ]
        return rows([*machine(), *counted], "machine_gpus")[0]["Energy (J)"]

    assert energy(60, 9000.0) == 9000
    assert energy(40, 6000.0) == 8000  # 20 s of 100 W after its last reading
    assert energy(10, 1.0) == 5001
    assert energy(60, -1e6) == 6000  # the driver was loaded anew: only power is left


def test_what_befell_the_gpus_is_counted_by_kind() -> None:
    def throttled(second: int, *reasons: str) -> MachineSample:
        figures = GpuSample(index=0, throttle_reasons=reasons)
        return MachineSample(time_ns=at(second), host=HostSample(), gpus=(figures,))

    events: list[AnyEvent] = [
        header(gpu()),
        GpuStatus(time_ns=at(1), gpu=0, xid_count=0, throttle_seconds={"power cap": 7.0}),
        throttled(1, "power cap"),
        throttled(2, "power cap", "reliability"),
        throttled(3),
        throttled(4, "power cap"),
        GpuStatus(
            time_ns=at(5), gpu=0, xid_count=2, last_xid=79, throttle_seconds={"power cap": 9.5}
        ),
        GpuUnavailable(time_ns=at(6), gpu=0, reasons={"device": "GPU is lost"}),
        GpuUnavailable(time_ns=at(7), gpu=0, reasons={"device": "GPU is lost"}),
    ]
    told = [tuple(row.values()) for row in rows(events, "machine_events")]
    assert told == [
        (0, "throttled: power cap", 2, 1e9, 4e9),
        (0, "throttled: reliability", 1, 2e9, 2e9),
        (0, "Xid error 79", 2, 5e9, 5e9),
        (0, "not readable: GPU is lost", 1, 6e9, 6e9),
    ]
    held = [tuple(row.values()) for row in rows(events, "machine_throttling")]
    assert held == [
        (0, "power cap", 75.0, 3, 2_500_000_000), (0, "reliability", 25.0, 1, None)
    ]  # fmt: skip


def test_processes_are_those_that_were_seen_with_their_most_memory() -> None:
    def seen(second: int, *processes: ProcessSample) -> MachineSample:
        return MachineSample(time_ns=at(second), host=HostSample(), processes=processes)

    def process(pid: int, memory: int, started: int = 0) -> ProcessSample:
        return ProcessSample(
            pid=pid, gpu=0, command=f"job {started}", gpu_memory_bytes=memory, sm_percent=40.0,
            start_time_ns=at(started),
        )  # fmt: skip

    events: list[AnyEvent] = [
        header(gpu()),
        seen(1, process(7, 100)),
        seen(3, process(7, 300), process(8, 50)),
        MachineSample(time_ns=at(4), host=HostSample()),
        seen(5, process(7, 200), process(8, 60, started=4)),
    ]
    told = [
        (row["PID"], row["Peak Memory (bytes)"], row["First Seen (ns)"], row["Last Seen (ns)"],
         row["Command"])
        for row in rows(events, "machine_processes")
    ]  # fmt: skip
    assert told == [
        (7, 300, 1e9, 5e9, "job 0"),
        (8, 60, 5e9, 5e9, "job 4"),  # the same pid, another process
        (8, 50, 3e9, 3e9, "job 0"),
    ]


def test_a_run_has_the_readings_of_its_own_time_alone() -> None:
    events = machine(lambda second: 500.0 if 20 <= second < 40 else 50.0)
    before, during, after = events[:21], events[21:41], events[41:]
    session = Session.from_events([*before, run_started(), *during, run_ended(), *after])
    assert session.run is not None
    for readings, watts in ((session.run.readings, 500), (session.readings, 50)):
        power = readings.series(0, "power_watts")
        assert power is not None
        assert power.average == watts


@pytest.mark.parametrize("format_name", ["csv", "json", "md", "html"])
def test_every_format_tells_of_it(
    format_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "x.gputui", machine())
    assert gputui(["export", path, "--format", format_name]) == 0
    text = capsys.readouterr().out
    assert "NVIDIA Test" in text
    if format_name == "json":
        document = json.loads(text)
        assert document["run"] is None
        assert document["phases"] is None
        assert document["unavailable"]["phases"] == "no run was recorded, only the machine"
        assert document["machine"]["samples"] == 61
        assert document["machine"]["duration_ns"] == 60e9
        assert document["machine"]["host"]["cpu_percent"]["mean"] == 50
        assert document["devices"][0]["energy_joules"] == 6000
        assert document["devices"][0]["energy_source"] == "power samples, integrated"
    if format_name == "html":
        assert text.count("<polyline") >= 2


def test_the_command_says_what_it_has_of_such_a_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "x.gputui", machine())
    assert gputui(["summary", path]) == 0
    assert "machine only: no run was recorded" in capsys.readouterr().out
    assert gputui(["summary", path, "--table", "machine_gpus", "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("GPU,Name,Util Mean (%)")
    for words, status, told in (
        (["--run", "1"], 1, "x.gputui has no run 1: it holds only the machine; leave out --run"),
        (["--table", "x"], 2, "no table 'x' of a recording without a run; known: machine"),
        (["--table", "phases"], 1, "no table 'phases' of a recording without a run; known: mach"),
        (["--domain", "x"], 2, "no ranges of 'x' here; available: none"),
    ):
        assert gputui(["summary", path, *words]) == status
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1


def test_a_recording_of_nothing_has_a_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "x.gputui", [header(reason="no driver")])
    for name in ("csv", "json", "md", "html"):
        assert gputui(["export", path, "--format", name]) == 0
    assert gputui(["summary", path]) == 0
    assert "no GPU (no driver)" in capsys.readouterr().out


# --- compared ----------------------------------------------------------------------------------


def compared(*recordings: list[AnyEvent]) -> Comparison:
    sessions = map(Session.from_events, recordings)
    return compare([Subject(f"{i}.gputui", one, one.run) for i, one in enumerate(sessions)])


def power(comparison: Comparison) -> tuple[float | None, bool | None]:
    item = next(item for item in comparison.items if item.name == "gpu0")
    found = item.figures["power_watts"].difference(1)
    assert found is not None
    return found.noise, found.beyond_noise


def test_averages_of_devices_are_held_against_stretches_not_samples() -> None:
    # Every other second 100 W more: samples deviate by 50 W, minutes not at all.
    steady = machine(lambda second: 100.0 + 100 * (second % 2), seconds=512)
    more = machine(lambda second: 110.0 + 100 * (second % 2), seconds=512)
    assert power(compared(steady, more)) == (0.0, True)
    # A slow drift makes the stretches differ.
    drifting = machine(lambda second: 100.0 + second, seconds=512)
    noise, beyond = power(compared(drifting, machine(lambda second: 110.0 + second, 512)))
    means = [100 + 32 * k + 15.5 for k in range(16)]
    middle = sum(means) / 16
    variance = sum((m - middle) ** 2 for m in means) / 15
    # Student's t of 30 degrees of freedom.
    assert noise == pytest.approx(2.042 * math.sqrt(2 * variance / 16))
    assert beyond is False
    assert power(compared(machine(seconds=1), machine(seconds=1))) == (None, None)


def test_conditions_of_ci_hold_for_devices_and_the_host() -> None:
    both = compared(machine(), machine(lambda _: 120.0))
    assert Condition.parse("gpu0.power_watts>+10%").tripped(both)
    assert not Condition.parse("gpu0.power_watts>+30%").tripped(both)
    assert Condition.parse("gpu0.energy_joules>7000").tripped(both)
    assert not Condition.parse("host.cpu_percent>+1%").tripped(both)


def test_a_run_against_the_machine_alone_says_what_cannot_be_compared() -> None:
    told: AnyEvent = RunMetrics(time_ns=at(2), run=1, metrics={"tokens_per_s": 5.0})
    ran = [*machine()[:1], run_started(), *machine()[1:], told, run_ended()]
    comparison = compared(ran, machine())
    words = "no run was recorded in 1.gputui: devices are compared, phases, kernels and metrics"
    assert words in formats.comparison(comparison, "table")
    assert words in comparison_document(comparison).remarks[0]
    assert power(comparison)[1] is False
    assert not comparison.missing


def test_metrics_are_held_against_what_was_reported_while_it_ran() -> None:
    def ran(values: tuple[float, ...], last: float) -> list[AnyEvent]:
        reports = [
            RunMetrics(time_ns=at(2 + i), run=1, metrics={"tokens_per_s": value, "tokens": i})
            for i, value in enumerate(values)
        ]
        final = RunMetrics(time_ns=at(8), run=1, metrics={"tokens_per_s": last})
        return [header(), run_started(), *reports, final, run_ended()]

    comparison = compared(ran((9, 11, 9, 11), 10), ran((9, 11, 9, 11), 13))
    found = {
        item.name: item.figures["value"].difference(1) for item in comparison.of_kind("metric")
    }
    speed, tokens = found["tokens_per_s"], found["tokens"]
    assert speed is not None
    assert tokens is not None
    assert (speed.absolute, speed.beyond_noise) == (3, True)
    # What only rises is a count: its values are no mean.
    assert tokens.noise is None


def test_three_recordings_keep_noise_and_verdict_on_80_columns() -> None:
    text = formats.comparison(compared(machine(), machine(lambda _: 150.0), machine()), "table", 80)
    lines = [line for line in text.splitlines() if line.startswith("gpu0  power_watts")]
    assert [line.split()[2:] for line in lines] == [
        ["baseline", "100", "W"],
        ["run", "2", "150", "W", "+50.0", "%", "±0", "W", "yes"],
        ["run", "3", "100", "W", "0", "%", "±0", "W", "no"],
    ]
    assert max(map(len, text.splitlines())) <= 80


def test_a_host_with_infiniband_says_what_its_ports_move() -> None:
    def lines(sent: float | None, received: float | None) -> str:
        host = HostSample(
            infiniband_sent_bytes_per_s=sent, infiniband_received_bytes_per_s=received
        )
        sample = MachineSample(time_ns=at(1), host=host)
        return "\n".join(machine_lines(Session.from_events([header(), sample])))

    assert "InfiniBand" not in lines(None, None)
    assert "InfiniBand 12.5 GB/s out, 2.00 GB/s in" in lines(12.5e9, 2e9)
