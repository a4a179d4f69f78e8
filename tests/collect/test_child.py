"""Children for real: started, read, ended with everything below them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from gputui.collect import child as child_module
from gputui.collect.child import LINES_PER_BATCH, Child, ChildEnding, LineBatch

PYTHON = sys.executable


class Watched:
    """Runs a command and keeps what it gave."""

    def __init__(self, *command: str, environment: dict[str, str] | None = None) -> None:
        self.child = Child(command, environment or dict(os.environ), name="it")
        self.pid: int | None = None
        self.batches: list[LineBatch] = []
        self.started = threading.Event()
        self.saw = threading.Condition()

    def run(self, when_started: Callable[[], None] | None = None) -> ChildEnding:
        def on_start(pid: int) -> None:
            self.pid = pid
            self.started.set()
            if when_started:
                when_started()

        return self.child.run(on_start, self._on_output)

    def _on_output(self, batches: list[LineBatch]) -> None:
        with self.saw:
            self.batches += batches
            self.saw.notify_all()

    def lines(self, stream: str) -> list[str]:
        return [line for batch in self.batches if batch.stream == stream for line in batch.lines]

    def run_until(self, line: str, act: Callable[[], None]) -> ChildEnding:
        """Run, and `act` once `line` was printed."""
        ending: list[ChildEnding] = []
        thread = threading.Thread(target=lambda: ending.append(self.run()))
        thread.start()
        with self.saw:
            assert self.saw.wait_for(lambda: line in self.lines("stdout"), timeout=30)
        act()
        thread.join(60)
        assert not thread.is_alive()
        return ending[0]


def gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_output_arrives_by_stream_cleaned_of_escapes() -> None:
    code = r"print('\x1b[31mred\x1b[0m\x07'); import sys; print('10%\r50%\r99%', file=sys.stderr)"
    watched = Watched(PYTHON, "-c", code)
    ending = watched.run()
    assert (ending.exit_code, ending.signal) == (0, None)
    assert watched.lines("stdout") == ["red\N{REPLACEMENT CHARACTER}"]
    assert watched.lines("stderr") == ["99%"]
    assert watched.pid is not None


@pytest.mark.parametrize("status", [0, 1, 7, 255])
def test_the_status_is_the_childs_own(status: int) -> None:
    ending = Watched(PYTHON, "-c", f"raise SystemExit({status})").run()
    assert ending == ChildEnding(status, None, f"it ended with status {status}")


def test_death_by_a_signal_names_it() -> None:
    ending = Watched("sh", "-c", "kill -SEGV $$").run()
    assert ending == ChildEnding(None, signal.SIGSEGV, "it was killed by SIGSEGV")


@pytest.mark.parametrize(
    ("command", "words"),
    [("no-such-command", "command not found"), ("/no/such/file", "command not found")],
)
def test_what_cannot_be_started_is_one_line(command: str, words: str) -> None:
    watched = Watched(command)
    ending = watched.run()
    assert ending.exit_code == 127
    assert words in ending.reason
    assert watched.pid is None


def test_a_folder_is_no_command_and_is_named_as_it_was_typed(tmp_path: Path) -> None:
    ending = Watched(str(tmp_path)).run()
    assert ending == ChildEnding(126, None, f"cannot start {tmp_path}: it is a folder")
    ending = Watched("./no-such-file").run()
    assert ending == ChildEnding(127, None, "cannot start ./no-such-file: command not found")


def test_a_file_that_is_no_program_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"\x00\x01\x02")
    path.chmod(0o755)
    ending = Watched(str(path)).run()
    assert ending.exit_code == 126
    assert "exec format error" in ending.reason


def test_stop_ends_the_child_and_all_its_children() -> None:
    script = "sleep 300 & echo $!; setsid sleep 300 & echo $!; echo ready; wait"
    watched = Watched("sh", "-c", script)
    ending = watched.run_until("ready", watched.child.stop)
    assert ending.signal == signal.SIGTERM
    below = [int(line) for line in watched.lines("stdout")[:2]]
    assert all(gone(pid) for pid in below)


def test_a_child_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputui.collect.child.GRACE_S", 0.2)
    code = "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); " \
        "signal.pause(); signal.pause()"  # fmt: skip
    watched = Watched(PYTHON, "-c", code)
    ending = watched.run_until("ready", watched.child.stop)
    assert ending.signal == signal.SIGKILL


def test_the_semaphores_of_a_program_that_must_be_killed_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python's own resource tracker removes them, once it is the last one left."""
    monkeypatch.setattr("gputui.collect.child.GRACE_S", 0.2)
    code = "import multiprocessing, signal; signal.signal(15, signal.SIG_IGN)\n" \
        "lock = multiprocessing.get_context('spawn').Lock()\n" \
        "print(lock._semlock.name, 'ready', sep='\\n', flush=True)\n" \
        "while True:\n    signal.pause()"  # fmt: skip
    watched = Watched(PYTHON, "-c", code)
    ending = watched.run_until("ready", watched.child.stop)
    assert ending.killed == (watched.pid,), "the tracker has ended by itself"
    assert not Path("/dev/shm", f"sem.{watched.lines('stdout')[0].lstrip('/')}").exists()


# Once `stop` is there, the program forks after its processes were listed and before they are asked.
LISTS_TOO_EARLY = """
import os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from gputui.collect import supervisor
listed, folder = supervisor.descendants, Path({folder!r})
def descendants(*given):
    alive = listed(*given)
    if (folder / "stop").exists():
        (folder / "stop").unlink()
        (folder / "fork").write_text("now")
        (folder / "forked").read_text()
    return alive
supervisor.descendants = descendants
sys.exit(supervisor.main(sys.argv[1:]))
"""
FORKS_LATE = """
import os, signal, sys
from pathlib import Path
os.chdir(sys.argv[1])
def asked(*_):
    if os.getpid() != first:
        print("asked", flush=True)
    else:
        os.system("sleep 0.05 && echo tidied")
    os._exit(0)
first = os.getpid()
signal.signal(signal.SIGTERM, asked)
print("ready", flush=True)
Path("fork").read_text()
if os.fork():
    Path("forked").write_text("yes")
while True:
    signal.pause()
"""


def test_who_was_forked_before_its_parent_was_asked_is_asked_and_helpers_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, supervisor = str(Path(__file__).parents[2]), tmp_path / "supervisor.py"
    supervisor.write_text(LISTS_TOO_EARLY.format(root=root, folder=str(tmp_path)))
    monkeypatch.setattr(child_module, "_SUPERVISOR", supervisor)
    for name in ("fork", "forked"):
        os.mkfifo(tmp_path / name)
    watched = Watched(PYTHON, "-c", FORKS_LATE, str(tmp_path))

    def stop() -> None:
        (tmp_path / "stop").touch()
        watched.child.stop()

    ending = watched.run_until("ready", stop)
    assert sorted(watched.lines("stdout")) == ["asked", "ready", "tidied"]
    assert (ending.exit_code, ending.killed) == (0, ())


# Once the grace is over, the program has waited for a core all the time, and only now goes on.
STARVES = """
import sys
sys.path.insert(0, {root!r})
from gputui.collect import supervisor
waited = iter([0.0])
def waited_s(pid):
    for was in waited:
        return was
    with open({fifo!r}, "w") as file:
        file.write("now")
    return 1e9
supervisor._waited_s, supervisor.MOST_WAITING = waited_s, 10_000
sys.exit(supervisor.main(sys.argv[1:]))
"""
REPORTS_LATE = """
import signal, sys
def asked(*_):
    with open(sys.argv[1]) as file:
        print(file.read(), flush=True)
    raise SystemExit(4)
signal.signal(signal.SIGTERM, asked)
print("ready", flush=True)
signal.pause()
"""


def test_time_in_which_it_waits_for_a_core_is_no_part_of_the_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, supervisor, fifo = str(Path(__file__).parents[2]), tmp_path / "x.py", tmp_path / "fifo"
    os.mkfifo(fifo)
    supervisor.write_text(STARVES.format(root=root, fifo=str(fifo)))
    monkeypatch.setattr(child_module, "_SUPERVISOR", supervisor)
    monkeypatch.setattr(child_module, "GRACE_S", 0.05)
    watched = Watched(PYTHON, "-c", REPORTS_LATE, str(fifo))
    ending = watched.run_until("ready", watched.child.stop)
    assert (ending.exit_code, ending.killed) == (4, ())
    assert "now" in watched.lines("stdout")


MAIN_THREAD_ENDED = """
import ctypes, platform, signal, threading, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def work():
    with open("/proc/self/stat") as stat:
        while stat.read().rpartition(")")[2].split()[0] != "Z":
            stat.seek(0)
    print("ready", flush=True)
    time.sleep(600)
threading.Thread(target=work).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
"""
"""As pthread_exit of the main thread leaves it: a zombie whose other thread runs on."""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="exits by Linux's system call")
def test_a_child_whose_main_thread_has_ended_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputui.collect.child.GRACE_S", 0.2)
    watched = Watched(PYTHON, "-c", MAIN_THREAD_ENDED)
    ending = watched.run_until("ready", watched.child.stop)
    assert (ending.signal, ending.killed) == (signal.SIGKILL, (watched.pid,))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="exits by Linux's system call")
def test_a_main_thread_that_has_ended_below_the_child_keeps_nobody_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gputui.collect.child.GRACE_S", 0.2)
    script = f"{PYTHON} -c '{MAIN_THREAD_ENDED}' & echo $!; wait"
    watched = Watched("sh", "-c", script)
    watched.run_until("ready", watched.child.stop)
    below = int(watched.lines("stdout")[0])
    assert not Path(f"/proc/{below}/task").exists()


STOPPED_BELOW = """
import os, signal
pid = os.fork()
if pid == 0:
    os.setsid()  # as torchrun starts its ranks
    os.kill(os.getpid(), signal.SIGSTOP)
    signal.pause()
os.waitpid(pid, os.WUNTRACED)
signal.signal(signal.SIGINT, lambda *_: os.kill(pid, signal.SIGTERM))
print(pid)
print("ready", flush=True)
raise SystemExit(-os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
"""A launcher that passes Ctrl-C on to its child and waits for it; the child is stopped."""


@pytest.mark.parametrize(
    ("act", "status", "number"),
    [(Child.interrupt, int(signal.SIGTERM), None), (Child.stop, None, signal.SIGTERM)],
)
def test_a_stopped_process_ends_with_the_others(
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Child], None],
    status: int | None,
    number: int | None,
) -> None:
    monkeypatch.setattr("gputui.collect.child.GRACE_S", 600.0)
    watched = Watched(PYTHON, "-c", STOPPED_BELOW)
    ending = watched.run_until("ready", lambda: act(watched.child))
    stopped = int(watched.lines("stdout")[0])
    assert (ending.exit_code, ending.signal) == (status, number)
    assert (ending.continued, ending.killed, ending.left) == ((stopped,), (), ())
    assert gone(stopped)


def test_a_stopped_supervisor_still_ends_the_child() -> None:
    watched = Watched("sh", "-c", "kill -STOP $PPID; echo ready; exec sleep 300")
    assert watched.run_until("ready", watched.child.stop).signal == signal.SIGTERM


def test_what_cannot_be_killed_is_left_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Here the system refuses the supervisor each signal, as for a process of another user."""
    refused = tmp_path / "supervisor.py"
    refused.write_text(
        "import os, runpy\n"
        "def kill(*_): raise PermissionError\n"
        "os.kill = kill\n"
        f"runpy.run_path({str(child_module._SUPERVISOR)!r}, run_name='__main__')\n"
    )
    for name, value in (("_SUPERVISOR", refused), ("GRACE_S", 0.1), ("KILL_S", 0.1)):
        monkeypatch.setattr(child_module, name, value)
    watched = Watched("sh", "-c", "echo $$; echo ready; exec sleep 300")
    ending = watched.run_until("ready", watched.child.stop)
    left = int(watched.lines("stdout")[0])
    try:
        assert ending.reason == "it: could not be ended"
        assert (ending.killed, ending.left) == ((left,), (left,))
        assert not gone(left)
    finally:
        os.kill(left, signal.SIGKILL)
        os.waitpid(left, 0)


def test_an_interrupt_is_handed_on_as_ctrl_c() -> None:
    code = (
        "import signal\nprint('ready', flush=True)\n"
        "try: signal.pause()\nexcept KeyboardInterrupt: raise SystemExit(42)"
    )
    watched = Watched(PYTHON, "-c", code)
    assert watched.run_until("ready", watched.child.interrupt).exit_code == 42


def test_processes_left_behind_are_ended_and_told() -> None:
    watched = Watched("sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!; exit 3")
    ending = watched.run()
    assert ending.exit_code == 3
    assert "1 of its processes were still there" in ending.reason
    assert gone(int(watched.lines("stdout")[0]))


def test_a_killed_monitor_takes_the_child_with_it() -> None:
    program = """
import os, sys
from gputui.collect.child import Child
child = Child(["sh", "-c", "echo $$; sleep 300"], dict(os.environ), name="x")
def show(batches):
    for batch in batches:
        print("\\n".join(batch.lines), flush=True)
child.run(lambda pid: None, show)
"""
    with subprocess.Popen([PYTHON, "-c", program], stdout=subprocess.PIPE, text=True) as monitor:
        assert monitor.stdout is not None
        pid = int(monitor.stdout.readline())
        child = psutil.Process(pid)
        monitor.kill()
    psutil.wait_procs([child], timeout=30)
    assert gone(pid)


def test_a_flood_is_bounded_and_counted() -> None:
    watched = Watched(PYTHON, "-c", "print('x\\n' * 500_000, end='')")
    assert watched.run().exit_code == 0
    kept = len(watched.lines("stdout"))
    dropped = sum(batch.dropped for batch in watched.batches)
    assert kept + dropped == 500_000
    assert all(len(batch.lines) <= LINES_PER_BATCH for batch in watched.batches)


def test_a_line_without_end_is_bounded() -> None:
    watched = Watched(PYTHON, "-c", "print('y' * 5_000_000, end='')")
    assert watched.run().exit_code == 0
    assert max(map(len, watched.lines("stdout"))) <= 2000


def test_bytes_that_are_no_text_are_shown_as_something() -> None:
    watched = Watched(PYTHON, "-c", "import os; os.write(1, bytes(range(256)))")
    assert watched.run().exit_code == 0
    assert watched.lines("stdout")


def test_the_child_reads_nothing_from_our_standard_input() -> None:
    watched = Watched(PYTHON, "-c", "import sys; print(repr(sys.stdin.read()))")
    watched.run()
    assert watched.lines("stdout") == ["''"]


def test_the_report_pipe_reaches_the_child_alone() -> None:
    code = "import os; os.write(int(os.environ['GPUTUI_REPORT_FD']), b'hello\\n')"
    watched = Watched(PYTHON, "-c", f"{code}; print(os.environ['GPUTUI_REPORT_ONLY'])")
    watched.run()
    assert watched.lines("report") == ["hello"]
    assert watched.lines("stdout") == ["1"]  # the result is shown: it need not be printed, too


def test_a_killed_supervisor_leaves_nobody_behind() -> None:
    watched = Watched("sh", "-c", "sh -c 'setsid sleep 600 & echo $!'; echo ready; sleep 600")

    def kill() -> None:
        assert watched.pid is not None
        parent = psutil.Process(watched.pid).parent()
        assert parent is not None
        parent.kill()

    ending = watched.run_until("ready", kill)
    assert ending.reason == "it: its supervisor was killed"
    assert watched.pid is not None
    daemon, _ = watched.lines("stdout")
    assert gone(watched.pid)
    assert gone(int(daemon))


def test_a_reader_that_fails_ends_the_child() -> None:
    child = Child([PYTHON, "-c", "print(1, flush=True); import time; time.sleep(600)"],
                  dict(os.environ), name="it")  # fmt: skip
    pids: list[int] = []

    def fail(_batches: list[LineBatch]) -> None:
        raise RuntimeError("no room")

    with pytest.raises(RuntimeError):
        child.run(pids.append, fail)
    assert gone(pids[0])
    child.stop()  # comes late, and must not reach a descriptor that is another file's by now


def test_every_report_of_a_flood_arrives() -> None:
    count = 10 * LINES_PER_BATCH
    code = f"import os\nfor i in range({count}): os.write(fd, b'%d\\n' % i)"
    watched = Watched(
        PYTHON, "-c", f"fd = int(__import__('os').environ['GPUTUI_REPORT_FD'])\n{code}"
    )
    watched.run()
    assert watched.lines("report") == [str(i) for i in range(count)]


def test_a_program_that_may_not_be_run_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_text("#!/bin/sh\n")
    ending = Watched(str(path)).run()
    assert (ending.exit_code, ending.reason) == (126, f"cannot start {path}: permission denied")
