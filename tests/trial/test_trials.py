"""`gputui try` on programs in real interpreters, with real torch on the CPU."""

from __future__ import annotations

import gzip
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from gputui.trial.blocks import Steps
from gputui.trial.runs import ProgramResult, RunInFolder, RunPlan, run_once
from tests.conftest import DATA
from tests.schemas_for_tests import check
from tests.trial.trying_for_tests import LOOPING, gputui_try

PROGRAMS = Path(__file__).with_name("programs")
TRAINING = str(PROGRAMS / "training.py")
QUICK = {"block_s": 0.02, "warm_s": 0.1}
LIMIT_S = 240
"""Against what hangs: the machine may be slow."""


def timed(
    *plan_names: str, arguments: tuple[str, ...] = (), pairs: int = 3, held: tuple[str, ...] = ()
) -> ProgramResult:
    def until(run: RunInFolder, seconds: float) -> str:
        steps = run.reader.steps
        enough = steps is not None and all(
            len(steps.ratios(name)) >= pairs or name in run.reader.not_applied
            for name in plan_names
        )
        enough = enough and (bool(plan_names) or len(steps.blocks) >= pairs)  # type: ignore[union-attr]
        return "enough" if enough else "too long" if seconds > LIMIT_S else ""

    plan = RunPlan(plan_names, held=held, block_s=QUICK["block_s"], warm_s=QUICK["warm_s"])
    return run_once((sys.executable, TRAINING, *arguments), plan, until)


def steps_of(result: ProgramResult) -> Steps:
    assert result.steps is not None, result.last_lines
    return result.steps


@pytest.fixture(scope="module")
def switched() -> ProgramResult:
    """Blocks with two cures, of a program that prints what it computes with at each step."""
    arguments = ("--say", "--report-ms", "60")
    return timed("tf32", "skip@training.py:report", arguments=arguments, pairs=5)


def test_a_cure_is_on_in_the_blocks_that_say_so_and_off_in_all_others(
    switched: ProgramResult,
) -> None:
    result = switched
    assert result.ended_by == "enough"
    assert result.applied == {"tf32", "skip@training.py:report"}
    said = [line.split() for line in result.lines if line.startswith("step ")]
    steps = steps_of(result)
    for block in steps.blocks:
        within = said[block.first : block.first + block.steps]
        assert len(within) == block.steps
        precisions = {words[2] for words in within}
        assert precisions == {"high" if block.cure == "tf32" and block.on else "highest"}
        reports = len({words[3] for words in within})
        skipped = block.cure.startswith("skip") and block.on
        assert reports == (1 if skipped else block.steps)
    assert {(block.cure, block.on) for block in steps.blocks} == {
        (cure, on) for cure in ("tf32", "skip@training.py:report") for on in (False, True)
    }


def test_a_loader_without_workers_is_not_waited_for(switched: ProgramResult) -> None:
    """Nothing gets ahead in it, so that pairs of blocks tell what a cure gains."""
    assert {block.waited_ns for block in steps_of(switched).blocks} == {0}


def test_cures_that_follow_the_optimizer_are_switched_within_its_step() -> None:
    """A hook that was added there ended each program whose steps are an optimizer's."""
    result = timed("bf16_autocast", pairs=2)
    assert (result.ended_by, result.not_applied) == ("enough", {}), result.last_lines


def test_what_is_saved_without_a_function_is_what_it_costs(switched: ProgramResult) -> None:
    """Within 10 % of what the program itself has measured."""
    said = [line.split() for line in switched.lines if line.startswith("step ")]
    cost_ms = statistics.median(float(words[5]) for words in said if float(words[5]) > 30.0)
    off_ns, on_ns = (
        statistics.median(steps_of(switched).step_times("skip@training.py:report", is_on))
        for is_on in (False, True)
    )
    assert (off_ns - on_ns) / 1e6 == pytest.approx(cost_ms, rel=0.1)


@pytest.fixture(scope="module")
def held() -> ProgramResult:
    """A run with TF32 from the end of the warm-up on, of blocks of a step each, and five before
    them."""
    return timed(arguments=("--say",), pairs=16, held=("tf32",))


def test_the_step_is_the_optimizers_and_losses_are_what_backward_was_called_of(
    held: ProgramResult,
) -> None:
    result, steps = held, steps_of(held)
    assert (steps.source, steps.site) == ("optimizer", "SGD")
    said = [float(line.split()[4]) for line in result.lines if line.startswith("step ")]
    losses = steps.losses
    assert len(losses) >= 20
    assert losses == pytest.approx(said[: len(losses)], rel=1e-6)


def test_a_cure_that_is_held_is_on_from_the_end_of_the_warm_up(held: ProgramResult) -> None:
    steps = steps_of(held)
    said = [line.split()[2] for line in held.lines if line.startswith("step ")]
    assert set(said[: steps.first]) == {"highest"}
    assert set(said[steps.first + 1 : len(steps.losses)]) == {"high"}


def test_a_cure_that_cannot_be_applied_says_why_and_the_others_go_on() -> None:
    result = timed("deterministic_off", "gc_off", "skip@training.py:train")
    assert result.not_applied.keys() == {"deterministic_off", "skip@training.py:train"}
    assert result.not_applied["deterministic_off"] == "deterministic algorithms are not asked for"
    assert "steps end within train" in result.not_applied["skip@training.py:train"]
    assert len(steps_of(result).ratios("gc_off")) >= 3


def test_a_program_that_dies_under_a_cure_says_so_in_its_last_lines() -> None:
    result = timed("tf32", arguments=("--dies-of-tf32",))
    assert result.failure.endswith("ended with status 3")
    assert steps_of(result).switched == "tf32"
    assert result.last_lines[-1] == "tf32 is not for me"


def test_where_nothing_can_be_switched_the_run_times_the_program_as_it_is() -> None:
    """And says which of those that need runs of their own would change nothing in them."""

    def until(run: RunInFolder, seconds: float) -> str:
        steps = run.reader.steps
        enough = steps is not None and len(steps.blocks) >= 3
        return "enough" if enough else "too long" if seconds > LIMIT_S else ""

    names = ("deterministic_off", "synchronize_idle", "kv_cache")
    asked = ("sdpa", "fused_optimizer", "loader_workers", "channels_last", "launch_blocking_off",
             "profiler_off", "compile")  # fmt: skip
    plan = RunPlan(names, asked=asked, block_s=QUICK["block_s"], warm_s=QUICK["warm_s"])
    result = run_once((sys.executable, TRAINING), plan, until)
    assert result.ended_by == "enough"
    assert {block.cure for block in steps_of(result).blocks} == {""}
    assert result.not_applied.keys() == {
        *names, "sdpa", "channels_last", "launch_blocking_off", "profiler_off"
    }  # fmt: skip


INFERRING = """
import time, torch
torch.manual_seed(0)
torch.set_num_threads(1)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(40)])
    def forward(self, x):
        return {"logits": self.layers(x)}
model, began = Model().eval(), time.monotonic()
while time.monotonic() - began < 240:
    with torch.no_grad():
        x = torch.randn(16, 64)
        y = model(x)["logits"]
    y = y.double().flatten()
    made = (y * torch.arange(y.numel(), dtype=torch.float64).cos()).sum() + 2.0 * y.norm()
    print("call", float(x.double().norm()), float(made), flush=True)
    time.sleep(0.01)
"""


def test_what_a_model_gives_is_kept_where_nothing_is_learnt(tmp_path: Path) -> None:
    """Before a cure that is held is on, and with it."""
    program = tmp_path / "inferring.py"
    program.write_text(INFERRING)

    def until(run: RunInFolder, seconds: float) -> str:
        steps = run.reader.steps
        is_over = steps is not None and len(steps.held_outputs) >= 4
        return "seen" if is_over else "too long" if seconds > LIMIT_S else ""

    plan = RunPlan(held=("bf16_autocast",), block_s=0.05, warm_s=0.1)
    result = run_once((sys.executable, str(program)), plan, until)
    outputs, held = steps_of(result).outputs, steps_of(result).held_outputs
    calls = [line.split() for line in result.lines if line.startswith("call ")]
    said = {float(given): float(made) for _, given, made in calls}
    assert len(outputs) >= 4
    assert not outputs.keys() & held.keys()
    for (given, size), made in (*outputs.items(), *held.items()):
        assert size == 16 * 64
        nearest = min(said, key=lambda each: abs(each - given))
        assert (nearest, said[nearest]) == pytest.approx((given, made), rel=1e-6)


def newer_python() -> str | None:
    """A Python with sys.monitoring: this one, or another that runs."""
    for name in (sys.executable, "python3.12", "python3.13"):
        path = shutil.which(name)
        has_monitoring = (
            path
            and not subprocess.run(
                [path, "-c", "import sys; sys.monitoring"], capture_output=True, check=False
            ).returncode
        )
        if has_monitoring:
            return path
    return None


NEWER_PYTHON = newer_python()

CALLS = """
import time
import jax

def report(): time.sleep(0.01)

def main():
    def step():
        for _ in range(3):
            time.sleep(0.0005)
        report()
    while True:
        step()

main()
"""
LOOPS = """
import time
import jax

def report(): time.sleep(0.01)

def main():
    for _ in range(8):  # not the loop that goes on
        time.sleep(0.001)
    step = 0
    while step < 1 << 30:
        for _ in range(3):
            time.sleep(0.0005)
        step += 1
        if step % 2:
            report()

main()
"""

BATCHES = """
import time
import jax

def report(): time.sleep(0.002)

def main():
    while True:
        for _ in range(3):
            report()

main()
"""


@pytest.mark.skipif(NEWER_PYTHON is None, reason="no Python from 3.12 on")
@pytest.mark.parametrize(
    ("program", "source", "site", "before"),
    [
        (CALLS, "function", "loop.py:step", ""),
        (LOOPS, "loop", "loop.py:main", ""),
        (LOOPS, "loop", "loop.py:main", "loop loop.py:main"),
        (LOOPS, "loop", "loop.py:11", "loop loop.py:11"),
        (BATCHES, "loop", "loop.py:9", "loop loop.py:9"),
    ],
    ids=["function", "loop", "as before", "as under capture", "inner loop"],
)
def test_what_is_done_again_and_again_is_the_step_where_nothing_marks_one(
    tmp_path: Path, program: str, source: str, site: str, before: str
) -> None:
    (tmp_path / "loop.py").write_text(program)
    (tmp_path / "jax.py").write_text("")
    cure = "skip@loop.py:report"

    def until(run: RunInFolder, seconds: float) -> str:
        steps = run.reader.steps
        enough = steps is not None and len(steps.ratios(cure)) >= 5
        return "enough" if enough else "too long" if seconds > LIMIT_S else ""

    command = (NEWER_PYTHON or "", str(tmp_path / "loop.py"))
    plan = RunPlan((cure,), step=before, block_s=0.05, warm_s=0.1)
    result = run_once(command, plan, until)
    steps = steps_of(result)
    assert (steps.source, steps.site) == (source, site)
    # Of five, because the machine may take a second from any block.
    assert statistics.median(steps.ratios(cure)) > 2.0


FEW = """
import os
from tqdm import tqdm

def steps(count):
    for _ in tqdm(range(count)):
        pass

steps({before})
if not os.fork():
    steps(40)
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize(("before", "seen"), [(9, 8), (0, 32)])
def test_the_steps_of_a_program_that_ends_too_soon_are_counted(before: int, seen: int) -> None:
    """Those of a fork where its parent has none, which waits for it."""
    pytest.importorskip("tqdm")

    def until(_run: RunInFolder, seconds: float) -> str:
        return "too long" if seconds > LIMIT_S else ""

    result = run_once((sys.executable, "-c", FEW.format(before=before)), RunPlan(), until)
    assert result.steps is None
    assert result.has_ended
    assert (result.seen, result.failure) == (seen, "")


# --- the command


def test_an_ablation_of_a_function_that_waits_is_a_bound_and_first(tmp_path: Path) -> None:
    done = gputui_try(
        tmp_path, "--yes", "--json", "--budget", "240s", "--cure", "skip@training.py:report",
        "--", sys.executable, TRAINING, "--report-ms", "30",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    check("try", outcome)
    trials = {trial["cure"]: trial for trial in outcome["trials"]}
    skipped = trials["skip@training.py:report"]
    assert skipped["verdict"] == "bound"
    assert skipped["gain"] > 2.0
    assert skipped["way"] == "in one run"


def test_a_gain_with_another_result_is_not_counted(tmp_path: Path) -> None:
    pytest.importorskip("tqdm")
    done = gputui_try(
        tmp_path, "--yes", "--shared", "--json", "--budget", "60s", "--cure", "gc_off", "--",
        sys.executable, LOOPING, "--collected-ms", "8", "--loss-without-gc", "1.5",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    (trial,) = outcome["trials"]
    assert (trial["verdict"], trial["gain"] > 2.0) == ("another result", True)
    assert trial["same"].endswith("differ by 50 %")
    assert "(gc_off)" in outcome["reason"]


def test_every_cure_is_listed(tmp_path: Path) -> None:
    from gputui.cures import cures

    rows = json.loads(gputui_try(tmp_path, "--list", "--json").stdout)["rows"]
    assert [row["cure"].partition("@")[0] for row in rows] == list(cures())


def test_what_would_be_tried_on_a_recording_is_listed_in_its_order(tmp_path: Path) -> None:
    recording = tmp_path / "tensor_cores.gputui"
    recording.write_bytes(gzip.decompress((DATA / "faults/tensor_cores.gputui.gz").read_bytes()))
    listed = gputui_try(tmp_path, str(recording), "--list", "--json")
    first = json.loads(listed.stdout)["rows"][0]
    assert (first["cure"], first["cause"]) == ("tf32", "busy.matmul_simt")
    assert first["forecast"].endswith("×")


def test_a_cure_is_on_in_all_ranks_or_none_from_the_same_step_on() -> None:
    def until(run: RunInFolder, seconds: float) -> str:
        steps = run.reader.steps
        enough = steps is not None and len(steps.ratios("tf32")) >= 3
        return "enough" if enough else "too long" if seconds > LIMIT_S else ""

    plan = RunPlan(("tf32",), block_s=0.03, warm_s=0.2)
    result = run_once((sys.executable, str(PROGRAMS / "ranks.py")), plan, until)
    assert (result.ended_by, result.not_applied) == ("enough", {}), result.last_lines
    seen: dict[int, dict[int, str]] = {0: {}, 1: {}}
    for line in result.lines:
        words = line.split()
        if words[:1] == ["rank"]:
            seen[int(words[1])][int(words[3])] = words[4]
    both = seen[0].keys() & seen[1].keys()
    assert {seen[0][step] for step in both} == {"high", "highest"}
    assert [step for step in both if seen[0][step] != seen[1][step]] == []
