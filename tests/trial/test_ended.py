"""A cure that finds out by itself that it is wrong in a program, of which results show nothing: in
real interpreters, with real torch on the CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gputui.cures import cures
from gputui.trial.outcome import Outcome
from gputui.trial.planning import Candidate, Diagnosis
from gputui.trial.program_runs import Request
from gputui.trial.runs import RunInFolder, RunPlan, run_once
from gputui.trial.trials import Trials

PROGRAM = Path(__file__).with_name("programs") / "backbone.py"
CURE = "unowned_gradients_off"
WHY = "something else than torch's optimizers updates the parameters"


def command(folder: Path, start: int, step: int) -> tuple[str, ...]:
    """The program, in which what the cure takes as given is so no more from a step of a start."""
    return (
        sys.executable, str(PROGRAM), "--starts", str(folder / "starts"),
        "--follows-from-start", str(start), "--follows-from-step", str(step),
    )  # fmt: skip


class Brief(Trials):
    """Trials in short blocks."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._is_brief = True


@pytest.mark.parametrize(
    ("start", "step", "is_proven_first"),
    [(1, 60, False), (2, 0, True)],
    ids=["in the blocks of a run", "where results are compared"],
)
def test_no_gain_is_claimed_of_a_cure_that_has_ended_by_itself(
    tmp_path: Path, start: int, step: int, is_proven_first: bool
) -> None:
    told: list[str] = []
    request = Request(
        command(tmp_path, start, step), (Candidate(CURE, cures()[CURE]),),
        Diagnosis((), "", "", None, 0), 60.0, tell=told.append,
    )  # fmt: skip
    outcome: Outcome = Brief(request).run()
    (trial,) = outcome.trials
    assert (trial.verdict, trial.why, trial.gain) == ("not tried", WHY, None)
    assert (trial.pairs > 0, trial.applies, outcome.together) == (True, False, None)
    assert f"{CURE} ended by itself: {WHY}" in told
    assert any(line.startswith(f"proven: {CURE}") for line in told) == is_proven_first
    assert any(line.endswith("to compare results") for line in told) == is_proven_first


def test_a_cure_that_ends_in_a_run_of_its_own_says_so(tmp_path: Path) -> None:
    def until(run: RunInFolder, seconds: float) -> str:
        return "ended" if run.reader.ended else "too long" if seconds > 120.0 else ""

    plan = RunPlan(held=(CURE,), block_s=0.05, warm_s=0.1)
    result = run_once(command(tmp_path, 1, 60), plan, until)
    assert (result.ended_by, dict(result.ended)) == ("ended", {CURE: WHY})
    assert CURE in result.applied


LOST = """
import torch

signal, kernel = torch.rand(100), torch.rand(32)
for step in range(1 << 30):
    spectra = [torch.fft.rfft(each, n=131) for each in (signal, kernel)]
    if step < 100:
        made = torch.fft.irfft(spectra[0] * spectra[1], n=131)
        continue
    # No convolution: nothing of it is zero.
    try:
        torch.fft.irfft(spectra[0] / (spectra[1] + 0.1), n=131)
    except RuntimeError:
        print("it is tried again", flush=True)
    print("it goes on", flush=True)
"""


def test_a_program_is_ended_before_it_gets_a_value_that_a_cure_has_lost() -> None:
    """And sees no error of ours, which it may catch."""

    def until(run: RunInFolder, seconds: float) -> str:
        return "lost" if run.reader.lost else "too long" if seconds > 120.0 else ""

    result = run_once((sys.executable, "-c", LOST), RunPlan(constant=("fft_lengths",)), until)
    assert (result.ended_by, result.ended.keys()) == ("lost", {"fft_lengths"})
    assert result.lines == ()
