"""Cleaning up after a killed supervisor: its children become ours, and are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil

from gputui.collect.child.supervisor import adopt_orphans, descendants

_PATIENCE_S = 5.0
"""Longest wait for one process: one that hangs in the kernel cannot be killed."""

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
    """Children in other sessions: what gputui starts without a supervisor shares its own."""
    own = os.getsid(0)
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(ProcessLookupError):
            if child.pid not in _supervisors and os.getsid(child.pid) != own:
                found.append(child.pid)
    return found
