"""The parent of a run's processes: a small program that never outlives them.

    python -I -S supervisor.py CONTROL_FD STATUS_FD GRACE_SECONDS KILL_SECONDS CMD ARG ...

It starts CMD in a new session, adopts every orphaned descendant, and ends them all (SIGTERM,
then SIGKILL after the grace time) when CMD has ended, or when a byte or end of file arrives on
CONTROL_FD, which includes the death of gputui. The byte "i" on CONTROL_FD is passed on instead, as
Ctrl-C in a terminal: SIGINT to CMD's process group. A stopped process can act on no signal, and
those that wait for it cannot end: it is continued both times. Python's resource tracker, which
ignores SIGTERM and removes its program's semaphores and shared memory once the others are gone, is
killed last, a second later. Time that a process waits for a core
is no part of its grace, up to five times as much: with nine programs a core, one that needed 0.9 s
to report and end took 13.7 s, 12.8 of them waiting. What does not end within the kill
time of SIGKILL (it hangs in the kernel, or belongs to another user) is left. On STATUS_FD it writes
lines:

    started PID | failed ERRNO | leftover COUNT | continued PID | killed PID | left PID
    ended WAITSTATUS

The last line is `failed`, `ended`, or without an end of CMD the last `left`.

It imports little, and only from the standard library, because it starts with every run.
"""

import contextlib
import ctypes
import math
import os
import select
import signal
import sys
import time

# linux/prctl.h. Orphans below a subreaper become its children instead of init's.
_PR_SET_CHILD_SUBREAPER = 36
# So many lines are under 2 KiB: a write to a pipe of up to PIPE_BUF (4 KiB) is not divided.
_MOST_PIDS = 64
# In a second: the unit of a process's start time (proc_pid_stat(5)).
_TICKS = os.sysconf("SC_CLK_TCK")
_TIDIES_S = 1.0
"""How much later than the others what tidies up after them is killed."""
_TIDIES_UP = b"resource_tracker import main"
"""Within the command line of Python's multiprocessing.resource_tracker, and of joblib's."""
MOST_WAITING = 5
"""Of grace times, how many a process may wait for a core besides."""


def main(arguments: list[str]) -> int:
    """Run the command in `arguments`; returns once every descendant is gone or given up."""
    control, status = int(arguments[0]), int(arguments[1])
    grace_s, kill_s = float(arguments[2]), float(arguments[3])
    command = arguments[4:]
    os.set_inheritable(control, False)
    os.set_inheritable(status, False)
    adopt_orphans()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    # Python repeats a call that a signal interrupts (PEP 475): only a byte that arrives wakes
    # select.
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    try:
        child = os.posix_spawnp(
            command[0],
            command,
            os.environ,
            setsid=True,
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE],
        )
    except OSError as error:
        _say(status, "failed", error.errno or 0)
        return 1
    _say(status, "started", child)
    _supervise(child, control, status, wake_read, grace_s, kill_s)
    return 0


def _supervise(
    child: int, control: int, status: int, wake: int, grace_s: float, kill_s: float
) -> None:
    ended: int | None = None
    stopping = False
    asked_at = 0.0
    kill_at: float | None = None
    asked: dict[int, _Asked] = {}
    killed: set[int] = set()
    give_up_at = tidied_at = math.inf
    watched = [control, wake]
    while True:
        ended, has_children = _reap(child, ended)
        # A program whose main thread has ended by pthread_exit is a zombie by its state, but lives:
        # it once outlived gputui.
        alive = descendants(os.getpid(), [])
        if ended is None and child not in alive:
            alive.append(child)  # not waited for yet, so its number is still its own
        if not alive and has_children:
            # One that forks and ends while /proc is read hides its child, which would outlive us.
            alive = descendants(os.getpid(), [])
        if not alive and ended is not None:
            break
        if ended is not None and not stopping:
            _say(status, "leftover", len(alive))
            stopping = True
        if stopping and kill_at is None:
            asked_at = time.monotonic()
            kill_at = asked_at + grace_s
            asked = _ask(alive, status)
            continue
        if missed := _missed(alive, asked):
            asked |= _ask(missed, status)
            continue
        if kill_at is not None and time.monotonic() >= give_up_at:
            _say(status, "left", *alive)
            break
        if kill_at is not None and time.monotonic() >= kill_at:
            if give_up_at == math.inf:
                left_s = asked_at + _grace_s(asked, grace_s) - time.monotonic()
                if left_s > 0:
                    kill_at = time.monotonic() + max(left_s, 0.05)
                    continue
                give_up_at = time.monotonic() + kill_s
                tidied_at = time.monotonic() + min(_TIDIES_S, kill_s / 2)
            # Again and again: one may have forked between the listing and its signal.
            kill_at = time.monotonic() + 0.05
            if time.monotonic() < tidied_at:
                alive = [pid for pid in alive if not _tidies_up(pid)]
            _say(status, "killed", *sorted({*alive} - killed))
            killed.update(alive)
            _signal(alive, signal.SIGKILL)
        timeout = None if kill_at is None else max(0.0, kill_at - time.monotonic())
        ready, _, _ = select.select(watched, [], [], timeout)
        if wake in ready:
            os.read(wake, 4096)
        if control in ready:
            if os.read(control, 1) == b"i":
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child, signal.SIGINT)
                _continue(descendants(os.getpid(), [child]), status)
            else:
                stopping = True
                watched = [wake]
    if ended is not None:
        _say(status, "ended", ended)


def _reap(child: int, ended: int | None) -> tuple[int | None, bool]:
    """Reap every dead child; the wait status of `child` if it was among them, and whether any
    child is left. Adopting orphans, this process has a child as long as it has a descendant."""
    while True:
        try:
            pid, wait_status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        if pid == child:
            ended = wait_status


def adopt_orphans() -> None:
    """Make this process the new parent of descendants whose own parents end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(ancestor: int, otherwise: list[int]) -> list[int]:
    """Every living descendant of `ancestor`; `otherwise` where /proc cannot be read."""
    children: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return otherwise
    for name in names:
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = _stat(name)
                if is_alive(fields):
                    children.setdefault(int(fields[1]), []).append(int(name))
    processes: list[int] = []
    pending = [ancestor]
    while pending:
        below = children.get(pending.pop(), [])
        processes += below
        pending += below
    return processes


def is_alive(stat: list[bytes]) -> bool:
    """Whether a process goes on, by the fields of its /proc/PID/stat from the state on.

    One whose main thread has ended by pthread_exit is a zombie by its state, yet its other threads
    run on: the field num_threads then counts more than the zombie.
    """
    state, threads = stat[0], int(stat[17])
    return state not in {b"Z", b"X"} or threads > 1


class _Asked:
    """The tick of the clock at which SIGTERM was sent to a process, and how long it had waited for
    a core until then."""

    def __init__(self, tick: int, waited_s: float) -> None:
        self.tick, self.waited_s = tick, waited_s


def _ask(pids: list[int], status: int) -> dict[int, _Asked]:
    """Send SIGTERM to these processes, and let stopped ones go on; when each was asked."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    # At the beginning of a tick: what starts because of the signal then never seems older than it.
    time.sleep(1 / _TICKS - time.clock_gettime(clock) % (1 / _TICKS))
    now = int(time.clock_gettime(clock) * _TICKS)
    _signal(pids, signal.SIGTERM)
    _continue(pids, status)
    return {pid: _Asked(now, _waited_s(pid)) for pid in pids}


def _grace_s(asked: dict[int, _Asked], grace_s: float) -> float:
    """The grace with what those that were asked have waited for a core since, and are still
    there."""
    waited_s = max((_waited_s(pid) - before.waited_s for pid, before in asked.items()), default=0.0)
    return grace_s + min(max(0.0, waited_s), MOST_WAITING * grace_s)


def _waited_s(pid: int) -> float:
    """How long the main thread of a process has waited for a core; 0 if that cannot be read."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:  # sched-stats(5)
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _missed(alive: list[int], asked: dict[int, _Asked]) -> list[int]:
    """Those that began after the others were listed and before their parent was asked to end. What
    a program starts because it was asked, to tidy up, is left to it."""
    missed = []
    first = min((before.tick for before in asked.values()), default=0)
    for pid in alive:
        if asked and pid not in asked:
            with contextlib.suppress(OSError, IndexError):
                fields = _stat(pid)
                parent = asked.get(int(fields[1]))
                if int(fields[19]) < (first if parent is None else parent.tick):
                    missed.append(pid)
    return missed


def _tidies_up(pid: int) -> bool:
    """Whether a process removes what the others leave once they have ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return _TIDIES_UP in file.read(4096)
    except OSError:
        return False


def _continue(pids: list[int], status: int) -> None:
    """Let the stopped ones among processes take the signal that waits for them."""
    stopped = [pid for pid in pids if _state(pid) == b"T"]
    _say(status, "continued", *stopped)
    _signal(stopped, signal.SIGCONT)


def _state(pid: int) -> bytes:
    try:
        return _stat(pid)[0]
    except (OSError, IndexError):
        return b""


def _stat(pid: int | str) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        # A name may hold blanks and parentheses (proc_pid_stat(5)): the last one ends it.
        return file.read().rpartition(b")")[2].split()


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _say(status: int, word: str, *numbers: int) -> None:
    with contextlib.suppress(OSError):
        # Few enough for a pipe to take whole.
        os.write(status, "".join(f"{word} {number}\n" for number in numbers[:_MOST_PIDS]).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
