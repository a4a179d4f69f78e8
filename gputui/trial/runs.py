"""One run of the program with something tried on it: started, timed, and ended.

Meanwhile it says of its steps what inject/hook/trial.py and gputui/cures write to the run's private
folder, lines of JSON. The program may have written anything there: what is no such line is left
out, and of each file at most MOST_BYTES are read.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import tempfile
import threading
import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean, stdev
from types import FrameType, MappingProxyType
from typing import Annotated, NamedTuple

import msgspec

from gputui.base.decoding import json_decoder
from gputui.base.sanitize import sanitize
from gputui.collect.child import ENDING_S, Child, ChildEnding, LineBatch
from gputui.cures import VARIABLE
from gputui.inject.environment import create_capture_folder, trial_environment

# What the program says.

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
    seen: int = 0
    """Marks of steps that there were at least, of the site that had most, before one was chosen."""
    first: int = 0
    """How many losses there were before anything was tried."""
    is_fork: bool = False
    switched: str = ""
    """The cure that was switched on last."""
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
            steps.over = sanitize(row.over, 500)

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


# A run.

LOOK_S = 0.1
"""Between two looks at what the program says of its steps."""

LAST_LINES = 8

TRACKERS_OFF = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "disabled",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
"""What keeps a trial from being reported and uploaded as if it were a real run."""

NO_TRACKERS = "no_tensorboard,no_tensorboardx,no_wandb,no_mlflow"
"""Cures that are on in every run, for what no variable says."""


@contextlib.contextmanager
def trackers_off() -> Iterator[None]:
    """Programs that are started here report to no tracker."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="gputui-trackers-") as place:
        os.environ.update(TRACKERS_OFF, MLFLOW_TRACKING_URI=f"file://{place}")
        os.environ[VARIABLE] = NO_TRACKERS
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


_JAX_FOLDER, _JAX_LEAST_S, _JAX_LEAST_BYTES = (
    "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES",
)  # fmt: skip


@contextlib.contextmanager
def compiled_once() -> Iterator[Callable[[float | None], None]]:
    """What JAX compiles in one program that is started here the next one takes from a folder that
    goes at the end: a program that compiled for 40 s did so in each of its runs. What is given says
    from how many seconds of compiling on, None for not at all. A user's own folder stays."""
    if _JAX_FOLDER in os.environ:
        yield lambda _: None
        return
    before = {name: os.environ.get(name) for name in (_JAX_LEAST_S, _JAX_LEAST_BYTES)}

    def keep(least_s: float | None) -> None:
        os.environ.pop(_JAX_FOLDER, None)
        if least_s is not None:
            kept = {_JAX_FOLDER: place, _JAX_LEAST_S: str(least_s), _JAX_LEAST_BYTES: "0"}
            os.environ.update(kept)

    with tempfile.TemporaryDirectory(prefix="gputui-compiled-") as place:
        try:
            yield keep
        finally:
            keep(None)
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ.update({name: value} if value is not None else {})


class RunPlan(NamedTuple):
    """What is tried in one run: cures that are switched on and off in it, those that are on from
    the end of its warm-up, and those that are on from its start."""

    switched: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    """Others, of which the program is only asked whether they would change anything."""
    later: tuple[str, ...] = ()
    """Of the switched ones those that are tried once the others need no more pairs."""
    bounds: tuple[str, ...] = ()
    """Of them ablations, which come last of all."""
    held_then: tuple[str, ...] = ()
    """Those that are on from the first ablation to the end of the run."""
    beside: tuple[str, ...] = ()
    """Of those that are on all the time the cures beside which the switched ones are measured."""
    seed: int = 0
    step: str = ""
    """What marks the steps, by source and name, as the run under capture (`Diagnosis.step`) or an
    earlier one had them."""
    block_s: float = 0.25
    warm_s: float = 2.0

    def encode(self) -> str:
        """As JSON, for a variable of the program's environment."""
        return json.dumps(
            {
                "cures": self.switched,
                "held": self.held,
                "beside": self.beside,
                "asked": self.asked,
                "later": self.later,
                "bounds": self.bounds,
                "held_then": self.held_then,
                "seed": self.seed,
                "step": self.step,
                "block_s": self.block_s,
                "warm_s": self.warm_s,
            }
        )


class ProgramResult(NamedTuple):
    """What a run was: its steps, None where it had none; how it ended, and its last lines where
    it was not ended by us."""

    steps: Steps | None
    applied: frozenset[str]
    not_applied: Mapping[str, str]
    notes: Mapping[str, str]
    ending: ChildEnding
    ended_by: str
    """Why it was ended; empty where it ended by itself."""
    seconds: float
    first_block_s: float | None
    """From its start to the end of its warm-up."""
    last_lines: tuple[str, ...]
    lines: tuple[str, ...] = ()
    """What it printed, at most MOST_LINES lines."""
    seen: int = 0
    """Steps that were marked at least, of the process that marked most."""
    places: Mapping[str, str] = MappingProxyType({})
    """The line of a call that a cure is about, as FILE:LINE."""
    ended: Mapping[str, str] = MappingProxyType({})
    """Cures that have ended by themselves, and why."""

    @property
    def has_ended(self) -> bool:
        """Whether it came to its own end, and well."""
        return not self.ended_by and self.ending.exit_code == 0

    @property
    def failure(self) -> str:
        """How it failed, in a line; empty where it did not."""
        if self.ended_by or self.ending.exit_code == 0:
            return ""
        return self.ending.reason

    @property
    def last_line(self) -> str:
        """What it printed last, or where that is nothing how it failed."""
        said = [line.strip() for line in self.last_lines if line.strip()]
        return said[-1][:200] if said else self.failure

    @property
    def failed(self) -> str:
        """How it failed, and what it said last; empty where it did not."""
        return f"{self.failure}: {self.last_line}" if self.failure else ""

    def left_out(self, names: Sequence[str]) -> str:
        """Which of these cures was not on in it, and why; empty where all were."""
        why = ((name, self.not_applied[name]) for name in names if name in self.not_applied)
        return next((f"{name}: {reason}" for name, reason in why), "")

    def without_cures(self, least: int, bounds: Sequence[str] = ()) -> ProgramResult | None:
        """Of a run with cures that are switched the blocks in which none is on, but those of
        ablations; and its losses until the first goes on. None where either are fewer than
        `least`; of a program that has no losses its modules' outputs are enough."""
        if self.steps is None or self.failure:
            return None
        if self.steps.first < least and (self.steps.losses or not self.steps.outputs):
            return None
        off = [block for block in self.steps.blocks if not block.on and block.cure not in bounds]
        losses = self.steps.losses[: self.steps.first]
        calls = self.steps.losses_a_step
        alone = replace(self.steps, blocks=off, losses=losses, calls_a_step=calls)
        return self._replace(steps=alone, lines=()) if len(off) >= least else None


MOST_LINES = 5000

Until = Callable[[BlockReader, float], str]
"""Given what the program said so far and the seconds since its start: why the run is over, empty to
go on."""


class RunInFolder:
    """A run that can be told, while it goes on, which cures still need pairs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reader = BlockReader(folder)

    def keep(self, cures: Sequence[str], from_pair: int, beside: Sequence[str] = ()) -> None:
        """Only these cures are switched from a pair on, those in a name with " + " as one, while
        those `beside` them are on."""
        path = self.folder / "trial-active"
        descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"cures": [*cures], "from": from_pair, "beside": [*beside]}, file)
        os.replace(f"{path}.new", path)


INTERRUPTED = "stopped by Ctrl-C"


def run_once(
    command: Sequence[str],
    plan: RunPlan,
    until: Callable[[RunInFolder, float], str],
    *,
    folder: Path | None = None,
) -> ProgramResult:
    """Run the command until it ends or `until` says why it is over, in `folder` or the current one.

    All its processes have ended when this returns, also where it raises for a signal
    (`ended_by_signals`). After Ctrl-C it is over because it is INTERRUPTED.
    """
    lines: deque[str] = deque(maxlen=MOST_LINES)

    def output(batches: list[LineBatch]) -> None:
        for batch in batches:
            if batch.stream != "report":
                lines.extend(batch.lines)

    with create_capture_folder(room_bytes=64 << 20) as private:
        environment = trial_environment(private, os.environ, plan.constant, plan.encode())
        run_here = RunInFolder(private)
        name = os.path.basename(command[0]) or "command"
        child = Child(in_folder(command, folder), environment, name=name)
        endings: list[ChildEnding] = []
        over = threading.Event()

        def run() -> None:
            try:
                endings.append(child.run(lambda _pid: None, output))
            finally:
                over.set()

        thread = threading.Thread(target=run, name="trial", daemon=True)
        began_s = time.monotonic()
        first_block_s: float | None = None
        why = ""
        thread.start()
        try:
            while not over.wait(LOOK_S):
                run_here.reader.poll()
                seconds = time.monotonic() - began_s
                if first_block_s is None and run_here.reader.steps is not None:
                    first_block_s = seconds
                if why := until(run_here, seconds):
                    break
        except KeyboardInterrupt:
            why = INTERRUPTED
        finally:
            child.stop()
            over.wait(ENDING_S)
        run_here.reader.poll()
        reader = run_here.reader
        ending = endings[0] if endings else ChildEnding(None, signal.SIGKILL, "it did not end")
        return ProgramResult(
            reader.steps,
            frozenset(reader.applied),
            dict(reader.not_applied),
            dict(reader.notes),
            ending,
            why,
            time.monotonic() - began_s,
            first_block_s,
            tuple(lines)[-LAST_LINES:],
            tuple(lines),
            max((steps.seen for steps in reader.processes.values()), default=0),
            dict(reader.places),
            dict(reader.ended),
        )


# When a run is over, and what a step of it took.

STALL_S = 60.0
"""Without a block for so long, and for STALL_BLOCKS times as long as blocks took, a run has
stopped: an ablation may have taken away what its steps wait for."""
STALL_BLOCKS = 30

WARM_S = 180.0
"""Until the first block at most: models are loaded and compiled meanwhile."""

MEASURED_S = 3.0
MEASURED_BLOCKS = 12
"""How long a run of its own is timed, at least,"""
WITH_PAUSES_S = 12.0
"""or where the program pauses between steps."""


class Stall:
    """Says when a run makes no steps any more."""

    def __init__(self) -> None:
        self._blocks = 0
        self._at_s = 0.0
        self._longest_s = 0.0

    def look(self, run: RunInFolder, seconds: float) -> str:
        """Why it is over, after so many seconds; empty while its steps go on."""
        blocks = len(run.reader.steps.blocks) if run.reader.steps is not None else 0
        if blocks != self._blocks:
            if self._blocks:
                self._longest_s = max(self._longest_s, seconds - self._at_s)
            self._blocks, self._at_s = blocks, seconds
        limit_s = max(STALL_S, STALL_BLOCKS * self._longest_s) if blocks else WARM_S
        return f"no step in {limit_s:.0f} s" if seconds - self._at_s > limit_s else ""


def is_measured(run: RunInFolder, least_s: float) -> str:
    """Why a run of its own is over, once it was timed for so long, or where its steps differ until
    then, for WITH_PAUSES_S; else empty."""
    steps = run.reader.steps
    if steps is None:
        return ""
    ends_s = list(accumulate(block.ns / 1e9 for block in steps.blocks))
    count = max(MEASURED_BLOCKS, bisect_left(ends_s, least_s) + 1)
    timed_s = ends_s[-1] if ends_s else 0.0
    if timed_s > WITH_PAUSES_S:
        # Blocks that reach from pause to pause may take seconds each.
        return "it was timed" if len(ends_s) >= PARTS else steps.over
    # Asked once: a run that ends as soon as its steps happen to be alike seems steady.
    if len(ends_s) < count or not _is_steady(steps.blocks[:count]):
        return steps.over
    return "it was timed"


NOT_STEADY = 0.02
"""A part by which the mean of a run may be wrong, from which it is timed for longer."""

PARTS = 4
"""Of a run, of whose means that is taken,"""
GROUPS, FEW_GROUPS = 24, 8
"""and groups of blocks for the error of a step, half a second each where a run is timed for
longest; of fewer it is not asked by how much those next to one another are alike."""
MOST_ALIKE = 0.9
"""Their autocorrelation is taken for no more: what is alike for as long as a run is not seen in
it."""


class RunStep(NamedTuple):
    """A step of a run of its own that was timed for `seconds`: its mean in ns, and by which part of
    it that would differ (one standard error, known as if from `freedom` values) if the run were as
    it is at other times."""

    ns: float
    error: float = 0.0
    freedom: float = 1.0
    seconds: float = MEASURED_S


def run_step(result: ProgramResult) -> RunStep | None:
    """A step of a run that was timed: of its second half, when what is tuned and prefetched is
    steady; where steps differ, of all of it."""
    if result.steps is None or len(result.steps.blocks) < 2 or result.failure:
        return None
    return step_of(result.steps.blocks)


def step_of(blocks: Sequence[Block]) -> RunStep:
    """The same of blocks.

    The error is that of a mean of values around a line, because what warms up does so in each run;
    those next to one another are alike, by as much as their autocorrelation says: (1 + r) / (1 - r)
    times the variance, and as many times fewer values. In few values r seems less than it is, by
    (1 + 3 r) / n around a mean (Kendall, "Note on bias in the estimation of autocorrelation",
    Biometrika 41, 1954), by (2 + 4 r) / n around a line: of 24 it is right within 0.05 so, up to
    0.6."""
    means = [_mean_ns(group) for group in _groups(blocks, GROUPS)]
    count, mean = len(means), fmean(means)
    slope, alike, used = 0.0, 0.0, 1
    middle = (count - 1) / 2.0
    if count >= FEW_GROUPS:
        used = 2
        square = sum((n - middle) ** 2 for n in range(count))
        slope = sum((n - middle) * value for n, value in enumerate(means)) / square
    rests = [value - mean - slope * (n - middle) for n, value in enumerate(means)]
    squares = sum(rest * rest for rest in rests)
    if count >= FEW_GROUPS and squares:
        seen = sum(rest * following for rest, following in pairwise(rests)) / squares
        alike = min(max(0.0, (seen * count + 2.0) / (count - 4.0)), MOST_ALIKE)
    more = (1.0 + alike) / (1.0 - alike)
    freedom = count - used
    return RunStep(
        _mean_ns(blocks[len(blocks) // 2 :] if _is_steady(blocks) else blocks),
        math.sqrt(squares / freedom / count * more) / mean,
        max(1.0, freedom / more),
        sum(block.ns for block in blocks) / 1e9,
    )


def _is_steady(blocks: Sequence[Block]) -> bool:
    logs = [math.log(_mean_ns(part)) for part in _groups(blocks, PARTS)]
    return len(logs) < 2 or stdev(logs) / math.sqrt(len(logs)) <= NOT_STEADY


def _groups(blocks: Sequence[Block], count: int) -> list[Sequence[Block]]:
    """The blocks in so many groups of blocks next to one another, or as many as there are."""
    ends = [len(blocks) * number // count for number in range(count + 1)]
    return [blocks[first:last] for first, last in pairwise(ends) if first < last]


def _mean_ns(blocks: Sequence[Block]) -> float:
    return sum(block.ns for block in blocks) / sum(block.steps for block in blocks)


def in_folder(command: Sequence[str], folder: Path | None) -> tuple[str, ...]:
    """The command as one that runs in a folder, by env of coreutils: what starts it is where gputui
    is."""
    return tuple(command) if folder is None else ("env", "-C", str(folder), *command)


class Ended(BaseException):
    """A signal asked to stop; raised wherever the main thread is."""


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise Ended, so that what was started is ended first. Only in the main
    thread."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise Ended

    previous = {
        number: signal.signal(number, end)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
