"""What is read of the threads of a living process from outside: their states, and the lines of
Python that they are at; and the readings kept of each thread.

For `attribute.reader`, which reads, and `host_threads`, which keeps the readings.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gputui.attribute.arrays import Int64s
from gputui.base.sanitize import sanitize
from gputui.model.events import NO_LEAF
from gputui.model.leaves import Leaf

# --- What a thread was at while it was away from CUDA, as the operating system saw it.

AWAY_LEAVES = (Leaf.HOST, Leaf.SCHEDULER, Leaf.INPUT, Leaf.WAIT)
"""What a thread may be at while it is away from CUDA."""

COLUMN = {leaf: column for column, leaf in enumerate(AWAY_LEAVES)}
"""The column of each leaf in the shares of an interval."""

# At least 200 seconds of readings every 50 ms: accounting is seconds behind at most.
READINGS_KEPT = 4096


class States:
    """Readings of one thread: time under each of AWAY_LEAVES up to each reading."""

    __slots__ = ("_last", "sums", "times")

    def __init__(self) -> None:
        self.times: list[int] = []
        self.sums: list[tuple[float, ...]] = []
        self._last: tuple[int, int] | None = None

    def add(self, time_ns: int, run_ns: int, delay_ns: int, asleep_in: Leaf) -> None:
        if self._last is None or time_ns <= self.times[-1]:
            self._last = run_ns, delay_ns
            self.times.append(time_ns)
            self.sums.append(self.sums[-1] if self.sums else (0.0,) * len(AWAY_LEAVES))
            return
        passed = time_ns - self.times[-1]
        run = min(passed, max(0, run_ns - self._last[0]))
        delay = min(passed - run, max(0, delay_ns - self._last[1]))
        by_leaf = {Leaf.HOST: run, Leaf.SCHEDULER: delay, asleep_in: passed - run - delay}
        before = self.sums[-1]
        self.sums.append(
            tuple(
                before_ns + by_leaf.get(leaf, 0)
                for before_ns, leaf in zip(before, AWAY_LEAVES, strict=True)
            )
        )
        self.times.append(time_ns)
        self._last = run_ns, delay_ns
        if len(self.times) > 2 * READINGS_KEPT:
            del self.times[:READINGS_KEPT], self.sums[:READINGS_KEPT]

    def shares(
        self, starts: Int64s, ends: Int64s, unread: Leaf = Leaf.HOST
    ) -> npt.NDArray[np.float64]:
        """How much of each interval is under each leaf; all of it under `unread` where there is no
        reading."""
        out = np.zeros((len(starts), len(AWAY_LEAVES)))
        if len(self.times) < 2:
            out[:, COLUMN[unread]] = 1.0
            return out
        # Those before and after these intervals change nothing: an hour has tens of thousands.
        first = max(0, bisect_right(self.times, int(starts.min())) - 1) if len(starts) else 0
        last = bisect_left(self.times, int(ends.max())) + 1 if len(starts) else 1
        times, sums = np.array(self.times[first:last]), np.array(self.sums[first:last])
        for column in range(len(AWAY_LEAVES)):
            out[:, column] = np.interp(ends, times, sums[:, column]) - np.interp(
                starts, times, sums[:, column]
            )
        whole = out.sum(axis=1)
        unknown = whole <= 0
        out[unknown, COLUMN[unread]], whole[unknown] = 1.0, 1.0
        shares: npt.NDArray[np.float64] = out / whole[:, np.newaxis]
        return shares


# --- At which line of the program its Python threads were, as they were read.

LINE_NS = 200_000_000
"""A line read this long before, two readings, still says where a thread is."""


class LineReading(NamedTuple):
    """A reading: when a thread was at which line; the leaf that its frames indicate, if any;
    whether they fetch the program's input; and the libraries' functions in which the line is,
    outermost first."""

    time_ns: int
    line: int
    leaf: Leaf | None = None
    fetches: bool = False
    inside: tuple[int, ...] = ()


class LineHit(NamedTuple):
    """A reading that counts for idle time. `leaf` is a leaf's number, NO_LEAF, or what stands for a
    thread beside the one that launches."""

    time_ns: int
    line: int
    leaf: int
    inside: tuple[int, ...]

    @staticmethod
    def from_reading(reading: LineReading, leaf: int | None = None) -> LineHit:
        """A hit of a reading, with the leaf that its frames indicate, or with `leaf`."""
        if leaf is None:
            leaf = NO_LEAF if reading.leaf is None else int(reading.leaf)
        return LineHit(reading.time_ns, reading.line, leaf, reading.inside)


MOSTLY = 0.6
"""The share of a line's readings in one function from which that function stands for the line."""


class InsideFunctions:
    """The function of a library in which a line of the program is, most of the time."""

    def __init__(self) -> None:
        self._readings = 0
        self._counts = Counter[int]()
        self._depths = Counter[int]()

    def add(self, functions: tuple[int, ...]) -> None:
        """One reading, the outermost first; a function that calls itself counts once."""
        self._readings += 1
        for depth, function in enumerate(dict.fromkeys(functions)):
            self._counts[function] += 1
            self._depths[function] += depth

    def mostly(self) -> tuple[int, int]:
        """The innermost function in which most readings are, and how many these are; 0 and 0 if
        there is none."""
        functions = [
            function for function, count in self._counts.items() if count >= MOSTLY * self._readings
        ]
        if not functions:
            return 0, 0
        deepest = max(
            functions, key=lambda function: self._depths[function] / self._counts[function]
        )
        return deepest, self._counts[deepest]


class LineReadings:
    """The readings of all threads of one process, in order of time."""

    def __init__(self) -> None:
        self._of: dict[int, list[LineReading]] = {}

    @property
    def threads(self) -> list[int]:
        """The threads that are read."""
        return list(self._of)

    def add(self, thread: int, reading: LineReading) -> None:
        """Add a reading of a thread, later than those before it."""
        self._of.setdefault(thread, []).append(reading)

    def within(self, thread: int, starts: Int64s, ends: Int64s) -> list[LineReading]:
        """A thread's readings that lie in one of the intervals, which are disjoint and in order."""
        readings = self._of.get(thread)
        if not readings or not len(starts):
            return []
        first = bisect_left(readings, int(starts[0]), key=_moment)
        last = bisect_left(readings, int(ends.max()), key=_moment)
        near = readings[first:last]
        if not near:
            return []
        times = np.array([reading.time_ns for reading in near])
        interval = np.searchsorted(starts, times, side="right") - 1
        inside = (interval >= 0) & (times < ends[np.maximum(interval, 0)])
        return [near[row] for row in np.flatnonzero(inside).tolist()]

    def beside(self, thread: int, time_ns: int) -> list[tuple[int, LineReading]]:
        """The other threads, and where they were when all were read at this moment."""
        others: list[tuple[int, LineReading]] = []
        for other, readings in self._of.items():
            place = bisect_left(readings, time_ns, key=_moment)
            if other != thread and place < len(readings) and readings[place].time_ns == time_ns:
                others.append((other, readings[place]))
        return others

    def times_and_lines(self, thread: int) -> tuple[Int64s, Int64s]:
        """When a thread's line was read, in order, and the line."""
        readings = self._of.get(thread, ())
        return (
            np.array([reading.time_ns for reading in readings], np.int64),
            np.array([reading.line for reading in readings], np.int64),
        )

    def newest(self, thread: int, since_ns: int, until_ns: int) -> int | None:
        """The newest line of a thread within an interval, or shortly before."""
        readings = self._of.get(thread, [])
        place = bisect_left(readings, until_ns, key=_moment) - 1
        if place < 0 or readings[place].time_ns < since_ns - LINE_NS:
            return None
        return readings[place].line

    def forget(self, before_ns: int) -> None:
        """Drops the readings before a time, if many are kept."""
        for readings in self._of.values():
            if len(readings) > READINGS_KEPT:
                del readings[: bisect_left(readings, before_ns, key=_moment)]


def _moment(reading: LineReading) -> int:
    return reading.time_ns


# --- What the operating system says of the threads that launch: running, waiting for a core,
# asleep.
#
# Read from `/proc/PID/task/TID` from outside, a few microseconds a thread and reading; nothing
# runs in the program that is looked at. Formats: Linux's Documentation/filesystems/proc.rst and
# Documentation/scheduler/sched-stats.rst (`schedstat`: time on a core, time runnable without one).

MAX_THREADS = 32
"""How many threads of a process are read: those that launch."""

# Numbers of system calls, x86-64 and aarch64 (asm-generic): what a thread that sleeps sleeps in.
# read, poll, pread64, readv, select, recvfrom, recvmsg, epoll_wait and their like.
_INPUT_CALLS = {
    "x86_64": {0, 7, 17, 19, 23, 45, 47, 232, 270, 271, 281, 299},
    "aarch64": {22, 63, 65, 67, 72, 73, 207, 212, 243},
}

# write, pwrite64, writev, fsync, fdatasync, truncate, fallocate, sync, close, rename, unlink and
# their like: a thread that waits for the disk in one of them writes a checkpoint or a log.
_OUTPUT_CALLS = {
    "x86_64": {1, 3, 18, 20, 74, 75, 77, 82, 85, 87, 162, 263, 264, 277, 285, 296, 306, 316, 328},
    "aarch64": {35, 38, 46, 47, 57, 64, 66, 68, 70, 81, 82, 83, 84, 267, 276, 287},
}

# open, openat: which word of the line has the flags. What is opened for writing is saved: making
# the file of the checkpoint before empty takes the disk's time.
_OPEN_CALLS = {"x86_64": {2: 2, 257: 3}, "aarch64": {56: 3}}

_WAITS_FOR_DISK = "D"


class ThreadReading(NamedTuple):
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

    def read(self, thread: int) -> ThreadReading | None:
        """None where the thread is gone, or is nobody's to look at."""
        try:
            schedule, status, call = self._files.get(thread) or self._open(thread)
            run, delay = os.pread(schedule, 128, 0).split()[:2]
            run_ns, delay_ns = int(run), int(delay)
            asleep_in = self._asleep_in(status, call)
        except (OSError, ValueError):
            self._close(thread)
            return None
        return ThreadReading(run_ns, delay_ns, asleep_in)

    def close(self) -> None:
        """Close the files of all threads; nothing can be read afterwards."""
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
            # Opened to be written: a wait for the disk while a checkpoint is saved is no wait for
            # the next batch.
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


# --- Which lines of the program its threads were at: what the start-up hook wrote, read as it
# grows.
#
# The file is written by the program that is looked at: anything may stand in it.

MOST_A_READ = 1 << 20
MOST_LINES = 20_000
MOST_FUNCTIONS = 32

LEAF_OF_KIND = {
    "c": Leaf.COMPILE, "i": Leaf.INPUT, "q": Leaf.INPUT, "r": Leaf.RANK, "w": Leaf.WAIT,
}  # fmt: skip
"""What a frame on the stack says of a thread that is away from CUDA."""

RECOMPUTES = "k"
"""The kind of autograd's threads while they compute a forward pass again."""

HOLDS_LOCK = "l"
"""The kind of a thread that held Python's lock while nobody else could go on."""

FETCHES = "i"
"""The kind that fetches its input by itself: of a queue that is read nobody knows."""


class LineOfCode(NamedTuple):
    """A line of a program."""

    path: str
    line: int
    function: str


class Sample(NamedTuple):
    """A sample of where one thread was. `kind` is c, i, k, l, q, r, w or -. `inside` are the
    libraries' functions in which the line is, the outermost first."""

    time_ns: int
    thread: int
    line: int
    kind: str
    inside: tuple[int, ...] = ()


class PythonLines:
    """The lines of one process."""

    def __init__(self, folder: Path, pid: int) -> None:
        self._path = folder / f"lines-{pid}"
        self._at = 0
        self._rest = b""
        self.lines: dict[int, LineOfCode] = {}
        self.facts: list[str] = []
        """What `definitions.ProgramFacts` reads, until somebody takes it."""

    def read(self) -> list[Sample]:
        """The samples that the process wrote since the last call, in its order."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return []
        try:
            data = os.pread(descriptor, MOST_A_READ, self._at)
        except OSError:
            return []
        finally:
            os.close(descriptor)
        self._at += len(data)
        whole, _, self._rest = (self._rest + data).rpartition(b"\n")
        self._rest = self._rest[-4096:]
        samples: list[Sample] = []
        for text in whole.decode("utf-8", "replace").split("\n"):
            try:
                self._parse(text, samples)
            except ValueError:
                continue
        return samples

    def _parse(self, text: str, fields: list[Sample]) -> None:
        if text.startswith("d "):
            _, number, line, function, path = text.split(" ", 4)
            if len(self.lines) < MOST_LINES:
                self.lines[int(number)] = LineOfCode(
                    sanitize(path, 512), int(line), sanitize(function, 128)
                )
        elif text.startswith(("g ", "c ")):
            self.facts.append(text)
        elif text.startswith("s "):
            _, moment, *entries = text.split(" ")
            for entry in entries:
                thread, number, kind, functions = entry.split(":")
                inside = functions.split(".", MOST_FUNCTIONS)[:MOST_FUNCTIONS] if functions else ()
                fields.append(
                    Sample(int(moment), int(thread), int(number), kind, tuple(map(int, inside)))
                )
