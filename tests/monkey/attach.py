"""A monkey that attaches: to programs in odd states, again and again, and kills either side.

`python -m tests.monkey.attach CYCLES [SEED]` attaches by gputui processes to a target chosen at
random, and ends gputui, or sometimes the target, at a random moment; it prints what was harmed and
what was left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from gputui.collect.traced_run import AttachedRun, request_of_pid
from gputui.inject import CaptureOptions
from gputui.inject.target import status_of
from gputui.model.events import AnyEvent, RunEnded, RunStarted
from gputui.model.hub import Numbering

SOURCE = Path(__file__).with_name("attach_target.c")
PYTHON = """
import mmap, sys, time
import nvtx
file = open(sys.argv[2], "w+b")
file.truncate(4096)
counter = mmap.mmap(file.fileno(), 4096)
while True:
    with nvtx.annotate("step"):
        kept = [bytes(100) for _ in range(1000)]
    time.sleep(0.002)
    counter[:8] = (int.from_bytes(counter[:8], "little") + 1).to_bytes(8, "little")
"""

ATTACHED = (
    "plain", "profiled", "alarmed", "other-stack", "blocks-signals", "ignores-traps",
    "handles-traps", "forks", "vforks", "ignores-children", "loads", "short-threads",
    "many-threads", "spins", "few-files", "small-stack", "small-space", "locked-memory",
    "no-code-written", "undumpable", "realtime", "idle-class", "one-core", "no-directory",
    "counts-files", "signals-itself", "polls", "waits-for-events",
    "large-blocks", "no-process-left", "python",
)  # fmt: skip
"""These are attached to, sooner or later: a busy machine may have no safe moment in a second."""

REFUSED = (
    "no-file-left", "small-files", "other-root", "no-proc", "other-user", "filtered",
    "main-thread-ended", "stopped",
)  # fmt: skip
"""These are left alone, each time."""

EITHER = ("closes-files",)
"""It closes the file by which it is woken: at once, or between two attaches."""

PATIENCE_S = 60.0


class HarmError(Exception):
    """Something that attaching did to a program, or left behind."""


class Target:
    """A program of one kind, which counts."""

    def __init__(self, kind: str, binary: Path, folder: Path) -> None:
        self.kind = kind
        place = Path(tempfile.mkdtemp(dir=folder))
        place.chmod(0o777)
        self._file = place / "counter"
        command = [str(binary), kind, str(self._file)]
        if kind == "python":
            command = [sys.executable, "-c", PYTHON, kind, str(self._file)]
        self._errors = (place / "errors").open("w+b")
        self.process = subprocess.Popen(command, stderr=self._errors, start_new_session=True)
        self.pid = self.process.pid
        self.is_possible = True
        end = time.monotonic() + PATIENCE_S
        while self.count() < 2 and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        if self.process.poll() == 77:  # where namespaces cannot be made
            self.is_possible = False
        elif kind == "stopped":
            os.kill(self.pid, signal.SIGSTOP)
            while status_of(self.pid).get("State", "T")[:1] != "T":
                time.sleep(0.002)

    def count(self) -> int:
        """How many turns it has taken."""
        with contextlib.suppress(OSError), self._file.open("rb") as file:
            return int.from_bytes(file.read(8), "little")
        return 0

    def check(self) -> None:
        """Raises HarmError where it has ended, stopped, or takes no turns."""
        if self.kind == "stopped":
            os.kill(self.pid, signal.SIGCONT)
        before, end = self.count(), time.monotonic() + PATIENCE_S
        while self.count() <= before:
            if self.process.poll() is not None:
                said = os.pread(self._errors.fileno(), 500, 0).decode(errors="replace")
                raise HarmError(f"{self.kind} has ended with {self.process.returncode}: {said}")
            if time.monotonic() > end:
                state = status_of(self.pid).get("State", "?")
                raise HarmError(f"{self.kind} takes no turns any more; its state is {state}")
            time.sleep(0.002)
        if status_of(self.pid).get("TracerPid") != "0":
            raise HarmError(f"{self.kind} is still traced")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._errors.close()


def compile_target(folder: Path) -> Path:
    """The program of all kinds but "python"."""
    binary = folder / "attach_target"
    command = ["cc", "-O1", "-w", "-o", str(binary), str(SOURCE), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return binary


@contextlib.contextmanager
def target(kind: str, binary: Path, folder: Path) -> Iterator[Target]:
    """One that runs, and is ended; it is checked if nothing else went wrong."""
    started = Target(kind, binary, folder)
    try:
        yield started
        if started.is_possible:
            started.check()
    finally:
        started.end()


def attach_once(pid: int) -> tuple[bool, str]:
    """Attach, see it awake, detach; whether it was attached to, and what was said of the end."""
    events: list[AnyEvent] = []
    capture = CaptureOptions(kernels=False)
    run = AttachedRun(
        1, request_of_pid(pid), events.extend, interval_s=0.1, numbering=Numbering(),
        capture=capture,
    )  # fmt: skip
    run.start()
    end = time.monotonic() + PATIENCE_S
    while not any(isinstance(event, RunStarted) for event in list(events)):
        if time.monotonic() > end:
            raise HarmError(f"attaching to {pid} neither began nor was refused")
        time.sleep(0.005)
    run.stop()
    if not run.join(PATIENCE_S):
        raise HarmError(f"attaching to {pid} does not end")
    ended = next(event for event in events if isinstance(event, RunEnded))
    started = next(event for event in events if isinstance(event, RunStarted))
    return started.pid is not None, ended.reason


def left_behind() -> set[str]:
    """Folders of runs, in the two places for them, that no living gputui holds."""
    places = (Path("/dev/shm"), Path(tempfile.gettempdir()))
    return {str(path) for place in places for path in place.glob("gputui-*") if not _is_held(path)}


def _is_held(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / ".gputui-lock", os.O_RDONLY)
    except OSError:
        return True  # none of a run, or gone meanwhile
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def play(kind: str, cycles: int, binary: Path, folder: Path) -> None:
    """Attach so often to one program of a kind. Raises HarmError."""
    with target(kind, binary, folder) as program:
        if not program.is_possible:
            return
        answers = [attach_once(program.pid) for _ in range(cycles)]
        attempts = 0
        while kind in ATTACHED and not any(attached for attached, _ in answers):
            if (attempts := attempts + 1) > 20:
                raise HarmError(f"{kind} was not attached to: {answers[-1][1]}")
            answers.append(attach_once(program.pid))
        if kind in REFUSED and any(attached for attached, _ in answers):
            raise HarmError(f"{kind} was attached to")


def _kill_at_random(
    program: Target, pick: random.Random, folder: Path, tally: Counter[str]
) -> None:
    """One gputui that attaches, until a signal at a random moment; sometimes to the target."""
    recording = folder / "run.gputui"
    said = (folder / "said").open("w+b")
    root = str(Path(__file__).parents[2])
    gputui = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", "gputui", "attach", str(program.pid),
         "--record", "-o", recording],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path]),
             "XDG_DATA_HOME": str(folder)},
        start_new_session=True,
    )  # fmt: skip
    time.sleep(pick.uniform(0.2, 2.5))
    number = pick.choice(
        (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    )
    tally[signal.Signals(number).name] += 1
    injectors = []
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{gputui.pid}/task/{gputui.pid}/children").read_text()
        injectors = [int(word) for word in children.split()]
    if pick.random() < 0.1:
        tally["target killed"] += 1
        program.process.kill()
        program.process.wait()
    gputui.send_signal(number)
    for injector in injectors if pick.random() < 0.5 else ():
        tally["injector too"] += 1
        with contextlib.suppress(OSError):
            os.kill(injector, pick.choice((signal.SIGTERM, signal.SIGHUP)))
    try:
        gputui.wait(30)
    except subprocess.TimeoutExpired:
        status = Path(f"/proc/{gputui.pid}/status").read_text()
        gputui.send_signal(signal.SIGSEGV)  # has Python print what its threads do
        gputui.wait()
        text = os.pread(said.fileno(), 8000, 0).decode(errors="replace")
        raise HarmError(f"gputui does not end of {number.name}: {status}{text}") from None
    finally:
        said.close()
    recording.unlink(missing_ok=True)


def main() -> int:
    """The long version."""
    cycles, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for number in (signal.SIGINT, signal.SIGHUP):  # ignored by what runs in the background
        signal.signal(number, signal.SIG_DFL)
    pick = random.Random(seed)
    tally: Counter[str] = Counter()
    faults = 0
    before = left_behind()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        binary = compile_target(folder)
        programs: dict[str, Target] = {}
        for cycle in range(cycles):
            kind = pick.choice(ATTACHED + REFUSED + EITHER)
            program = programs.get(kind)
            if program is None or program.process.poll() is not None or pick.random() < 0.3:
                if program is not None:
                    program.end()
                program = programs[kind] = Target(kind, binary, folder)
            if not program.is_possible:
                continue
            try:
                _kill_at_random(program, pick, folder, tally)
                if program.process.poll() != -signal.SIGKILL:
                    program.check()
                if kind == "stopped" and program.process.poll() is None:
                    os.kill(program.pid, signal.SIGSTOP)
            except HarmError as harm:
                faults += 1
                print(f"cycle {cycle}: {harm}", flush=True)
        for program in programs.values():
            program.end()
        # What a killed gputui leaves is removed by the next one.
        with target("plain", binary, folder) as last:
            attach_once(last.pid)
    if rest := left_behind() - before:
        faults += 1
        print(f"left behind: {sorted(rest)}")
    print(f"{cycles} cycles, {faults} faults, {dict(tally)}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
