"""What the operating system says of the threads that launch: running, waiting for a core, asleep.

Read from `/proc/PID/task/TID` from outside, a few microseconds a thread and reading; nothing runs
in the program that is looked at. Formats: Linux's Documentation/filesystems/proc.rst and
Documentation/scheduler/sched-stats.rst (`schedstat`: time on a core, time runnable without one).
"""

from __future__ import annotations

import os
from typing import NamedTuple

from gputui.model.leaves import Leaf

MAX_THREADS = 32
"""Threads of a process that are read: those that launch."""

# Numbers of system calls, x86-64 and aarch64 (asm-generic): what a thread that sleeps sleeps in.
_INPUT_CALLS = {
    "x86_64": {0, 7, 17, 19, 23, 45, 47, 232, 270, 271, 281, 299},
    "aarch64": {22, 63, 65, 67, 72, 73, 207, 212, 243},
}
"""read, poll, pread64, readv, select, recvfrom, recvmsg, epoll_wait and their like."""

_OUTPUT_CALLS = {
    "x86_64": {1, 3, 18, 20, 74, 75, 77, 82, 85, 87, 162, 263, 264, 277, 285, 296, 306, 316, 328},
    "aarch64": {35, 38, 46, 47, 57, 64, 66, 68, 70, 81, 82, 83, 84, 267, 276, 287},
}
"""write, pwrite64, writev, fsync, fdatasync, truncate, fallocate, sync, close, rename, unlink and
their like: a thread that waits for the disk in one of them writes a checkpoint or a log."""

_OPEN_CALLS = {"x86_64": {2: 2, 257: 3}, "aarch64": {56: 3}}
"""open, openat: which word of the line has the flags. What is opened for writing is saved: making
the file of the checkpoint before empty takes the disk's time."""

_WAITS_FOR_DISK = "D"


class Reading(NamedTuple):
    """What one thread came to by now, and where it would count if it sleeps."""

    run_ns: int
    delay_ns: int
    asleep_in: Leaf


class ThreadStates:
    """The threads of one process. Descriptors stay open: reading one costs 0.4 µs, opening 3."""

    def __init__(self, pid: int) -> None:
        self._folder = f"/proc/{pid}/task"
        self._files: dict[int, tuple[int, int, int]] = {}
        machine = os.uname().machine
        self._reads = _INPUT_CALLS.get(machine, set())
        self._writes = _OUTPUT_CALLS.get(machine, set())
        self._opens = _OPEN_CALLS.get(machine, {})

    def read(self, thread: int) -> Reading | None:
        """None where the thread is gone, or is nobody's to look at."""
        try:
            schedule, status, call = self._files.get(thread) or self._open(thread)
            run, delay = os.pread(schedule, 128, 0).split()[:2]
            run_ns, delay_ns = int(run), int(delay)
            asleep_in = self._asleep_in(status, call)
        except (OSError, ValueError):
            self._close(thread)
            return None
        return Reading(run_ns, delay_ns, asleep_in)

    def close(self) -> None:
        """Let all descriptors go."""
        for thread in list(self._files):
            self._close(thread)

    def _asleep_in(self, status: int, call: int) -> Leaf:
        state = os.pread(status, 512, 0).rpartition(b")")[2].split()[0].decode()
        on_disk = state == _WAITS_FOR_DISK
        number, words = self._call(call)
        if number is None:
            return Leaf.INPUT if on_disk else Leaf.WAIT
        if on_disk:  # a page of a mapped file is read in any call
            return Leaf.WAIT if self._writes_in(number, words) else Leaf.INPUT
        return Leaf.INPUT if number in self._reads else Leaf.WAIT

    def _writes_in(self, number: int, words: list[bytes]) -> bool:
        flags = self._opens.get(number, len(words))
        if flags < len(words):
            return bool(int(words[flags], 16) & os.O_ACCMODE)
        return number in self._writes

    @staticmethod
    def _call(call: int) -> tuple[int | None, list[bytes]]:
        """The number of the system call that a thread is in, if it may be known, and the words of
        its line."""
        if call < 0:
            return None, []
        try:
            words = os.pread(call, 256, 0).split()
        except OSError:
            return None, []
        return (int(words[0]) if words[0].isdigit() else None), words

    def _open(self, thread: int) -> tuple[int, int, int]:
        if len(self._files) >= MAX_THREADS:
            raise OSError
        flags = os.O_RDONLY | os.O_CLOEXEC
        folder = f"{self._folder}/{thread}"
        schedule = os.open(f"{folder}/schedstat", flags)
        try:
            status = os.open(f"{folder}/stat", flags)
        except OSError:
            os.close(schedule)
            raise
        try:
            call = os.open(f"{folder}/syscall", flags)
        except OSError:
            call = -1
        self._files[thread] = schedule, status, call
        return self._files[thread]

    def _close(self, thread: int) -> None:
        for descriptor in self._files.pop(thread, ()):
            if descriptor >= 0:
                os.close(descriptor)
