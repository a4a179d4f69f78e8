"""What trials spend their budget on: runs in virtual time, in blocks of the hook's own, of programs
whose steps take as long as is said here."""

from __future__ import annotations

import math
import random
import types
from collections.abc import Callable, Collection, Container, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from gputui.collect.child import ChildEnding
from gputui.inject.hook import trial as in_program
from gputui.trial import program_runs, trials
from gputui.trial.blocks import Block
from gputui.trial.outcome import Outcome, Trial, answer_lines
from gputui.trial.planning import diagnosis_of, plan
from gputui.trial.program_runs import Request
from gputui.trial.runs import ProgramResult, RunInFolder, RunPlan
from gputui.trial.trials import Trials
from tests.conftest import DATA
from tests.sessions_for_tests import loaded_once
from tests.trial.simulated import Program, SimulatedRun, SimulatedTrial, Switches

COMPILES_S = 30.0


class Simulated(NamedTuple):
    """A program: until its first step, a step, and the factors by which cures make it shorter; it
    has no use for any other."""

    start_s: float
    step_s: float
    gains: Mapping[str, float]
    refused_alone: str = ""
    """A cure that can be switched, but not be on in a run without any other."""
    refused_beside: Mapping[str, Collection[str]] = {}
    """Cures that cannot be on while these others are."""
    ends_beside: Mapping[str, Collection[str]] = {}
    """Cures that find out that they are wrong while these others are on."""
    ends_alone: str = ""
    """A cure that finds out that it is wrong where none is switched."""
    fails_with: Collection[str] = ("?",)
    """The program fails while these are on."""
    other_results: Collection[str] = ()
    """Cures with which losses are others."""
    spoils_gpu: str = ""
    """A cure with which the GPU fails, which comes up where it is waited for."""
    lasts_steps: float = math.inf
    """After so many the program fails by itself."""
    noise: float = 0.02


class _Cures(Switches):
    """Those that the program has a use for act. Some are on from its start."""

    def __init__(
        self, program: Program, simulated: Simulated, run: SimulatedRun, constant: tuple[str, ...]
    ) -> None:
        super().__init__()
        self._program, self._simulated, self._run = program, simulated, run
        self._constant = constant
        self.undo |= dict.fromkeys(constant)
        self.refused: Container[str] = ()

    def ask(self, names: tuple[str, ...]) -> None:
        for name in names:
            if name not in self._simulated.gains:
                self._run.not_applied[name] = "there is none"

    def switch(self, name: str, on: bool) -> bool:
        self.ask((name,))
        is_refused = {*self.undo} >= {*self._simulated.refused_beside.get(name, "?")}
        if name in self.refused or (on and is_refused):
            self._run.not_applied[name] = "it is not here"
        if name in self._run.not_applied:
            return False
        super().switch(name, on)
        self._set_gain()
        return True

    def _set_gain(self) -> None:
        on = [name for name in self.undo if name not in self._constant]
        self._program.gain = math.prod(self._simulated.gains[each] for each in on)
        self._program.is_on = bool(on)

    def look(self) -> None:
        for name in [*self.undo]:
            is_alone = name == self._simulated.ends_alone and not self._run.is_switched
            if is_alone or {*self.undo} >= {*self._simulated.ends_beside.get(name, "?")}:
                self._run.ended[name] = self._run.not_applied[name] = "it is wrong"
                for other in [*self.undo][[*self.undo].index(name) :]:
                    self.undo.pop(other)
                self._set_gain()


class _Trial(SimulatedTrial):
    switches: _Cures
    spoils_gpu: str

    def _wait_for_gpu(self) -> None:
        if self.spoils_gpu in self.switches.undo:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


class Spent(NamedTuple):
    outcome: Outcome
    runs: list[str]
    """With what each was, in their order."""
    seeds: list[int]
    """Those of the orders of blocks."""
    told: list[str]
    as_one: list[Block]
    """The blocks of what was measured as one within runs."""

    def trial(self, cure: str) -> Trial:
        return next(each for each in self.outcome.trials if each.cure == cure)


@pytest.fixture
def spend(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Simulated, float], Spent]:
    """All trials of a program that has a recorded fault, within so many seconds."""
    now_s = [0.0]
    clock = types.SimpleNamespace(
        monotonic=lambda: now_s[0], strftime=lambda *_: "", gmtime=lambda: None
    )
    monkeypatch.setattr(program_runs, "time", clock)
    monkeypatch.setattr(trials, "time", clock)

    def spend(fault: str, simulated: Simulated, budget_s: float) -> Spent:
        rng, runs, seeds = random.Random(fault), [], []
        as_one: list[Block] = []

        def run_once(
            _command: object, made: RunPlan, until: Callable[[RunInFolder, float], str],
            **_: object,
        ) -> ProgramResult:  # fmt: skip
            run = SimulatedRun()
            run.steps.source = "optimizer"
            run.is_switched = bool(made.switched)
            ending = ChildEnding(0, None, "")
            work = simulated.step_s / math.prod(
                simulated.gains.get(name, 1.0) for name in made.constant
            )
            program = Program(lambda _: work * math.exp(rng.gauss(0.0, simulated.noise)))
            program.now_s = simulated.start_s
            program.now_s += COMPILES_S * any("compile" in name for name in made.constant)
            monkeypatch.setattr(
                in_program, "time", types.SimpleNamespace(
                    perf_counter_ns=lambda: int(1e9 * program.now_s), sleep=lambda _: None
                ),
            )  # fmt: skip
            switches = _Cures(program, simulated, run, made.constant)
            if made.held == (simulated.refused_alone,) and not made.switched + made.constant:
                switches.refused = made.held
            trial = _Trial(in_program.Plan(made.encode()), "", switches, ())
            trial.run, trial.program = run, program
            trial.switches, trial.spoils_gpu = switches, simulated.spoils_gpu
            site = trial.sites.add(*(made.step or "optimizer step").split(" ", 1))
            began_s, first_s, over, made_steps = now_s[0], None, "", 0
            while not over:
                program.step()
                made_steps += 1
                has_failed = made_steps > simulated.lasts_steps
                if has_failed or {*switches.undo} >= {*simulated.fails_with}:
                    ending = ChildEnding(1, None, "exit code 1")
                    break
                trial.step(site, 0, 0)
                now_s[0] = began_s + program.now_s
                if run.steps.site:
                    first_s = first_s or program.now_s
                    over = until(run, program.now_s)
            if simulated.other_results:
                run.steps.first = 20 if made.switched else 4
                is_other = {*made.held} & {*simulated.other_results}
                run.steps.losses = [
                    (5.0 - 0.01 * n) * (1.5 if is_other and n > 4 else 1.0) for n in range(60)
                ]
            what = [name for name in (*made.switched, *made.held, *made.constant)
                    if name in simulated.gains]  # fmt: skip
            runs.append(", ".join(what) or "as it is")
            as_one.extend(block for block in run.steps.blocks if " + " in block.cure)
            seeds.extend([made.seed] * bool(made.switched))
            return ProgramResult(
                run.steps, frozenset(simulated.gains), run.not_applied, {},
                ending, over, program.now_s, first_s, (), ended=run.ended,
            )  # fmt: skip

        monkeypatch.setattr(program_runs, "run_once", run_once)
        loaded = loaded_once(str(DATA / "faults" / f"{fault}.gputui.gz"))
        diagnosis = diagnosis_of(loaded.session, loaded.run, None)
        chosen = tuple(plan(diagnosis.findings, diagnosis.functions))
        told: list[str] = []
        request = Request(
            ("python",), chosen, diagnosis, budget_s, folder=Path("/"), tell=told.append
        )
        return Spent(Trials(request).run(), runs, seeds, told, as_one)

    return spend


def test_what_a_proven_gain_leaves_of_the_budget_is_for_other_cures_of_the_same(spend) -> None:
    """And for second runs: a loader's rows fetched one by one, of which the best cure was not the
    first."""
    program = Simulated(10.0, 0.1, {"loader_workers": 1.6, "items_at_once": 2.0})
    briefly, long = spend("input", program, 60.0), spend("input", program, 200.0)
    assert sum(each.verdict == "gain" for each in briefly.outcome.trials) == 1
    assert long.trial("items_at_once").verdict == long.trial("loader_workers").verdict == "gain"
    assert long.runs.count("items_at_once") == 2
    assert long.outcome.seconds < 200.0


def test_what_the_program_is_slow_for_has_its_second_run_at_once(spend) -> None:
    """1.36 takes two runs each, which came after everything else."""
    gains = {"checkpointing_off": 1.36, "adapters_merged": 1.0, "fused_optimizer": 1.0}
    spent = spend("checkpointing", Simulated(11.0, 0.14, gains), 90.0)
    assert spent.runs[:4] == ["as it is", "checkpointing_off", "checkpointing_off", "as it is"]
    assert spent.trial("checkpointing_off").verdict == "gain"


def test_a_little_gain_that_is_not_proven_takes_no_time_of_a_large_one(spend) -> None:
    """1.03 had 167 pairs in 130 s; and what nothing is promised of gets no start of its own."""
    gains = {"fused_optimizer": 1.01, "gc_collect_idle": 1.0, "compile": 2.8}
    spent = spend("launch", Simulated(8.0, 0.08, gains), 120.0)
    assert spent.trial("compile").verdict == "gain"
    assert sum("fused_optimizer" in run for run in spent.runs) == 1
    assert spent.trial("fused_optimizer").pairs <= 27


def test_no_two_runs_have_their_blocks_in_the_same_order(spend) -> None:
    """Of a program that does the same at the same moment of each run a cure that does nothing had
    the faster block of as many pairs in each."""
    gains = {"fused_optimizer": 1.08, "gc_collect_idle": 1.0, "compile": 1.0}
    seeds = spend("launch", Simulated(5.0, 0.08, gains), 40.0).seeds
    assert len(seeds) > 1
    assert len({*seeds}) == len(seeds)


def test_gains_within_one_run_are_what_they_are(spend) -> None:
    spent = spend("tensor_cores", Simulated(10.0, 0.2, {"tf32": 3.0}), 100.0)
    assert spent.runs[0] == "tf32"
    assert spent.trial("tf32").gain == pytest.approx(3.0, rel=0.05)
    assert spent.outcome.together is None


def test_what_gains_much_is_on_while_others_are_measured(spend) -> None:
    """What they gain on top of it, and all as one; what they would gain without it is not said."""
    gains = {"copies_kept": 4.0, "items_together": 1.0, "pinned_results": 1.6, "keep_copies": 4.0}
    spent = spend("pageable", Simulated(10.0, 0.2, gains), 150.0)
    assert spent.runs[1] == "copies_kept, items_together, pinned_results, keep_copies"
    assert spent.trial("copies_kept").gain == pytest.approx(4.0, rel=0.05)
    assert spent.trial("copies_kept").beside == ()
    more = spent.trial("pinned_results")
    assert (more.verdict, more.beside) == ("gain", ("copies_kept",))
    assert more.gain == pytest.approx(1.6, rel=0.05)
    together = spent.outcome.together
    assert together is not None
    assert (together.cure, together.way) == ("copies_kept + pinned_results", "in one run")
    assert together.gain == pytest.approx(6.4, rel=0.05)
    said = answer_lines(spent.outcome, None)
    assert any(line.endswith("× with copies_kept") for line in said)
    assert any(line.startswith("All together: 6.") for line in said)


def test_what_gained_by_runs_is_on_while_others_are_switched(spend) -> None:
    program = Simulated(10.0, 0.1, {"checkpointing_off": 4.0, "fused_optimizer": 1.5})
    spent = spend("checkpointing", program, 150.0)
    assert spent.runs[:3] == ["as it is", "checkpointing_off", "fused_optimizer, checkpointing_off"]
    assert spent.trial("fused_optimizer").beside == ("checkpointing_off",)
    together = spent.outcome.together
    assert together is not None
    assert together.gain == pytest.approx(6.0, rel=0.1)


def test_what_needs_runs_is_measured_on_top_of_what_gains_much(spend) -> None:
    """Beside the blocks in which that alone was on: 289 ms of garbage collection in each step hid
    what an emptied cache costs."""
    gains = {"gc_collect_idle": 4.0, "gc_off": 1.0, "accumulation_merged": 1.9}
    spent = spend("collected_each", Simulated(10.0, 0.3, gains), 150.0)
    assert "gc_collect_idle, accumulation_merged" in spent.runs
    more = spent.trial("accumulation_merged")
    assert (more.verdict, more.beside) == ("gain", ("gc_collect_idle",))
    assert more.gain == pytest.approx(1.9, rel=0.05)
    together = spent.outcome.together
    assert together is not None
    assert together.gain == pytest.approx(7.6, rel=0.05)


def test_no_gain_is_claimed_beside_a_run_in_which_what_it_goes_with_was_not_on(spend) -> None:
    """Its own would be another's: 4 for a cure that does nothing."""
    gains = {"gc_collect_idle": 4.0, "accumulation_merged": 1.0}
    spent = spend("collected_each", Simulated(10.0, 0.3, gains, "gc_collect_idle"), 250.0)
    assert spent.trial("gc_collect_idle").verdict == "gain"
    assert spent.trial("accumulation_merged").verdict != "gain"


@pytest.mark.parametrize("is_wrong", [False, True], ids=["is refused", "ends"])
def test_all_together_is_without_what_is_refused_or_ends_within_it(spend, is_wrong: bool) -> None:
    """The others are measured as one in the same run, and no run is made with what is refused."""
    gains = {"copies_kept": 1.4, "items_together": 1.3, "pinned_results": 1.35}
    beside = {"pinned_results": ("copies_kept", "items_together")}
    kind = "ends_beside" if is_wrong else "refused_beside"
    spent = spend("pageable", Simulated(10.0, 0.2, gains, **{kind: beside}), 150.0)
    together = spent.outcome.together
    assert together is not None
    assert (together.cure, together.way) == ("copies_kept + items_together", "in one run")
    assert together.gain == pytest.approx(1.82, rel=0.05)
    assert together.pairs == 6
    assert spent.trial("pinned_results").verdict == ("not tried" if is_wrong else "gain")
    assert not any("pinned_results" in run for run in spent.runs[2:])


def test_what_was_proven_beside_a_cure_that_ends_later_is_proven_no_more(spend) -> None:
    """That ends where results are compared: what was measured beside it is measured anew."""
    gains = {"copies_kept": 4.0, "pinned_results": 1.6}
    spent = spend("pageable", Simulated(10.0, 0.2, gains, ends_alone="copies_kept"), 150.0)
    assert spent.trial("copies_kept").verdict == "not tried"
    more = spent.trial("pinned_results")
    assert (more.verdict, more.beside) == ("gain", ())
    assert more.off_ns == pytest.approx(0.2e9, rel=0.05)


def test_what_is_measured_beside_one_that_ends_is_measured_without_it(spend) -> None:
    """In the same run."""
    gains = {"copies_kept": 4.0, "pinned_results": 1.6}
    ends = {"copies_kept": ("pinned_results",)}
    spent = spend("pageable", Simulated(10.0, 0.2, gains, ends_beside=ends), 150.0)
    assert spent.trial("copies_kept").verdict == "not tried"
    more = spent.trial("pinned_results")
    assert (more.verdict, more.beside) == ("gain", ())
    assert more.gain == pytest.approx(1.6, rel=0.05)
    assert sum("pinned_results" in run for run in spent.runs) == 2


def test_gains_are_gains_though_the_program_fails_with_all_of_them(spend) -> None:
    gains = {"copies_kept": 1.4, "items_together": 1.3}
    spent = spend("pageable", Simulated(10.0, 0.2, gains, fails_with=gains), 150.0)
    assert {spent.trial(name).verdict for name in gains} == {"gain"}
    assert spent.outcome.together is None
    assert len(spent.runs) == 2
    assert any(
        "copies_kept + items_together: the program fails" in said for said in spent.outcome.remarks
    )


@pytest.mark.parametrize(
    ("step_s", "noise", "budget_s"), [(0.1, 0.25, 120.0), (0.2, 0.25, 113.0), (0.05, 0.5, 92.0)]
)
def test_what_was_proven_once_stays_so(spend, step_s: float, noise: float, budget_s: float) -> None:
    """Where steps differ much more pairs were wanted of it, and had in a run with others on: the
    few that time was left for took the place of those that had proven it."""
    gains = {"copies_kept": 3.0, "pinned_results": 2.0, "items_together": 1.6}
    spent = spend("pageable", Simulated(8.0, step_s, gains, noise=noise), budget_s)
    proven = {line.split()[1].rstrip(",") for line in spent.told if line.startswith("proven: ")}
    assert proven
    assert {spent.trial(name).verdict for name in proven} == {"gain"}


def test_what_showed_nothing_says_so_where_no_time_is_left_to_try_it_beside_others(spend) -> None:
    gains = {"copies_kept": 4.0, "pinned_results": 1.25, "items_together": 1.0}
    spent = spend("pageable", Simulated(8.0, 0.1, gains, noise=0.3), 52.0)
    assert spent.trial("copies_kept").verdict == "gain"
    assert spent.trial("pinned_results").pairs


def test_a_gain_counts_though_another_one_changes_results(spend) -> None:
    """With all of them on they are others': it is asked of each, then."""
    gains = {"copies_kept": 1.4, "items_together": 1.3}
    program = Simulated(10.0, 0.2, gains, other_results=("items_together",))
    spent = spend("pageable", program, 150.0)
    assert spent.trial("copies_kept").verdict == "gain"
    assert spent.trial("copies_kept").same.startswith("losses identical")
    assert spent.trial("items_together").verdict == "another result"
    together = spent.outcome.together
    assert together is None or together.verdict == "another result"


def test_a_cure_with_which_the_gpu_fails_takes_no_time_of_others(spend) -> None:
    """It ended each run before anything else was proven."""
    gains = {"copies_kept": 1.4, "items_together": 1.3}
    spent = spend("pageable", Simulated(10.0, 0.2, gains, spoils_gpu="items_together"), 150.0)
    assert spent.trial("copies_kept").verdict == "gain"
    bad = spent.trial("items_together")
    assert (bad.verdict, "CUDA error" in bad.why) == ("not tried", True)
    assert sum("items_together" in run for run in spent.runs) == 1


def test_gains_beside_one_that_is_on_all_the_time_are_measured_as_one_in_a_run_with_it(
    spend,
) -> None:
    """What is switched as one beside it tells nobody what all of them bring."""
    others = {"fused_optimizer": 1.4, "gc_collect_idle": 1.35}
    gains = {"checkpointing_off": 4.0, **others}
    spent = spend("checkpointing", Simulated(10.0, 0.1, gains), 200.0)
    assert {spent.trial(name).beside for name in others} == {("checkpointing_off",)}
    assert spent.as_one == []
    together = spent.outcome.together
    assert together is not None
    assert together.gain == pytest.approx(7.56, rel=0.05)


def test_the_start_of_a_run_that_compiles_is_none_that_others_need(spend) -> None:
    """Results were not compared for want of time, with a quarter of the budget left."""
    gains = {"compile": 1.3, "fused_optimizer": 1.2}
    spent = spend("launch", Simulated(8.0, 0.08, gains), 120.0)
    compiled = spent.runs.index("compile")
    assert "fused_optimizer" in spent.runs[compiled + 1 :]
    assert not any("No time was left" in said for said in spent.outcome.remarks)


def test_a_program_that_fails_by_itself_does_so_with_no_cure(spend) -> None:
    """Whichever was on last: it ends with an error after as many steps each time."""
    names = ("copies_kept", "items_together", "pinned_results", "activations_stay", "inputs_kept")
    gains = dict.fromkeys(names, 1.3)
    spent = spend("pageable", Simulated(8.0, 0.1, gains, lasts_steps=160), 200.0)
    assert {spent.trial(name).verdict for name in names} == {"gain"}
    assert any("the program fails by itself" in said for said in spent.outcome.remarks)


def test_all_together_is_measured_in_blocks_of_as_many_steps_from_its_first_pair_on(spend) -> None:
    """A block of one step waits for what steps next to one another do at once: half of the six
    pairs had such, and 1110 was measured as 772."""
    gains = {"copies_kept": 4.0, "pinned_results": 1.6}
    spent = spend("pageable", Simulated(10.0, 0.3, gains), 150.0)
    steps = {is_on: {b.steps for b in spent.as_one if b.on == is_on} for is_on in (False, True)}
    assert steps[False] == {1}
    assert min(steps[True]) >= 5
