"""The parent of a run's processes: a small program that never outlives them.

    python -I -S supervisor.py CONTROL_FD STATUS_FD GRACE_SECONDS CMD ARG ...

It starts CMD in a new session, adopts every orphaned descendant, and ends them all (SIGTERM,
then SIGKILL after the grace time) when CMD has ended, or when a byte or end of file arrives on
CONTROL_FD, which includes the death of gputui. The byte "i" on CONTROL_FD is passed on as
SIGINT instead. On STATUS_FD it writes lines:

    started PID | failed ERRNO | leftover COUNT | ended WAITSTATUS

It imports little, and only from the standard library, because it starts with every run.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36


def main(arguments: list[str]) -> int:
    """Run the command in `arguments`; returns 0 once every descendant is gone."""
    control, status = int(arguments[0]), int(arguments[1])
    grace_s = float(arguments[2])
    command = arguments[3:]
    os.set_inheritable(control, False)
    os.set_inheritable(status, False)
    adopt_orphans()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
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
        _say(status, f"failed {error.errno}")
        return 1
    _say(status, f"started {child}")
    return _supervise(child, control, status, wake_read, grace_s)


def _supervise(child: int, control: int, status: int, wake: int, grace_s: float) -> int:
    ended: int | None = None
    stopping = False
    kill_at: float | None = None
    watched = [control, wake]
    while True:
        ended = _reap(child, ended)
        alive = descendants(os.getpid(), [] if ended is not None else [child])
        if not alive and ended is not None:
            break
        if ended is not None and not stopping:
            _say(status, f"leftover {len(alive)}")
            stopping = True
        if stopping and kill_at is None:
            kill_at = time.monotonic() + grace_s
            _signal(alive, signal.SIGTERM)
        elif kill_at is not None and time.monotonic() >= kill_at:
            kill_at = time.monotonic() + 0.05
            _signal(alive, signal.SIGKILL)
        timeout = None if kill_at is None else max(0.0, kill_at - time.monotonic())
        ready, _, _ = select.select(watched, [], [], timeout)
        if wake in ready:
            os.read(wake, 4096)
        if control in ready:
            if os.read(control, 1) == b"i":
                _signal(alive, signal.SIGINT)
            else:
                stopping = True
                watched = [wake]
    _say(status, f"ended {ended}")
    return 0


def _reap(child: int, ended: int | None) -> int | None:
    """Reap every dead child; the wait status of `child` if it was among them."""
    while True:
        try:
            pid, wait_status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        if pid == child:
            ended = wait_status


def adopt_orphans() -> None:
    """Make this process the new parent of descendants whose own parents end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(ancestor: int, known: list[int]) -> list[int]:
    """Every living descendant of `ancestor`; those in `known` if there is no /proc."""
    children: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return known
    for name in names:
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                if fields[0] != b"Z":
                    children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    pending = [ancestor]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _say(status: int, words: str) -> None:
    with contextlib.suppress(OSError):
        os.write(status, f"{words}\n".encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
