"""Processes: the driver's list joined with real processes of this machine."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.collect.nvml import GpuProcess, ProcessUse
from gputui.collect.nvml.device import LEAST_AGE_NS, MOST_AGE_NS, Turns
from gputui.collect.nvml.reading import DeviceReading
from gputui.collect.processes import ProcessTable, cuda_processes
from gputui.model.events import GpuSample
from tests.collect.fake_machine import (
    NO_PERMISSION,
    NOT_AVAILABLE_BYTES,
    NOT_SUPPORTED,
    FakeMachine,
    Probe,
    Reading,
)

NO_SUCH_PID = 2**22 + 5
"""Above the largest pid that Linux gives (pid_max's own limit)."""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits until its standard input closes, with a hostile command line."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "a\x1b[31mb\nc"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def reading(*processes: GpuProcess, busy: dict[int, float] | None = None) -> DeviceReading:
    use = {pid: ProcessUse(sm, 0.0, 0.0, 0.0) for pid, sm in (busy or {}).items()}
    return DeviceReading(GpuSample(index=0), {}, processes, use)


def test_a_process_is_described_by_the_host(child: subprocess.Popen[bytes]) -> None:
    table = ProcessTable(verify=False)
    both = [(gpu, reading(GpuProcess(child.pid, 7), busy={child.pid: 42.0})) for gpu in (0, 1)]
    first, _ = table.update(both)
    second, reasons = table.update(both)
    assert first is not None
    assert second is not None
    assert [process.gpu for process in second] == [0, 1]
    process = second[0]
    assert (process.pid, process.gpu_memory_bytes, process.sm_percent) == (child.pid, 7, 42.0)
    assert process.user == psutil.Process().username()
    assert (process.command or "").endswith("a\ufffd[31mb c")
    assert process.host_memory_bytes
    assert first[0].cpu_percent is None  # a rate needs two readings
    assert process.cpu_percent is not None
    assert reasons == {}


def test_a_pid_of_another_namespace_keeps_its_pid_and_says_why() -> None:
    processes, reasons = ProcessTable(verify=False).update(
        [(0, reading(GpuProcess(NO_SUCH_PID, None)))]
    )
    assert processes is not None
    (process,) = processes
    assert (process.pid, process.command, process.host_memory_bytes) == (NO_SUCH_PID, None, None)
    assert "--pid=host" in reasons["processes.command"]
    assert "does not report it" in reasons["processes.gpu_memory_bytes"]


def test_in_a_container_a_pid_that_uses_no_gpu_is_not_taken_for_ours(
    child: subprocess.Popen[bytes],
) -> None:
    processes, reasons = ProcessTable(verify=True).update([(0, reading(GpuProcess(child.pid, 7)))])
    assert processes is not None
    assert processes[0].command is None
    assert "outside this container" in reasons["processes.command"]


def test_a_process_that_ended_is_described_no_more(child: subprocess.Popen[bytes]) -> None:
    table = ProcessTable(verify=False)
    listed = [(0, reading(GpuProcess(child.pid, 7)))]
    table.update(listed)
    assert child.stdin is not None
    child.stdin.close()
    child.wait()
    processes, _ = table.update(listed)
    assert processes is not None
    assert processes[0].command is None


def test_a_process_goes_by_what_it_calls_itself_now() -> None:
    """Servers rename their workers, and a shell becomes the program it starts."""
    table = ProcessTable(verify=False)
    becomes = "import sys; print('second', flush=True); sys.stdin.read()"
    shell = f"echo first; read line; exec {shlex.quote(sys.executable)} -c {shlex.quote(becomes)}"
    with subprocess.Popen(
        ["/bin/sh", "-c", shell], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        listed = [(0, reading(GpuProcess(process.pid, 7)))]
        assert process.stdout.readline() == b"first\n"
        before, _ = table.update(listed)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"second\n"
        after, _ = table.update(listed)
    assert before is not None
    assert after is not None
    assert (before[0].command or "").startswith("/bin/sh -c echo first")
    assert (after[0].command or "").startswith(f"{sys.executable} -c import sys")
    assert before[0].start_time_ns == after[0].start_time_ns


def test_a_process_that_ended_and_still_holds_the_gpu_keeps_its_name() -> None:
    """Until its parent waits for it; the driver may be giving its memory back meanwhile."""
    table = ProcessTable(verify=False)
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        processes, reasons = table.update([(0, reading(GpuProcess(process.pid, 7)))])
    assert processes is not None
    assert (processes[0].command or "").startswith("python")
    assert (processes[0].command or "").endswith(" <defunct>")
    assert processes[0].user == psutil.Process().username()
    assert processes[0].start_time_ns is not None
    assert "processes.command" not in reasons


def test_reasons_name_the_gpus_they_hold_for() -> None:
    fine = reading()
    broken = DeviceReading(GpuSample(index=1), {}, None, None, {"processes": "not supported"})
    _, reasons = ProcessTable(verify=False).update([(0, fine), (1, broken)])
    assert reasons == {"processes": "GPU 1: not supported"}
    processes, reasons = ProcessTable(verify=False).update([(0, broken), (1, broken)])
    assert processes is None
    assert reasons == {"processes": "not supported"}


def test_processes_come_and_go(machine: FakeMachine, own_probe: Callable[[], Probe]) -> None:
    machine.gpus[0]["nvmlDeviceGetComputeRunningProcesses_v3"] = f"{os.getpid()} 1000"
    machine.gpus[0]["nvmlDeviceGetProcessUtilization"] = f"{os.getpid()} 0 33"
    machine.write()
    probe = own_probe()
    probe.send(do="start", interval_s=0.1)
    seen = probe.events()
    (one,) = probe.until(seen, lambda r: r.sample.processes is not None).sample.processes or ()
    assert (one.pid, one.gpu, one.gpu_memory_bytes, one.sm_percent) == (os.getpid(), 0, 1000, 33.0)
    machine.gpus[0]["nvmlDeviceGetComputeRunningProcesses_v3"] = ""
    machine.write()
    probe.until(seen, lambda r: r.sample.processes == ())


def test_a_sample_stays_true_until_the_next_and_an_old_one_does_not(
    machine: FakeMachine, probe: Probe
) -> None:
    """The driver samples seldom: a reading that follows another at once must not say 0."""
    stamp_us = time.time_ns() // 1000 + 3600_000_000  # however long the probe takes
    machine.gpus[0] |= {
        "nvmlDeviceGetComputeRunningProcesses_v3": "50 1000 51 1000",
        "nvmlDeviceGetProcessUtilization": f"50 {stamp_us} 20 51 {stamp_us - 3610_000_000} 90",
    }
    machine.write()
    busy = {process.pid: process.sm_percent for process in probe.once().sample.processes or ()}
    assert busy == {50: 20.0, 51: 0.0}


def test_what_the_driver_lists_is_merged(machine: FakeMachine, probe: Probe) -> None:
    """Compute and graphics once; memory that is not told; a process that did nothing; garbage."""
    machine.gpus[0] |= {
        "nvmlDeviceGetComputeRunningProcesses_v3": f"50 1000 51 {NOT_AVAILABLE_BYTES}",
        "nvmlDeviceGetGraphicsRunningProcesses_v3": "50 1000 52 30",
        "nvmlDeviceGetProcessUtilization": "50 0 20 51 0 4000000000",
    }
    machine.write()
    reading = probe.once()
    assert [
        (process.pid, process.gpu_memory_bytes, process.sm_percent)
        for process in reading.sample.processes or ()
    ] == [(50, 1000, 20.0), (51, None, 0.0), (52, 30, 0.0)]


def test_what_a_process_is_by_the_drivers_word(machine: FakeMachine, probe: Probe) -> None:
    machine.gpus[0] |= {
        "nvmlDeviceGetComputeRunningProcesses_v3": "50 1000 51 1000",
        "nvmlDeviceGetGraphicsRunningProcesses_v3": "51 2000 52 30",
        "nvmlDeviceGetProcessUtilization": "50 0 20",
        "nvmlDeviceGetProcessUtilization.memory": "12",
    }
    machine.write()
    told = probe.once().sample.processes or ()
    assert [(p.pid, p.kind, p.gpu_memory_bytes) for p in told] == [
        (50, "C", 1000),
        (51, "C+G", 2000),
        (52, "G", 30),
    ]
    assert [p.memory_bandwidth_percent for p in told] == [12.0, 0.0, 0.0]


def test_the_launchers_of_a_process_lead_up_from_it(child: subprocess.Popen[bytes]) -> None:
    table = ProcessTable(verify=False)
    processes, _ = table.update([(0, reading(GpuProcess(child.pid, 7)))])
    assert processes is not None
    (process,) = processes
    assert process.parent_pid == os.getpid()
    assert process.start_time_ns == round(psutil.Process(child.pid).create_time() * 1e9)
    above = {launcher.pid: launcher for launcher in table.launchers}
    assert set(above) == {
        parent.pid for parent in psutil.Process(child.pid).parents() if parent.pid > 1
    }
    assert above[os.getpid()].user == psutil.Process().username()
    table.update([(0, reading())])
    assert table.launchers == ()


def test_the_script_of_a_shell_that_launched_a_process_is_not_kept() -> None:
    script = "export WORKER_SALT=pepper; sh -c 'echo $$; exec cat'; :"
    with subprocess.Popen(
        ["sh", "-ec", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        pid = int(shell.stdout.readline())
        table = ProcessTable(verify=False)
        table.update([(0, reading(GpuProcess(pid, 7)))])
        commands = {launcher.pid: launcher.command for launcher in table.launchers}
        assert commands[shell.pid] == "sh -ec …"
        shell.stdin.close()


@given(
    count=st.integers(1, 40),
    steps=st.lists(st.integers(100, 1500), min_size=1, max_size=60),
)
def test_gpus_take_turns_and_none_waits_long(count: int, steps: list[int]) -> None:
    turns, now = Turns(range(count)), 10**15
    assert turns.next_turn(now) == set(range(count))
    asked = dict.fromkeys(range(count), now)
    share = max(2, (count + 3) // 4)
    for step_ms in steps:
        now += step_ms * 1_000_000
        taken = turns.next_turn(now)
        assert len(taken) <= share
        assert all(now - asked[member] >= LEAST_AGE_NS for member in taken)
        asked |= dict.fromkeys(taken, now)
        assert all(now - then <= MOST_AGE_NS for then in asked.values())


def test_slow_ticks_ask_whom_they_must() -> None:
    turns = Turns(range(8))
    assert [len(turns.next_turn(second * 10**9)) for second in range(0, 40, 10)] == [8] * 4


def test_one_tick_measures_few_gpus_and_a_few_seconds_measure_all(
    machine: FakeMachine,
    own_probe: Callable[[], Probe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv("FAKE_NVML_CALLS", str(calls))
    machine.reset(8)
    for gpu in machine.gpus:
        gpu["nvmlDeviceGetComputeRunningProcesses_v3"] = "50 1000"
        gpu["nvmlDeviceGetProcessUtilization"] = "50 0 20"
    machine.write()
    probe = own_probe()
    probe.send(do="start", interval_s=0.1)

    def measured() -> dict[int, list[int]]:
        """By GPU, the ticks that measured; each asks every GPU once for its utilization."""
        ticks: Counter[int] = Counter()
        found: dict[int, list[int]] = {}
        for line in calls.read_text().splitlines():
            gpu, _, function = line.partition(" ")
            ticks[int(gpu)] += function == "nvmlDeviceGetUtilizationRates"
            if function == "nvmlDeviceGetProcessUtilization":
                tick = found.setdefault(int(gpu), [])
                if ticks[int(gpu)] not in tick:  # asked for the size, then for the samples
                    tick.append(ticks[int(gpu)])
        return found

    def all_again(_: Reading) -> bool:
        return all(len(found) >= 2 for found in measured().values())

    reading = probe.until(probe.events(), all_again)
    processes = reading.sample.processes
    assert {found[0] for found in measured().values()} == {1}  # at the opening, everyone
    assert len(measured()) == 8
    later = Counter(tick for found in measured().values() for tick in found[1:])
    assert max(later.values()) <= 2
    told = [e.processes for e in reading.events if getattr(e, "processes", None) is not None]
    assert processes is None or len(processes) == 8
    assert [process.sm_percent for process in told[0]] == [20.0] * 8


def test_a_process_that_came_after_the_last_measurement_has_no_figure() -> None:
    here = os.getpid()
    processes, reasons = ProcessTable(verify=False).update(
        [(0, DeviceReading(GpuSample(index=0), {}, (GpuProcess(here, 7),), {}))]
    )
    assert processes is not None
    assert processes[0].sm_percent is None
    assert "not measured" in reasons["processes.sm_percent"]


def test_a_driver_that_will_not_list(machine: FakeMachine, probe: Probe) -> None:
    machine.gpus[0] |= {
        "nvmlDeviceGetComputeRunningProcesses_v3": NO_PERMISSION,
        "nvmlDeviceGetGraphicsRunningProcesses_v3": NOT_SUPPORTED,
        "nvmlDeviceGetProcessUtilization": NOT_SUPPORTED,
    }
    machine.write()
    reading = probe.once()
    assert reading.sample.processes is None
    assert reading.host_reasons["processes"].startswith("no permission")
    assert reading.host_reasons["processes.sm_percent"] == "not supported by this GPU"
    assert reading.gpu().utilization_percent == 97.0


def test_who_uses_cuda_below_a_process(monkeypatch, tmp_path):
    """By the device that it has open: the process itself, else its children, oldest first."""
    device = tmp_path / "nvidia-uvm"
    device.touch()
    monkeypatch.setattr("gputui.collect.processes.CUDA_DEVICE", str(device))
    opens = 'for each in 1 2; do (echo up; exec tail -f /dev/null) 3<"$0" & done; wait'
    with subprocess.Popen(["sh", "-c", opens, str(device)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert [parent.stdout.readline() for _ in range(2)] == [b"up\n"] * 2
        children = [each.pid for each in psutil.Process(parent.pid).children()]
        try:
            assert {*cuda_processes(parent.pid)} == {*children}
            assert cuda_processes(children[1]) == [children[1]]
            with device.open():
                assert cuda_processes(os.getpid()) == [os.getpid()]
        finally:
            parent.kill()
            for pid in children:
                os.kill(pid, signal.SIGKILL)
    assert cuda_processes(NO_SUCH_PID) == []
