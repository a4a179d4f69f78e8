"""The runs of a program that trials are made of: each with what it is timed by, as it is or with a
cure from its start, and what is known of the program from them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from gputui.cures import BOUND, DIFFERENT, EXACT, ROUNDING, Cure
from gputui.cures.ablations import NoSaves
from gputui.trial.alternation import RUN_S
from gputui.trial.blocks import JOINED, Steps
from gputui.trial.measured import Measured
from gputui.trial.outcome import TIME_OVER
from gputui.trial.planning import Candidate, Diagnosis
from gputui.trial.proof import gain_of_runs
from gputui.trial.runs import (
    INTERRUPTED,
    MEASURED_S,
    WITH_PAUSES_S,
    ProgramResult,
    RunInFolder,
    RunPlan,
    RunStep,
    Stall,
    is_measured,
    run_once,
    run_step,
    step_of,
)
from gputui.trial.sameness import UNKNOWN, Sameness, sameness_by_scatter, sameness_of

SPENT = "the budget is spent"

BRIEF_WARM_S, BRIEF_BLOCK_S = 0.2, 0.05
"""The warm-up and a block of a program that has ended before it could be timed as others are,"""
LEAST_MARKED = 8
"""if it has so many steps."""


class Request(NamedTuple):
    """What to try, and for how long in all."""

    command: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    diagnosis: Diagnosis
    budget_s: float
    seed: int = 0
    folder: Path | None = None
    """Where to run it, None here."""
    tell: Callable[[str], None] = lambda _: None
    """Told what goes on, a line now and then."""
    pass_on: Callable[[str], None] = lambda _: None
    """Told what is seen so far, which the next of it replaces, or with nothing that it goes on."""


class ProgramRuns:
    """Runs of a request's program, and what was measured in them."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._began_s = time.monotonic()
        self._until_s = self._began_s + request.budget_s
        """When the time of what is tried now is over."""
        self._runs = 0
        self._remarks: list[str] = []
        self._measured = [Measured(candidate) for candidate in request.candidates]
        self._source = ""
        self._times: dict[str, list[RunStep]] = {"": []}
        """A step of each run that was timed, by the cures that it had."""
        self._plain: list[ProgramResult] = []
        """Runs with nothing changed."""
        self._between: ProgramResult | None = None
        """The blocks of a run in which cures were off, where none that was switched in it gains:
        as good as a run with nothing changed, but for its results."""
        self._begun: ProgramResult | None = None
        """A run until anything was switched in it."""
        self._start_s = 0.0
        """How long the program takes until its first timed step, at most, where nothing that is on
        compiles."""
        self._is_brief = False
        """Whether the program ends before it can be timed as others are."""
        self._trains = False
        """Whether it calls backward."""
        self._whole: ProgramResult | None = None
        """A run that came to the program's own end."""
        self._no_trials = ""
        """Why nothing can be tried on this program."""
        self.is_interrupted = False
        """Whether Ctrl-C ended a run: no other one is made."""

    @property
    def _all_left_s(self) -> float:
        if self.is_interrupted:
            return 0.0
        return self._request.budget_s - (time.monotonic() - self._began_s)

    @property
    def _left_s(self) -> float:
        """Of the budget, for what is tried now."""
        return min(self._until_s - time.monotonic(), self._all_left_s)

    def _run(self, plan: RunPlan, until: Callable[[RunInFolder, float], str]) -> ProgramResult:
        if self.is_interrupted:
            raise KeyboardInterrupt
        self._runs += 1
        stalls = Stall()
        # The same in all runs: what a cure changes may mark steps, too.
        plan = plan._replace(step=self._source or self._request.diagnosis.step)
        if self._is_brief:
            plan = plan._replace(warm_s=BRIEF_WARM_S, block_s=BRIEF_BLOCK_S)

        def over(run: RunInFolder, seconds: float) -> str:
            self._request.pass_on("")
            if self._all_left_s <= 0:
                return SPENT
            # Of a run of its own nothing is left to be measured.
            ended = [name for name in run.reader.ended if name in on or name == run.reader.lost]
            if ended:
                return f"{ended[0]}: {run.reader.ended[ended[0]]}"
            return until(run, seconds) or stalls.look(run, seconds)

        on = {*plan.held, *plan.constant}
        result = run_once(self._request.command, plan, over, folder=self._request.folder)
        self.is_interrupted = result.ended_by == INTERRUPTED
        self._hear(result)
        self._whole = result if result.has_ended else self._whole
        self._trains = self._trains or bool(result.steps and result.steps.losses)
        if result.steps is not None and not result.failure:
            its = _source(result.steps)
            if not self._plain and not any(each.off_ns for each in self._measured):
                self._source = its  # nothing was timed so far
            elif its != self._source:
                why = f"its steps are those of {its}, not of {self._source} as before"
                result = result._replace(steps=None, ended_by=why)
        longer_s = max(0.0, plan.warm_s - RunPlan().warm_s)
        if not any(
            each.candidate.cure.longer_s
            for each in self._measured
            if each.candidate.name in plan.constant
        ):
            self._start_s = max(self._start_s, (result.first_block_s or 0.0) - longer_s)
        return result

    def _until_measured(self, off: Sequence[RunStep] = ()) -> Callable[[RunInFolder, float], str]:
        """Says when a run is over: what shows a gain over these is timed for longer."""

        def until(run: RunInFolder, _seconds: float) -> str:
            useless = run.reader.not_applied
            has_pauses = any(
                each.has_pauses and not each.why and each.candidate.name not in useless
                for each in self._measured
            )
            return until_sure(run, WITH_PAUSES_S if has_pauses else MEASURED_S, off)

        return until

    def _until_compared(self, run: RunInFolder, _seconds: float) -> str:
        """As long as a warm-up is: what is compared with it is from the beginning."""
        steps = run.reader.steps
        if steps is None or len(steps.blocks) < 2:
            return ""
        timed_s = sum(block.ns for block in steps.blocks) / 1e9
        return "it was seen" if timed_s > RunPlan().warm_s else steps.over

    def _plain_run(self) -> None:
        self._request.tell("as it is")
        for _ in range(2):
            result = self._run(RunPlan(asked=self._asked()), self._until_measured())
            if self._keep_plain(result) or self._cannot_time(result):
                break

    def _take_between(self, result: ProgramResult) -> None:
        step = run_step(result)
        if step is not None and not self._times[""]:
            self._times[""].append(step)

    @property
    def _references(self) -> list[ProgramResult]:
        """Runs whose steps are those of the program as it is."""
        return [*self._plain, *filter(None, [self._between])]

    def _keep_plain(self, result: ProgramResult) -> bool:
        """Takes it as a run of the program as it is, if its steps were timed."""
        step = run_step(result)
        if step is None:
            return False
        self._times[""].append(step)
        self._plain.append(result)
        return True

    def _plain_steps(self, each: Measured) -> list[RunStep]:
        """A step of each run of the program as it is, to compare with those of a cure."""
        runs = self._plain if each.has_pauses else self._references
        return [step for step in map(run_step, runs) if step is not None]

    def _longest_s(self) -> float:
        """Of the runs with nothing changed, or what one would take."""
        usual_s = self._start_s + RUN_S if self._start_s else 0.0
        return max((result.seconds for result in self._plain), default=usual_s)

    def _plan_with(self, names: Sequence[str]) -> RunPlan:
        """A run with these cures, those that may be switched from the end of its warm-up on."""
        measured = [each for each in self._measured if each.candidate.name in names]
        switched = [each.candidate.name for each in measured if each.candidate.cure.in_one_run]
        held = tuple(name for name in names if name in switched)
        return RunPlan(held=held, constant=tuple(name for name in names if name not in held))

    def _run_without(self, each: Measured) -> None:
        """A run as it is, or with what is on beside a cure."""
        if not each.run_beside:
            self._plain_run()
        else:
            key = JOINED.join(each.run_beside)
            self._request.tell(f"with {key}")
            result = self._run(self._plan_with(each.run_beside), self._until_measured())
            if left_out := result.left_out(each.run_beside):
                each.why = f"what it is compared with was without {left_out}"
            else:
                self._times.setdefault(key, []).extend(filter(None, [run_step(result)]))
        each.off_runs = self._off_runs(each)

    def _off_runs(self, each: Measured) -> list[RunStep]:
        """A step of each run to compare with those of a cure."""
        if not each.run_beside:
            return self._plain_steps(each)
        return self._times.setdefault(JOINED.join(each.run_beside), [])

    def _constant_run(self, each: Measured, times: dict[str, list[RunStep]]) -> None:
        name, cure = each.candidate.name, each.candidate.cure
        names = (*each.run_beside, name)
        self._request.tell(f"with {JOINED.join(names)}")
        plan = self._plan_with(names)
        if cure.result == BOUND and cure is not NoSaves:
            plan = plan._replace(held=(*plan.held, NoSaves.name))
        plan = plan._replace(warm_s=plan.warm_s + cure.settles_s)
        off = self._off_runs(each) if name not in times else ()
        result = self._run(plan, self._until_measured(off))
        step = run_step(result)
        if name in result.not_applied:
            each.why, each.applies = result.not_applied[name], False
        elif name not in result.applied:
            library = cure.library
            each.why = f"the program does not import {library}" if library else "it had no effect"
        elif result.failure:
            each.why, each.failed = f"the program fails with it: {result.last_line}", True
            each.last_lines = result.last_lines
        elif result.ended:
            each.why = result.ended_by
        elif left_out := result.left_out(each.run_beside):
            each.why = f"it was without {left_out}"
        elif step is None:
            each.why = result.ended_by or "no steps of it were seen"
            if result.ended_by == SPENT:
                each.why = f"{TIME_OVER}, {result.seconds:.0f} s after its start"
        else:
            times.setdefault(name, []).append(step)
            each.on_runs, each.way = times[name], "a run each"
            each.off_runs = self._off_runs(each)
            if len(each.on_runs) == 1 and result.steps is not None:
                each.ready_s, each.first_step = result.first_block_s, result.steps.first
            each.note = result.notes.get(name, each.note)
            each.place = result.places.get(name, each.place)
            if cure.result != BOUND:
                cures = [
                    other.candidate.cure for other in self._measured
                    if other.candidate.name in names
                ]  # fmt: skip
                each.same = self._compared(result, cures, plan)

    def _compared(
        self, result: ProgramResult, cures: Sequence[type[Cure]], plan: RunPlan
    ) -> Sameness:
        """What a run with cures computes, beside one as it is, or the first steps of one: where it
        is something else, within what two runs as they are differ by, for which another is made if
        there is time."""
        references = self._references or [*filter(None, [self._begun])]
        if not references:
            return UNKNOWN
        same = sameness_with(
            cures, references[0], result, constant=bool(plan.constant), held=bool(plan.held)
        )
        if same.kind != "other":
            return same
        if len(self._references) < 2 and self._all_left_s > 1.1 * self._longest_s():
            self._plain_run()
        for again in self._references[1:]:
            same = sameness_by_scatter(self._references[0], again, result) or same
        return same

    def _cannot_time(self, result: ProgramResult) -> bool:
        """Of a run without a timed step: whether another one would be as bad, and says why."""
        if result.has_ended and not self._is_brief and result.seen >= LEAST_MARKED:
            self._is_brief = True
            return False
        if self._plain or any(each.off_ns for each in self._measured):
            return True  # others were timed
        over = "it ended" if result.has_ended else result.ended_by
        whole = result if result.has_ended else self._whole or result
        seen = f"steps: {whole.seen} or more" if whole.seen else "no step that is known"
        self._no_trials = result.failed or f"{over}; {seen} in {whole.seconds:.1f} s"
        self._remarks.append(f"Nothing could be timed: {self._no_trials}.")
        return True

    def _asked(self) -> tuple[str, ...]:
        """Those of which the first run may say that they need none."""
        return tuple(
            each.candidate.name
            for each in self._measured
            if not self._runs
            and (
                not each.candidate.cure.in_one_run
                or each.is_by_itself
                or each.candidate.cure.tells_at_once
            )
        )

    def _hear(self, result: ProgramResult) -> None:
        """What cures found out by themselves in a run, whatever was measured there."""
        for each in self._measured:
            name = each.candidate.name
            if name in result.ended and not each.ended:
                each.ended = result.ended[name]
                self._request.tell(f"{name} ended by itself: {each.ended}")
                for other in self._measured:
                    if other.drop_beside(name):
                        self._times.pop(other.candidate.name, None)
            if name in result.not_applied and (each.gain is None or each.ended):
                each.why, each.applies = result.not_applied[name], False
            elif name in result.not_applied:
                each.refused = result.not_applied[name]


def sameness_with(
    cures: Sequence[type[Cure]],
    reference: ProgramResult,
    tried: ProgramResult,
    *,
    constant: bool,
    held: bool,
) -> Sameness:
    """`sameness_of` a run with these cures and one as it is."""
    return sameness_of(
        reference, tried, worst_of(cure.result for cure in cures), constant=constant, held=held,
        by_outputs=not any(cure.alters_outputs for cure in cures),
        redraws=any(cure.redraws for cure in cures),
    )  # fmt: skip


def worst_of(classes: Iterable[str]) -> str:
    """What cures of these classes leave of results together."""
    return max(classes, key=(EXACT, ROUNDING, DIFFERENT).index)


def until_sure(run: RunInFolder, least_s: float, off: Sequence[RunStep]) -> str:
    """Why a run of its own is over, as `is_measured` has it; where a gain over `off` would be
    claimed of it alone, once it was timed for WITH_PAUSES_S: where a program has two speeds, for
    seconds each, a run of three may have had the one, and another the other."""
    over, steps = is_measured(run, least_s), run.reader.steps
    if not over or steps is None or steps.over or not steps.blocks:
        return over
    gain = gain_of_runs(off, [step_of(steps.blocks)], 1)
    return is_measured(run, WITH_PAUSES_S) if gain is not None and gain.is_claimed else over


def _source(steps: Steps) -> str:
    return f"{steps.source} {steps.site}"
