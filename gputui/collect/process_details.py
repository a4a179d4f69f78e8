"""One process read on demand: what a table has no room for, and its environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil

from gputui.base.errors import GputuiError
from gputui.base.sanitize import sanitize
from gputui.collect.processes import start_time_ns

T = TypeVar("T")

_LONGEST = 32_768
"""Characters kept of one variable or argument: nobody reads more."""


class ProcessGoneError(GputuiError):
    """The process has ended, or its pid was reused. One line for people."""


@dataclass(frozen=True, slots=True)
class ProcessDetails:
    """What the host knows about one process. What it will not reveal is None, with a reason.

    Control characters are removed. The environment is never recorded.
    """

    pid: int
    start_time_ns: int
    command: tuple[str, ...]
    user: str | None
    executable: str | None
    folder: str | None
    status: str | None
    parent_pid: int | None
    children: tuple[int, ...] | None
    threads: int | None
    open_files: int | None
    nice: int | None
    cpu_user_s: float | None
    cpu_system_s: float | None
    resident_bytes: int | None
    virtual_bytes: int | None
    read_bytes: int | None
    written_bytes: int | None
    environment: dict[str, str] | None
    unavailable: dict[str, str]


def same_process(pid: int, start_ns: int) -> psutil.Process:
    """The process with this pid and start time. Raises ProcessGoneError."""
    try:
        process = psutil.Process(pid)
        started_ns = start_time_ns(process)
    except (psutil.Error, ValueError, OverflowError):
        raise ProcessGoneError(f"process {pid} has ended") from None
    if started_ns != start_ns:
        raise ProcessGoneError(f"process {pid} has ended, and another has its pid now")
    return process


def process_details(pid: int, start_ns: int) -> ProcessDetails:
    """Everything about the process `pid` that started at `start_ns` (a sample's `start_time_ns`).
    Raises ProcessGoneError. Takes milliseconds: not for the screen's thread.
    """
    process = same_process(pid, start_ns)
    read = _Reader()
    times: Any = read("cpu_user_s", process.cpu_times)
    memory: Any = read("resident_bytes", process.memory_info)
    traffic: Any = read("read_bytes", process.io_counters)
    children: Any = read("children", process.children)
    environment: Any = read("environment", process.environ)
    return ProcessDetails(
        pid=pid,
        start_time_ns=start_ns,
        command=tuple(_text(word) for word in read("command", process.cmdline) or ()),
        user=read("user", lambda: _text(process.username())),
        executable=read("executable", lambda: _text(process.exe())),
        folder=read("folder", lambda: _text(process.cwd())),
        status=read("status", lambda: str(process.status())),
        parent_pid=read("parent_pid", process.ppid),
        children=None if children is None else tuple(child.pid for child in children),
        threads=read("threads", process.num_threads),
        open_files=read("open_files", lambda: int(process.num_fds())),
        nice=read("nice", lambda: int(process.nice())),
        cpu_user_s=None if times is None else times.user,
        cpu_system_s=None if times is None else times.system,
        resident_bytes=None if memory is None else memory.rss,
        virtual_bytes=None if memory is None else memory.vms,
        read_bytes=None if traffic is None else traffic.read_bytes,
        written_bytes=None if traffic is None else traffic.write_bytes,
        environment=(
            None
            if environment is None
            else {_text(name): _text(value) for name, value in sorted(environment.items())}
        ),
        unavailable=read.reasons,
    )


class _Reader:
    """Makes calls, and keeps the reason for each that is refused."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def __call__(self, name: str, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except psutil.AccessDenied:
            self.reasons[name] = "this user may not read it"
        except (psutil.Error, OSError, KeyError, AttributeError) as error:
            self.reasons[name] = sanitize(f"cannot be read: {error}", 200)
        return None


def _text(value: object) -> str:
    return sanitize(str(value), _LONGEST)
