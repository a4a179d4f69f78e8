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
)
from gputui.trial.blocks import JOINED
from gputui.trial.measured import (
    Measured,
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
from gputui.trial.program_runs import Request, sameness_with, worst_of
from gputui.trial.proof import (
    EARLY_PAIRS,
    FEWEST,
    LEAST_GAIN,
    NEAR,
    gain_of_pairs,
    gain_of_runs,
)
from gputui.trial.runs import (
    INTERRUPTED,
    MEASURED_S,
    RunPlan,
    RunStep,
    run_step,
)
from gputui.trial.sameness import (
    UNKNOWN,
    Sameness,
)
from gputui.trial.switched_trials import ANSWERS, SwitchedTrials

ROUNDS = 3
"""How often the phases are gone through, each time with what is left of the budget."""

NOT_TOGETHER = "No time was left for a run"
"""How a remark begins that no later run has made untrue."""

PROMISING = 1.01
"""A gain of a single run from which a second one is worth its time."""

EARLY_S = 0.5
"""The warm-up of a run with cures whose results are compared with the first steps of another."""

READY_S = 3.0
"""A start that a cure makes longer by so much is said beside its gain: it compiles, or tunes."""

PROVEN = 1.5
"""The weight of the proof of all gains together where the budget is divided, see `_try_all`."""


class Trials(SwitchedTrials):
    """The trials of one request. `run` does them all."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._told: set[str] = set()
        self._from_start: set[str] = set()
        """What was measured together from the start of a run."""
        self._short: dict[str, list[str]] = {}
        """Cures that were not tried to the end, by why."""

    def run(self) -> Outcome:
        """Try everything that fits into the budget, until Ctrl-C: what was measured until then is
        in the outcome."""
        try:
            self._try_all()
        except KeyboardInterrupt:
            self.is_interrupted = True
        self._judge()
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

    # --- together

    def _prove_together(self, _group: list[Measured]) -> None:
        """The gains that are claimed in runs of their own, from the same beginning as one without:
        whether results stay the same step by step, and what they bring together."""
        proven = proven_compatible(self._measured)
        together_names = {each.candidate.name for each in proven}
        if not proven or together_names == self._from_start:
            return
        if any(together_names >= names for names in self._failed_together):
            return
        if len(proven) == 1 and proven[0].on_runs:
            return  # its runs have shown both
        is_measured = len(proven) == 1 or together_names == self._proven
        if is_measured and not self._round and all(each.same.kind != "unknown" for each in proven):
            return  # others first
        # Once others had their turn all that is left may be for it.
        left_s = self._all_left_s if self._round else self._left_s
        if is_measured:
            self._compare(proven, left_s)
            return
        times = self._times
        together = times.setdefault("all", [])
        held = tuple(each.candidate.name for each in proven if each.candidate.cure.in_one_run)
        constant = tuple(
            each.candidate.name for each in proven if not each.candidate.cure.in_one_run
        )
        longest_s = max(each.ready_s or 0.0 for each in proven)
        run_s = max(self._start_s, longest_s) + MEASURED_S
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
        why = result.left_out(names) or result.failed
        if result.failure:
            self._failed_together.append({*names})
        if step is None or result.ended or why or not times[""]:
            self._remarks.append(f"together: {why or result.ended_by or 'no steps'}")
            return
        cures = [each.candidate.cure for each in proven]
        same = sameness_with(
            cures, self._plain[0], result, constant=bool(constant), held=bool(held)
        )
        for each in proven:
            if each.candidate.name in held and (same.kind in ("same", "rounding") or not constant):
                each.same = same if same.kind != "unknown" else each.same
        if self._from_start:
            together.clear()  # of fewer of them
        self._from_start = together_names
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
        if same.kind == "other" and not constant:
            self._compare_each(proven)

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

    def _compare(self, proven: Sequence[Measured], left_s: float) -> None:
        """Whether results stay the same, step by step, with cures whose gains were measured in one
        run: of another run with them from soon after its start, beside the first steps of that one,
        or where these are too few, beside a run as it is."""
        run_s = self._start_s + MEASURED_S
        self._remarks = [each for each in self._remarks if not each.startswith(NOT_TOGETHER)]
        what = "all of them" if len(proven) > 1 else proven[0].candidate.name
        if left_s < run_s:
            self._remarks.append(f"{NOT_TOGETHER} with {what} from its start, to compare results")
            return
        names = tuple(each.candidate.name for each in proven)
        self._request.tell(f"with {JOINED.join(names)}, to compare results")
        result = self._run(RunPlan(held=names, warm_s=EARLY_S), self._until_compared)
        why = result.left_out(names) or result.failed
        if result.failure:
            self._failed_together.append({*names})
        if result.steps is None or result.ended or why:
            self._remarks.append(f"with {what}: {why or result.ended_by or 'no steps'}")
            return
        cures = [each.candidate.cure for each in proven]
        same = UNKNOWN
        if self._begun is not None:
            same = sameness_with(cures, self._begun, result, constant=False, held=True)
        if same.kind not in ("same", "rounding") and left_s > 2.0 * run_s and not self._plain:
            self._plain_run()
        if same.kind not in ("same", "rounding") and self._plain:
            same = sameness_with(cures, self._plain[0], result, constant=False, held=True)
        self._from_start = set(names)
        for each in proven:
            each.same = same if same.kind != "unknown" else each.same
        if self._together is not None and {*self._together.cure.split(JOINED)} == {*names}:
            verdict: Verdict = "gain" if same.kind != "other" else "another result"
            self._together = structs.replace(self._together, verdict=verdict, same=same.text)
        if same.kind == "other":
            self._compare_each(proven)

    def _compare_each(self, proven: Sequence[Measured]) -> None:
        """Which of those with which results are others it is: the others' gains count."""
        for each in proven if len(proven) > 1 else ():
            self._compare([each], self._all_left_s)

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
