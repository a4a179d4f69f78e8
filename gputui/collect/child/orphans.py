"""What a killed supervisor leaves behind: it falls to this process, which ends it by force."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil

from gputui.collect.child.supervisor import adopt_orphans, descendants

_PATIENCE_S = 5.0
"""A process that hangs in the kernel cannot be ended, nor waited for any longer than this."""

_supervisors: set[int] = set()


def expect_orphans() -> None:
    """Have the orphans of supervisors fall to this process. Call before one is started."""
    adopt_orphans()


def supervisor_started(pid: int) -> None:
    """`pid` supervises: neither it nor what is below it is an orphan."""
    _supervisors.add(pid)


def supervisor_gone(pid: int) -> None:
    """The supervisor `pid` has ended and was waited for."""
    _supervisors.discard(pid)


def end_orphans() -> None:
    """Kill what a supervisor left that was killed before its work was done and waited for."""
    until = time.monotonic() + _PATIENCE_S
    while (orphans := _orphans()) and time.monotonic() < until:
        for orphan in orphans:
            for pid in (orphan, *descendants(orphan, [])):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(orphan, os.WNOHANG)[0] == 0:
                    time.sleep(0.01)


def _orphans() -> list[int]:
    """Children in sessions of their own: what gputui starts without a supervisor shares its."""
    own = os.getsid(0)
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(ProcessLookupError):
            if child.pid not in _supervisors and os.getsid(child.pid) != own:
                found.append(child.pid)
    return found
