"""What a trial times as a step. The clock is virtual, and a GPU is pretended: a module is on it
where its tensors say so."""

from __future__ import annotations

import json
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gputui.collect.child import ChildEnding
from gputui.inject.hook import step_marks
from gputui.inject.hook import trial as in_program
from gputui.trial import program_runs
from gputui.trial.blocks import Block, Steps
from gputui.trial.planning import Diagnosis, named
from gputui.trial.program_runs import Request
from gputui.trial.runs import ProgramResult, RunInFolder, RunPlan
from gputui.trial.trials import Trials


class Mark(NamedTuple):
    """Something that marks a step so many seconds after what was before it."""

    seconds: float
    source: str
    name: str
    is_on_gpu: bool = True
    times: int = 1


COMPOSE = Mark(0.0026, "module", "Compose", is_on_gpu=False, times=96)
LOG_MEL = Mark(0.0014, "module", "LogMel", is_on_gpu=False, times=24)
BLOCK = Mark(0.002, "module", "Block", times=48)
OPTIMIZER = Mark(0.04, "optimizer", "AdamW")
SLOWLY = Mark(6.0, "optimizer", "AdamW")
MODEL = Mark(0.01, "module", "Model")
TURN = Mark(0.01, "loop", "server.py:130")
BAR = Mark(0.05, "tqdm", "data.py:5", is_on_gpu=False)
FUNCTION = Mark(0.01, "function", "server.py:step")
UNMARKED, ON_GPU = Mark(9.0, "", ""), Mark(0.0, "", "")


def _turns(seconds: float, *marks: Mark) -> Iterator[Mark]:
    """The same again and again for so long."""
    turn_s = sum(mark.seconds * mark.times for mark in marks)
    for _ in range(max(1, round(seconds / turn_s))):
        yield from marks


def chosen(
    monkeypatch: pytest.MonkeyPatch, folder: Path, marks: Iterable[Mark], step: str = ""
) -> tuple[str, float]:
    """The step, by source and name, and after how many seconds it was."""
    monkeypatch.setattr(threading.Condition, "wait", threading.Condition.wait)
    monkeypatch.setitem(sys.modules, "torch.utils.data.dataloader", None)
    torch = types.ModuleType("torch")
    autograd = types.SimpleNamespace(backward=None)
    torch.__dict__.update(
        cuda=types.SimpleNamespace(is_initialized=lambda: is_in_use), autograd=autograd,
        _C=types.SimpleNamespace(_cuda_synchronize=lambda: None),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", torch)
    now_s, is_in_use = 1.0, False
    clock = types.SimpleNamespace(perf_counter_ns=lambda: int(1e9 * now_s), sleep=lambda _: None)
    monkeypatch.setattr(in_program, "time", clock)
    sources = step_marks.SOURCES
    trial = in_program.TrialInProgram(
        in_program.Plan(json.dumps({"step": step})), str(folder), None, sources
    )
    trial.imported_torch(torch)
    sites = {}
    for mark in marks:
        now_s += 0.0 if mark.source else mark.seconds
        key = mark.source, mark.name
        if mark.source and key not in sites:
            is_found = mark.source == "function"  # by the trial itself
            sites[key] = (
                trial.sites.add(*key) if is_found
                else trial.sites.define(sources.index(mark.source) + 1, mark.name.encode(), 1)
            )  # fmt: skip
        called = types.SimpleNamespace(parameters=lambda: iter(()))
        tensor = types.SimpleNamespace(is_cuda=mark.is_on_gpu)
        is_in_use = is_in_use or mark.is_on_gpu
        for _ in range(mark.times if mark.source else 0):
            now_s += mark.seconds
            trial.step(sites[key], 0, 0)
            if mark.source == "module":
                trial.results.returned(sites[key], called, ({"images": [tensor]},), None)
        if trial.has_begun:
            run = RunInFolder(folder)
            run.reader.poll()
            assert run.reader.steps is not None
            return f"{run.reader.steps.source} {run.reader.steps.site}", now_s - 1.0
    return "", now_s - 1.0


@pytest.mark.parametrize(
    ("marks", "wanted", "step", "seconds"),
    [
        ([*_turns(8, COMPOSE, MODEL, OPTIMIZER)], "", "optimizer AdamW", 3.0),
        ([*_turns(8, LOG_MEL, MODEL)], "", "module Model", 3.0),
        # It calls nothing else that is marked: a module of the CPU has to do.
        ([ON_GPU, *_turns(20, LOG_MEL)], "", "module LogMel", 15.5),
        # Captured in a CUDA graph, which is replayed then.
        ([BLOCK, UNMARKED, *_turns(9, FUNCTION)], "",
         "function server.py:step", 12.0),
        ([BLOCK, *_turns(9, TURN)], "loop server.py:130", "loop server.py:130", 2.5),
        # An evaluation comes before what is trained, which takes long.
        ([*_turns(10, MODEL), *_turns(60, MODEL, SLOWLY)], "optimizer AdamW", "optimizer AdamW",
         45.0),
        ([*_turns(12, MODEL), *_turns(9, MODEL, OPTIMIZER)], "optimizer AdamW", "optimizer AdamW",
         15.0),
        # A cure may put another class in the place of what was marked.
        ([*_turns(20, MODEL)], "module Compiled", "module Model", 15.5),
        ([*_turns(8, TURN, MODEL)], "", "module Model", 3.0),
        # Its data set is prepared for half a minute.
        ([*_turns(30, BAR), *_turns(9, MODEL)], "module Model", "module Model", 33.0),
        ([*_turns(10, BAR), *_turns(9, MODEL)], "", "module Model", 14.0),
        ([*_turns(90, BAR)], "module Model", "tqdm data.py:5", 61.0),
        ([*_turns(3, LOG_MEL)], "", "module LogMel", 3.0),
    ],
    ids=["transforms", "features", "nothing better", "graphs", "loop", "slow", "evaluation",
         "replaced", "no loop unasked", "prepares", "prepares briefly",
         "nothing else", "no GPU"],
)  # fmt: skip
def test_the_step_is_the_programs_own(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    marks: list[Mark],
    wanted: str,
    step: str,
    seconds: float,
) -> None:
    got, after_s = chosen(monkeypatch, tmp_path, marks, wanted)
    assert got == step
    assert after_s < seconds


def test_a_run_whose_steps_something_else_marks_is_none_to_compare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a program whose transforms run in the workers of its loader with the cure."""
    asked = []

    def run(_command: object, plan: RunPlan, *_: object, **__: object) -> ProgramResult:
        asked.append(plan.step)
        site = "Compose" if not plan.constant else "Model"
        blocks = [Block(number, "", False, 1, 10**6, 0) for number in range(12)]
        steps = Steps(1, site, "module", blocks)
        ended = ChildEnding(0, None, "")
        applied = frozenset(plan.constant)
        return ProgramResult(steps, applied, {}, {}, ended, "it was timed", 3.0, 1.0, ())

    monkeypatch.setattr(program_runs, "run_once", run)
    diagnosis = Diagnosis((), "", "", None, 0, step="optimizer AdamW")
    candidates = tuple(named(["loader_workers"], ()))
    outcome = Trials(Request(("program",), candidates, diagnosis, 60.0)).run()
    [trial] = outcome.trials
    assert (trial.verdict, trial.gain) == ("not tried", None)
    assert trial.why == "its steps are those of module Model, not of module Compose as before"
    assert asked[:2] == ["optimizer AdamW", "module Compose"]
