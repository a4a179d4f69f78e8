"""What trials measure where it is known, and what they cost a step.

    python tests/bench/bench_trials.py [--ablations] [--cost] [--healthy 200] [--jobs 4]

`--ablations`: causes of known cost, busy and asleep, taken away in a training on the CPU: what is
saved of a step against what the program itself measured of the cause. `--cost`: nanoseconds that
the trial's hook adds to an empty step, and to one of 10 ms, on the GPU where there is one, with and
without cures that are switched. `--healthy`: as many trials of a cure that does nothing on a CPU,
`--jobs` at a time: how often an interval holds 1, and how often a gain is claimed. `--healthy-gpu`:
the same from the pairs of one run on a GPU, trial after trial. Needs torch; a CPU of its own, or
the figures are of what else runs there.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from gputui.trial.blocks import Pair
from gputui.trial.proof import LOOKS, TRIMMED, MeasuredGain, gain_of_pairs
from gputui.trial.runs import ProgramResult, RunInFolder, RunPlan, run_once

PROGRAM = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
what, cost_ms, spent, means = sys.argv[1], float(sys.argv[2]), [], []

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

saved = torch.zeros(int(cost_ms * 1e5)) if what == "save" else None

def save(model):
    if what.startswith("save"):
        torch.save({"rows": saved, "model": model.state_dict()}, "/dev/null")

BLOCK = 20
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
        took_ms = 1e3 * (time.perf_counter() - at)
        if what.startswith(kind) and took_ms > 0.05 * cost_ms:  # else it is taken away just now
            spent.append(took_ms)
            if len(spent) == BLOCK:  # as blocks are timed, of which a fifth is cut off at each end
                means.append(sum(spent) / BLOCK)
                spent.clear()
                cut = len(means) // 5
                kept = sorted(means)[cut : len(means) - cut]
                print("KNOWN", sum(kept) / len(kept), flush=True)
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


def trial(
    program: Path,
    words: list[str],
    cure: str,
    *,
    seed: int = 0,
    block_s: float = 0.25,
    least_s: float = 12.0,
) -> ProgramResult:
    """One run with a cure that is switched, until its gain is known and `least_s` are over."""

    def until(run: RunInFolder, seconds: float) -> str:
        steps = run.reader.steps
        gain = gain_of_pairs(steps.pairs(cure), 1) if steps is not None else None
        known = (
            gain is not None and (gain.is_decided or gain.pairs == LOOKS[-1]) and seconds > least_s
        )
        return "known" if known else "too long" if seconds > 60 else ""

    plan = RunPlan((cure,), seed=seed, warm_s=least_s / 4.0 or 1.0, block_s=block_s)
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
        # Of each pair, as the gain is.
        pairs = zip(steps.step_times(cure, False), steps.step_times(cure, True), strict=False)
        differences = sorted(off - on for off, on in pairs)
        cut = int(TRIMMED * len(differences))
        saved = statistics.fmean(differences[cut : len(differences) - cut]) / 1e6
        off = statistics.median(steps.step_times(cure, False)) / 1e6
        error = saved / known[-1] - 1.0
        errors.append(abs(error))
        gain = gain_of_pairs(steps.pairs(cure), 1)
        print(
            f"{what:<16}{cure:<24}known {known[-1]:6.2f} ms, saved {saved:6.2f} of {off:6.2f} "
            f"({100 * error:+.1f} %), {gain and gain.middle:.2f}×, {gain and gain.pairs} pairs",
            flush=True,
        )
    within = sum(error <= 0.10 for error in errors)
    print(f"median {100 * statistics.median(errors):.1f} %, within 10 %: {within} of {len(CASES)}")


COUNTING = """
import sys, time, torch
from torch.optim import optimizer as optimizers
parameter = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([parameter])  # no gradient: its step does nothing but call hooks
step_ms, place = float(sys.argv[1]), "cuda" if torch.cuda.is_available() else "cpu"
rows = torch.randn(512, 512, device=place)
torch.set_num_threads(1)
times = []

def timed(hook):
    def called(*arguments):
        began = time.perf_counter_ns()
        hook(*arguments)
        times.append(time.perf_counter_ns() - began)
    return called

# What marks a step, and under a trial ends blocks and switches: the hook itself is timed.
hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
for number in list(hooks):
    hooks[number] = timed(hooks[number])

def step():
    until = time.perf_counter_ns() + step_ms * 1e6
    while time.perf_counter_ns() < until:
        rows @ rows
        if place == "cuda":
            torch.cuda.current_stream().synchronize()
    optimizer.step()

began = time.perf_counter_ns()
while time.perf_counter_ns() - began < 3e9:
    step()
times.clear()
for _ in range(500 if step_ms else 200_000):
    step()
ordered = sorted(times)
count = len(times)
print("COST", sum(times) / count, ordered[count // 2], ordered[-1], count, flush=True)
"""


def cost(program: Path) -> None:
    """What the hook of a trial takes at each step, in ns: of empty steps, and of some of 10 ms, of
    which each twenty-fifth ends a block, waits for the GPU, writes a line and switches."""
    program.write_text(COUNTING)
    tried = {
        "switched": RunPlan(("cudnn_attention_off", "gc_off"), warm_s=0.5),
        "timed only": RunPlan(warm_s=0.5),
    }
    for step_ms in ("10", "0"):
        for name, plan in tried.items():
            command = (sys.executable, str(program), step_ms)
            result = run_once(command, plan, lambda _run, _seconds: "")
            said = [line.split()[1:] for line in result.lines if line.startswith("COST")]
            if not said:
                print(f"step of {step_ms} ms, {name}: nothing said: {result.last_lines}")
                continue
            mean, middle, most, count = map(float, said[0])
            blocks = len(result.steps.blocks) if result.steps is not None else 0
            print(
                f"step of {step_ms:>2} ms, {name:<11}{mean:>8.0f} ns a step in the mean of "
                f"{count:.0f}, {middle:.0f} in the middle, {most:.0f} at most; {blocks} blocks",
                flush=True,
            )


NOTHING = "cudnn_attention_off"
"""A cure that does nothing to a program without attention on a GPU."""


def healthy(program: Path, count: int, jobs: int) -> None:
    """Trials of a cure that does nothing here, `jobs` at a time."""

    def one_trial(number: int) -> ProgramResult:
        return trial(program, ["report busy", "0.5"], NOTHING, seed=number, block_s=0.12, least_s=0)

    covered = claimed = made = 0
    with ThreadPoolExecutor(jobs) as pool:
        for number, result in enumerate(pool.map(one_trial, range(count))):
            gain = gain_of_pairs(result.steps.pairs(NOTHING), 1) if result.steps else None
            if gain is None:
                print(f"{number}: {result.ended_by} {result.last_lines}")
                continue
            made += 1
            covered += gain.low <= 1.0 <= gain.high
            claimed += gain.is_claimed
            ends = f"{gain.low:.3f} to {gain.high:.3f}"
            print(
                f"{number}: {gain.middle:.3f} ({ends}), {gain.pairs} pairs; so far {made} trials, "
                f"{covered} intervals hold 1, {claimed} gains claimed",
                flush=True,
            )


ON_GPU = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(16)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
rows = torch.randn(2048, 1024, device="cuda")
while True:
    loss = model(rows).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


def healthy_gpu(program: Path, count: int) -> None:
    """Trials one after another of the pairs of one run on a GPU."""
    program.write_text(ON_GPU)
    trials: list[MeasuredGain] = []

    def cut(pairs: list[Pair]) -> None:
        trials.clear()
        begins = 0
        for ends in range(1, len(pairs) + 1):
            gain = gain_of_pairs(pairs[begins:ends], 1)
            if gain is not None and (gain.is_decided or ends - begins == LOOKS[-1]):
                trials.append(gain)
                begins = ends

    def until(run: RunInFolder, seconds: float) -> str:
        if (steps := run.reader.steps) is not None:
            cut(steps.pairs(NOTHING))
        return "enough" if len(trials) >= count else "too long" if seconds > 120 else ""

    run_once((sys.executable, str(program)), RunPlan((NOTHING,), block_s=0.1), until)
    held = sum(gain.low <= 1.0 <= gain.high for gain in trials)
    widths = [100 * (gain.high / gain.low - 1.0) for gain in trials]
    print(
        f"on a GPU: {len(trials)} trials, {held} intervals hold 1, "
        f"{sum(gain.is_claimed for gain in trials)} gains claimed; "
        f"{statistics.median(widths or [0]):.2f} % wide, {[gain.pairs for gain in trials]} pairs"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ablations", action="store_true")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--healthy", type=int, default=0)
    parser.add_argument("--healthy-gpu", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(PROGRAM)
        if options.ablations:
            ablations(program)
        if options.healthy:
            healthy(program, options.healthy, options.jobs)
        if options.cost:
            cost(program)
        if options.healthy_gpu:
            healthy_gpu(program, options.healthy_gpu)


if __name__ == "__main__":
    main()
