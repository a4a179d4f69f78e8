"""What it costs a program to mark its steps.

    python tests/bench/bench_steps.py [--rounds 5]

Nanoseconds of each kind of mark: in a child with a ring that is read, what it does with marks less
what it does without them, in turn, the median of the rounds. Needs torch; tqdm is left out where it
is not installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.inject.traced import run

CHILD = """
import json, sys, time
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Identity()
        self.wait = 0.0
    def forward(self, input_ids):
        if self.wait:
            time.sleep(self.wait)
            return self.inner(input_ids)
        return input_ids

def cost(action, count=20_000):
    began = time.perf_counter_ns()
    for _ in range(count):
        action()
    return (time.perf_counter_ns() - began) / count

net, tokens = Net().eval(), torch.zeros(4, 16, dtype=torch.int64)
parameter = nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([parameter])  # no gradient: its step does nothing but call hooks
net.wait = 0.3
net(input_ids=tokens)  # is found meanwhile
net.wait = 0.0
costs = {"module": cost(lambda: net(input_ids=tokens)), "optimizer": cost(optimizer.step)}
try:
    from tqdm import tqdm
except ImportError:
    pass
else:
    began = time.perf_counter_ns()
    for _ in tqdm(range(200_000), disable=True):
        pass
    costs["tqdm"] = (time.perf_counter_ns() - began) / 200_000
def turns(count):
    began = time.perf_counter_ns()
    for _ in range(count):
        pass
    return (time.perf_counter_ns() - began) / count

if sys.version_info >= (3, 12):  # marked for so many turns, until it is clear that none is a step
    costs["loop"] = turns(2000)
print("COST", json.dumps(costs))
"""


def costs(folder: Path, marked: bool) -> dict[str, float]:
    """Nanoseconds of each action in a child of its own."""
    child = folder / "child.py"  # its loops are those of a program, by where it lies
    child.write_text(CHILD)
    outcome = run([sys.executable, str(child)], folder, step_marks=marked)
    line = next(line for line in outcome.output.splitlines() if line.startswith("COST "))
    return json.loads(line.removeprefix("COST "))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    added: dict[str, list[float]] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as bare, tempfile.TemporaryDirectory() as marked:
            without, with_marks = costs(Path(bare), False), costs(Path(marked), True)
        for name in without:
            added.setdefault(name, []).append(with_marks[name] - without[name])
    for name, values in added.items():
        low, high = min(values) / 1000, max(values) / 1000
        print(f"{name:10} {statistics.median(values) / 1000:.2f} µs ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
