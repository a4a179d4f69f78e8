"""One child process: started under a supervisor, read in batches, ended with its descendants.

For `traced_run`. `supervisor` is a program of its own, run by its path beside this file. What a
child reports and leaves is read in `child_reports`.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gputui.base.sanitize import clean_output, sanitize
from gputui.base.standard_streams import let_through
from gputui.collect.supervisor import MOST_WAITING, adopt_orphans, descendants

# Whether a command can be started at all: known before a screen or a recording begins.


def refusal(command: str, search_path: str | None = None) -> tuple[int, str] | None:
    """The exit status and the reason, as a shell has them, why `command` cannot be started; None if
    it can. `search_path` stands for PATH."""
    if shutil.which(command, path=search_path) is not None:
        return None
    status, why = 127, "command not found"
    if os.sep in command:
        if os.path.isfile(command):
            # Before the screen: a mistyped name filled the terminal and left a recording of
            # nothing. 126 and 127 are the shell's.
            status, why = 126, "permission denied"
        elif os.path.isdir(command):
            status, why = 126, "it is a folder"
    return status, f"cannot start {sanitize(command, 200)}: {why}"


# Cleaning up after a killed supervisor: its children become ours, and are killed.

# Longest wait for one process: one that hangs in the kernel cannot be killed.
_ORPHAN_S = 5.0

_supervisors: set[int] = set()


def expect_orphans() -> None:
    """Adopt the orphans of supervisors. Call before starting one."""
    adopt_orphans()


def supervisor_started(pid: int) -> None:
    """Register a supervisor: neither it nor its descendants are orphans."""
    _supervisors.add(pid)


def supervisor_gone(pid: int) -> None:
    """Unregister a supervisor that has ended and was waited for."""
    _supervisors.discard(pid)


def end_orphans() -> None:
    """Kill and reap what a supervisor left that was killed before it could clean up."""
    until = time.monotonic() + _ORPHAN_S
    while (orphans := _orphans()) and time.monotonic() < until:
        for orphan in orphans:
            for pid in (orphan, *descendants(orphan, [])):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(orphan, os.WNOHANG)[0] == 0:
                    time.sleep(0.01)


def _orphans() -> list[int]:
    """Children in other sessions: what gputui starts without a supervisor shares its own."""
    import psutil  # only when a child has ended: importing it takes longer than all else here

    own = os.getsid(0)
    orphans = []
    for child in psutil.Process().children():
        with contextlib.suppress(ProcessLookupError):
            if child.pid not in _supervisors and os.getsid(child.pid) != own:
                orphans.append(child.pid)
    return orphans


# What a child prints and reports: bytes of a pipe → complete lines, in bounded memory.

Stream = Literal["stdout", "stderr", "report"]

LINES_PER_BATCH = 2000
"""Output lines beyond this in one batch are counted and dropped. Reports are never dropped: this
many of them complete a batch.
"""

# A line without an end, as from a progress bar that never breaks it, must not fill the memory.
_LONGEST_LINE = 1 << 16
# A reported table is one line.
_LONGEST_REPORT = 1 << 22


@dataclass(slots=True)
class LineBatch:
    """Complete lines of one stream since the last batch."""

    stream: Stream
    lines: list[str]
    dropped: int = 0


class LineBuffer:
    """Splits bytes into lines, holding at most one line and one batch."""

    def __init__(self, stream: Stream) -> None:
        self.stream: Stream = stream
        self._partial = b""
        self._lines: list[str] = []
        self._dropped = 0
        self._longest = _LONGEST_REPORT if stream == "report" else _LONGEST_LINE

    @property
    def is_full(self) -> bool:
        """Whether the next input would be dropped unless the batch is handed over first."""
        return len(self._lines) >= LINES_PER_BATCH

    def feed(self, data: bytes) -> None:
        """Add bytes as they were read."""
        pieces = (self._partial + data).split(b"\n")
        self._partial = pieces.pop()
        if len(self._partial) > self._longest:
            pieces.append(self._partial)
            self._partial = b""
        room = len(pieces) if self.stream == "report" else LINES_PER_BATCH - len(self._lines)
        self._dropped += max(0, len(pieces) - room)
        self._lines += [self._text(piece) for piece in pieces[: max(0, room)]]

    def _text(self, piece: bytes) -> str:
        text = piece.decode("utf-8", "replace")
        return text if self.stream == "report" else clean_output(text)

    def drain(self, final: bool = False) -> LineBatch | None:
        """The lines since the last call, None if there are none; `final` completes the last one."""
        if final and self._partial:
            self.feed(b"\n")
        if not self._lines and not self._dropped:
            return None
        lines = LineBatch(self.stream, self._lines, self._dropped)
        self._lines, self._dropped = [], 0
        return lines


GRACE_S = 5.0
"""How long a child may take to end after SIGTERM before SIGKILL, waiting for a core not counted."""

KILL_S = 3.0
"""How long its processes may take to end after SIGKILL before they are left."""

ENDING_S = (1 + MOST_WAITING) * GRACE_S + KILL_S + 5.0
"""Longer than any run takes to end once it is asked to: what was captured is read last."""

# Of those that a message names: what the supervisor writes in one go a pipe takes whole.
_MOST_PIDS = 64

# Lines are handed over together: a program that prints without pause would else wake the screen for
# each.
_BATCH_S = 0.1
_READ_BYTES = 1 << 16
_SUPERVISOR = Path(__file__).with_name("supervisor.py")


@dataclass(frozen=True, slots=True)
class ChildEnding:
    """How the child ended. Exactly one of `exit_code` and `signal` is set. `continued`, `killed`
    and `left` are those of its processes that could not end by themselves: they were stopped and
    had to be continued, did not end in time after SIGTERM, or not even after SIGKILL."""

    exit_code: int | None
    signal: int | None
    reason: str
    continued: tuple[int, ...] = ()
    killed: tuple[int, ...] = ()
    left: tuple[int, ...] = ()


class Child:
    """A command running under the supervisor. One thread calls `run`; any may call `stop`."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        name: str,
        pass_through: bool = False,
    ) -> None:
        """`command` is argv; no shell is involved. `name` is what people call it.

        With `pass_through` the child's stdin, stdout and stderr are also gputui's own, byte for
        byte.
        """
        self._command = list(command)
        self._name = sanitize(name, 200)
        self._environment = dict(environment)
        self._pass_through = pass_through
        self._control_read, self._control_write = os.pipe()
        self._control_lock = threading.Lock()
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def stop(self) -> None:
        """Ask the child and all its descendants to end. Returns at once."""
        if not self._stopping:
            self._stopping = True
            self._tell(b"x")

    def interrupt(self) -> None:
        """Send SIGINT to the child's process group, as Ctrl-C in a terminal does."""
        self._tell(b"i")

    def _tell(self, word: bytes) -> None:
        # Under the lock, so that the descriptor number cannot be reused for another file meanwhile.
        with self._control_lock:
            if self._control_write >= 0:
                with contextlib.suppress(BrokenPipeError):
                    os.write(self._control_write, word)
                if self._supervisor is not None:
                    # Stopped with all the others, it would end nobody.
                    self._supervisor.send_signal(signal.SIGCONT)

    def run(
        self,
        started: Callable[[int], None],
        output: Callable[[list[LineBatch]], None],
    ) -> ChildEnding:
        """Start the child, hand over its lines in batches, and return how it ended.

        `started` gets the pid once; it is not called if the command cannot be started.
        """
        refused = refusal(self._command[0], self._environment.get("PATH"))
        if refused is not None:
            os.close(self._control_read)
            self._close_control()
            status, why = refused
            return ChildEnding(status, None, why)
        oom_kills = _oom_kills()
        expect_orphans()
        report_read, report_write = os.pipe()
        status_read, status_write = os.pipe()
        inherited = (self._control_read, status_write, report_write)
        try:
            supervisor = subprocess.Popen(
                [
                    sys.executable,
                    # Isolated and without site: nothing that is set for the program reaches the
                    # supervisor.
                    "-I",
                    "-S",
                    str(_SUPERVISOR),
                    str(self._control_read),
                    str(status_write),
                    str(GRACE_S),
                    str(KILL_S),
                    *self._command,
                ],
                env=self._environment
                | {"GPUTUI_REPORT_FD": str(report_write)}
                # A workload's result would else stand among its output, where the screen shows it
                # already.
                | ({} if self._pass_through else {"GPUTUI_REPORT_ONLY": "1"}),
                stdin=None if self._pass_through else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=inherited,
                start_new_session=True,
            )
        except OSError as error:
            os.close(report_read)
            os.close(status_read)
            os.close(self._control_read)
            self._close_control()
            why = (error.strerror or str(error)).lower()
            return ChildEnding(126, None, f"cannot start {self._name}: {why}")
        finally:
            # Kept open here, the pipes would not end with the child.
            for descriptor in inherited[1:]:
                os.close(descriptor)
        os.close(self._control_read)
        supervisor_started(supervisor.pid)
        with self._control_lock:
            self._supervisor = supervisor
        try:
            words = self._read_all(supervisor, report_read, status_read, started, output)
        finally:
            # If reading failed, the closed pipe makes the supervisor end them all.
            self._close_control()
            os.close(report_read)
            os.close(status_read)
            with supervisor:  # closes its pipes, and waits for it
                pass
            supervisor_gone(supervisor.pid)
        return self._ending(words, _oom_kills() > oom_kills)

    def _close_control(self) -> None:
        with self._control_lock:
            os.close(self._control_write)
            self._control_write = -1
            self._supervisor = None

    def _read_all(
        self,
        supervisor: subprocess.Popen[bytes],
        report: int,
        status: int,
        started: Callable[[int], None],
        output: Callable[[list[LineBatch]], None],
    ) -> dict[str, list[int]]:
        """Reads every stream until the supervisor has reported the end and exited; returns what it
        reported."""
        assert supervisor.stdout is not None
        assert supervisor.stderr is not None
        words: dict[str, list[int]] = {}
        buffers = {
            supervisor.stdout.fileno(): LineBuffer("stdout"),
            supervisor.stderr.fileno(): LineBuffer("stderr"),
            report: LineBuffer("report"),
        }
        # What is piped stays byte for byte the command's.
        through: dict[int, Literal["stdout", "stderr"]] = {}
        if self._pass_through:
            through = {
                supervisor.stdout.fileno(): "stdout",
                supervisor.stderr.fileno(): "stderr",
            }
        with selectors.DefaultSelector() as selector:
            for descriptor in (*buffers, status):
                os.set_blocking(descriptor, False)
                selector.register(descriptor, selectors.EVENT_READ)
            due: float | None = None
            while selector.get_map() and not (
                # What was left holds the other pipes open for ever.
                "left" in words and status not in selector.get_map()
            ):
                timeout = None if due is None else max(0.0, due - time.monotonic())
                for key, _ in selector.select(timeout):
                    data = _read(key.fd)
                    if data is None:
                        continue
                    if not data:
                        selector.unregister(key.fd)
                        if key.fd == status and not words.keys() & {"ended", "failed", "left"}:
                            # Survivors may hold the other pipes open for ever.
                            supervisor.wait()
                            end_orphans()
                    elif key.fd == status:
                        _hear(data, words, started)
                    else:
                        buffers[key.fd].feed(data)
                        due = due or time.monotonic() + _BATCH_S
                        if key.fd == report and buffers[report].is_full:
                            due = time.monotonic()
                        if key.fd in through:
                            _write_through(through, key.fd, data)
                if due is not None and time.monotonic() >= due:
                    due = None
                    output([lines for buffer in buffers.values() if (lines := buffer.drain())])
        for descriptor, buffer in buffers.items():
            buffer.feed(_read(descriptor) or b"")
        output([lines for buffer in buffers.values() if (lines := buffer.drain(final=True))])
        return words

    def _ending(self, words: Mapping[str, list[int]], oom_killed: bool) -> ChildEnding:
        ending = self._own_ending(words, oom_killed)
        continued, killed, left = (
            tuple(words.get(word, ())[:_MOST_PIDS]) for word in ("continued", "killed", "left")
        )
        return replace(ending, continued=continued, killed=killed, left=left)

    def _own_ending(self, words: Mapping[str, list[int]], oom_killed: bool) -> ChildEnding:
        name = self._name
        if "failed" in words:
            why = os.strerror(words["failed"][0]).lower()
            return ChildEnding(126, None, f"cannot start {name}: {why}")
        if "ended" not in words:
            how = "could not be ended" if "left" in words else "its supervisor was killed"
            return ChildEnding(None, signal.SIGKILL, f"{name}: {how}")
        code = os.waitstatus_to_exitcode(words["ended"][0])
        over = words.get("leftover", [0])[0]
        more = f"; {over} of its processes were still there and were ended" if over else ""
        if code >= 0:
            return ChildEnding(code, None, f"{name} ended with status {code}{more}")
        number = -code
        try:
            text = f"{name} was killed by {signal.Signals(number).name}"
        except ValueError:
            text = f"{name} was killed by signal {number}"
        if number == signal.SIGKILL and oom_killed and not self._stopping:
            text += ": the machine ran out of memory"
        return ChildEnding(None, number, text + more)


def _read(descriptor: int) -> bytes | None:
    """What can be read now; b"" at the end, None if there is nothing yet."""
    try:
        return os.read(descriptor, _READ_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _write_through(
    through: dict[int, Literal["stdout", "stderr"]], descriptor: int, data: bytes
) -> None:
    try:
        let_through(through[descriptor], data)
    except (OSError, ValueError):
        # Whoever read our output is gone; the child keeps running and is still recorded.
        del through[descriptor]


def _hear(data: bytes, words: dict[str, list[int]], started: Callable[[int], None]) -> None:
    for line in data.decode("ascii", "replace").splitlines():
        word, _, number = line.partition(" ")
        if number.lstrip("-").isdigit():
            words.setdefault(word, []).append(int(number))
            if word == "started":
                started(int(number))


def _oom_kills() -> int:
    """How often the kernel's OOM killer has struck on this host; 0 if unknown."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            for line in file:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0
