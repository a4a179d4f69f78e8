"""Signals to displayed processes, never to another process that has reused the pid."""

from __future__ import annotations

import os
import signal

import psutil

from gputui.base.errors import GputuiError
from gputui.collect.process_details import ProcessGoneError, same_process

SIGNALS = {"TERM": signal.SIGTERM, "INT": signal.SIGINT, "KILL": signal.SIGKILL}
"""The signals offered, by name."""


class SignalRefusedError(GputuiError):
    """The signal was not sent. One line for people."""


def send_signal(pid: int, start_ns: int, name: str) -> None:
    """Send a signal of `SIGNALS` to the process `pid` that started at `start_ns`.

    Raises ProcessGoneError if that process has ended, even if its pid was reused;
    SignalRefusedError for a pid that is not a single process, for init, for gputui itself, and if
    the system does not permit it. A pidfd holds the process between the check and the signal;
    without pidfds (Linux before 5.3) the check comes just before the signal.
    """
    number = SIGNALS.get(name)
    if number is None:
        raise SignalRefusedError(f"{name} is not one of {', '.join(SIGNALS)}")
    if pid <= 1:
        raise SignalRefusedError(f"no signal is sent to process {pid}")
    if pid == os.getpid():
        raise SignalRefusedError("that is gputui itself: quit it instead")
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        raise ProcessGoneError(f"process {pid} has ended") from None
    except (OSError, AttributeError):
        _send(pid, start_ns, number, None)
        return
    try:
        _send(pid, start_ns, number, held)
    finally:
        os.close(held)


def _send(pid: int, start_ns: int, number: signal.Signals, held: int | None) -> None:
    process = same_process(pid, start_ns)
    try:
        if held is None:
            process.send_signal(number)
        else:
            signal.pidfd_send_signal(held, number)
    except (ProcessLookupError, psutil.NoSuchProcess):
        raise ProcessGoneError(f"process {pid} has ended") from None
    except (PermissionError, psutil.AccessDenied):
        raise SignalRefusedError(
            f"{number.name} to process {pid}: not allowed, it belongs to another user"
        ) from None
