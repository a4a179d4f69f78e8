"""Processes: order, filter, tree, details, and signals to the right one only."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import msgspec
import psutil
import pytest
from textual.events import MouseScrollUp

from gputui.collect.processes import start_time_ns
from gputui.model.events import LauncherSample, ProcessAttached, ProcessSample, RunStarted
from gputui.tui.source import Options
from tests.tui import scripted
from tests.tui.conftest import Show, Shown
from tests.tui.scripted import GIB, SECOND_NS, START_NS, Batch


def sample_of(pid: int, gpu: int, memory: int, **more: object) -> ProcessSample:
    """A process on a GPU."""
    one = ProcessSample(
        pid=pid,
        gpu=gpu,
        user="ada",
        command=f"python job{pid}.py",
        gpu_memory_bytes=memory * GIB,
        sm_percent=float(pid % 100),
        cpu_percent=50.0,
        host_memory_bytes=GIB,
        kind="C",
        start_time_ns=START_NS - pid * SECOND_NS,
    )
    return msgspec.structs.replace(one, **more)


def machine_with(*processes: ProcessSample, launchers: tuple[LauncherSample, ...] = ()) -> Batch:
    """Two GPUs with these processes."""
    sample = scripted.machine(0, 2)
    return [
        scripted.header(2),
        msgspec.structs.replace(sample, processes=processes, launchers=launchers),
    ]


def pids(shown: Shown) -> list[int]:
    """The pids in the order of the table."""
    words = [line.split() for line in shown.lines]
    return [int(line[0]) for line in words if line and line[0].isdigit() and len(line[0]) == 4]


THREE = machine_with(
    sample_of(5001, 0, 10, user="zoe"), sample_of(5002, 1, 30), sample_of(5003, 0, 20, user="bob")
)


async def test_sorted_by_any_column_either_way(show: Show) -> None:
    async with show([THREE], (160, 40)) as shown:
        assert pids(shown) == [5002, 5003, 5001]
        assert "▼GPU memory" in shown.text
        await shown.press("r")
        assert pids(shown) == [5001, 5003, 5002]
        assert "▲GPU memory" in shown.text
        for _ in range(7):
            await shown.press("s")
        assert "▲PID" in shown.text
        assert pids(shown) == [5001, 5002, 5003]


async def test_a_click_on_a_header_sorts_and_the_wheel_moves(show: Show) -> None:
    async with show([THREE], (160, 40)) as shown:
        view = shown.app.main.view
        line = next(n for n, text in enumerate(view.drawn) if "▼GPU memory" in text)
        at = view.drawn[line].index("user")
        await shown.pilot.click(view, offset=(at, line))
        await shown.settle()
        assert pids(shown) == [5002, 5003, 5001]  # ada, bob, zoe
        await shown.pilot.click(view, offset=(at, line))
        await shown.settle()
        assert pids(shown) == [5001, 5003, 5002]
        await shown.pilot.click(view, offset=(view.drawn[line].index("type"), line))
        await shown.settle()
        assert "rows are not sorted by type" in shown.text
        await shown.pilot.click(view, offset=(at, line + 3))
        await shown.press("enter")
        assert "Process 5002" in shown.text
        await shown.press("escape")
        x, y = view.region.x + at, view.region.y + line + 1
        view.post_message(MouseScrollUp(view, x, y, 0, -1, 0, False, False, False))
        await shown.settle()
        await shown.press("enter")
        assert "Process 5001" in shown.text


async def test_the_filter_knows_pid_user_command_and_gpu(show: Show) -> None:
    async with show([THREE], (160, 40)) as shown:
        await shown.press("slash", *"bob", "enter")
        assert pids(shown) == [5003]
        await shown.press("escape")
        assert len(pids(shown)) == 3
        await shown.press("slash", *"nobody", "enter")
        assert "no process matches the filter" in shown.text


async def test_a_process_on_several_gpus_is_one_line(show: Show) -> None:
    batch = machine_with(sample_of(5001, 0, 10), sample_of(5001, 1, 12))
    async with show([batch], (160, 40)) as shown:
        line = next(text for text in shown.lines if "job5001" in text)
        assert " 0,1 " in line
        assert "22.0 GiB" in line
        await shown.press("down", "enter")
        assert "on GPU 0" in shown.text
        assert "on GPU 1" in shown.text


async def test_the_tree_hangs_workers_under_their_launcher(show: Show) -> None:
    launcher = LauncherSample(
        pid=4900, parent_pid=1, start_time_ns=START_NS, user="ada", command="torchrun train.py"
    )
    batch = machine_with(
        sample_of(5001, 0, 10, parent_pid=4900),
        sample_of(5002, 1, 30, parent_pid=4900),
        launchers=(launcher,),
    )
    async with show([batch], (160, 40)) as shown:
        await shown.press("p", "t")
        lines = [line for line in shown.lines if "torchrun" in line or "job" in line]
        assert "torchrun train.py" in lines[0]
        assert "├─ python job5002.py" in lines[1]
        assert "└─ python job5001.py" in lines[2]
        await shown.press("t", "p")
        assert "torchrun" not in shown.text


async def test_our_own_process_is_marked_with_its_rank(show: Show) -> None:
    run: Batch = [
        RunStarted(time_ns=START_NS, run=1, kind="command", name="x", arguments=("x",), pid=5002),
        ProcessAttached(
            time_ns=START_NS,
            run=1,
            process=1,
            pid=5002,
            parent_pid=1,
            rank=3,
            command="python",
            cuda_status="tracing",
        ),
    ]
    async with show([THREE, run], (160, 40)) as shown:
        assert "● rank 3  python job5002.py" in shown.text


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A real process that waits to be ended."""
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"A_VARIABLE": "its value"},
    )
    assert child.stdout is not None
    child.stdout.readline()
    yield child
    child.kill()
    child.wait()
    child.stdout.close()
    assert child.stdin is not None
    child.stdin.close()


def on_gpu(child: subprocess.Popen[bytes], *, other: bool = False) -> Batch:
    """A machine on whose GPU the child is, or `other` that had its pid before."""
    began_ns = start_time_ns(psutil.Process(child.pid))
    assert began_ns is not None
    return machine_with(sample_of(child.pid, 0, 10, start_time_ns=began_ns - 5 * other))


async def test_a_signal_is_sent_after_a_question_that_names_its_target(
    show: Show, victim: subprocess.Popen[bytes]
) -> None:
    async with show([on_gpu(victim)], (120, 40)) as shown:
        await shown.press("K")
        assert "choose a process first" in shown.text
        await shown.press("down", "K")
        assert f"process {victim.pid} of ada on GPU 0 with 10.0 GiB" in shown.text
        assert f"python job{victim.pid}.py" in shown.text
        await shown.press("escape")
        assert victim.poll() is None
        await shown.press("K", "enter")  # none is chosen yet
        await shown.press("K", "k", "enter")
        await shown.until(lambda: "SIGKILL was sent" in shown.text)
        assert victim.wait() == -9


async def test_a_process_is_attached_to_after_a_question_that_names_it(
    show: Show, victim: subprocess.Popen[bytes]
) -> None:
    async with show([on_gpu(victim)], (120, 40)) as shown:
        await shown.press("a")
        assert "choose a process first" in shown.text
        await shown.press("down", "a")
        assert f"process {victim.pid} of ada: python job{victim.pid}.py" in shown.text
        await shown.press("escape")
        assert shown.source.attached == []
        await shown.press("a", "enter")  # is no
        await shown.press("a", "y")
        await shown.until(lambda: "x detaches" in shown.text)
        assert shown.source.attached == [victim.pid]


async def test_nothing_is_attached_to_that_is_gone_or_not_ours_to_touch(
    show: Show, victim: subprocess.Popen[bytes]
) -> None:
    async with show([on_gpu(victim, other=True)], (120, 40)) as shown:
        await shown.press("down", "a", "y")
        await shown.until(lambda: "another has its pid now" in shown.text)
        assert shown.source.attached == []
    async with show([on_gpu(victim)], (120, 40), options=Options(readonly=True)) as shown:
        await shown.press("down", "a")
        assert "cannot attach" in shown.text


async def test_no_signal_to_a_reused_pid(show: Show, victim: subprocess.Popen[bytes]) -> None:
    async with show([on_gpu(victim, other=True)], (120, 40)) as shown:
        await shown.press("down", "K", "down", "enter")
        await shown.until(lambda: "another has its pid now" in shown.text)
        assert victim.poll() is None


async def test_readonly_neither_signals_nor_starts(
    show: Show, victim: subprocess.Popen[bytes]
) -> None:
    async with show([on_gpu(victim)], (120, 40), options=Options(readonly=True)) as shown:
        await shown.press("down", "K")
        assert "gputui is read-only" in shown.text
        await shown.press("w")
        assert "cannot start a run" in shown.text
        assert victim.poll() is None


async def test_no_signal_where_the_start_is_not_known(show: Show) -> None:
    batch = machine_with(sample_of(5001, 0, 10, start_time_ns=None))
    async with show([batch], (120, 40)) as shown:
        await shown.press("down", "K")
        assert "its start time is unknown" in shown.text


async def test_details_of_a_process_have_its_environment(
    show: Show, victim: subprocess.Popen[bytes]
) -> None:
    async with show([on_gpu(victim)], (120, 80)) as shown:
        await shown.press("down", "enter")
        await shown.until(lambda: "Environment" in shown.text)
        assert "A_VARIABLE=" in shown.text
        assert "its value" in shown.text
