"""All trials of a command, in turn: the diagnosis, cures switched within one run, cures that need a
run each, the best together, ablations; until the budget is spent or the gains are known.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from statistics import median

from msgspec import structs

from gputui.base.sanitize import masked_words, sanitize
from gputui.cures import ANY, BOUND, DIFFERENT
from gputui.cures.ablations import NoSaves
from gputui.trial.alternation import (
    LEAST_S,
    RUN_S,
    Alternation,
    Waiting,
)
from gputui.trial.blocks import JOINED, Pair, Steps, newest_alike
from gputui.trial.measured import (
    Measured,
    held_beside,
    held_in_runs,
    proven_compatible,
    proven_of_same_cause,
)
from gputui.trial.outcome import (
    NO_TIME,
    TIME_OVER,
    Outcome,
    Trial,
    Verdict,
    measured_text,
    more_than_proven,
    reason_of,
    with_gain,
)
from gputui.trial.planning import by_name_only
from gputui.trial.program_runs import ProgramRuns, Request, worst_of
from gputui.trial.proof import (
    EARLY_PAIRS,
    FEWEST,
    LEAST_GAIN,
    LOOKS,
    NEAR,
    MeasuredGain,
    gain_of_pairs,
    gain_of_runs,
    show_nothing,
)
from gputui.trial.runs import (
    INTERRUPTED,
    MEASURED_S,
    ProgramResult,
    RunPlan,
    RunStep,
    run_step,
    step_of,
)
from gputui.trial.sameness import (
    UNKNOWN,
    Sameness,
    sameness_of,
    sameness_within_a_run,
)

ROUNDS = 3
"""How often the phases are gone through, each time with what is left of the budget."""

NOT_TOGETHER = "No time was left for a run"

ANSWERS = "answers the same"

AGAIN = 3
"""Runs of a program that ends before its pairs are enough."""

BRIEF_S = 15.0
"""A program that ends so soon after its warm-up is timed in shorter blocks after a shorter one from
then on; one whose loop is longer has its pairs in several runs."""

PROMISING = 1.01
"""A gain of a single run from which a second one is worth its time."""

EARLY_S = 0.5
"""The warm-up of a run with cures whose results are compared with the first steps of another."""

LEAST_TIMED_S = 4.0
"""Without so much for pairs a program is not started again."""

READY_S = 3.0
"""A start that a cure makes longer by so much is said beside its gain: it compiles, or tunes."""

PROVEN, LAST = 1.5, 0.35
"""The weight of the proof of all gains together where the budget is divided, see `run`; and the
part of all that is left that ablations have at the end of a run of cures."""


class Trials(ProgramRuns):
    """The trials of one request. `run` does them all."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._until_s = self._began_s + request.budget_s
        """When the time of what is tried now is over."""
        self._told: set[str] = set()
        self._proven: set[str] = set()
        """What was measured together within one run,"""
        self._from_start: set[str] = set()
        """and from the start of one."""
        self._reopened: set[tuple[str, frozenset[str]]] = set()
        """Cures that were measured anew, and beside which others."""
        self._together: Trial | None = None
        self._short: dict[str, list[str]] = {}
        """Cures that were not tried to the end, by why."""
        self._round = 0

    @property
    def _input_share(self) -> float:
        return self._request.diagnosis.input_share

    @property
    def _left_s(self) -> float:
        """Of the budget, for what is tried now."""
        return min(self._until_s - time.monotonic(), self._all_left_s)

    def run(self) -> Outcome:
        """Try everything that fits into the budget, until Ctrl-C: what was measured until then is
        in the outcome."""
        try:
            self._try_all()
        except KeyboardInterrupt:
            self.is_interrupted = True
        return self._outcome()

    def _try_all(self) -> None:
        """Try everything that fits into the budget, first what the findings promise something of:
        cures that are switched in one run, and last in that run ablations; cures that need a run
        each; all proven ones together; ablations that are left; then cures that nothing is promised
        of. Each phase has its weight of the time that is left; what is left after all of them is
        for whoever comes first: other cures of what a proven one answers, runs that make a gain
        more certain, all together."""
        switched: list[Measured] = []
        constant: list[Measured] = []
        constant_too: list[Measured] = []
        ablations: list[Measured] = []
        # By name, without findings, all are wanted alike.
        none_is = not any(each.candidate.forecast for each in self._measured)
        lead = self._lead(self._measured)
        for each in self._measured:
            cure = each.candidate.cure
            # Those for faults that no finding shows are left out at once where there is no such.
            is_forecast = (
                none_is or bool(each.candidate.forecast) or ANY in cure.answers
                or (each in lead and cure.forecast is not None)
            )  # fmt: skip
            if cure.result == BOUND:
                ablations.append(each)
            elif cure.in_one_run and not each.is_by_itself:
                switched.append(each)
            else:
                (constant if is_forecast else constant_too).append(each)
        phases: list[tuple[float, list[Measured], Callable[[list[Measured]], None]]] = [
            (9.0, switched, self._switch),
            (9.0, constant, self._run_each),
            (PROVEN, self._measured, self._prove_together),
            (4.0, ablations, self._ablate),
            (1.0, constant_too, self._run_each),
        ]
        later = [(0.0, *phases[number][1:]) for number in (1, 2, 0, 3, 4)]
        at_once = [
            each for each in constant
            if each.candidate.forecast and not each.candidate.cure.longer_s
        ]  # fmt: skip
        if at_once and not any(each.candidate.forecast for each in switched):
            # What is promised something of needs runs of its own: those of faults that no finding
            # shows took 20 s of 50 before it.
            phases[:2] = phases[1::-1]
        elif self._lead(at_once) and not any(
            each.candidate.forecast for each in self._lead(switched)
        ):
            # What answers a second finding took 30 s of 60 before it.
            phases[0:0] = [(9.0, self._lead(at_once), self._run_each)]
        if any(each.has_pauses for each in lead):
            # Blocks reach from pause to pause, and a proof takes 11 pairs of them: cures that
            # answer something else wait for runs of those that answer this.
            phases[0:0] = [
                (40.0, self._lead([*constant, *constant_too]), self._run_each),
                (20.0, [each for each in self._lead(ablations) if each.waits], self._ablate),
            ]
        phases = [phase for phase in phases if phase[1]]
        for self._round in range(ROUNDS):
            if self._round:
                phases = later
            for number, (weight, group, make) in enumerate(phases):
                whole = sum(each[0] for each in phases[number:])
                part = weight / whole if whole else 1.0
                self._until_s = time.monotonic() + self._all_left_s * part
                make(group)
                self._judge()
                # What blocks cannot tell is asked again, by runs.
                self._run_each(
                    [
                        each for each in group
                        if each.doubt and not each.on_runs and each.candidate.cure.result != BOUND
                    ]
                )  # fmt: skip
                self._judge()
                if self._no_trials:
                    return
            # What one phase leaves of its time is another's.
            if self._all_left_s < max(LEAST_S, 1.2 * self._longest_s()):
                break
            for each in self._measured:
                if each.why.startswith(NO_TIME) or each.why.endswith(ANSWERS):
                    each.why = ""

    def _lead(self, group: Sequence[Measured]) -> list[Measured]:
        """Those that answer what the program is slow for first of all."""
        first = next((each.cause for each in self._request.diagnosis.findings), None)
        return [
            each for each in group
            if each.candidate.finding is not None and each.candidate.finding.cause == first
        ]  # fmt: skip

    def _judge(self) -> None:
        """The gains so far, corrected for as many cures as were measured until then: what was
        proven once stays so."""
        measured = [each for each in self._measured if each.on_ns]
        for each in measured:
            if each.way == "in one run":
                each.gain = gain_of_pairs(each.pairs, each.rivals, self._input_share)
                each.doubt = each.gain.doubt if each.gain is not None else ""
            elif each.on_runs and each.off_runs:
                name = each.candidate.name
                others = [runs for key, runs in self._times.items() if key not in ("", name)]
                # What an ablation shows is no claim of a cure's, and what pairs show none of runs.
                tried = sum(
                    bool(other.on_runs) and other.is_bound == each.is_bound for other in measured
                )
                each.gain = gain_of_runs(each.off_runs, each.on_runs, tried, others)
        for each in measured:
            name = each.candidate.name
            if name not in self._told and each.verdict == "gain":
                self._told.add(name)
                self._request.tell(f"proven: {name}, {measured_text(self._trial(each))}")

    def _ablate(self, group: list[Measured]) -> None:
        for each in group:
            each.why = each.why or self._answered(each)
        alone = [each for each in group if each.is_by_itself]
        self._run_each([each for each in alone if not self._is_aside(each)])
        aside = [each for each in alone if self._is_aside(each) and not each.on_runs]
        group = [each for each in group if not each.on_runs and each not in aside]
        # Where nothing points at saves they come with what is left: alone they took 20 s of 50.
        saves = [each for each in group if each.candidate.cure is NoSaves]
        others = [each for each in group if each not in saves]
        is_explained = any(each.verdict in ("gain", "bound") for each in self._measured)
        saves = [
            each for each in saves
            if each.candidate.forecast or (self._round and not is_explained)
        ]  # fmt: skip
        until_s = self._until_s
        self._until_s -= max(0.0, self._left_s) * len(saves) / max(1, len(group))
        # What they have spoilt is not saved, in their blocks or after them.
        self._switch(others, (NoSaves.name,))
        self._until_s = until_s
        self._switch(saves)
        self._run_each(aside)

    def _is_aside(self, each: Measured) -> bool:
        """Whether its finding is only perhaps about what it takes away."""
        finding = each.candidate.finding
        return finding is not None and finding.cause not in each.candidate.cure.answers[:2]

    # --- in one run

    def _switch(self, group: list[Measured], held: tuple[str, ...] = ()) -> None:
        seconds = 0.0
        for _ in range(AGAIN):
            self._reopen(group)
            open_ones = [
                each for each in group
                if not each.why and not each.is_decided and each.is_worth_a_start
            ]  # fmt: skip
            # As long as nothing was timed, all of the budget is for that.
            left_s = self._all_left_s if self._is_brief and not self._plain else self._left_s
            if not open_ones or left_s < min(LEAST_S, 1.2 * seconds):
                break
            if self._start_s and self._all_left_s < self._start_s + LEAST_TIMED_S:
                break
            last, last_s = self._switched_last(open_ones)
            open_ones += last
            names = tuple(each.candidate.name for each in open_ones)
            bounds = tuple(each.candidate.name for each in open_ones if each.is_bound)
            # Another order in each run: what a program does at the same moment of each would else
            # be in the same kind of block in all.
            seed = self._request.seed + self._runs
            lead = self._lead(open_ones)
            later = tuple(
                each.candidate.name for each in open_ones
                if not each.candidate.forecast and each not in lead and not each.is_bound
                and not each.candidate.cure.is_certain
            )  # fmt: skip
            # Ablations by themselves are of the program as it is.
            much = (
                []
                if any(each.is_bound for each in open_ones)
                else held_beside(self._measured, open_ones)
            )
            beside = tuple(each.candidate.name for each in much)
            constant = tuple(
                each.candidate.name for each in much if not each.candidate.cure.in_one_run
            )
            on = tuple(name for name in beside if name not in constant)
            plan = RunPlan(
                names, held=(*held, *on), constant=constant, asked=self._asked(), later=later,
                seed=seed, bounds=bounds, held_then=(NoSaves.name,) if last else (), beside=beside,
            )  # fmt: skip
            before = {each.candidate.name: list(each.pairs) for each in open_ones}
            # What an ablation shows is no claim of a cure's, and the other way round.
            others = [each for each in self._measured if each.on_ns and each not in open_ones]
            number = {
                is_bound: sum(each.is_bound == is_bound for each in others)
                for is_bound in (False, True)
            }
            with_them = f", with {JOINED.join(beside)}" if beside else ""
            self._request.tell(f"in one run: {_listed(names)}{with_them}")
            waiting = [each for each in self._lead(self._measured) if each.waits]
            alternation = Alternation(
                before, left_s, number[False], self._input_share, self._request.pass_on,
                later if waiting else (), bounds, last_s if last else left_s, number[True],
                self._wait_for_runs(open_ones), self._all_left_s,
                {each.candidate.name for each in open_ones if each.candidate.forecast},
                beside, self._is_right,
            )  # fmt: skip
            result = self._run(plan, alternation.look)
            self._keep_measured(open_ones, before, result, number)
            seconds = result.seconds
            self._remarks += [
                result.notes[each] for each in (*held, *plan.held_then) if each in result.notes
            ]
            if result.steps is None or not result.steps.blocks:
                if self._cannot_time(result):
                    break
                continue
            timed_s = result.seconds - (result.first_block_s or 0.0)
            self._is_brief = self._is_brief or (result.has_ended and timed_s < BRIEF_S)
            self._take_blocks_beside(result, bounds)
            if not beside and self._begun is None:
                self._begun = result.without_cures(1, bounds)
            if not beside and not any(
                each.gain is not None and each.gain.is_claimed and not each.is_bound
                for each in open_ones
            ):
                self._between = result.without_cures(LOOKS[0], bounds)
            is_any_on = any(block.on for block in result.steps.blocks)
            if all(name in result.not_applied for name in names) and not held and not is_any_on:
                # Nothing was switched in it.
                self._between = None
                if not beside:
                    self._keep_plain(result)
                elif len(much) == 1 and much[0].on_runs:
                    much[0].on_runs += filter(None, [run_step(result)])
                break
            if result.ended_by.startswith("no step"):
                self._blame(open_ones, result, result.ended_by)
            elif result.failure:
                self._blame(open_ones, result, f"the program fails with it: {result.last_line}")

    def _take_blocks_beside(self, result: ProgramResult, bounds: Sequence[str]) -> None:
        """Of a run with cures that are switched the blocks in which what is held was on and nothing
        else, where nothing else gains: as good as a run with it."""
        steps = result.steps
        names = tuple(each.candidate.name for each in held_beside(self._measured, []))
        if steps is None or result.failure or not names:
            return
        alike = [
            block for block in steps.blocks
            if {*block.beside} == {*names} and not block.on and block.cure not in bounds
        ]  # fmt: skip
        others = [each for each in self._measured if each.verdict == "gain" and each.beside]
        if len(alike) >= LOOKS[0] and not any({*each.beside} == {*names} for each in others):
            runs = self._times.setdefault(JOINED.join(names), [])
            runs += [] if runs else [step_of(alike)]

    def _is_right(self, steps: Steps, name: str) -> bool:
        """Whether losses go on as before in the blocks with a cure, as far as they show it."""
        cure = next(each.candidate.cure for each in self._measured if each.candidate.name == name)
        return sameness_within_a_run(steps, name, cure.result).kind != "other"

    def _reopen(self, group: Sequence[Measured]) -> None:
        """Has those measured anew, once, that showed nothing beside less than what is known to gain
        much by now: it may have hidden what they gain."""
        for each in group:
            much = {other.candidate.name for other in held_beside(self._measured, [each])}
            key = each.candidate.name, frozenset(much)
            is_open = each.verdict not in ("gain", "another result") and not each.failed
            if not each.pairs or each.on_runs or each.is_bound or not is_open:
                continue
            if not much <= {*each.beside} and key not in self._reopened:
                self._reopened.add(key)
                each.pairs, each.gain, each.why = [], None, ""

    def _wait_for_runs(self, group: list[Measured]) -> dict[str, Waiting]:
        """The cures that promise something in runs of their own, and were not tried, with the
        ablations among these that are about the same: they come after it, but not after one that
        compiles."""
        return {
            each.candidate.name: Waiting(
                {
                    bound.candidate.name for bound in group
                    if bound.is_bound and bound.cause == each.cause
                    and not each.candidate.cure.longer_s
                },
                each.candidate.cure.longer_s + each.candidate.cure.settles_s,
            )
            for each in self._measured
            if each not in group and not each.is_bound and each.waits
        }  # fmt: skip

    def _switched_last(self, group: list[Measured]) -> tuple[list[Measured], float]:
        """The ablations that come last in a run of these cures, which spares another start of the
        program, and for how long at most."""
        if any(each.is_bound for each in group):
            return [], 0.0
        last = [
            each for each in self._measured
            if each.is_bound and each.candidate.cure is not NoSaves and not each.why
            and not each.is_decided and not each.is_by_itself and not self._answered(each)
        ]  # fmt: skip
        return last, self._all_left_s * LAST

    def _keep_measured(
        self,
        group: list[Measured],
        before: dict[str, list[Pair]],
        result: ProgramResult,
        others: dict[bool, int],
    ) -> None:
        """Keep what a run has shown of each cure that was switched in it. `others` says how many
        ablations, and others, were measured in other runs."""
        steps = result.steps
        rivals = {
            is_bound: number + sum(
                each.candidate.name not in result.not_applied and each.is_bound == is_bound
                for each in group
            )
            for is_bound, number in others.items()
        }  # fmt: skip
        for each in group:
            name = each.candidate.name
            if steps is None:
                continue
            each.way = "in one run"
            each.note = result.notes.get(name, each.note)
            each.place = result.places.get(name, each.place)
            each.pairs = newest_alike(self._beside_right(before[name] + steps.pairs(name)))
            each.rivals = max(1, rivals[each.is_bound])
            each.gain = gain_of_pairs(each.pairs, each.rivals, self._input_share)
            if each.gain is None and show_nothing(each.pairs):
                each.why = f"none of {len(each.pairs)} pairs showed a gain"
            if each.candidate.cure.result != BOUND:
                each.same = sameness_within_a_run(steps, name, each.candidate.cure.result)
        joined = next((b.cure for b in steps.blocks if JOINED in b.cure), "") if steps else ""
        pairs = steps.pairs(joined) if steps is not None else []
        gain = gain_of_pairs(pairs, 1, self._input_share)
        if gain is not None and not pairs[0].beside:
            self._proven = set(joined.split(JOINED))
            self._together = self._with_all(joined, pairs, gain)

    def _with_all(self, joined: str, pairs: Sequence[Pair], gain: MeasuredGain) -> Trial:
        """Several cures that were switched as one in a run."""
        cures = [each for each in self._measured if each.candidate.name in joined.split(JOINED)]
        return with_gain(
            Trial(
                cure=joined,
                result=worst_of(each.candidate.cure.result for each in cures),
                verdict="gain",
                off_ns=median(pair.off.step_ns for pair in pairs),
                on_ns=median(pair.on.step_ns for pair in pairs),
                way="in one run",
                pairs=len(pairs),
            ),
            gain,
        )

    def _blame(self, group: list[Measured], result: ProgramResult, why: str) -> None:
        """The cure that was on last is not tried again."""
        last = result.steps.switched if result.steps is not None else ""
        for each in group:
            if each.candidate.name == last:
                each.why, each.failed, each.last_lines = why, True, result.last_lines
                return
        self._remarks.append(why)

    # --- a run each

    def _run_each(self, group: list[Measured]) -> None:
        """As it is, then each cure that had no run, what promises most first; then a second run of
        those of which the first shows something: of what was found at once if that lacks a second
        run to be proven, of all with what others leave, and another as it is."""
        for each in group:
            each.why = each.why or self._answered(each)
        group = [each for each in group if not each.why and (each.doubt or not each.is_decided)]
        if not group:
            return
        for each in group:
            if not each.on_runs:
                each.run_beside = held_in_runs(self._measured, each)
        alone = [each for each in group if not each.run_beside]
        has_pauses = any(each.has_pauses for each in alone)
        if self._between is not None and not self._plain and not has_pauses:
            self._take_between(self._between)
        elif alone and not self._plain:
            self._plain_run()
        # What is known not to apply has said so in the first run.
        group.sort(key=lambda each: not each.candidate.cure.is_certain if self._runs else 0)
        lead = self._lead(group)
        group.sort(key=lambda each: each not in lead)
        for each in group:
            if each.on_runs or each.why:
                continue
            each.why = self._answered(each)
            # What promises most is tried even if nothing is left for others.
            left_s = self._left_s if any(other.on_runs for other in group) else self._all_left_s
            needs_s = self._needs_s(each)
            if each.run_beside and not each.why and not self._off_runs(each):
                if left_s > needs_s + self._longest_s():
                    self._run_without(each)
                left_s = self._all_left_s
            if not each.why and (not self._off_runs(each) or left_s < needs_s):
                wants = f": it wants some {needs_s:.0f} s" if self._longest_s() else ""
                each.why = self._no_trials or NO_TIME + wants
            if not each.why:
                self._constant_run(each, self._times)
                self._judge()
        group = [each for each in group if self._is_worth_a_second(each, group)]
        for each in sorted(group, key=lambda each: -each.gain.middle if each.gain else 0.0):
            # Before the others had their turn these are what the program is slow for.
            has_more = len(each.on_runs) > len(self._off_runs(each))
            if not has_more and self._all_left_s > self._needs_s(each):
                self._constant_run(each, self._times)
            if len(self._off_runs(each)) < 2 and self._all_left_s > 1.2 * self._longest_s():
                self._run_without(each)

    def _needs_s(self, each: Measured) -> float:
        """What a run of it takes."""
        cure = each.candidate.cure
        if each.on_runs and each.ready_s is not None:
            return 1.1 * (each.ready_s + RUN_S)
        # Compiling may take half of that, and what is left at the end is for nothing else.
        longer_s = cure.longer_s / (2.0 if self._round else 1.0) + cure.settles_s
        run_s = self._longest_s()
        if not each.on_runs and not each.has_pauses:
            # One that is ended early says less, and more than none.
            run_s = min(run_s, self._start_s + RUN_S)
        return 1.1 * run_s + longer_s

    def _is_worth_a_second(self, each: Measured, group: Sequence[Measured]) -> bool:
        """Whether a second run may tell more that matters."""
        if each.why or each.gain is None or not each.on_runs or each.is_decided:
            return False
        if each.gain.is_claimed and each.gain.pairs > 1:
            return False
        if not self._round and (
            each.verdict != "unclear"
            or each.candidate.cure.longer_s
            or not self._lead([each])
            or proven_of_same_cause(self._measured, each)
        ):
            return False  # others first
        best = max(
            other.gain.middle for other in group
            if other.gain is not None and other.on_runs and other.cause == each.cause
        )  # fmt: skip
        least = PROMISING if self._round else NEAR
        return each.gain.middle >= max(least, best / NEAR)

    def _answered(self, each: Measured) -> str:
        """Which proven gain is of the same finding, and what that promises at least, or once all
        others had their turn nearly what it promises at most; else empty."""
        finding = each.candidate.finding
        if finding is None or not finding.gains or each.gain is not None:
            return ""
        promised = each.candidate.forecast
        least = finding.gains[0].low
        if self._round and promised is not None:
            least = promised.high / NEAR
        for other in proven_of_same_cause(self._measured, each):
            if other.gain is not None and other.gain.middle >= least:
                return f"{other.candidate.name} {ANSWERS}"
        return ""

    # --- together

    def _prove_together(self, _group: list[Measured]) -> None:
        """The gains that are claimed in runs of their own, from the same beginning as one without:
        whether results stay the same step by step, and what they bring together."""
        proven = proven_compatible(self._measured)
        if not proven or {each.candidate.name for each in proven} == self._from_start:
            return
        if len(proven) == 1 and proven[0].on_runs:
            return  # its runs have shown both
        is_measured = len(proven) == 1 or {each.candidate.name for each in proven} == self._proven
        if is_measured and not self._round and all(each.same.kind != "unknown" for each in proven):
            return  # others first
        if is_measured:
            self._compare(proven)
            return
        times = self._times
        together = times.setdefault("all", [])
        held = tuple(each.candidate.name for each in proven if each.candidate.cure.in_one_run)
        constant = tuple(
            each.candidate.name for each in proven if not each.candidate.cure.in_one_run
        )
        longest_s = max(each.ready_s or 0.0 for each in proven)
        run_s = max(self._start_s, longest_s) + MEASURED_S
        # Once others had their turn all that is left may be for it.
        left_s = self._all_left_s if self._round else self._left_s
        if not self._plain and left_s > 2.0 * run_s:
            self._plain_run()
            left_s -= run_s
        self._remarks = [each for each in self._remarks if not each.startswith(NOT_TOGETHER)]
        if not self._plain or left_s < run_s:
            what = "all of them" if len(proven) > 1 else "it"
            self._remarks.append(f"{NOT_TOGETHER} with {what} from its start, to compare results")
            return
        names = (*held, *constant)
        whole = [each for each in proven if {each.candidate.name, *each.run_beside} == {*names}]
        if whole and whole[0].on_runs and times[""]:
            # Its runs were with all of them.
            self._from_start = {*names}
            self._set_together(proven, names, whole[0].on_runs, whole[0].same)
            return
        self._request.tell(f"together: {', '.join(names)}")
        result = self._run(RunPlan(held=held, constant=constant), self._until_measured())
        step = run_step(result)
        why = result.left_out(names) or result.failure
        if step is None or result.ended or why or not times[""]:
            self._remarks.append(f"together: {why or result.ended_by or 'no steps'}")
            return
        classes = worst_of(each.candidate.cure.result for each in proven)
        same = sameness_of(
            self._plain[0], result, classes, constant=bool(constant), held=bool(held)
        )
        for each in proven:
            if each.candidate.name in held and (same.kind in ("same", "rounding") or not constant):
                each.same = same if same.kind != "unknown" else each.same
        if self._from_start:
            together.clear()  # of fewer of them
        self._from_start = {each.candidate.name for each in proven}
        together.append(step)
        if self._left_s > 1.2 * self._longest_s():
            again = self._run(RunPlan(held=held, constant=constant), self._until_measured())
            if why := again.left_out(names) or (again.ended_by if again.ended else ""):
                self._remarks.append(f"together: {why}")
                return
            together += filter(None, [run_step(again)])
        if len(times[""]) < 2 and self._left_s > 1.2 * self._longest_s():
            self._plain_run()
        self._set_together(proven, names, together, same)

    def _set_together(
        self,
        proven: Sequence[Measured],
        names: Sequence[str],
        on: Sequence[RunStep],
        same: Sameness,
    ) -> None:
        """What runs with all that is proven say, beside runs as it is."""
        off = self._times[""]
        others = [runs for name, runs in self._times.items() if name not in ("", "all")]
        off_ns, on_ns = (median(run.ns for run in runs) for runs in (off, on))
        trial = Trial(
            cure=JOINED.join(names),
            result=worst_of(each.candidate.cure.result for each in proven),
            verdict="gain" if same.kind != "other" else "another result",
            off_ns=off_ns,
            on_ns=on_ns,
            way="a run each",
            same=same.text,
            gain=off_ns / on_ns,
        )
        self._together = with_gain(trial, gain_of_runs(off, on, 1, others))

    def _compare(self, proven: Sequence[Measured]) -> None:
        """Whether results stay the same, step by step, with cures whose gains were measured in one
        run: of another run with them from soon after its start, beside the first steps of that one,
        or where these are too few, beside a run as it is."""
        run_s = self._start_s + MEASURED_S
        left_s = self._all_left_s if self._round else self._left_s
        self._remarks = [each for each in self._remarks if not each.startswith(NOT_TOGETHER)]
        what = "all of them" if len(proven) > 1 else "it"
        if left_s < run_s:
            self._remarks.append(f"{NOT_TOGETHER} with {what} from its start, to compare results")
            return
        names = tuple(each.candidate.name for each in proven)
        self._request.tell(f"with {JOINED.join(names)}, to compare results")
        result = self._run(RunPlan(held=names, warm_s=EARLY_S), self._until_compared)
        why = result.left_out(names) or result.failure
        if result.steps is None or result.ended or why:
            self._remarks.append(f"with {what}: {why or result.ended_by or 'no steps'}")
            return
        result_class = worst_of(each.candidate.cure.result for each in proven)
        same = UNKNOWN
        if self._begun is not None:
            same = sameness_of(self._begun, result, result_class, constant=False, held=True)
        if same.kind not in ("same", "rounding") and left_s > 2.0 * run_s and not self._plain:
            self._plain_run()
        if same.kind not in ("same", "rounding") and self._plain:
            same = sameness_of(self._plain[0], result, result_class, constant=False, held=True)
        self._from_start = set(names)
        for each in proven:
            each.same = same if same.kind != "unknown" else each.same
        if self._together is not None:
            verdict: Verdict = "gain" if same.kind != "other" else "another result"
            self._together = structs.replace(self._together, verdict=verdict, same=same.text)

    # --- the outcome

    def _trial(self, each: Measured) -> Trial:
        if each.verdict == "not tried" and not each.why:
            each.why = self._no_trials or self._too_few(each)
        return each.trial(self._ready(each))

    def _ready(self, each: Measured) -> str:
        """From when on its steps are as fast, where compiling or tuning takes longer than the
        program's own start does."""
        started_s = (run.first_block_s or 0.0 for run in self._references)
        plain_s = min(started_s, default=each.ready_s or 0.0)
        if each.ready_s is None or each.gain is None or each.ready_s < plain_s + READY_S:
            return ""
        step = f"at step {each.first_step}, " if each.first_step else ""
        return f"reached {step}{each.ready_s:.0f} s after its start ({plain_s:.0f} s without it)"

    def _too_few(self, each: Measured) -> str:
        over = "the program ended" if self._whole is not None else TIME_OVER
        over = INTERRUPTED if self.is_interrupted else over
        has_time = over == TIME_OVER and self._all_left_s > 1.2 * self._longest_s()
        if each.pairs and has_time:
            over = "it was left"
        if not each.candidate.cure.in_one_run or not (each.pairs or each.candidate.forecast):
            return over
        why = f"{over} after {len(each.pairs)} of the {FEWEST} pairs that a proof takes"
        if len(each.pairs) >= EARLY_PAIRS:
            middle = median(pair.ratio for pair in each.pairs)
            if middle < LEAST_GAIN:
                return why  # nothing that a person would want to wait for
            said = "too little for more of the budget" if has_time else "not proven"
            why += f": {middle:.2f}× in the middle of them, {said}"
        self._short.setdefault(why, []).append(each.candidate.name)
        return why

    def _outcome(self) -> Outcome:
        request = self._request
        offs = [ns for each in self._measured if not each.beside for ns in each.off_ns]
        plain = [step.ns for result in self._plain if (step := run_step(result)) is not None]
        trials = tuple(map(self._trial, self._measured))
        proven: dict[str | None, float] = {}
        for trial in trials:
            if trial.verdict == "gain":
                proven[trial.cause] = max(trial.gain or 0.0, proven.get(trial.cause, 0.0))
        named = by_name_only(request.diagnosis.findings, proven, trains=self._trains)
        together = self._together
        gains = {trial.cure for trial in trials if trial.verdict == "gain"}
        if together and together.verdict == "gain" and not {*together.cure.split(JOINED)} <= gains:
            together = None  # one of them was found out after it was measured
        more = more_than_proven(trials)
        if named and not any(each.candidate.cure.result == DIFFERENT for each in self._measured):
            more.insert(0, named)
        if self.is_interrupted:
            more.insert(0, "Stopped by Ctrl-C: this is what was measured until then.")
        self._remarks[:0] = more
        for why, (first, *others) in self._short.items():
            self._remarks.append(f"{first}{f' and {len(others)} more' if others else ''}: {why}")
        return Outcome(
            command=tuple(sanitize(word) for word in masked_words(request.command)),
            folder=sanitize(str(request.folder or os.getcwd()), 1000),
            time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            recording=str(request.diagnosis.recording) if request.diagnosis.recording else None,
            verdict=request.diagnosis.word,
            headline=request.diagnosis.headline,
            step_source=self._source,
            step_ns=median(plain or offs) if plain or offs else None,
            trials=trials,
            together=together,
            runs=self._runs,
            seconds=time.monotonic() - self._began_s,
            seed=request.seed,
            reason=sanitize(reason_of(trials, request.diagnosis.findings), 600),
            remarks=tuple(dict.fromkeys(self._remarks)),
        )


def _listed(names: Sequence[str]) -> str:
    """The first of them, and how many more."""
    more = len(names) - MOST_LISTED
    return ", ".join(names[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


MOST_LISTED = 3
