"""The real sampler's process, on a driver and a CUPTI of ours: what it says, and how it ends."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gputui.counters.sampler import BUSY, CLOSED, CounterSampler, cupti_places
from gputui.counters.separation import CounterSamples
from gputui.inject.build import COUNTERS

WAIT_S = 20.0


def read_until(sampler: CounterSampler, is_enough) -> list[CounterSamples]:
    """What it sent until there was enough, or it failed."""
    batches: list[CounterSamples] = []
    while sampler.failure is None and not is_enough(batches):
        ready, _, _ = select.select([sampler], [], [], WAIT_S)
        assert ready, "the sampler says nothing"
        batches += sampler.read()
    return batches


def some(batches: list[CounterSamples]) -> bool:
    return sum(len(batch.starts_ns) for batch in batches) > 400


def started(interval_ns: int = 200_000, in_windows: bool = False) -> CounterSampler:
    return CounterSampler("GPU-0", cupti_places(), interval_ns, in_windows)


def ended(pid: int) -> bool:
    """Waits for the end of a process that is no child of this one."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], WAIT_S)[0])
    finally:
        os.close(descriptor)


@pytest.fixture
def log(gpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: ARG001
    """What was switched on and off."""
    monkeypatch.setenv("FAKE_CUPTI_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def test_it_says_what_it_samples_and_switches_the_counters_off_at_its_end(log):
    sampler = started()
    batches = read_until(sampler, some)
    assert sampler.facts is not None
    assert sampler.facts.uuid == "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf"
    assert (sampler.facts.chip, sampler.facts.cupti_version) == ("GH100", 130001)
    assert "tensor_active_percent" in sampler.facts.counters
    lengths = batches[0].ends_ns - batches[0].starts_ns
    assert set(lengths.tolist()) == {200_000}
    assert log.read_text() == "enable\n"
    pid = sampler.pid
    sampler.close()
    assert ended(pid)
    assert log.read_text() == "enable\ndisable\n"
    sampler.close()
    assert sampler.read() == []


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("FAKE_CUPTI", "rights", CLOSED),
        ("FAKE_CUPTI", "busy", BUSY),
        ("FAKE_CUPTI", "mig", "part of a GPU (MIG)"),
        ("FAKE_CUPTI", "unknown", "cuptiPmSamplingEnable: CUPTI_ERROR_OF_A_TEST"),
        ("FAKE_CUPTI", "120900", "is version 120900, CUPTI 13 is needed"),
        ("FAKE_CUPTI", "140000", "is version 140000, CUPTI 13 is needed"),
        ("FAKE_CUPTI", "crash", "was ended by SIGSEGV"),
        ("FAKE_DRIVER", "12080", "the driver is of CUDA 12.8, CUPTI 13 needs one of 13.0"),
        ("FAKE_DRIVER", "100", "cuInit returned 100"),
        ("LD_LIBRARY_PATH", "/nowhere", "no driver"),
        ("GPUTUI_CUPTI_PATH", "/nowhere", "need libcupti of CUDA 13"),
    ],
)
def test_what_stands_in_the_way_is_one_line(monkeypatch, variable, value, line):
    monkeypatch.setenv(variable, value)
    sampler = started()
    read_until(sampler, lambda _: False)
    assert sampler.failure is not None
    assert line in sampler.failure
    assert "\n" not in sampler.failure
    assert sampler.pid is None


@pytest.mark.usefixtures("gpu")
def test_nothing_that_is_meant_for_programs_is_loaded_into_it(monkeypatch, tmp_path):
    """As after `eval "$(gputui env)"`."""
    for name in ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "LD_PRELOAD"):
        monkeypatch.setenv(name, str(tmp_path / "library.so"))
    sampler = started()
    read_until(sampler, some)
    assert b"library.so" not in Path(f"/proc/{sampler.pid}/environ").read_bytes()
    sampler.close()


def test_what_the_program_of_another_user_has_loaded_is_not_loaded(gpu, monkeypatch):
    monkeypatch.delenv("GPUTUI_CUPTI_PATH")
    ctypes.CDLL(str(gpu))
    assert str(gpu) in cupti_places([os.getpid()])
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert str(gpu) not in cupti_places([os.getpid()])


def test_with_rights_that_its_caller_lacks_it_does_not_run(gpu, tmp_path):
    program = tmp_path / "gputui_counters"
    shutil.copy(COUNTERS.path, program)
    if os.geteuid() != 0 or os.statvfs(tmp_path).f_flag & os.ST_NOSUID:
        pytest.skip("rights can be given to a file by root only, where they count")
    os.chown(program, -1, os.getegid() + 1)
    program.chmod(0o2755)
    run = subprocess.run(
        [program, "200000", "0", gpu], check=False, capture_output=True, timeout=WAIT_S
    )
    assert b"rights that its caller lacks" in run.stdout


@pytest.mark.usefixtures("gpu")
def test_a_gpu_that_is_not_there_is_one_line():
    sampler = CounterSampler("GPU-none", cupti_places())
    read_until(sampler, lambda _: False)
    assert sampler.failure == ("the GPU's counters cannot be sampled: the driver shows no such GPU")


@pytest.mark.usefixtures("gpu")
def test_of_a_card_with_few_counters_a_pass_the_first_are_taken(monkeypatch):
    monkeypatch.setenv("FAKE_CUPTI", "two")
    sampler = started()
    read_until(sampler, some)
    assert sampler.facts is not None
    assert sampler.facts.counters == ("sm_cycles", "sm_active_percent")
    sampler.close()


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("way", ["overflow", "sysclk"])
def test_it_goes_on_where_the_buffer_runs_over_or_the_trigger_counts_cycles(monkeypatch, way):
    monkeypatch.setenv("FAKE_CUPTI", way)
    sampler = started()
    batches = read_until(sampler, lambda batches: len(batches) > 3 and some(batches))
    assert sampler.failure is None
    assert (sampler.lost > 0) == (way == "overflow")
    for earlier, later in itertools.pairwise(batches):
        assert earlier.ends_ns[-1] <= later.starts_ns[0]
    sampler.close()


@pytest.mark.usefixtures("gpu")
def test_a_window_of_tracing_has_bursts_of_its_own():
    """Samples outside are of no use: after a first burst four follow each other in each window, and
    no other one before the next window or ten seconds."""
    sampler = started(in_windows=True)
    read_until(sampler, len)  # the first burst
    spans = []
    for _ in range(2):
        sampler.hurry()
        batches = read_until(sampler, lambda batches: len(batches) >= 4)
        spans.append((batches[0].starts_ns[0], batches[-1].ends_ns[-1]))
    sampler.close()
    assert sampler.failure is None
    for first_ns, last_ns in spans:
        assert last_ns - first_ns < 4e9


@pytest.mark.usefixtures("gpu")
def test_values_that_are_none_are_left_out_and_counted(monkeypatch):
    monkeypatch.setenv("FAKE_CUPTI", "garbage")
    sampler = started()
    batches = read_until(sampler, lambda _: sampler.lost > 200)
    assert not some(batches)
    sampler.close()


@pytest.mark.usefixtures("gpu")
def test_one_that_hangs_in_cupti_is_ended(monkeypatch):
    monkeypatch.setenv("FAKE_CUPTI", "stuck")
    monkeypatch.setattr("gputui.counters.sampler.END_S", 0.2)
    sampler = started()
    read_until(sampler, lambda _: sampler.facts is not None)
    pid = sampler.pid
    sampler.close()
    assert ended(pid)


def test_one_that_is_killed_is_one_line_and_another_can_follow(log):
    sampler = started()
    batches = read_until(sampler, some)
    os.kill(sampler.pid, signal.SIGKILL)
    batches += read_until(sampler, lambda _: False)
    assert some(batches)
    assert sampler.failure == "the sampler of the GPU's counters was ended by SIGKILL"
    another = started()
    assert some(read_until(another, some))
    another.close()
    assert log.read_text() == "enable\nenable\ndisable\n"


@pytest.mark.usefixtures("gpu")
def test_killed_at_any_moment_it_says_so():
    moments = random.Random(7)
    for _ in range(12):
        sampler = started()
        select.select([sampler], [], [], moments.choice([0.0, 0.005, 0.05]))
        sampler.read()
        os.kill(sampler.pid, signal.SIGKILL)
        read_until(sampler, lambda _: False)
        assert sampler.failure == "the sampler of the GPU's counters was ended by SIGKILL"


_PARENT = """
import select, sys, threading
from gputui.counters.sampler import CounterSampler, cupti_places
made = []
thread = threading.Thread(target=lambda: made.append(CounterSampler("GPU-0", cupti_places())))
thread.start(); thread.join()  # the thread that starts it may end before gputui does
sampler = made[0]
while not sampler.read():
    assert sampler.failure is None, sampler.failure
    assert select.select([sampler], [], [], 20)[0]
print(sampler.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_when_gputui_does_whatever_ended_that(log, number):
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(number)
    parent.communicate()
    assert ended(pid)
    assert log.read_text() == "enable\ndisable\n"
