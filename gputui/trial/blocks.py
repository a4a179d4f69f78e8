"""What a program says of its steps while something is tried on it: the lines of JSON that
inject/hook/trial.py and gputui/cures write to the run's private folder.

The program may have written anything there: what is no such line is left out, and of each file at
most MOST_BYTES are read.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

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

    @property
    def step_ns(self) -> float:
        """The mean time of a step."""
        return self.ns / self.steps


class _Row(msgspec.Struct):
    """Any line: which fields it has says what it is."""

    site: str = ""
    source: str = ""
    first: int = 0
    switch: str = ""
    pair: int | None = None
    losses: list[float | None] | None = None
    over: str = ""


class _CureRow(msgspec.Struct):
    cure: str
    applied: bool
    why: str = ""


@dataclass
class Steps:
    """The steps of one process: which mark ends one, blocks in their order, and the values that
    `backward` was called of, by ordinal (None: not finite)."""

    pid: int
    site: str = ""
    source: str = ""
    blocks: list[Block] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    over: str = ""
    first: int = 0
    """How many losses there were before anything was tried."""
    switched: str = ""
    """The cure that was switched on last."""

    def ratios(self, cure: str) -> list[float]:
        """Of each complete pair of a cure, in their order: the step's time without it over that
        with it."""
        pairs: dict[int, dict[bool, float]] = defaultdict(dict)
        for block in self.blocks:
            if block.cure == cure:
                pairs[block.pair][block.on] = block.step_ns
        return [both[False] / both[True] for both in pairs.values() if len(both) == 2]

    def step_times(self, cure: str, on: bool) -> list[float]:
        """The mean times of a step, in ns, of all blocks of a cure."""
        return [block.step_ns for block in self.blocks if block.cure == cure and block.on == on]


class BlockReader:
    """Reads the files of a folder as they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[str, int] = {}
        self._partial: dict[str, bytes] = {}
        self.processes: dict[int, Steps] = {}
        self.not_applied: dict[str, str] = {}
        """Why a cure could not be applied, by its name."""
        self.applied: set[str] = set()

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
        """Of the process that was timed most; None before any was."""
        timed = [steps for steps in self.processes.values() if steps.site]
        return max(timed, key=lambda steps: len(steps.blocks), default=None)

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
        elif row.site:
            steps.site, steps.source = sanitize(row.site, 200), sanitize(row.source, 40)
            steps.first = max(0, row.first)
        elif row.switch:
            steps.switched = sanitize(row.switch, 200)
        elif row.over:
            steps.over = sanitize(row.over, 500)

    def _cure_line(self, line: bytes) -> None:
        try:
            row = json_decoder(_CureRow).decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        name = sanitize(row.cure, 200)
        if row.applied:
            self.applied.add(name)
        else:
            self.not_applied[name] = sanitize(row.why, 500)
