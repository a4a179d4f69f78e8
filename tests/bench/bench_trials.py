"""What trials measure where it is known, and what they cost a step.

    python tests/bench/bench_trials.py [--ablations] [--cost] [--healthy 20]

`--ablations`: causes of known cost, busy and asleep, taken away in a training on the CPU: what is
saved of a step against what the program itself measured of the cause. `--cost`: nanoseconds that
the trial's hook adds to a step, with marks of steps alike. `--healthy`: as many trials of a cure
that does nothing here, on a program without a fault: how often an interval holds 1, and how often a
gain is claimed. Needs torch; a CPU of its own, or the figures are of what else runs there.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from gputui.trial.runs import ProgramResult, RunInFolder, RunPlan, run_once
from gputui.trial.statistics import gain_of_pairs

PROGRAM = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
what, cost_ms, spent = sys.argv[1], float(sys.argv[2]), [0.0, 0]

def cost(ms):
    until = time.perf_counter() + ms / 1e3
    if "asleep" in what:
        time.sleep(ms / 1e3)
    while time.perf_counter() < until:
        pass

class Rows(Dataset):
    def __len__(self): return 1 << 30
    def __getitem__(self, i):
        if what.startswith("input"):
            cost(cost_ms / 8)
        return torch.full((64,), i % 7 / 7)

def report(loss):
    if what.startswith("report"):
        cost(cost_ms)
    return loss

def save(model):
    if what.startswith("save"):
        rows = torch.zeros(int(cost_ms * 1e5))
        torch.save({"rows": rows, "model": model.state_dict()}, "/dev/null")

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)])
optimizer = torch.optim.SGD(model.parameters(), lr=.01)
rows = iter(DataLoader(Rows(), batch_size=8))
began = time.time()
while time.time() - began < 100:
    timed = {"input": lambda: next(rows), "report": lambda: report(0), "save": lambda: save(model)}
    batch = None
    for kind, action in timed.items():
        at = time.perf_counter()
        value = action()
        if what.startswith(kind):
            spent[0] += time.perf_counter() - at; spent[1] += 1
            if spent[1] == 60:
                print("KNOWN", 1e3 * spent[0] / spent[1], flush=True)
        batch = value if kind == "input" else batch
    loss = model(batch).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""

CASES = [
    ("report busy", 2.0), ("report busy", 8.0), ("report busy", 20.0), ("report asleep", 5.0),
    ("report asleep", 15.0), ("input busy", 6.0), ("input busy", 12.0), ("input asleep", 10.0),
    ("input asleep", 25.0), ("save", 8.0),
]  # fmt: skip
CURES = {"report": "skip@program.py:report", "input": "repeat_batch", "save": "no_saves"}


def trial(program: Path, words: list[str], cure: str, seed: int = 0) -> ProgramResult:
    """One run with a cure that is switched, until its gain is known."""

    def until(run: RunInFolder, seconds: float) -> str:
        steps = run.reader.steps
        gain = gain_of_pairs(steps.ratios(cure), 1) if steps is not None else None
        # The program has said what it knows by then.
        known = gain is not None and gain.is_decided and seconds > 12
        return "known" if known else "too long" if seconds > 60 else ""

    plan = RunPlan((cure,), seed=seed, warm_s=4.0)
    return run_once((sys.executable, str(program), *words), plan, until)


def ablations(program: Path) -> None:
    """Saved against known, of every case."""
    errors = []
    for what, cost_ms in CASES:
        cure = CURES[what.split()[0]]
        result = trial(program, [what, str(cost_ms)], cure)
        steps = result.steps
        known = [float(line.split()[1]) for line in result.lines if line.startswith("KNOWN")]
        if steps is None or not known:
            print(f"{what:<16}{cost_ms:>6.1f}  nothing: {result.last_lines}")
            continue
        off, on = (
            statistics.median(steps.step_times(cure, state)) / 1e6 for state in (False, True)
        )
        error = (off - on) / known[0] - 1.0
        errors.append(abs(error))
        gain = gain_of_pairs(steps.ratios(cure), 1)
        print(
            f"{what:<16}{cure:<24}known {known[0]:6.2f} ms, saved {off - on:6.2f} of {off:6.2f} "
            f"({100 * error:+.1f} %), {gain and gain.middle:.2f}×, {gain and gain.pairs} pairs",
            flush=True,
        )
    within = sum(error <= 0.10 for error in errors)
    print(f"median {100 * statistics.median(errors):.1f} %, within 10 %: {within} of {len(CASES)}")


COUNTING = """
import time, torch
parameter = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([parameter])  # no gradient: its step does nothing but call hooks
began = time.perf_counter_ns()
while time.perf_counter_ns() - began < 2e9:
    optimizer.step()
for _ in range(4):
    began = time.perf_counter_ns()
    for _ in range(50_000):
        optimizer.step()
    print("COST", (time.perf_counter_ns() - began) / 50_000, flush=True)
"""


def cost(program: Path) -> None:
    """A step's mark under a trial, in ns, against a step without."""
    program.write_text(COUNTING)

    bare = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=True
    )
    command = (sys.executable, str(program))
    tried = {
        "timed only": RunPlan(warm_s=0.5),
        "switched": RunPlan(("tf32",), warm_s=0.5, block_s=0.01),
    }
    times = {"bare": bare.stdout.splitlines()}
    for name, plan in tried.items():
        times[name] = list(run_once(command, plan, lambda _run, _seconds: "").lines)
    for name, lines in times.items():
        values = [float(line.split()[1]) for line in lines if line.startswith("COST")]
        print(f"{name:<12}{min(values):>10.0f} ns a step, {statistics.median(values):.0f} median")


def healthy(program: Path, count: int) -> None:
    """Trials of a cure that does nothing here."""
    covered = claimed = made = 0
    for number in range(count):
        result = trial(program, ["report busy", "0.5"], "gc_off", seed=number)
        gain = gain_of_pairs(result.steps.ratios("gc_off"), 1) if result.steps else None
        if gain is None:
            print(f"{number}: {result.ended_by} {result.last_lines}")
            continue
        made += 1
        covered += gain.low <= 1.0 <= gain.high
        claimed += gain.is_claimed
        ends = f"{gain.low:.3f} to {gain.high:.3f}"
        print(f"{number}: {gain.middle:.3f} ({ends}), {gain.pairs} pairs", flush=True)
    print(f"{made} trials, {covered} intervals hold 1, {claimed} gains claimed")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ablations", action="store_true")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--healthy", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(PROGRAM)
        if options.ablations:
            ablations(program)
        if options.healthy:
            healthy(program, options.healthy)
        if options.cost:
            cost(program)


if __name__ == "__main__":
    main()
