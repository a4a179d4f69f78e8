"""At which lines of the program the CPU was: while the GPU idled, where it waits and allocates, and
where it launches."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping
from pathlib import PurePath
from typing import NamedTuple

from gputui.model import units
from gputui.model.events import (
    BESIDE_ASLEEP,
    BESIDE_RUNNING,
    NO_LEAF,
    OUTSIDE_STEPS,
    RECOMPUTING,
    LineSamples,
    Scope,
)
from gputui.model.leaves import Leaf
from gputui.state import Run

LEAST_SAMPLES = 10
"""Readings of the program's line that make an estimate."""

MOSTLY = 0.5
"""Share of the readings at a line from which it is where the program mostly was."""


LEAST_RECOMPUTED = 3


class LikeliestLine(NamedTuple):
    """A line of the program: in how many of all samples the program was there, and the library's
    function that it called in most of them, empty if there is none."""

    file: str
    number: int
    caller: str
    """The program's function that the line is in."""
    seen: int
    samples: int
    inside: str = ""

    @property
    def where(self) -> str:
        """The line as reports print it: file, number and the calling function."""
        return printed_line(self.file, self.number, self.caller)

    @property
    def function(self) -> str:
        """The name of that function only."""
        return self.inside.partition(" ")[0]


def likeliest_line(
    run: Run, process: int | None = None, leaf: Leaf | None = None
) -> LikeliestLine | None:
    """The line at which a run, or one of its processes, was most often; None if too little was
    seen. With `leaf`, see `line_shares`."""
    return next(iter(line_shares(run, process, leaf)), None)


# Read within CUDA calls, all others outside.
_CALLS = (Leaf.SYNC, Leaf.ALLOCATION)

# A copy from or to pageable memory holds the thread up as a wait does.
_READ_AS = {Leaf.COPY_PAGEABLE: Leaf.SYNC}

AT_A_LINE = (
    Leaf.HOST, Leaf.INPUT, Leaf.WAIT, Leaf.SCHEDULER, Leaf.COMPILE, Leaf.RANK,
    Leaf.SYNC, Leaf.ALLOCATION, Leaf.COPY_PAGEABLE, Leaf.LAUNCH,
)  # fmt: skip
"""The leaves for which lines are read."""


def line_shares(
    run: Run, process: int | None = None, leaf: Leaf | None = None
) -> list[LikeliestLine]:
    """The lines at which a run, or one of its processes, was, the most frequent first; none if too
    little was seen. With `leaf`, only samples whose frames indicate that leaf count or, if no
    frames do, samples whose frames indicate nothing. Lines in calls that wait or allocate are given
    for those leaves only; for LAUNCH they are the lines that launched."""
    # Several processes run one program: a line of theirs is the same.
    counts = Counter[_Line | None]()
    calls = defaultdict[_Line | None, Counter[_Line | None]](Counter)
    for key, number, seen in _readings(run, leaf):
        if process in (None, key):
            line = _defined(run, key, number)
            counts[line] += seen.samples
            calls[line][_defined(run, key, seen.inside)] += seen.inside_samples
    whole = sum(counts.values())
    if whole < LEAST_SAMPLES:
        return []
    likeliest: list[LikeliestLine] = []
    for line, seen_there in counts.most_common():
        if line is not None:
            [(called, times)] = calls[line].most_common(1)
            inside = _in_words(called) if called is not None and 2 * times > seen_there else ""
            file = PurePath(line.path).name
            likeliest.append(
                LikeliestLine(file, line.number, line.function, seen_there, whole, inside)
            )
    return likeliest


def called_in(run: Run, function: str) -> str:
    """The line at which most samples were in such a function of a library, if only one was; empty
    where none was."""
    counts = Counter[_Line | None]()
    for seen in _counted(run):
        inside = _defined(run, seen.process, seen.inside)
        if inside is not None and inside.function == function:
            counts[_defined(run, seen.process, seen.line)] += seen.inside_samples
    line = next((line for line, _ in counts.most_common() if line is not None), None)
    return printed_line(line.path, line.number, line.function) if line is not None else ""


def launched_at(run: Run, kernels: Container[int], most: int = 2) -> str:
    """The lines at which samples saw these kernels launched, the most frequent first, as a phrase;
    empty where none did."""
    counts = Counter[_Line | None]()
    for seen in run.line_launches.values():
        if seen.kernel and seen.kernel in kernels:
            counts[_defined(run, seen.process, seen.line)] += seen.readings
    whole = counts.total()
    likeliest = [(line, times) for line, times in counts.most_common(most) if line is not None]
    return " or ".join(
        f"{printed_line(line.path, line.number, line.function)} ({_of_samples(times, whole)})"
        for line, times in likeliest
        if 3 * times >= whole
    )


def kernels_at(run: Run, line: LikeliestLine) -> set[int]:
    """The kernels, by their numbers, that samples saw launched at a line."""
    kernels: set[int] = set()
    for seen in run.line_launches.values():
        where = _defined(run, seen.process, seen.line) if seen.kernel else None
        if (
            where is not None
            and printed_line(where.path, where.number, where.function) == line.where
        ):
            kernels.add(seen.kernel)
    return kernels


def _of_samples(times: int, whole: int) -> str:
    return f"{times} of {whole} samples" if whole > 1 else "one sample"


def launched_share(run: Run, where: str) -> float | None:
    """Share, 0 to 1, of the GPU time whose launch samples saw that a line of the program launched,
    by the line as it is printed; None where samples are few."""
    readings = its_ns = whole_ns = 0
    for seen in run.line_launches.values():
        if not seen.kernel:
            line = _defined(run, seen.process, seen.line)
            is_its = line and printed_line(line.path, line.number, line.function) == where
            readings, whole_ns = readings + seen.readings, whole_ns + seen.gpu_ns
            its_ns += seen.gpu_ns if is_its else 0
    return its_ns / whole_ns if readings >= LEAST_SAMPLES and whole_ns else None


class _Seen(NamedTuple):
    samples: int
    inside: int = 0
    inside_samples: int = 0


def _readings(run: Run, leaf: Leaf | None) -> Iterator[tuple[int, int, _Seen]]:
    """The process, the number of the line in it, and how often it was read for a leaf."""
    if leaf is Leaf.LAUNCH:
        for launched in run.line_launches.values():
            if not launched.kernel:
                yield launched.process, launched.line, _Seen(launched.readings)
        return
    leaf = _READ_AS.get(leaf, leaf) if leaf is not None else None
    counted = _counted(run)
    is_said = leaf in _CALLS or any(line.leaf == leaf for line in counted)
    # Readings within a thread's waits for the GPU are kept for idle.sync, which had no line.
    said = leaf if is_said else NO_LEAF
    for line in counted:
        own = line.leaf not in (*_CALLS, BESIDE_RUNNING, BESIDE_ASLEEP, RECOMPUTING)
        if own if leaf is None else line.leaf == said:
            yield line.process, line.line, _Seen(line.samples, line.inside, line.inside_samples)


def _counted(run: Run) -> list[LineSamples]:
    """The readings in steps, or where there are none, all."""
    has_steps = any(loop.steps for loop in run.loops.values() if loop.scope == Scope.STEADY)
    return [
        line for line in run.line_samples.values() if not has_steps or line.loop != OUTSIDE_STEPS
    ]


class Beside(NamedTuple):
    """The function of the program that another thread was in while the launching one slept, and
    whether that one ran."""

    function: str
    file: str
    ran: bool

    @property
    def where(self) -> str:
        """The place as reports print it: the function, then its file."""
        return f"{self.function} ({self.file})"


def beside(run: Run, leaves: Mapping[Leaf, int]) -> Beside | None:
    """Where another thread was in most readings of a launching thread that sleeps; None where too
    little was seen, or nothing of the kind. By the time under these `leaves` it is known how many
    of its readings found it asleep."""
    counts: dict[int, Counter[tuple[str, str]]] = defaultdict(Counter)
    silent = 0
    for seen in _counted(run):
        line = _defined(run, seen.process, seen.line)
        if seen.leaf == NO_LEAF:
            silent += seen.samples
        elif line is not None and not _INSTALLED.match(line.path):
            counts[seen.leaf][line.function, PurePath(line.path).name] += seen.samples
    away_ns = sum(leaves.get(leaf, 0) for leaf in (Leaf.HOST, Leaf.SCHEDULER, Leaf.WAIT))
    asleep = silent * leaves.get(Leaf.WAIT, 0) / away_ns if away_ns else 0.0
    for leaf in (BESIDE_RUNNING, BESIDE_ASLEEP):
        for place, times in counts[leaf].most_common(1):
            if times >= max(LEAST_SAMPLES, MOSTLY * asleep):
                return Beside(*place, ran=leaf == BESIDE_RUNNING)
    return None


class CalledLine(NamedTuple):
    """Calls of one kind at one line of the program, in all of its processes."""

    where: str
    """File, number and function."""
    call: str
    calls: int
    tensor_bytes: int
    shape: str
    """Shape, type and device of one of the newest tensors that the line was called with; empty if
    there was none."""

    @property
    def is_of_gpu(self) -> bool:
        """Whether the tensors were on a GPU."""
        return self.shape.endswith(":gpu")

    def in_words(self, steps: int) -> str:
        """The calls, of which so many steps were seen, as evidence."""
        method = self.call if "." in self.call else f".{self.call}"
        call = self.call if self.call in ("float", "int", "bool") else method
        times = (
            f"{self.calls / steps:,.1f} × a step"
            if self.calls >= steps > 0
            else f"{self.calls:,} ×"
        )
        each = ""
        if self.shape:
            shape, kind, _ = self.shape.split(":")
            size = units.size(self.tensor_bytes / max(1, self.calls))
            each = f", {shape.replace('x', ' × ')} {kind}, {size} each"
            if self.tensor_bytes != self.calls * _bytes_of(shape, kind):  # tensors of several sizes
                each = f", {kind}, {size} each on average"
        way = f" {'from' if self.is_of_gpu else 'to'} the GPU" if self.call == "to" else ""
        return f"{call}() at {self.where}: {times}{each}{way}"


def _bytes_of(shape: str, kind: str) -> int:
    """The size of a tensor; 0 of a kind whose name has no width."""
    bits = re.search(r"\d+", kind)
    numbers = [int(part) for part in shape.split("x") if part.isdigit()]
    return math.prod(numbers) * int(bits[0]) // 8 if bits else 0


def called_lines(run: Run, calls: Container[str]) -> list[CalledLine]:
    """The lines that make some calls (LineCalls): those for the most bytes first, then the most
    frequent."""
    sums: dict[tuple[_Line, str], tuple[int, int, str]] = {}
    for seen in run.line_calls.values():
        line = _defined(run, seen.process, seen.line)
        if seen.call in calls and line is not None:
            count, size, _ = sums.get((line, seen.call), (0, 0, ""))
            sums[line, seen.call] = count + seen.calls, size + seen.tensor_bytes, seen.tensor
    lines = [
        CalledLine(printed_line(line.path, line.number, line.function), call, *its)
        for (line, call), its in sums.items()
    ]
    return sorted(lines, key=lambda line: (-line.tensor_bytes, -line.calls, line.where))


SET = 0.5
"""Part of the looks at torch's settings from which a program runs with one."""


def is_set(run: Run, setting: str) -> bool:
    """Whether most looks of the hook found torch set so."""
    looks = Counter[str]()
    for seen in run.line_calls.values():
        looks[seen.call] += seen.calls
    return looks[f"setting.{setting}"] > SET * looks["setting.looks"]


def recomputed(run: Run) -> str | None:
    """The program's line in the forward passes that backward passes compute again, the most
    frequent one, empty where all is a library's; None where too few readings saw that."""
    counts = Counter[_Line | None]()
    for seen in _counted(run):
        if seen.leaf == RECOMPUTING:
            counts[_defined(run, seen.process, seen.line)] += seen.samples
    if sum(counts.values()) < LEAST_RECOMPUTED:
        return None
    own = (
        candidate
        for candidate, _ in counts.most_common()
        if candidate and not _INSTALLED.match(candidate.path)
    )
    line = next(own, None)
    return printed_line(line.path, line.number, line.function) if line else ""


def printed_line(path: str, number: int, function: str) -> str:
    """A line of the program as a person reads it."""
    return f"{PurePath(path).name}:{number} {function}"


class _Line(NamedTuple):
    path: str
    number: int
    function: str


def _defined(run: Run, process: int, number: int) -> _Line | None:
    line = run.lines.get((process, number))
    return _Line(line.path, line.number, line.function) if line is not None else None


_INSTALLED = re.compile(r".*/(?:site-packages|dist-packages|lib/python3[.\d]*)/")


def _in_words(function: _Line) -> str:
    """A library's function, with its file as one imports it."""
    return f"{function.function} ({_INSTALLED.sub('', function.path)}:{function.number})"
