"""Attaching to programs that run: nothing of theirs changes, and what forbids it is said."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import platform
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputui.cli.dispatch import run as gputui
from gputui.inject.attach import attach, detach, shared_memory_of
from gputui.inject.build import CAPTURE, INJECTOR, LIBRARIES
from gputui.inject.environment import create_capture_folder
from gputui.inject.target import (
    PYTHON_HOOKED,
    PYTHON_NONE,
    AttachError,
    Word,
    maps_of,
    open_word,
    ptrace_refusal,
)
from gputui.ring.reader import RingFolder
from tests.inject.conftest import PROGRAMS
from tests.inject.test_asleep import LIMIT_S, asleep_environment, folder_of, until
from tests.inject.traced import Trace, _Drain

pytestmark = [
    pytest.mark.usefixtures("library"),
    pytest.mark.skipif(INJECTOR not in LIBRARIES, reason="no injector for this processor"),
]
HERE = Path(__file__).parent


def plain_environment() -> dict[str, str]:
    return {n: text for n, text in asleep_environment().items() if "INJECTION64" not in n}


class Target:
    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            command,
            env=plain_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, what: str) -> str:
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def is_well(self) -> bool:
        return self.process.poll() is None

    def end(self) -> str:
        self.process.kill()
        return self.process.communicate()[0]


@contextlib.contextmanager
def target(*command: str) -> Iterator[Target]:
    started = Target(*command)
    try:
        yield started
        assert started.is_well()
    finally:
        assert "wrong" not in started.end()


@pytest.fixture(scope="module")
def program(compile_program) -> str:
    return str(compile_program("attach_target.c", "attach_target", "-O2"))


@pytest.fixture(scope="module")
def handed_over(tmp_path_factory) -> tuple[Path, Path]:
    """A library to hand over, and the file in which it counts."""
    folder = tmp_path_factory.mktemp("handed")
    library, count = folder / "handed_over.so", folder / "count"
    words = ["cc", "-shared", "-fPIC", "-w", f'-DHANDED_OVER="{count}"', "-o", str(library)]
    subprocess.run([*words, str(PROGRAMS / "handed_over.c")], check=True)
    return library, count


def inject(pid: int, library: Path) -> str:
    command = [str(INJECTOR.path), str(pid), str(library), "futex"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return " ".join(done.stdout.split()[:2])


NOT_NOW = {"other-libc", "no-moment"}
"""The list of what is mapped changes while the last one is being loaded; on a busy machine no
moment may come in time."""


@pytest.mark.parametrize(
    ("part", "times", "how"),
    [
        ("vectors", 50, {"done event", "done breakpoint"}),
        ("signals", 30, {"done event", "done breakpoint"}),
        ("flood", 60, {"done event", "done breakpoint"}),
        ("masks", 10, {"done event", "done breakpoint"}),
        ("threads", 30, {"done event", "done breakpoint"}),
        ("ignores-traps", 4, {"done event"}),
        ("waits", 4, {"done wait"}),
    ],
)
def test_a_program_does_not_notice(program, handed_over, part, times, how):
    library, count = handed_over
    count.unlink(missing_ok=True)
    with target(program, part) as started:
        answers = [inject(started.pid, library) for _ in range(times)]
        assert set(answers) <= how | NOT_NOW
        # A trap of ptrace may end the program if the injector is killed: never beside events.
        assert not {"done event", "done breakpoint"} <= set(answers)
        loaded = sum(answer.startswith("done") for answer in answers)
        assert loaded or part == "ignores-traps"
        until(lambda: not loaded or count.stat().st_size == loaded, "the library")
        time_of = f"/proc/{started.pid}/stat"
        before = Path(time_of).read_text()
        until(lambda: Path(time_of).read_text() != before or part == "waits", "its going on")


def test_a_program_is_not_handed_a_library_while_it_loads_another(
    program, handed_over, compile_program
):
    library, count = handed_over
    other = str(compile_program("fake_driver.c", "other.so", "-shared", "-fPIC"))
    for _ in range(15):
        count.unlink(missing_ok=True)
        with target(program, "loads", other) as started:
            if inject(started.pid, library) not in NOT_NOW:
                until(lambda one=started: count.exists() or not one.is_well(), "the library")


def attached(pid: int) -> Word:
    """On a busy machine no moment may come in time: then once more."""
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            return attach(pid)
        except AttachError:
            if time.monotonic() > end:
                raise


def session(pid: int, asked: Callable[[], object], modules: bool = True) -> Trace:
    """What is seen while `asked` is called."""
    word = attached(pid)
    with create_capture_folder() as folder:
        word.wake(folder, kernels=False, modules=modules, sampling="", timeout_s=LIMIT_S)
        if modules:
            until(lambda: word.page.python == PYTHON_HOOKED, "the hooks")
        (ring,), _ = RingFolder(folder).discover()
        drain = _Drain(ring)
        asked()
        assert word.sleep(LIMIT_S)
        drain.step()
        until(lambda: word.page.python == PYTHON_NONE, "the end of the hooks")
    word.close()
    return drain.finish()


def test_a_python_program_is_seen_and_let_go_and_seen_again(handed_over, tmp_path):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no torch")
    library, _ = handed_over
    with target(sys.executable, str(HERE / "attach_child.py")) as started:
        started.ask("steps 1")
        filters = started.ask("filters")
        # Blocked in C with the interpreter's lock: nothing waits for that but Python's half.
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        assert started.ask(f"block {gate}") == "blocking"
        trace = session(started.pid, lambda: None, modules=False)
        assert trace.ranges() == []
        gate.write_bytes(b".")
        assert started.ask("steps 1") == "0"

        names = []
        for _ in range(2):
            trace = session(started.pid, lambda: started.ask("steps 2"))
            ranges = trace.ranges()
            opened = [row[1] for row in ranges if row[0] == "push"]
            inner = [f"{block}{part}" for block in range(3) for part in ("", ".first", ".second")]
            assert opened == ["step", "made before", "pushed", "Sequential", *inner] * 2
            assert [row[0] for row in ranges].count("pop") == len(opened)
            names.append(set(trace.strings.values()))
            assert started.ask("steps 1") == "0"
        assert names[0] == names[1]
        assert started.ask("filters") == filters

        recording = tmp_path / "attached.gputui"
        words = ["attach", str(started.pid), "--record", "-o", str(recording)]
        command = [sys.executable, "-m", "gputui", *words, "--no-kernels"]
        word = open_word(started.pid)

        def attaches() -> subprocess.Popen[bytes] | None:
            recording.unlink(missing_ok=True)
            monitor = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            until(lambda: word.page.python == PYTHON_HOOKED or monitor.poll() is not None)
            return monitor if monitor.poll() is None else None

        monitor = until(attaches, "an attach")
        word.close()
        assert started.ask("steps 20") == "0"
        monitor.send_signal(signal.SIGINT)
        monitor.communicate()
        assert monitor.returncode == 0
        recorded = recording.read_text()
        assert not folder_of(started.pid).exists()
        assert '"attached":true' in recorded
        assert '"Sequential"' in recorded
        assert "which keeps running" in recorded

        started.ask("threads 3")
        for _ in range(6):
            session(started.pid, lambda: None, modules=False)
        how = {"done event", "done breakpoint", "done wait"}
        assert {inject(started.pid, library) for _ in range(10)} <= how | NOT_NOW
        assert started.ask("steps 20") == "0"
        assert not folder_of(started.pid).exists()


def refusal(pid: int) -> str:
    with pytest.raises(AttachError) as refused:
        attach(pid)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_what_cannot_be_attached_to_says_why(program, tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert refusal(gone.pid) == f"there is no process {gone.pid}"
    assert "gputui itself" in refusal(os.getpid())
    with pytest.raises(AttachError, match="was not attached to"), target(program) as started:
        detach(started.pid)

    with target(program) as started:
        os.kill(started.pid, signal.SIGSTOP)
        until(lambda: "T" in Path(f"/proc/{started.pid}/stat").read_text().split()[2], "its stop")
        assert "is stopped: continue it first" in refusal(started.pid)
        recording = tmp_path / "refused.gputui"
        assert gputui(["attach", str(started.pid), "--record", "-o", str(recording)]) == 126
        assert not recording.exists()
        os.kill(started.pid, signal.SIGCONT)
    with target(program, "zombie") as started:
        assert "has ended" in refusal(int(started.process.stdout.readline()))
    with target(program, "spins") as started:
        assert "came to a moment that is safe" in refusal(started.pid)

    static = tmp_path / "static"
    source = str(PROGRAMS / "attach_target.c")
    made = subprocess.run(
        ["cc", "-static", "-w", source, "-o", str(static)], capture_output=True, check=False
    )
    if made.returncode == 0:
        with target(str(static)) as started:
            assert "is linked statically" in refusal(started.pid)
    if shutil.which("musl-gcc"):
        subprocess.run(["musl-gcc", "-w", source, "-o", str(tmp_path / "musl")], check=True)
        with target(str(tmp_path / "musl")) as started:
            assert "uses musl" in refusal(started.pid)
    libc = next(word for word in maps_of(os.getpid()).split() if word.endswith("/libc.so.6"))
    shutil.copy(libc, tmp_path)
    with target("env", f"LD_LIBRARY_PATH={tmp_path}", program) as started:
        assert "run gputui in there" in refusal(started.pid)


@pytest.mark.parametrize(
    "how",
    ["memfd_create", "mprotect", "openat", "clone3", "allow", "strict", "memfd_create thread"],
)
def test_a_program_under_seccomp_is_left_alone(compile_program, how):
    sandboxed = str(compile_program("seccomp_target.c", "seccomp_target"))
    with target(sandboxed, *how.split()) as started:
        assert f"process {started.pid} runs under a seccomp filter" in refusal(started.pid)
        assert "gputui env" in refusal(started.pid)
        assert inject(started.pid, CAPTURE.path).startswith("seccomp") or "thread" in how


def test_a_wait_that_any_stop_would_end_is_left_alone(program, handed_over):
    library, _ = handed_over
    with target(program, "waits-for-signals") as started:
        assert inject(started.pid, library) == "no-moment"
        assert started.process.stdout.readline() == "over\n"


LIMITED = {
    "files": """
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
try:
    while os.dup(1): pass
except OSError: pass
""",
    "file size": """
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
""",
    "address space": """
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, ((pages + 10) * 4096,) * 2)
""",
    "chroot": "os.chroot(sys.argv[1])",
    "main thread": """
def report():
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z": pass
    os.write(1, b"ready\\n")
    time.sleep(600)
threading.Thread(target=report).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
""",
}


@pytest.mark.parametrize(
    ("limited", "said"),
    [
        ("files", "has as many files open as it may"),
        ("file size", "may write no file of 4096 bytes (ulimit -f)"),
        ("address space", "its address space is limited"),
        pytest.param(
            "chroot", "sees no /proc",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root to chroot"),
        ),
        ("main thread", "has ended (pthread_exit)"),
    ],
)  # fmt: skip
def test_a_program_in_want_of_something_is_told_what_and_keeps_its_files(
    monkeypatch, tmp_path, limited, said
):
    monkeypatch.setattr("gputui.inject.attach.BEGIN_S", 1.0)
    imports = "import ctypes, os, platform, resource, signal, sys, threading, time\n"
    goes_on = "\nprint('ready', flush=True)\nwhile True: time.sleep(0.01)"
    with target(
        sys.executable, "-c", imports + LIMITED[limited] + goes_on, str(tmp_path)
    ) as started:
        before = len(os.listdir(f"/proc/{started.pid}/fd")) if limited != "main thread" else 0
        refused = until(lambda: (text := refusal(started.pid)) and "moment" not in text and text)
        assert said in refused
        if limited != "main thread":  # the system no longer shows them
            until(lambda: len(os.listdir(f"/proc/{started.pid}/fd")) == before, "the file's end")


ATTACHES_ONCE = """
import sys, time
sys.path.insert(0, sys.argv[1])
from gputui.inject.attach import attach
from gputui.inject.target import AttachError
end = time.monotonic() + 60
while True:
    try:
        attach(int(sys.argv[2])).close()
        sys.exit("attached")
    except AttachError as error:
        if "moment" not in str(error) or time.monotonic() > end:
            sys.exit(str(error))
"""


@pytest.mark.parametrize(
    ("own", "wrapped", "namespaces", "said"),
    [
        ("nothing", ["nothing"], [], "attached"),  # both in one container
        ("container", ["container"], [], "attached"),  # of Docker's, as it was before version 23
        ("nothing", ["nothing", "clone3"], [], "runs under a seccomp filter"),
        ("nothing", ["nothing"], ["unshare", "-m"], "runs under a seccomp filter"),
    ],
)
def test_a_filter_that_gputui_is_under_itself_forbids_nothing(
    compile_program, program, own, wrapped, namespaces, said
):
    sandbox = str(compile_program("seccomp_target.c", "seccomp_target"))
    if namespaces and subprocess.run([*namespaces, "true"], check=False).returncode:
        pytest.skip("no namespaces can be made here")
    words = [word for how in wrapped for word in (sandbox, how, "exec")]
    with target(*namespaces, *words, program) as started:
        script = [sys.executable, "-c", ATTACHES_ONCE, str(HERE.parents[1]), str(started.pid)]
        inside = subprocess.run(
            [sandbox, own, "exec", *script], capture_output=True, text=True, check=False
        )
        assert said in inside.stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="runs what a 32-bit x86 can")
def test_a_program_of_another_architecture_says_why(tmp_path):
    calls_pause = b"\xb8\x1d\x00\x00\x00\xcd\x80\xeb\xf7"
    base, head = 0x8048000, 84
    whole = head + len(calls_pause)
    file = struct.pack(
        "<4sBBBB8xHHIIIIIHHHHHH", b"\x7fELF", 1, 1, 1, 0,
        2, 3, 1, base + head, 52, 0, 0, 52, 32, 1, 0, 0, 0,
    )  # fmt: skip
    file += struct.pack("<8I", 1, 0, base, base, whole, whole, 5, 4096) + calls_pause
    small = tmp_path / "small"
    small.write_bytes(file)
    small.chmod(0o755)
    try:
        started = subprocess.Popen([small])
    except OSError:
        pytest.skip("the kernel runs no 32-bit programs")
    assert "of another architecture" in refusal(started.pid)
    started.kill()
    started.wait()


@pytest.mark.parametrize(
    ("scope", "said"),
    [
        (1, "lets only parents attach (kernel.yama.ptrace_scope is 1): run gputui with CAP_SYS"),
        (2, "lets only administrators attach (kernel.yama.ptrace_scope is 2): run gputui with"),
        (3, "lets nobody attach (kernel.yama.ptrace_scope is 3): start it after eval"),
    ],
)
def test_what_the_system_forbids_says_what_would_help(tmp_path, monkeypatch, scope, said):
    setting = tmp_path / "ptrace_scope"
    setting.write_text(f"{scope}\n")
    monkeypatch.setattr("gputui.inject.target._YAMA", setting)
    monkeypatch.setattr("gputui.inject.target.status_of", lambda _: {"CapEff": "0"})
    assert said in ptrace_refusal(os.getpid())
    assert "gputui env" in ptrace_refusal(os.getpid())


def test_a_traced_process_belongs_to_its_tracer(program):
    seize, detach_request, interrupt = 0x4206, 17, 0x4207
    libc = ctypes.CDLL(None, use_errno=True)
    with target(program) as started:
        pid = ctypes.c_long(started.pid)
        assert libc.ptrace(seize, pid, None, None) == 0
        assert f"({os.getpid()})" in refusal(started.pid)
        libc.ptrace(interrupt, pid, None, None)
        os.waitpid(started.pid, 0x40000000)
        assert libc.ptrace(detach_request, pid, None, None) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_a_process_of_another_user_is_left_alone():
    script = "import os, time; os.setuid(65534); print('ready', flush=True); time.sleep(60)"
    with target(sys.executable, "-c", script) as started:
        assert "belongs to user" in refusal(started.pid)


def test_other_tools_programs_are_left_alone(program, tmp_path, monkeypatch):
    tool = tmp_path / "nsight-systems" / "libToolsInjection64.so"
    monkeypatch.setenv("CUDA_INJECTION64_PATH", str(tool))
    clear = plain_environment() | {"CUDA_INJECTION64_PATH": str(tool)}
    process = subprocess.Popen([program], env=clear, stdout=subprocess.PIPE)
    process.stdout.readline()
    assert "was started for Nsight Systems (nsys)" in refusal(process.pid)
    process.kill()
    process.communicate()


CONTAINER = "mount -t tmpfs tmpfs /dev/shm && exec $0"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make namespaces")
def test_a_container_of_its_own_is_reached_through_its_shared_memory(program):
    command = ["unshare", "-pmf", "--mount-proc", "sh", "-c", CONTAINER, program]
    if subprocess.run([*command[:3], "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces can be made here")
    started = Target(*command)
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    inside = int(children[0])
    word = attached(inside)
    with shared_memory_of(inside) as place, create_capture_folder(place=place) as folder:
        assert place is not None
        there = Path("/dev/shm", folder.name)
        word.wake(there, kernels=False, modules=False, sampling="", timeout_s=LIMIT_S)
        (ring,), _ = RingFolder(folder).discover()
        assert ring.facts.pid != inside
        assert word.sleep(LIMIT_S)
        ring.close()
    word.close()
    assert os.listdir(f"/proc/{inside}/root/dev/shm") == []
    os.kill(inside, signal.SIGKILL)
    assert "wrong" not in started.process.communicate()[0]


def test_an_injector_that_is_killed_harms_nobody(program, handed_over):
    library, _ = handed_over
    seed = random.randrange(1 << 30)
    moments = random.Random(seed)
    with target(program, "vectors") as started:
        if inject(started.pid, library) != "done event":
            pytest.skip("the kernel gives no events here: see docs/attaching.md")
        for _ in range(25):
            injector = subprocess.Popen(
                [str(INJECTOR.path), str(started.pid), str(library)], stdout=subprocess.DEVNULL
            )
            time.sleep(moments.uniform(0, 0.012))
            injector.kill()
            injector.wait()
            assert started.is_well(), seed
        until(lambda: inject(started.pid, library).startswith("done"), f"another (seed {seed})")


ATTACHES = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from gputui.inject.attach import attach
from gputui.inject.environment import create_capture_folder
for line in sys.stdin:
    monitor = os.fork()
    if monitor == 0:
        with create_capture_folder(place=Path(sys.argv[2])) as folder:
            word = attach(int(line))
            word.wake(folder, kernels=False, modules=False, sampling="", timeout_s=0.2)
            word.sleep(0.2)
        os._exit(0)
    print("begins", flush=True)
    if sys.stdin.readline() == "kill\\n":
        os.kill(monitor, 9)
    os.waitpid(monitor, 0)
    print("gone", flush=True)
"""


def test_whoever_is_killed_leaves_nothing(program, tmp_path):
    seed = random.randrange(1 << 30)
    moments = random.Random(seed)
    monitors = subprocess.Popen(
        [sys.executable, "-c", ATTACHES, str(HERE.parents[1]), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def ask(what: object) -> str:
        monitors.stdin.write(f"{what}\n")
        monitors.stdin.flush()
        return monitors.stdout.readline()

    for number in range(6):
        started = Target(program)
        assert ask(started.pid) == "begins\n"
        time.sleep(moments.uniform(0, 0.06))
        if number % 2 == 0:
            started.process.kill()
        assert ask("kill" if number % 2 else "wait") == "gone\n"
        if number % 2:  # what was begun ends by itself, and can be gone on with
            attached(started.pid).close()
            assert started.is_well(), seed
            word = open_word(started.pid)
            assert word is not None
            until(lambda word=word: not word.is_awake, "its sleep")
            word.close()
            status = Path(f"/proc/{started.pid}/status")
            until(lambda status=status: "TracerPid:\t0\n" in status.read_text(), "its freedom")
        assert "wrong" not in started.end()
        with create_capture_folder(place=tmp_path) as folder:  # removes what the dead have left
            assert os.listdir(tmp_path) == [folder.name], seed
    assert os.listdir(tmp_path) == []
    monitors.communicate()
