"""Details of one process and signals to it: the right one, or none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gputui.collect.processes import (
    ProcessGoneError,
    SignalRefusedError,
    process_details,
    send_signal,
    start_time_ns,
)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits until its standard input closes.

    SIGINT is set back to its default: whoever runs the tests in the background ignores it.
    """
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); print(flush=True); "
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, "a\x1bb"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"GPUTUI_TEST": "one\x07two"},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def started(pid: int) -> int:
    return start_time_ns(psutil.Process(pid))


def test_details_of_a_process(child: subprocess.Popen[bytes]) -> None:
    details = process_details(child.pid, started(child.pid))
    assert details.unavailable == {}
    assert details.command[-1] == "a\ufffdb"
    assert (details.environment or {})["GPUTUI_TEST"] == "one\ufffdtwo"
    assert details.folder == os.getcwd()
    assert details.parent_pid == os.getpid()
    assert details.children == ()
    assert details.threads == 1
    assert details.resident_bytes
    assert details.user == psutil.Process().username()


def test_a_pid_that_is_used_again_is_not_described(child: subprocess.Popen[bytes]) -> None:
    with pytest.raises(ProcessGoneError, match="another has its pid now"):
        process_details(child.pid, started(child.pid) - 10_000_000_000)


def set_the_clock(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The host's clock goes an hour ahead, and with it the boot time that the kernel tells."""
    for entry in Path("/proc").iterdir():
        if entry.name != "stat":
            (folder / entry.name).symlink_to(entry)
    lines = Path("/proc/stat").read_text().splitlines()
    words = [line.split() for line in lines]
    ahead = [f"btime {int(w[1]) + 3600}" if w[0] == "btime" else " ".join(w) for w in words]
    (folder / "stat").write_text("\n".join(ahead) + "\n")
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(folder))


def test_a_clock_that_is_set_makes_no_process_another(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start_ns = started(child.pid)
    before = psutil.boot_time()
    set_the_clock(monkeypatch, tmp_path)
    assert psutil.boot_time() == before + 3600
    assert process_details(child.pid, start_ns).pid == child.pid
    send_signal(child.pid, start_ns, "KILL")
    assert child.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("name", "number"),
    [("TERM", signal.SIGTERM), ("INT", signal.SIGINT), ("KILL", signal.SIGKILL)],
)
def test_a_signal_ends_the_process_it_names(
    child: subprocess.Popen[bytes], name: str, number: signal.Signals
) -> None:
    start_ns = started(child.pid)
    send_signal(child.pid, start_ns, name)
    assert child.wait(timeout=60) == -number
    with pytest.raises(ProcessGoneError, match="has ended"):
        send_signal(child.pid, start_ns, name)


def test_a_pid_that_is_used_again_gets_no_signal(child: subprocess.Popen[bytes]) -> None:
    with pytest.raises(ProcessGoneError, match="another has its pid now"):
        send_signal(child.pid, started(child.pid) + 10_000_000, "KILL")
    assert child.poll() is None


def test_without_pidfds_the_start_is_checked_too(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(ProcessGoneError):
        send_signal(child.pid, 1, "KILL")
    assert child.poll() is None
    send_signal(child.pid, started(child.pid), "KILL")
    assert child.wait() == -signal.SIGKILL


@pytest.mark.parametrize("pid", [1, 0, -1, -12345])
def test_no_signal_to_all_or_to_the_first(pid: int) -> None:
    with pytest.raises(SignalRefusedError, match="no signal is sent"):
        send_signal(pid, 0, "TERM")


def test_no_signal_to_gputui_itself_and_none_that_is_not_offered() -> None:
    with pytest.raises(SignalRefusedError, match="quit it instead"):
        send_signal(os.getpid(), started(os.getpid()), "TERM")
    with pytest.raises(SignalRefusedError, match="not one of TERM, INT, KILL"):
        send_signal(2**22 + 5, 0, "STOP")


def test_a_process_that_was_never_there() -> None:
    with pytest.raises(ProcessGoneError, match="has ended"):
        send_signal(2**22 + 5, 0, "TERM")
