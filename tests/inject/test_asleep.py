"""The library asleep: what it leaves behind, how it wakes, and whom it obeys."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gputui.cli.dispatch import run as gputui
from gputui.collect.traced_run import AttachedRun, request_of_pid
from gputui.inject import CaptureOptions
from gputui.inject.attach import Detached, attach, detach
from gputui.inject.build import CAPTURE
from gputui.inject.environment import create_capture_folder
from gputui.inject.target import AttachError, Word, WordError, open_word
from gputui.model.events import AnyEvent, ProcessAttached
from gputui.model.hub import Numbering
from gputui.ring import CudaState, RecordKind
from gputui.ring.reader import RingFolder
from gputui.state import Session, remarks
from gputui.state.remarks import CUPTI_STAYS
from tests.events_for_tests import header
from tests.inject.traced import Trace, _Drain

HERE = Path(__file__).parent
LIMIT_S = 120
"""Against what hangs: the machine may be slow."""


def asleep_environment() -> dict[str, str]:
    clear = {name: text for name, text in os.environ.items() if not name.startswith("GPUTUI_")}
    library = str(CAPTURE.path)
    return clear | {"NVTX_INJECTION64_PATH": library, "CUDA_INJECTION64_PATH": library}


def until(found, what: str = "it"):
    """Polls for what other processes do."""
    end = time.monotonic() + LIMIT_S
    while not (result := found()):
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(0.002)
    return result


class Program:
    def __init__(self, cupti: str = "none", before: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*before, sys.executable, str(HERE / "asleep_child.py"), cupti],
            env=asleep_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        self.first = self.process.stdout.readline().split()

    def ask(self, what: str) -> str:
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def program(library) -> Iterator[Program]:  # noqa: ARG001 - it is built first
    started = Program()
    yield started
    started.end()


@contextlib.contextmanager
def awake(pid: int, kernels: bool = False, sampling: str = "") -> Iterator[tuple[Word, _Drain]]:
    word = open_word(pid)
    assert word is not None
    with create_capture_folder() as folder:
        word.hold()
        word.wake(folder, kernels=kernels, modules=False, sampling=sampling, timeout_s=LIMIT_S)
        (ring,), problems = RingFolder(folder).discover()
        assert problems == []
        yield word, _Drain(ring)
    word.close()


def one_session(program: Program, asked: list[str], kernels: bool = False) -> Trace:
    with awake(program.pid, kernels) as (word, drain):
        for what in asked:
            program.ask(what)
        assert word.sleep(LIMIT_S)
        drain.step()
    return drain.finish()


def seen(drain: _Drain, kind: RecordKind) -> int:
    """Records of a kind, so far."""
    drain.step()
    return sum(int((part["kind"] == kind).sum()) for part in drain.batches)


def threads_named(pid: int, name: str) -> int:
    tasks = Path(f"/proc/{pid}/task").glob("*/comm")
    return [path.read_text() for path in tasks].count(f"{name}\n")


def folder_of(pid: int) -> Path:
    """Where a process that is awake, or was, writes."""
    word = open_word(pid)
    assert word is not None
    folder = Path(os.fsdecode(word.page.folder))
    word.close()
    return folder


RANGES = [
    ("push", "outer", "", "0"), ("push", "inner", "library", "0"),
    ("pop", "library", "0"), ("pop", "", "0"),
]  # fmt: skip


def test_each_time_it_wakes_it_tells_all_there_is_to_tell(program):
    assert program.first == ["ready", "Domain"]
    until(lambda: threads_named(program.pid, "gputui-asleep") == 1, "its thread")
    for _ in range(3):
        assert program.ask("ranges") == "done"  # asleep: not seen
        trace = one_session(program, ["ranges"])
        assert trace.ranges() == RANGES
        assert trace.exited
        assert "/gputui-" not in Path(f"/proc/{program.pid}/maps").read_text()
        assert not folder_of(program.pid).exists()


def test_a_program_that_may_write_no_files_loads_it_unharmed(nvtx_program):
    done = subprocess.run(
        ["sh", "-c", "ulimit -f 0; exec $0 nesting", nvtx_program],
        env=asleep_environment(),
        stdout=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == 0


def test_one_monitor_at_a_time(program):
    with awake(program.pid) as (word, drain):
        other = open_word(program.pid)
        with pytest.raises(WordError, match="another gputui"):
            other.hold()
        other.close()
        program.ask("ranges")
        assert word.sleep(LIMIT_S)
        drain.step()
    assert drain.finish().ranges() == RANGES


def test_a_folder_that_is_not_private_is_not_written_to(program, tmp_path):
    word = open_word(program.pid)
    shared = tmp_path / "gputui-shared"
    shared.mkdir()
    shared.chmod(0o755)
    for folder in (shared, tmp_path / "gputui-missing", Path("/etc"), Path("relative")):
        with pytest.raises(WordError, match="could not make its ring"):
            word.wake(folder, kernels=False, modules=False, sampling="", timeout_s=LIMIT_S)
    assert list(shared.iterdir()) == []
    assert program.ask("ranges") == "done"
    word.close()
    assert one_session(program, ["ranges"]).ranges() == RANGES


KILLED = """
import sys, time
sys.path.insert(0, sys.argv[2])
from tests.inject.test_asleep import awake
with awake(int(sys.argv[1])):
    print("awake", flush=True)
    time.sleep(60)
"""


def test_a_killed_monitor_leaves_nothing_and_its_program_sleeps(program):
    command = [sys.executable, "-c", KILLED, str(program.pid), str(HERE.parents[1])]
    monitor = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert monitor.stdout.readline() == "awake\n"
    folder = folder_of(program.pid)
    assert folder.exists()
    monitor.kill()
    monitor.communicate()
    word = open_word(program.pid)
    until(lambda: not word.is_awake, "its sleep")
    word.close()
    until(lambda: not folder.exists(), "the end of the folder")
    assert one_session(program, ["ranges"]).ranges() == RANGES


def test_a_forked_process_has_a_word_of_its_own(program):
    child = int(program.ask("fork"))
    word = open_word(child)
    assert word.page.pid == child
    word.close()
    with awake(child) as (word, drain):
        program.ask("ranges")
        until(lambda: (drain.step(), drain.batches and len(drain.batches[-1]))[1], "a range")
        assert word.sleep(LIMIT_S)
        drain.step()
    trace = drain.finish()
    assert trace.facts.pid == child
    assert trace.ranges()[:2] == RANGES[:2]
    os.kill(child, signal.SIGKILL)
    assert one_session(program, ["ranges"]).ranges() == RANGES


@pytest.fixture
def fake(compile_program, monkeypatch) -> Path:
    soname = "-Wl,-soname,libcuda.so.1"
    driver = compile_program("fake_driver.c", "driver.so", "-shared", "-fPIC", soname)
    monkeypatch.setenv("TEST_DRIVER", str(driver))
    return compile_program("fake_cupti.c", "libcupti.so.13", "-shared", "-fPIC")


def test_cuda_is_traced_while_awake_and_left_alone_asleep(fake):
    program = Program(str(fake))
    try:
        assert program.ask("calls") == ""
        one_session(program, ["ranges"])
        assert detach(program.pid) == Detached(was_awake=False, keeps_cupti=False)
        for number in range(1, 3):
            trace = one_session(program, ["kernel"], kernels=True)
            assert detach(program.pid) == Detached(was_awake=False, keeps_cupti=True)
            assert trace.facts.cuda_state == CudaState.TRACING, trace.facts.cuda_text
            kernels = trace.of(RecordKind.KERNEL)
            assert {trace.name(name) for name in kernels["name"]} == {"_Z4gemmPf"}
            calls = trace.of(RecordKind.API)
            names = ["cudaLaunchKernel_v7000", "cuLaunchKernel"]
            assert [trace.name(name) for name in calls["name"]] == names
            assert calls["sub"].tolist() == [0, 1]
            assert calls["correlation"].tolist() == kernels["correlation"].tolist() == [7, 8]
            assert calls["a"].tolist() == [7, 7]
            assert set(calls["thread"].tolist()) == {program.pid}
            assert (calls["start"] <= calls["end"]).all()
            assert len(trace.of(RecordKind.LAUNCH_SHAPE)) == 1
            done = program.ask("calls")
            assert done.count("Subscribe(0)") == done.count("Unsubscribe(1)") == number
            assert done.split()[-1] == "Unsubscribe(1)"
            assert "ActivityEnable(4)" not in done  # see cupti_calls.inc.c
            assert "ActivityEnable(5)" not in done
            assert program.ask("on") == "0"
        # What CUPTI had not handed over as it was left is of no later session.
        one_session(program, ["lend"], kernels=True)
        trace = one_session(program, ["late kernels"], kernels=True)
        kernels = trace.of(RecordKind.KERNEL)
        assert [trace.name(name) for name in kernels["name"]] == ["fresh"]
        # Graphs made from now on are followed, unless there were others before.
        for expected in (8, 8, 0):
            if not expected:
                program.ask("graph of the driver's")
            trace = one_session(program, ["graphs"], kernels=True)
            assert len(trace.of(RecordKind.GRAPH_PART)) == expected
            assert trace.of(RecordKind.KERNEL)["value"].tolist() == [5 << 32, 5 << 32 | 1]
            assert program.ask("on") == "0"
        # Under a budget CUPTI comes with the first window, in each session anew, and is asked for
        # nothing until another (an hour's is nearly never now).
        for _ in range(2):
            with awake(program.pid, True, "budget 100000000 3600000000000") as (word, drain):
                until(lambda: seen(drain, RecordKind.WINDOW) >= 4, "a window")
                flushes = program.ask("flushes")
                for _round in range(2):
                    rounds = seen(drain, RecordKind.FLUSH)
                    until(lambda past=rounds: seen(drain, RecordKind.FLUSH) > past, "a flush")
                if seen(drain, RecordKind.WINDOW) == 4:
                    assert program.ask("flushes") == flushes
                assert word.sleep(LIMIT_S)
                drain.step()
            assert program.ask("on") == "0"
            trace = drain.finish()
            assert trace.facts.cupti_version == 130001
            # The driver says what its devices are, to each session once.
            assert trace.of(RecordKind.DEVICE)[["a", "value"]].tolist() == [
                (0, 50 << 20), (1, 51 << 20),
            ]  # fmt: skip
    finally:
        program.end()


def test_who_looks_learns_that_another_has_detached(fake, monkeypatch):
    for limit in ("collect.traced_run.WAKE_S", "collect.traced_run.SLEEP_S"):
        monkeypatch.setattr(f"gputui.{limit}", LIMIT_S)
    monkeypatch.setattr("gputui.inject.attach.BEGIN_S", LIMIT_S)
    events: list[AnyEvent] = [header()]
    program = Program(str(fake))
    looks = AttachedRun(
        1, request_of_pid(program.pid), events.extend, interval_s=0.05, numbering=Numbering(),
        capture=CaptureOptions(says_when=True),
    )  # fmt: skip
    try:
        looks.start()
        until(lambda: any(isinstance(event, ProcessAttached) for event in events), "an attach")
        program.ask("kernel")
        assert gputui(["detach", str(program.pid)]) == 0
        assert looks.join(LIMIT_S)
    finally:
        program.end()
    run = Session.from_events(events).run
    assert run is not None
    assert run.outcome == "detached"
    assert f"detached: {CUPTI_STAYS}" in [remark.line for remark in remarks(run)]


def test_cupti_of_another_tool_is_left_alone(fake, compile_program, monkeypatch):
    monkeypatch.setenv("FAKE_CUPTI_FAILS", "Subscribe=39")
    torch = ("fake_driver.c", "torch.so", "-shared", "-fPIC", "-Wl,-soname,libtorch_cpu.so")
    monkeypatch.setenv("LD_PRELOAD", str(compile_program(*torch)))
    program = Program(str(fake))
    try:
        for number in range(1, 3):
            trace = one_session(program, ["ranges"], kernels=True)
            assert trace.ranges() == RANGES
            assert trace.facts.cuda_state == CudaState.FAILED
            assert "at work in this process: torch.profiler, if it was" in trace.facts.cuda_text
            assert program.ask("calls") == " ".join(["Subscribe(0)"] * number)
        assert not detach(program.pid).keeps_cupti
    finally:
        program.end()


def test_the_environment_for_a_shell(library, tmp_path):
    def printed(*words: str, **extra: str) -> str:
        command = [sys.executable, "-m", "gputui", "env", *words]
        clear = {name: text for name, text in os.environ.items() if "INJECTION64" not in name}
        done = subprocess.run(
            command, env=clear | extra, capture_output=True, text=True, check=True
        )
        return done.stdout + done.stderr

    shell = f"{printed()}\necho $NVTX_INJECTION64_PATH $CUDA_INJECTION64_PATH"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(library)] * 2
    assert f"set -gx NVTX_INJECTION64_PATH '{library}';" in printed("--shell", "fish")
    other = str(tmp_path / "nsight-systems" / "libToolsInjection64.so")
    held = printed(CUDA_INJECTION64_PATH=other)
    assert "CUDA_INJECTION64_PATH is left alone: it is held by Nsight Systems (nsys)" in held
    assert held.count("export") == 1


def test_a_program_that_took_a_seccomp_filter_since_is_not_woken(program):
    attach(program.pid).close()
    if program.ask("filter") != "0":
        pytest.skip("no seccomp filter can be set here")
    with pytest.raises(AttachError, match="has put itself under a seccomp filter since it began"):
        attach(program.pid)
    assert program.ask("ranges") == "done"


def test_a_program_that_began_under_a_filter_is_woken(library, compile_program):  # noqa: ARG001 - it is built first
    sandbox = str(compile_program("seccomp_target.c", "seccomp_target"))
    started = Program(before=[sandbox, "nothing", "exec"])
    try:
        attach(started.pid).close()
        with awake(started.pid):
            assert started.ask("ranges") == "done"
    finally:
        started.end()
