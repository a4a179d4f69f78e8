"""Trials of programs that are simulated: what their steps take is drawn, the clock is virtual, and
all else is what a trial is made of: the hook's blocks and switches, and what decides about them.

    python -m tests.trial.simulated [--trials 1000] [KIND ...]

prints the table of gputui/docs/trials.md: how often a gain is claimed of a cure that does nothing,
of one that makes shorter only what is waited for anyway, and of one that gains 1.1, 1.3 or 2.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import random
import types
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple
from unittest import mock

import msgspec

from gputui.inject.hook import trial as in_program
from gputui.trial.alternation import Alternation
from gputui.trial.blocks import Block, Steps
from gputui.trial.program_runs import until_sure
from gputui.trial.proof import MeasuredGain, gain_of_pairs, gain_of_runs
from gputui.trial.runs import MEASURED_S, WITH_PAUSES_S, RunInFolder, RunStep, step_of
from gputui.trial.trials import PROMISING

Compute = Callable[[float], float]
"""What the work of the next step takes in s, given the time."""


class Program:
    """Steps of `work`, `gain` times shorter with the cure, which may also gain nothing; and between
    them pauses that no cure shortens, of which `pause` says how long the next is."""

    def __init__(self, work: Compute, gain: float = 1.0, pause: Compute = lambda _: 0.0) -> None:
        self.now_s, self.gain, self.is_on = 0.0, gain, False
        self.waited_s = 0.0
        """For a loader."""
        self._work, self._pause = work, pause

    def step(self) -> None:
        """Takes its time."""
        self.wait()
        self.now_s += self._work(self.now_s) / (self.gain if self.is_on else 1.0)

    def wait(self) -> None:
        """What comes before the work."""
        self.now_s += self._pause(self.now_s)


class Loaded(Program):
    """A program whose batches are made by `workers` of a loader in turn, each of which makes one in
    `serve` and is two ahead at most."""

    def __init__(
        self, work: Compute, gain: float, workers: int, serve: Compute, ahead: int = 2
    ) -> None:
        super().__init__(work, gain)
        self._serve, self._workers, self._ahead = serve, workers, ahead
        self._ready: list[float] = []
        self._used: list[float] = []

    def wait(self) -> None:
        """The next batch is there, or waited for."""
        number, workers = len(self._used), self._workers
        for batch in range(len(self._ready), number + workers):
            # A worker begins with it when it has ended another, and one was used.
            before = self._ready[batch - workers] if batch >= workers else 0.0
            used = batch - self._ahead * workers
            begun = max(before, self._used[used] if 0 <= used < number else 0.0)
            self._ready.append(begun + self._serve(begun))
        self.waited_s += max(0.0, self._ready[number] - self.now_s)
        self.now_s = max(self.now_s, self._ready[number])
        self._used.append(self.now_s)


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _states(rng: random.Random, dwell_s: float, factors: Sequence[float]) -> Compute:
    """A factor that changes at random, after `dwell_s` in the mean."""
    state = [0.0, rng.choice(factors)]

    def now(at_s: float) -> float:
        while at_s >= state[0]:
            state[:] = state[0] + rng.expovariate(1.0 / dwell_s), rng.choice(factors)
        return state[1]

    return now


def _every(rng: random.Random, interval_s: float, long_s: float) -> Compute:
    """A pause now and then, of about so long."""
    due = [rng.uniform(0.0, interval_s)]

    def pause(at_s: float) -> float:
        if at_s < due[0]:
            return 0.0
        due[0] = at_s + rng.uniform(0.7, 1.3) * interval_s
        return long_s * rng.uniform(0.8, 1.2)

    return pause


def steady(rng: random.Random, gain: float) -> Program:
    """Steps of 5 to 300 ms that differ by 2 %."""
    step_s = _log_uniform(rng, 0.005, 0.3)
    return Program(lambda _: step_s * math.exp(rng.gauss(0, 0.02)), gain)


def noisy(rng: random.Random, gain: float) -> Program:
    """Steps that differ by 30 %."""
    step_s = _log_uniform(rng, 0.005, 0.3)
    return Program(lambda _: step_s * math.exp(rng.gauss(0, 0.3)), gain)


def drifting(rng: random.Random, gain: float) -> Program:
    """A speed that drifts by 3 to 15 % (one standard deviation), back and forth within 2 to
    60 s."""
    step_s, sigma = _log_uniform(rng, 0.005, 0.3), rng.uniform(0.03, 0.15)
    keeps = math.exp(-step_s / _log_uniform(rng, 2, 60))
    state = [rng.gauss(0, sigma)]

    def work(_now: float) -> float:
        state[0] = keeps * state[0] + rng.gauss(0, sigma * math.sqrt(1 - keeps * keeps))
        return step_s * math.exp(state[0] + rng.gauss(0, 0.02))

    return Program(work, gain)


def warming(rng: random.Random, gain: float) -> Program:
    """Up to four times as slow at first, for 5 to 40 s; or faster at first."""
    step_s, lasts_s = _log_uniform(rng, 0.005, 0.3), rng.uniform(5, 40)
    more = rng.choice((-0.6, 0.5, 3.0))
    return Program(
        lambda now: step_s * (1 + more * math.exp(-now / lasts_s)) * math.exp(rng.gauss(0, 0.02)),
        gain,
    )


def bimodal(rng: random.Random, gain: float) -> Program:
    """Another program beside it, for 0.1 to 3 s at a time: 1.5 to 4 times as slow then."""
    step_s = _log_uniform(rng, 0.005, 0.3)
    slow = _states(rng, _log_uniform(rng, 0.1, 3.0), (1.0, rng.uniform(1.5, 4.0)))
    return Program(lambda now: step_s * slow(now) * math.exp(rng.gauss(0, 0.02)), gain)


def periodic(rng: random.Random, gain: float) -> Program:
    """Every second to fortieth step takes 2 to 20 times as long: gradients are summed, something is
    reported."""
    step_s, every, more = _log_uniform(rng, 0.005, 0.1), rng.randint(2, 40), rng.uniform(2, 20)
    count = [0]

    def work(_now: float) -> float:
        count[0] += 1
        return step_s * (1.0 if count[0] % every else more) * math.exp(rng.gauss(0, 0.02))

    return Program(work, gain)


def cyclic(rng: random.Random, gain: float) -> Program:
    """A cycle of 2 to 8 steps of 4 to 4,000 ms each, so that blocks have few steps or one."""
    step_s, length = _log_uniform(rng, 0.02, 0.8), rng.choice((2, 3, 4, 6, 8))
    factors = [_log_uniform(rng, 0.2, 5.0) for _ in range(length)]
    count = [0]

    def work(_now: float) -> float:
        count[0] += 1
        return step_s * factors[count[0] % length] * math.exp(rng.gauss(0, 0.005))

    return Program(work, gain)


def heavy_tailed(rng: random.Random, gain: float) -> Program:
    """Steps as Pareto has them, with neither a mean nor a variance to speak of (1.1 to 2)."""
    step_s, alpha = _log_uniform(rng, 0.005, 0.1), rng.uniform(1.1, 2.0)
    return Program(lambda _: step_s * min(1e3, rng.paretovariate(alpha)), gain)


def lengths(rng: random.Random, gain: float) -> Program:
    """Batches of all lengths: steps differ threefold."""
    step_s = _log_uniform(rng, 0.005, 0.2)
    return Program(lambda _: step_s * rng.lognormvariate(0, 0.7), gain)


def saving(rng: random.Random, gain: float) -> Program:
    """Pauses of 0.3 to 5 s every 2 to 20 s, which no cure shortens: it saves, or evaluates."""
    step_s = _log_uniform(rng, 0.005, 0.2)
    return Program(
        lambda _: step_s * math.exp(rng.gauss(0, 0.02)), gain,
        _every(rng, _log_uniform(rng, 2, 20), _log_uniform(rng, 0.3, 5)),
    )  # fmt: skip


def bursts(rng: random.Random, gain: float) -> Program:
    """A loader that is too slow: its workers' batches come at once, then none for 0.2 to 4 s. What
    the cure makes shorter is waited for anyway."""
    workers, wait_s = rng.choice((2, 4, 8, 12)), _log_uniform(rng, 0.2, 4.0)
    step_s = wait_s / workers * rng.uniform(0.05, 0.7)
    spread = rng.choice((0.01, 0.05, 0.2))
    return Loaded(
        lambda _: step_s * math.exp(rng.gauss(0, 0.02)), gain, workers,
        lambda _: wait_s * math.exp(rng.gauss(0, spread)),
    )  # fmt: skip


def starved(rng: random.Random, gain: float) -> Program:
    """A loader that is too slow, whose batches take 0.05 to 2 s, each as long as it happens to."""
    workers, wait_s = rng.choice((1, 2, 4)), _log_uniform(rng, 0.05, 2.0)
    step_s = wait_s / workers * rng.uniform(0.05, 0.9)
    spread = rng.uniform(0.3, 1.0)
    return Loaded(
        lambda _: step_s * math.exp(rng.gauss(0, 0.02)), gain, workers,
        lambda _: wait_s * rng.lognormvariate(-spread * spread / 2, spread), rng.choice((2, 4, 16)),
    )  # fmt: skip


KINDS: dict[str, Callable[[random.Random, float], Program]] = {
    kind.__name__: kind
    for kind in (
        steady, noisy, drifting, warming, bimodal, periodic, cyclic, heavy_tailed, lengths, saving,
        bursts, starved,
    )
}  # fmt: skip
"""Programs by how their steps differ."""

WAITING = ("bursts", "starved")
"""Those whose steps no cure of the work makes shorter."""

SWITCH_S = 0.05
"""What switching takes at most, during which a loader goes on."""

BUDGET_S = 60.0


class Switches:
    """In the place of the cures of a process: they can always be switched, and do nothing."""

    def __init__(self) -> None:
        self.undo: dict[str, None] = {}

    def ask(self, _names: object) -> None:
        """Nothing is asked."""

    def look(self) -> None:
        """None of them ends."""

    def one_moment(self) -> contextlib.AbstractContextManager[None]:
        """Nothing is looked through."""
        return contextlib.nullcontext()

    def switch(self, name: str, on: bool) -> bool:
        """Switches it."""
        if on:
            self.undo[name] = None
        else:
            self.undo.pop(name, None)
        return True


class _Cures(Switches):
    """The first of them acts."""

    def __init__(
        self, program: Program, rng: random.Random, names: Iterable[str], most_s: float
    ) -> None:
        super().__init__()
        self._program = program
        self._switch_s = {name: rng.choice((0.0, 0.001, most_s)) for name in names}

    def switch(self, name: str, on: bool) -> bool:
        """Switches it, which takes its time where it goes on."""
        if on and name not in self.undo:
            self._program.now_s += self._switch_s[name]
        super().switch(name, on)
        if "0" in self._switch_s:
            self._program.is_on = "0" in self.undo
        return True


class SimulatedRun(RunInFolder):
    """A run whose hook says everything here."""

    def __init__(self) -> None:
        self.steps = Steps(0)
        self.reader = self  # type: ignore[assignment]
        self.not_applied: dict[str, str] = {}
        self.ended: dict[str, str] = {}
        self.lost = ""
        self.kept: dict[str, Any] | None = None

    def keep(self, cures: Sequence[str], from_pair: int, beside: Sequence[str] = ()) -> None:
        """What the hook is told."""
        self.kept = {"cures": [*cures], "from": from_pair, "beside": [*beside]}


class SimulatedTrial(in_program.TrialInProgram):  # type: ignore[misc, name-defined]
    """The hook, which says and reads here what it does in files."""

    run: SimulatedRun
    program: Program

    def _time_loaders(self) -> None:
        self._has_loader = isinstance(self.program, Loaded) and IS_WITNESSED

    def _next_block(self) -> None:
        before_s = self.program.waited_s
        super()._next_block()
        if self._block is not None and self._block.pair is None:
            self._waited_before = before_s

    def _end_block(self) -> None:
        if self._has_loader:
            self._waited_ns = int(1e9 * (self.program.waited_s - self._waited_before))
        super()._end_block()

    def _say(self, row: dict[str, Any]) -> None:
        steps = self.run.steps
        if "pair" in row:
            steps.blocks.append(msgspec.convert(row, Block))
        elif "site" in row:
            steps.site = row["site"]
        elif "switch" in row:
            steps.switched = row["switch"]
        elif "over" in row:
            steps.over, steps.has_failed = row["over"], row["has_failed"]

    def _read(self, name: str) -> dict[str, Any] | None:
        return self.run.kept if name == "trial-active" else None


def _run(
    program: Program,
    rng: random.Random,
    names: Sequence[str],
    until: Callable[[SimulatedRun, float], str],
    switch_s: float = SWITCH_S,
) -> SimulatedRun:
    """A run in which these cures are switched, until it is over."""
    plan = in_program.Plan(json.dumps({"cures": names, "seed": rng.randrange(1 << 30)}))
    trial = SimulatedTrial(plan, "", _Cures(program, rng, names, switch_s), ())
    trial.run = run = SimulatedRun()
    trial.program = program

    def passes(seconds: float) -> None:
        program.now_s += seconds

    clock = types.SimpleNamespace(perf_counter_ns=lambda: int(1e9 * program.now_s), sleep=passes)
    with mock.patch.object(in_program, "time", clock):
        site = trial.sites.add("optimizer", "step")
        counted, over = 0, ""
        while not over:
            program.step()
            trial.step(site, 0, 0)
            if len(run.steps.blocks) != counted or run.steps.over:
                counted = len(run.steps.blocks)
                over = until(run, program.now_s)
    return run


IS_WITNESSED = True
"""Whether the hook sees how long a loader is waited for."""

Kind = Callable[[random.Random, float], Program]


class Simulated(NamedTuple):
    """What was found of the cures, the first of which acts, and how long it took."""

    gains: tuple[MeasuredGain | None, ...]
    seconds: float
    blocks: tuple[Block, ...] = ()

    @property
    def claimed(self) -> float | None:
        """The largest gain that is claimed."""
        return max((gain.middle for gain in self.gains if gain and gain.is_claimed), default=None)


def switched(
    kind: Kind,
    seed: str,
    gain: float = 1.0,
    cures: int = 1,
    switch_s: float = SWITCH_S,
    *,
    until_claimed: bool = False,
) -> Simulated:
    """A run with so many cures that are switched, until their gains are known or BUDGET_S, or the
    first is claimed."""
    rng = random.Random(seed)
    program, names = kind(rng, gain), [str(number) for number in range(cures)]
    alternation = Alternation({name: [] for name in names}, BUDGET_S)

    def until(run: SimulatedRun, seconds: float) -> str:
        known = gain_of_pairs(run.steps.pairs(names[0]), cures) if until_claimed else None
        return "claimed" if known and known.is_claimed else alternation.look(run, seconds)

    run = _run(program, rng, names, until, switch_s)
    gains = tuple(gain_of_pairs(run.steps.pairs(name), cures) for name in names)
    return Simulated(gains, program.now_s, tuple(run.steps.blocks))


SPREADS = (0.0, 0.0, 0.0, 0.004, 0.004, 0.005, 0.005, 0.008, 0.040, 0.048, 0.058, 0.099)
"""What runs of twelve programs differed by that ran two to five times on one host with H200s: as
they are, or with a cure that did nothing (standard deviations of the logarithm of a step, which few
blocks were timed for in the last four)."""

Differ = Callable[[random.Random], Callable[[], float]]


def as_measured(rng: random.Random) -> Callable[[], float]:
    """What runs of a program differ by, as factors."""
    spread = rng.choice(SPREADS)
    return lambda: math.exp(rng.gauss(0, spread))


def two_speeds(rng: random.Random) -> Callable[[], float]:
    """Each run is at one of two speeds from its start to its end."""
    slow = rng.uniform(1.05, 1.5)
    return lambda: rng.choice((1.0, slow))


def _until_sure(least_s: float, off: Sequence[RunStep], run: SimulatedRun, _seconds: float) -> str:
    return until_sure(run, least_s, off)


def by_runs(
    kind: Kind,
    seed: str,
    gain: float = 1.0,
    *,
    with_pauses: bool = False,
    differ: Differ = as_measured,
    each: int = 2,
) -> list[MeasuredGain]:
    """What runs of their own say, in turn without the cure and with it, with it and without: of one
    run each, and where that shows something of two, and so on."""
    steps: dict[bool, list[RunStep]] = {False: [], True: []}
    gains: list[MeasuredGain] = []
    least_s = WITH_PAUSES_S if with_pauses else MEASURED_S
    factor = differ(random.Random(f"{seed} differ"))
    for number, is_on in enumerate((False, True, True, False) * each):
        if len(gains) == each or (gains and gains[0].middle < PROMISING):
            break
        rng = random.Random(seed)
        program = kind(rng, gain)
        rng.seed(f"{seed} {number}")  # the same program, other steps
        program.is_on = is_on
        off = steps[False] if is_on and not steps[True] else ()
        until = functools.partial(_until_sure, least_s, off)
        step = step_of(_run(program, rng, (), until).steps.blocks)
        steps[is_on].append(step._replace(ns=step.ns * factor()))
        if number % 2:
            known = gain_of_runs(steps[False], steps[True], 1)
            gains += [known] if known is not None else []
    return gains


def _percent(are: Iterable[bool]) -> str:
    kept = list(are)
    return f"{100 * sum(kept) / len(kept):.1f}" if kept else ""


def _claimed(gains: Iterable[MeasuredGain]) -> str:
    return _percent(gain.is_claimed for gain in gains)


def _held(gains: Iterable[MeasuredGain]) -> str:
    return _percent(gain.low <= 1.0 <= gain.high for gain in gains)


def _print_switched(trials: int, names: Sequence[str]) -> None:
    print("| steps | nothing | its intervals hold 1 | 1.1× | 1.3× | 2× | after |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name in names:
        kind = KINDS[name]
        nothing = [switched(kind, f"{name} {n}", cures=1 + n % 3) for n in range(trials)]
        cells = [
            _percent(trial.claimed is not None for trial in nothing),
            _held(gain for trial in nothing for gain in trial.gains if gain is not None),
        ]
        for gain in (1.1, 1.3, 2.0):
            few = range(max(1, trials // 10))
            of_gain = [switched(kind, f"{name} {gain} {n}", gain) for n in few]
            cells.append(_percent(trial.claimed is not None for trial in of_gain))
        seconds = [trial.seconds for trial in of_gain if trial.claimed is not None]
        cells.append(f"{median(seconds):.0f} s" if seconds else "")
        about = " ".join((kind.__doc__ or "").split())
        print(f"| {name}: {about} | {' | '.join(cells)} |", flush=True)


def _print_by_runs(trials: int, names: Sequence[str]) -> None:
    """Of one run each and of two, as it is at the end: where the first show nothing there are no
    others."""
    one_each = "nothing, one run each | its intervals hold 1 | 1.3× | 2×"
    print(f"\n| steps | {one_each} | {one_each.replace('one run', 'two runs')} |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name in names:
        kind, has_pauses = KINDS[name], name in ("saving", *WAITING)
        nothing = [by_runs(kind, f"{name} {n}") for n in range(trials)]
        of_gain = [
            [
                by_runs(kind, f"{name} {gain} {n}", gain, with_pauses=has_pauses)
                for n in range(max(1, trials // 10))
            ]
            for gain in (1.3, 2.0)
        ]
        cells = []
        for last in (0, -1):
            cells += [_claimed(gains[last] for gains in nothing)]
            cells += [_held(gains[last] for gains in nothing)]
            cells += [_claimed(gains[last] for gains in each) for each in of_gain]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    runs = [by_runs(steady, f"speeds {n}", differ=two_speeds, each=4) for n in range(trials)]
    said = [f"{_claimed(gains[:each][-1] for gains in runs)}" for each in (1, 2, 3, 4)]
    print(f"\nWhole runs at two speeds, 1 to 4 runs each, nothing to gain: {', '.join(said)} %")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--trials", type=int, default=1000)
    options = parser.parse_args()
    _print_switched(options.trials, options.kinds)
    _print_by_runs(options.trials, options.kinds)
