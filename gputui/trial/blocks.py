"""What a run says of its steps: blocks, pairs of them with a cure and without, losses and outputs.

inject/hook/trial.py and gputui/cures write it to the run's private folder, lines of JSON. The
program may have written anything there: what is no such line is left out, and of each file at most
MOST_BYTES are read.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from gputui.base.decoding import json_decoder
from gputui.base.sanitize import sanitize

MOST_BYTES = 16 << 20
MOST_PROCESSES = 256

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class Block(msgspec.Struct, frozen=True):
    """Steps next to one another, ended by waiting for the GPU."""

    pair: _Count
    cure: str
    on: bool
    steps: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
    ns: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
    first: _Count
    """The ordinal of the first `backward` in it."""
    settled_ns: _Count = 0
    settled_steps: _Count = 0
    """What went before it, with the switch."""
    waited_ns: _Count | None = None
    """How long it waited for what loaders' workers and other threads make, with what went before
    it; None where no such loader is known, and that is little."""
    beside: tuple[str, ...] = ()
    """Other cures that were on."""

    @property
    def step_ns(self) -> float:
        """The mean time of a step."""
        return self.ns / self.steps

    @property
    def whole_step_ns(self) -> float:
        """The same with what went before it."""
        return (self.ns + self.settled_ns) / (self.steps + self.settled_steps)


class Pair(NamedTuple):
    """Two blocks next to one another, in either order: without a cure and with it."""

    off: Block
    on: Block

    @property
    def beside(self) -> tuple[str, ...]:
        """Other cures that were on in both."""
        return self.on.beside

    @property
    def ratio(self) -> float:
        """How many times faster a step is with it."""
        return self.off.step_ns / self.on.step_ns

    @property
    def without_settling(self) -> Pair:
        """The pair as if nothing had settled after its switches: kernels are loaded then."""
        alone = (msgspec.structs.replace(each, settled_ns=0, settled_steps=0) for each in self)
        return Pair(*alone)

    def saved_ns(self, least: float) -> float:
        """What a step takes less with it, of all the time since each switch, beyond a gain of
        `least`."""
        return self.off.whole_step_ns - least * self.on.whole_step_ns


class _Row(msgspec.Struct):
    """Any line: which fields it has says what it is."""

    site: str = ""
    source: str = ""
    first: int = 0
    switch: str = ""
    pair: int | None = None
    losses: list[float | None] | None = None
    outputs: list[tuple[float, float, _Count]] | None = None
    is_held: bool = False
    seen: _Count = 0
    over: str = ""
    has_failed: bool = False
    is_fork: bool = False


class _CureRow(msgspec.Struct):
    cure: str
    applied: bool | None = None
    ended: bool = False
    lost: bool = False
    why: str = ""
    note: str = ""
    place: str = ""


@dataclass
class Steps:
    """The steps of one process: which mark ends one, blocks in their order, and the values that
    `backward` was called of, by ordinal (None: not finite)."""

    pid: int
    site: str = ""
    source: str = ""
    blocks: list[Block] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    outputs: dict[tuple[float, int], float] = field(default_factory=dict)
    """Of modules that no other calls, in the warm-up of a program that calls no `backward`: a
    weighted sum of what they gave, by the norm of what they were given and how many elements they
    gave;"""
    held_outputs: dict[tuple[float, int], float] = field(default_factory=dict)
    """and after it, with what is held, where nothing is switched."""
    over: str = ""
    has_failed: bool = False
    """Whether it is over because timing has failed: a GPU's errors come up where it is waited
    for."""
    seen: int = 0
    """Marks of steps that there were at least, of the site that had most, before one was chosen."""
    first: int = 0
    """How many losses there were before anything was tried."""
    is_fork: bool = False
    switched: str = ""
    """The cure that was switched on last, or those that were as one."""
    calls_a_step: int = 0
    """What `losses_a_step` is where some blocks are left out; 0 for none."""

    @property
    def losses_a_step(self) -> int:
        """How often `backward` was called in each step: gradients of several batches may be added
        up."""
        if self.calls_a_step:
            return self.calls_a_step
        steps = sum(
            block.steps + following.settled_steps for block, following in pairwise(self.blocks)
        )
        calls = self.blocks[-1].first - self.blocks[0].first if steps else 0
        return max(1, round(calls / max(1, steps)))

    @property
    def losses_by_step(self) -> list[float | None]:
        """The sums of what `backward` was called of in each step, from the first on."""
        count = self.losses_a_step
        groups = [self.losses[n : n + count] for n in range(0, len(self.losses), count)]
        return [
            None if None in group else sum(filter(None, group))
            for group in groups
            if len(group) == count
        ]

    def pairs(self, cure: str) -> list[Pair]:
        """The complete pairs of a cure, in their order; none that differ in another one."""
        pairs: dict[int, dict[bool, Block]] = defaultdict(dict)
        for block in self.blocks:
            if block.cure == cure:
                pairs[block.pair][block.on] = block
        return [
            Pair(both[False], both[True])
            for both in pairs.values()
            if len(both) == 2 and both[False].beside == both[True].beside
        ]

    def ratios(self, cure: str) -> list[float]:
        """How many times faster a step is with a cure, of each of its pairs."""
        return [pair.ratio for pair in self.pairs(cure)]

    def step_times(self, cure: str, on: bool) -> list[float]:
        """The mean times of a step, in ns, of all blocks of a cure."""
        return [block.step_ns for block in self.blocks if block.cure == cure and block.on == on]


def newest_alike(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs that had the same cures beside them, those of the last ones that were so; where
    these are too few to say anything, those before them."""
    groups: dict[tuple[str, ...], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.beside, []).append(pair)
    newest = [group for group in groups.values() if len(group) >= FEW_PAIRS] or [*groups.values()]
    return newest[-1] if newest else []


FEW_PAIRS = 3
JOINED = " + "
"""Between the names of cures that are switched as one."""


class BlockReader:
    """Reads the files of a folder as they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[str, int] = {}
        self._partial: dict[str, bytes] = {}
        self.processes: dict[int, Steps] = {}
        self.not_applied: dict[str, str] = {}
        """Why a cure could not be applied, by its name."""
        self.ended: dict[str, str] = {}
        """Why a cure has ended by itself: it was wrong, or changed nothing, in all that it did."""
        self.lost = ""
        """The cure that cannot give the program a value that this waits for."""
        self.applied: set[str] = set()
        self.notes: dict[str, str] = {}
        """What a cure did while it was on last."""
        self.places: dict[str, str] = {}
        """The line, as FILE:LINE, of a call that a cure is about."""

    def poll(self) -> None:
        """Read what was written since the last call."""
        try:
            names = sorted(os.listdir(self._folder))
        except OSError:
            return
        for name in names:
            kind, _, number = name.partition("-")
            if kind in ("trial", "cures") and number.isdigit() and len(number) < 12:
                if name not in self._offsets and len(self._offsets) >= MOST_PROCESSES:
                    continue
                for line in self._lines(name):
                    if kind == "trial":
                        self._step_line(int(number), line)
                    else:
                        self._cure_line(line)

    @property
    def steps(self) -> Steps | None:
        """Of the process that was timed most, rather of none that was forked from one; None before
        any was."""
        timed = [steps for steps in self.processes.values() if steps.site]
        return max(timed, key=lambda each: (not each.is_fork, len(each.blocks)), default=None)

    def _lines(self, name: str) -> list[bytes]:
        offset = self._offsets.setdefault(name, 0)
        try:
            descriptor = os.open(
                self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            )
            with os.fdopen(descriptor, "rb") as file:
                file.seek(offset)
                data = file.read(max(0, MOST_BYTES - offset))
        except OSError:
            return []
        self._offsets[name] = offset + len(data)
        *lines, self._partial[name] = (self._partial.get(name, b"") + data).split(b"\n")
        return lines

    def _step_line(self, pid: int, line: bytes) -> None:
        try:
            row = json_decoder(_Row).decode(line)
            block = json_decoder(Block).decode(line) if row.pair is not None else None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        steps = self.processes.setdefault(pid, Steps(pid))
        if block is not None:
            steps.blocks.append(block)
        elif row.losses:
            first, *values = row.losses
            if first == len(steps.losses):
                steps.losses += values
        elif row.outputs:
            outputs = steps.held_outputs if row.is_held else steps.outputs
            outputs.update({(given, size): made for given, made, size in row.outputs})
        elif row.seen:
            steps.seen = max(steps.seen, row.seen)
        elif row.site:
            steps.site, steps.source = sanitize(row.site, 200), sanitize(row.source, 40)
            steps.first, steps.is_fork = max(0, row.first), row.is_fork
        elif row.switch:
            steps.switched = sanitize(row.switch, 200)
        elif row.over:
            steps.over, steps.has_failed = sanitize(row.over, 500), row.has_failed

    def _cure_line(self, line: bytes) -> None:
        try:
            row = json_decoder(_CureRow).decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        name = sanitize(row.cure, 200)
        if row.note:
            self.notes[name] = sanitize(row.note, 200)
        if row.place:
            self.places[name] = sanitize(row.place, 200)
        if row.applied:
            self.applied.add(name)
        elif row.applied is not None:
            why = self.not_applied[name] = sanitize(row.why, 500)
            if row.ended:
                self.ended.setdefault(name, why)
            if row.lost:
                self.lost = name
