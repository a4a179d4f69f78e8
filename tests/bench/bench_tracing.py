"""What tracing costs a launch-bound decode: bare, gputui, nsys and torch.profiler in turn.

    python tests/bench/bench_tracing.py [--rounds 3] [--tokens 400] [--size small] [--nsys PATH]

Each round runs every variant once, one after the other, so that a drift of the machine meets
all of them. Prints µs a token (mean of the decode, as the workload itself measured it), each
variant's fastest, and the ratio to bare: of the fastest, and the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

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


def main() -> int:
    """Run the variants and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--size", default="small")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", nargs="*", help="of the variants, those besides bare")
    parser.add_argument("--nsys", default=shutil.which("nsys"))
    options = parser.parse_args()
    words = ["inference", "--size", options.size, "--tokens", str(options.tokens)]
    words += ["--device", options.device]
    variants: dict[str, Callable[[], float]] = {
        "bare": lambda: _alone([sys.executable, "-m", "workloads", *words]),
        "gputui": lambda: _recorded(words),
        "gputui --trace-steps 1/10": lambda: _recorded(words, "--trace-steps", "1/10"),
        "gputui --no-kernels": lambda: _recorded(words, "--no-kernels"),
    }
    if options.device != "cpu":
        profiler = [sys.executable, "-c", _UNDER_PROFILER]
        variants["torch.profiler, CUDA"] = lambda: _alone([*profiler, "cuda", *words])
        variants["torch.profiler, CPU and CUDA"] = lambda: _alone([*profiler, "both", *words])
        if options.nsys:
            variants["nsys -t cuda,nvtx"] = lambda: _nsys(options.nsys, words)
    if options.only is not None:
        variants = {name: run for name, run in variants.items() if name in {"bare", *options.only}}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(options.rounds):
        for name, run in variants.items():
            times[name].append(run())
            print(f"round {number + 1}  {name:<30}{times[name][-1]:>10.0f} µs/token", flush=True)
    print(f"\n{'variant':<30}{'fastest µs':>12}{'over bare':>11}{'median of rounds':>18}")
    for name, values in times.items():
        ratios = [value / bare for value, bare in zip(values, times["bare"], strict=True)]
        print(
            f"{name:<30}{min(values):>12.0f}{min(values) / min(times['bare']):>11.3f}"
            f"{statistics.median(ratios):>18.3f}"
        )
    return 0


def _alone(command: list[str]) -> float:
    """µs a token of a command that prints the workload's result document."""
    done = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    try:
        text = done.stdout.decode()
        # nsys writes words of its own around the document.
        document, _ = json.JSONDecoder().raw_decode(text[text.index("{\n") :])
        results = document["results"]
    except (ValueError, KeyError):
        sys.exit(f"{command[0]} failed: {done.stderr.decode()[-2000:]}")
    return float(results["tpot_ms"]) * 1e3


def _recorded(words: list[str], *flags: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bench.gputui")
        parameters = [
            word
            for name, value in zip(words[1::2], words[2::2], strict=True)
            for word in ("-p", f"{name.removeprefix('--')}={value}")
        ]
        gputui = [sys.executable, "-m", "gputui"]
        subprocess.run(
            [*gputui, "--record", *flags, "--workload", words[0], *parameters, "-o", str(path)],
            check=True,
            capture_output=True,
        )
        summary = subprocess.run(
            [*gputui, "summary", str(path), "--format", "json"], check=True, capture_output=True
        )
    document = json.loads(summary.stdout)
    if document["dropped_events"]:
        print(f"  {document['dropped_events']} records dropped")
    return float(document["metrics"]["tpot_ms"]) * 1e3


def _nsys(nsys: str, words: list[str]) -> float:
    """Where nsys cannot import its own capture the run was profiled all the same."""
    with tempfile.TemporaryDirectory() as folder:
        command = [nsys, "profile", "-t", "cuda,nvtx", "-s", "none", "--cpuctxsw=none"]
        command += ["-o", os.path.join(folder, "report"), sys.executable, "-m", "workloads", *words]
        return _alone(command)


if __name__ == "__main__":
    sys.exit(main())
