"""One run of the program with something tried on it: started, timed, and ended."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import signal
import tempfile
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean, stdev
from types import FrameType, MappingProxyType
from typing import NamedTuple

from gputui.collect.child import ENDING_S, Child, ChildEnding, LineBatch
from gputui.cures import VARIABLE
from gputui.inject.environment import create_capture_folder, trial_environment
from gputui.trial.blocks import Block, BlockReader, Steps

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
_OF_STARTS = "GPUTUI_COMPILED"
"""Names the folder to the hook."""


@contextlib.contextmanager
def compiled_once() -> Iterator[Callable[[], object]]:
    """What JAX compiles in one program that is started here the next one takes from a folder that
    goes at the end: a program that compiled for 40 s did so in each of its runs. That is only for
    their starts (inject/hook/jax_compiled.py), because what a step compiles is to take its time,
    until what is given is called: from then on it is for steps, too. A user's own folder stays."""
    if _JAX_FOLDER in os.environ:
        yield lambda: None
        return
    names = (_JAX_FOLDER, _JAX_LEAST_S, _JAX_LEAST_BYTES, _OF_STARTS)
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="gputui-compiled-") as place:
        try:
            os.environ.update(dict(zip(names, (place, "0", "0", place), strict=True)))
            yield functools.partial(os.environ.pop, _OF_STARTS, None)
        finally:
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
        is_said = self.last_line != self.failure
        return f"{self.failure}: {self.last_line}" if is_said and self.failure else self.failure

    def left_out(self, names: Sequence[str]) -> str:
        """Which of these cures was not on in it, and why; empty where all were."""
        why = ((name, self.not_applied[name]) for name in names if name in self.not_applied)
        return next((f"{name}: {reason}" for name, reason in why), "")

    def without_cures(self, least: int, bounds: Sequence[str] = ()) -> ProgramResult | None:
        """Of a run with cures that are switched the blocks in which none is on, not those of
        ablations; and its losses until the first goes on. None where either are fewer than
        `least`; of a program that has no losses its modules' outputs are enough."""
        if self.steps is None or self.failure:
            return None
        if self.steps.first < least and (self.steps.losses or not self.steps.outputs):
            return None
        off = [
            block for block in self.steps.blocks
            if not block.on and not block.beside and block.cure not in bounds
        ]  # fmt: skip
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
