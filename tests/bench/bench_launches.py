"""Empty kernels at given rates, under gputui and without: what is launched, traced and lost.

    python tests/bench/bench_launches.py [--rounds 3] [--seconds 1] [--rates 100000 ... 0]
    python tests/bench/bench_launches.py --floor "kernel" --floor "kernel calls flush=1000" …

Compiles a small CUDA program (needs nvcc and a GPU) that launches as many empty kernels a second as
asked, 0 for as many as it can, and one that launches CUDA graphs of them. Variants run in turn.
Each --floor adds CUPTI alone, without gputui, asked for what floor.c's words say.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from floor import AS_GPUTUI, build_floor, build_launches, floor_environment

GPUTUI = {
    "gputui": (),
    "gputui --graph-trace graph": ("--graph-trace", "graph"),
    "gputui --no-kernels": ("--no-kernels",),
}


@dataclass
class Outcome:
    """One variant at one rate, over all rounds."""

    rates: list[float] = field(default_factory=list)
    dropped: int = 0
    missing: int = 0
    """Kernels that ran and are neither in the recording nor counted as dropped."""
    records: int = 0
    callback_ns: int = 0
    """What the library measured of its own time, on CUPTI's and its own threads."""


class Bench:
    """The program and the ways to run it."""

    def __init__(self, folder: Path, launches: Path, floor: Path) -> None:
        self._folder, self._launches, self._floor = folder, launches, floor
        self._numbers = itertools.count()

    def run(self, variant: str, words: list[str], outcome: Outcome) -> None:
        """Once; adds what came to `outcome`."""
        command = [str(self._launches), *words]
        if variant in GPUTUI:
            path = self._folder / f"{next(self._numbers)}.gputui"
            gputui = [sys.executable, "-m", "gputui"]
            done = _run([*gputui, "--record", *GPUTUI[variant], "-o", str(path), "--", *command])
            summary = json.loads(_run([*gputui, "summary", str(path), "--format", "json"]))
            seen = sum(row["instances"] for row in summary["kernels"])
            outcome.dropped += summary["dropped_events"]
            if variant == "gputui":
                outcome.missing += int(done.split()[-1]) - seen - summary["dropped_events"]
            cost = summary["overhead"]
            outcome.callback_ns += cost["callback_ns"]
            outcome.records += cost["records"]
        elif variant == "bare":
            done = _run(command)
        else:
            done = _run(command, floor_environment(self._floor, variant.partition(": ")[2]))
        count, _, seconds, *_ = done.split()
        outcome.rates.append(float(count) / float(seconds))


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command[0]}: status {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def main() -> int:
    """Run the variants and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", default="1")
    parser.add_argument("--rates", nargs="*", default=["50000", "100000", "200000", "300000", "0"])
    parser.add_argument("--nodes", nargs="*", default=["150"], help="kernels of a graph")
    parser.add_argument("--floor", action="append", default=[AS_GPUTUI], metavar="WORDS")
    parser.add_argument("--only", nargs="*", help="of gputui's variants")
    options = parser.parse_args()
    ours = [name for name in GPUTUI if options.only is None or name in options.only]
    variants = ["bare", *ours, *(f"CUPTI alone: {words}" for words in options.floor)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        launches = build_launches(folder)
        if isinstance(launches, str):
            sys.exit(launches)
        bench = Bench(folder, launches, build_floor(folder))
        cases = [["loop", rate, options.seconds] for rate in options.rates]
        cases += [["graph", nodes, options.seconds] for nodes in options.nodes]
        columns = f"{'over bare':>11}  {'spread':<16}{'dropped':>9}{'missing':>9}  ns a record"
        print(f"{'kernels a second, median':<58}{columns}")
        for words in cases:
            outcomes = {variant: Outcome() for variant in variants}
            for _ in range(options.rounds):
                for variant, outcome in outcomes.items():
                    bench.run(variant, words, outcome)
            asked = f"{int(words[1]):,} a second" if words[1] != "0" else "as many as it can"
            print(asked if words[0] == "loop" else f"graphs of {words[1]}")
            for variant, outcome in outcomes.items():
                ratios = [
                    bare / rate
                    for bare, rate in zip(outcomes["bare"].rates, outcome.rates, strict=True)
                ]
                spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
                each = outcome.callback_ns / outcome.records if outcome.records else None
                print(
                    f"  {variant:<44}{statistics.median(outcome.rates):>12,.0f}"
                    f"{statistics.median(ratios):>11.3f}  {spread:<16}"
                    f"{outcome.dropped:>9,}{outcome.missing:>9,}"
                    + ("" if each is None else f"{each:>13.0f}"),
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
