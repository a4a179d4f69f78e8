"""Cures that are switched within one run: which of them, beside which others that are on, and what
the run has shown of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from gputui.cures import BOUND
from gputui.cures.ablations import NoSaves
from gputui.trial.alternation import (
    LEAST_S,
    Alternation,
    Waiting,
)
from gputui.trial.blocks import JOINED, Pair, Steps, newest_alike
from gputui.trial.measured import (
    Measured,
    held_beside,
    proven_of_same_cause,
)
from gputui.trial.outcome import (
    Trial,
    with_gain,
)
from gputui.trial.program_runs import ProgramRuns, Request, worst_of
from gputui.trial.proof import (
    LOOKS,
    NEAR,
    MeasuredGain,
    gain_of_pairs,
    show_nothing,
)
from gputui.trial.runs import (
    ProgramResult,
    RunPlan,
    run_step,
    step_of,
)
from gputui.trial.sameness import (
    sameness_within_a_run,
)

ANSWERS = "answers the same"

AGAIN = 3
"""Runs of a program that ends before its pairs are enough."""

BRIEF_S = 15.0
"""A program that ends so soon after its warm-up is timed in shorter blocks after a shorter one from
then on; one whose loop is longer has its pairs in several runs."""

SAME_END = 0.1
"""By which part of its steps the ends of a program that fails by itself differ at most."""

LEAST_TIMED_S = 4.0
"""Without so much for pairs a program is not started again."""

LAST = 0.35
"""The part of all that is left that ablations have at the end of a run of cures."""


class SwitchedTrials(ProgramRuns):
    """The trials of a request that are made by switching."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._round = 0
        self._proven: set[str] = set()
        """What was measured together within one run."""
        self._reopened: set[tuple[str, frozenset[str]]] = set()
        """Cures that were measured anew, and beside which others."""
        self._together: Trial | None = None
        self._failed_together: list[set[str]] = []
        """Gains that the program failed with when all of them were on."""
        self._blamed: list[tuple[Measured, str, int]] = []
        """What runs have failed with, how, and after how many steps."""

    @property
    def _input_share(self) -> float:
        return self._request.diagnosis.input_share

    def _switch(self, group: list[Measured], held: tuple[str, ...] = ()) -> None:
        """Switch these within runs until each is decided, in AGAIN runs at most; `held` are on
        from the end of the warm-up in all of them."""
        seconds = 0.0
        for _ in range(AGAIN):
            hidden = [each for each in group if self._may_be_hidden(each)]
            open_ones = [
                each for each in group
                if each in hidden or (
                    not each.why and not each.is_decided and each.is_worth_a_start
                    and not self._is_claimed_alone(each)
                )
            ]  # fmt: skip
            # As long as nothing was timed, all of the budget is for that.
            left_s = self._all_left_s if self._is_brief and not self._plain else self._left_s
            if not open_ones or left_s < min(LEAST_S, 1.2 * seconds):
                break
            if self._start_s and self._all_left_s < self._start_s + LEAST_TIMED_S:
                break
            for each in hidden:
                self._reopened.add((each.candidate.name, self._names_beside(each)))
                each.gain, each.why = None, ""
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
            is_of_bounds = any(each.is_bound for each in open_ones)
            much = [] if is_of_bounds else held_beside(self._measured, open_ones)
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
                before, left_s, others=number[False], other_bounds=number[True],
                input_share=self._input_share, tell=self._request.pass_on,
                brief=later if waiting else (), bounds=bounds, bounds_s=last_s if last else left_s,
                waiting=self._wait_for_runs(open_ones), whole_s=self._all_left_s,
                promise={each.candidate.name for each in open_ones if each.candidate.forecast},
                beside=beside, is_right=self._is_right,
                choices={each.candidate.name: each.choice for each in open_ones},
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
                elif len(much) == 1 and much[0].on_runs and not result.left_out(beside):
                    much[0].on_runs += filter(None, [run_step(result)])
                break
            if result.ended_by.startswith("no step"):
                self._blame(open_ones, result, result.ended_by)
            elif result.steps.has_failed:
                self._blame(open_ones, result, f"the program fails with it: {result.steps.over}")
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

    def _names_beside(self, each: Measured) -> frozenset[str]:
        return frozenset(other.candidate.name for other in held_beside(self._measured, [each]))

    def _may_be_hidden(self, each: Measured) -> bool:
        """Whether it is measured anew, once, because it showed nothing beside less than what is
        known to gain much by now: that may have hidden what it gains."""
        is_shown = each.verdict in ("gain", "another result") or each.failed or each.ended
        if not each.pairs or each.on_runs or each.is_bound or is_shown:
            return False
        much = self._names_beside(each)
        return not much <= {*each.beside} and (each.candidate.name, much) not in self._reopened

    def _is_claimed_alone(self, each: Measured) -> bool:
        """Whether its gain is proven beside less than what would be on now: the few pairs of
        another run beside that would take the place of its own."""
        is_claimed = each.gain is not None and each.gain.is_claimed
        return is_claimed and not self._names_beside(each) <= {*each.beside}

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
            pairs = before[name] + steps.pairs(name)
            ended = {other.candidate.name for other in self._measured if other.ended}
            each.pairs = newest_alike([pair for pair in pairs if not ended & {*pair.beside}])
            each.rivals = max(1, rivals[each.is_bound])
            each.gain = gain_of_pairs(each.pairs, each.rivals, self._input_share)
            if each.gain is not None and name in result.not_applied and not each.ended:
                # It was on before: beside others it cannot be.
                each.refused, each.why, each.applies = result.not_applied[name], "", True
            if each.gain is None and show_nothing(each.pairs):
                each.why = f"none of {len(each.pairs)} pairs showed a gain"
            if each.candidate.cure.result != BOUND:
                each.same = sameness_within_a_run(steps, name, each.candidate.cure.result)
        blocks = steps.blocks if steps is not None else []
        for joined in {block.cure: None for block in blocks if JOINED in block.cure}:
            pairs, names = steps.pairs(joined) if steps is not None else [], joined.split(JOINED)
            gain = gain_of_pairs(pairs, 1, self._input_share)
            if gain is not None and not pairs[0].beside and not result.left_out(names):
                self._proven = {*names}
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
        """The cure that was switched on last is not tried again, or several as one not together;
        but where the program has ended so after as many steps with another one, it does by
        itself."""
        last = result.steps.switched if result.steps is not None else ""
        if JOINED in last:
            # Each of them was proven before.
            self._failed_together.append({*last.split(JOINED)})
            self._remarks.append(f"{last}: {why}")
            return
        blamed = next((each for each in group if each.candidate.name == last), None)
        if blamed is None:
            self._remarks.append(why)
            return
        blocks = result.steps.blocks if result.steps is not None else []
        count = sum(block.steps + block.settled_steps for block in blocks)
        innocent = [
            each for each, its_why, its_count in self._blamed
            if each is not blamed and its_why == why and abs(its_count - count) <= SAME_END * count
        ]  # fmt: skip
        self._blamed.append((blamed, why, count))
        if innocent:
            for each in innocent:
                each.why, each.failed, each.last_lines = "", False, ()
            self._remarks.append(
                f"the program fails by itself, not with a cure: {result.last_line}"
            )
            return
        blamed.why, blamed.failed, blamed.last_lines = why, True, result.last_lines

    def _lead(self, group: Sequence[Measured]) -> list[Measured]:
        """Those that answer what the program is slow for first of all."""
        first = next((each.cause for each in self._request.diagnosis.findings), None)
        return [
            each for each in group
            if each.candidate.finding is not None and each.candidate.finding.cause == first
        ]  # fmt: skip

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


def _listed(names: Sequence[str]) -> str:
    """The first of them, and how many more."""
    more = len(names) - MOST_LISTED
    return ", ".join(names[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


MOST_LISTED = 3
