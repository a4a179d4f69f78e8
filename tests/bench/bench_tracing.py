"""What tracing costs a workload: bare, gputui, CUPTI alone, torch.profiler and nsys in turn.

    python tests/bench/bench_tracing.py [decode|graphs|train] [--rounds 3] [--tokens 400]
        [--steps 50] [--size SIZE] [--device cuda] [--only NAME ...] [--floor WORDS] [--nsys PATH]

`decode` is launch-bound: GPT-2 small, batch 1, eager; `graphs` is the same with every step a CUDA
graph; `train` is a training step of GPT-2 medium, 4 sequences of 512, bf16. Each round runs every
variant once, one after the other, so that a drift of the machine meets all of them. Times are the
workload's own: µs a token, or a step. "CUPTI alone" delivers the records that gputui asks for to a
callback that drops them, with no ranges and no gputui: the floor of every tool that uses CUPTI.
`--floor` adds another of them, asked for what floor.c's words say. `taskset -c 4-7 python …` keeps
all of it on four cores: on a shared machine of 16, bare runs then differed by 7 %, else by 45 %.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floor import AS_GPUTUI, build_floor, floor_environment
from rounds import Figures, interleave, print_ratios

_UNDER_PROFILER = """
import sys, torch
from torch.profiler import ProfilerActivity, profile
from workloads.__main__ import main
kinds = {"cuda": [ProfilerActivity.CUDA], "both": [ProfilerActivity.CPU, ProfilerActivity.CUDA]}
torch.cuda.init()
with profile(activities=kinds[sys.argv[1]]):
    status = main(sys.argv[2:])
sys.exit(status)
"""


@dataclass(frozen=True)
class Case:
    """A workload with its parameters, and the figures that are compared, in ms."""

    words: tuple[str, ...]
    mean: str
    median: str
    nsys: tuple[str, ...] = ()

    @property
    def bare(self) -> list[str]:
        return [sys.executable, "-m", "workloads", *self.words]

    def figures(self, results: Mapping[str, Any]) -> Figures:
        """Mean and median of the workload's steps, in µs."""
        return {
            "mean": float(results[self.mean]) * 1e3,
            "median": float(results[self.median]) * 1e3,
        }

    @property
    def parameters(self) -> list[str]:
        pairs = zip(self.words[1::2], self.words[2::2], strict=True)
        return [word for name, value in pairs for word in ("-p", f"{name[2:]}={value}")]


def _cases(options: argparse.Namespace) -> dict[str, Case]:
    decode = ["inference", "--size", options.size or "small", "--tokens", str(options.tokens)]
    train = ["train", "--size", options.size or "gpt2-medium", "--batch", "4", "--ctx", "512"]
    train += ["--precision", "bf16", "--steps", str(options.steps)]
    device = ["--device", options.device]
    return {
        "decode": Case((*decode, *device), "tpot_ms", "itl_p50_ms"),
        "graphs": Case(
            (*decode, "--graphs", "true", *device),
            "tpot_ms",
            "itl_p50_ms",
            ("--cuda-graph-trace=node",),
        ),
        "train": Case((*train, *device), "avg_ms", "step_p50_ms"),
    }


def main() -> int:
    """Run the variants and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="?", default="decode", choices=("decode", "graphs", "train"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--size")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", nargs="*", help="of the variants, those besides bare")
    parser.add_argument("--floor", action="append", default=[], metavar="WORDS")
    parser.add_argument("--nsys", default=shutil.which("nsys"))
    options = parser.parse_args()
    case = _cases(options)[options.case]
    with tempfile.TemporaryDirectory() as folder:
        variants = _variants(options, case, Path(folder))
        if options.only is not None:
            variants = {
                name: run
                for name, run in variants.items()
                if name in {"bare", *options.only, *options.floor}
            }
        print(" ".join(case.words))
        for what, times in interleave(variants, options.rounds, "µs").items():
            print(f"\n{what} of the steps of a run")
            print_ratios(times, "µs")
    return 0


def _variants(
    options: argparse.Namespace, case: Case, folder: Path
) -> dict[str, Callable[[], Figures]]:
    variants: dict[str, Callable[[], Figures]] = {
        "bare": lambda: _alone(case, case.bare),
        "gputui": lambda: _recorded(case),
        "gputui --trace-steps 1/10": lambda: _recorded(case, "--trace-steps", "1/10"),
        "gputui --no-kernels": lambda: _recorded(case, "--no-kernels"),
    }
    if options.device == "cpu":
        return variants
    floors = {"CUPTI alone": AS_GPUTUI}
    if options.case == "graphs":
        variants["gputui --graph-trace graph"] = lambda: _recorded(case, "--graph-trace", "graph")
        floors["CUPTI alone, whole graphs"] = f"{AS_GPUTUI.removesuffix(' nodes')} graph"
    floors |= {words: words for words in options.floor}
    library = build_floor(folder)
    for name, words in floors.items():
        environment = floor_environment(library, words)
        variants[name] = lambda environment=environment: _alone(case, case.bare, environment)
    profiler = [sys.executable, "-c", _UNDER_PROFILER]
    variants["torch.profiler, CUDA"] = lambda: _alone(case, [*profiler, "cuda", *case.words])
    variants["torch.profiler, CPU and CUDA"] = lambda: _alone(
        case, [*profiler, "both", *case.words]
    )
    if options.nsys:
        variants["nsys -t cuda,nvtx"] = lambda: _nsys(options.nsys, case)
    return variants


def _alone(case: Case, command: list[str], environment: dict[str, str] | None = None) -> Figures:
    """The figures of a command that prints the workload's result document."""
    done = subprocess.run(
        command, capture_output=True, check=False, stdin=subprocess.DEVNULL, env=environment
    )
    try:
        text = done.stdout.decode()
        # nsys writes words of its own around the document.
        document, _ = json.JSONDecoder().raw_decode(text[text.index("{\n") :])
        results = document["results"]
    except (ValueError, KeyError):
        sys.exit(f"{command[0]} failed: {done.stderr.decode()[-2000:]}")
    return case.figures(results)


def _recorded(case: Case, *flags: str) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bench.gputui")
        gputui = [sys.executable, "-m", "gputui"]
        workload = ["--workload", case.words[0], *case.parameters]
        subprocess.run(
            [*gputui, "--record", *flags, *workload, "-o", str(path)],
            check=True,
            capture_output=True,
        )
        summary = subprocess.run(
            [*gputui, "summary", str(path), "--format", "json"], check=True, capture_output=True
        )
    document = json.loads(summary.stdout)
    cost = document["overhead"]
    said = [f"{cost['records']:,} records"]
    if cost["dropped"]:
        said.append(f"{cost['dropped']:,} dropped")
    if cost["kernels_traced_percent"] < 100:
        said.append(f"kernels traced {cost['kernels_traced_percent']:.1f} % of the time")
    print(f"  {', '.join(said)}")
    return case.figures(document["metrics"])


def _nsys(nsys: str, case: Case) -> Figures:
    """Where nsys cannot import its own capture the run was profiled all the same."""
    with tempfile.TemporaryDirectory() as folder:
        command = [nsys, "profile", "-t", "cuda,nvtx", "-s", "none", "--cpuctxsw=none", *case.nsys]
        return _alone(case, [*command, "-o", os.path.join(folder, "report"), *case.bare])


if __name__ == "__main__":
    sys.exit(main())
