"""What gputui costs a decode step of a server: its ranges, and its metrics read each second.

    python tests/bench/bench_serving.py [--pairs 20] [--half 3] [--size qwen2.5-0.5b]
    python tests/bench/bench_serving.py --size llama-3.1-8b --prompt 6000 --together 4

One server decodes, and writes down how long each step took, and what CPU time its thread. Half of
the time gputui is attached to it, in turn; and of two steps one after the other one opens its
ranges, at random. So the ranges are held against the step beside them, which a busy machine delays
as much, and all else that gputui does against halves without it. The first command is bound by
launches, the second by the GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parents[2]))

GPUTUI = [sys.executable, "-m", "gputui"]
ATTACHES_S = 2.4
"""From the start of gputui until ranges and metrics come and its own start is over."""

TOKENS = 900

STEP = np.dtype(
    [("end_ns", "i8"), ("length_ns", "i8"), ("cpu_ns", "i8"), ("ranges", "i1"), ("read", "i1")]
)
"""Of a decode step: whether its ranges were opened, and its metrics read meanwhile; of another the
length is 0."""


def serve(path: str, words: list[str]) -> None:
    """The workload with ranges in one of two steps, and its steps in a file."""
    import nvtx

    from workloads.__main__ import main as run_workload
    from workloads.serve.results import Metrics
    from workloads.serve.run import _Loop

    opens, open_range, close_range = [True], nvtx.annotate.__enter__, nvtx.annotate.__exit__
    chance, reads = random.Random(1), [0]
    order: list[bool] = []
    steps = open(path, "wb", buffering=0)  # noqa: SIM115  (until the process ends)
    rows: list[tuple[int, int, int, bool, bool]] = []

    def enter(self: nvtx.annotate) -> object:
        return open_range(self) if opens[0] else self

    def leave(self: nvtx.annotate, *error: object) -> object:
        return close_range(self, *error) if opens[0] else False

    nvtx.annotate.__enter__, nvtx.annotate.__exit__ = enter, leave
    step, page = _Loop._step, Metrics.page

    def timed(self: _Loop) -> None:
        if not order:
            order.extend(chance.choice(((True, False), (False, True))))
        opens[0] = order.pop()
        read_before, cpu_ns, began_ns = reads[0], time.thread_time_ns(), time.perf_counter_ns()
        step(self)
        length_ns = time.perf_counter_ns() - began_ns
        cpu_ns = time.thread_time_ns() - cpu_ns
        opened, opens[0] = opens[0], True
        length_ns *= self.steps[-1].kind == "decode"
        rows.append((time.time_ns(), length_ns, cpu_ns, opened, reads[0] > read_before))
        if len(rows) == 64:
            steps.write(np.array(rows, STEP).tobytes())
            rows.clear()

    def counted(self: Metrics) -> str:
        reads[0] += 1
        return page(self)

    _Loop._step, Metrics.page = timed, counted  # type: ignore[method-assign]
    run_workload(["serve", *words])


def ask(port: int, prompt: int) -> None:
    body = json.dumps({"prompt": [5] * prompt, "max_tokens": TOKENS}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        answer.read()


class Halves(NamedTuple):
    """When gputui was attached, or not, in time.time_ns()."""

    bare: list[tuple[int, int]]
    attached: list[tuple[int, int]]


def half(seconds: float) -> tuple[int, int]:
    began_ns = time.time_ns()
    time.sleep(seconds)
    return began_ns, time.time_ns()


def attach(pid: int, port: int, number: int, folder: str, seconds: float) -> tuple[int, int]:
    words = ["attach", str(pid), "--record", "-o", f"{folder}/{number}.gputui", "--no-kernels"]
    words += ["--metrics", f"http://127.0.0.1:{port}/metrics", "-i", "1"]
    with open(f"{folder}/attach.log", "ab") as log:
        gputui = subprocess.Popen([*GPUTUI, *words], stdout=log, stderr=log)
    time.sleep(ATTACHES_S)
    times = half(seconds)
    gputui.send_signal(signal.SIGINT)
    gputui.wait(60)
    time.sleep(0.4)
    return times


def measure(given: argparse.Namespace, folder: str) -> None:
    port, half_s = given.port, given.half
    path, ends, halves = f"{folder}/steps", threading.Event(), Halves([], [])
    words = [sys.executable, __file__, "--serve", path, f"--size={given.size}", "--arrivals=http"]
    words += [f"--port={port}", "--requests=100000", "--pages=3000", "--budget=2048"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with open(f"{folder}/serve.log", "wb") as log:
        server = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
    try:
        while True:
            if server.poll() is not None:
                raise SystemExit(Path(f"{folder}/serve.log").read_text())
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
                break
            time.sleep(0.2)

        def decode() -> None:
            while not ends.is_set():
                ask(port, given.prompt)

        for _ in range(given.together):
            threading.Thread(target=decode, daemon=True).start()
        time.sleep(5)
        for number in range(given.pairs):
            if number % 2:
                halves.attached.append(attach(server.pid, port, number, folder, half_s))
            halves.bare.append(half(half_s))
            if not number % 2:
                halves.attached.append(attach(server.pid, port, number, folder, half_s))
            if number % 5 == 4:
                report(np.fromfile(path, STEP), halves)
    finally:
        ends.set()
        server.send_signal(signal.SIGINT)
        server.wait(60)
    report(np.fromfile(path, STEP), halves)


def report(steps: npt.NDArray[np.void], halves: Halves) -> None:
    def during(times: tuple[int, int]) -> npt.NDArray[np.void]:
        first, last = np.searchsorted(steps["end_ns"], times)
        chosen = steps[first:last]
        return chosen[chosen["length_ns"] > 0]

    bare, attached = [[during(times) for times in each] for each in halves]
    print(f"a step {np.median(np.concatenate(bare)['length_ns']) / 1e6:.3f} ms bare")
    for what, each in (("attached", attached), ("bare", bare)):
        for time_of in ("length_ns", "cpu_ns"):
            ratios = np.concatenate([ranges_over_none(part, time_of) for part in each])
            say(f"ranges, {what}, {time_of}", ratios)
    for what, column in (("median", np.median), ("mean", np.mean)):
        for time_of in ("length_ns", "cpu_ns"):
            pairs = zip(attached, bare, strict=True)
            over = [column(x[time_of]) / column(y[time_of]) for x, y in pairs]
            say(f"attached over bare, {what} of steps, {time_of}", np.array(over))
    during_all = np.concatenate(attached)
    read = during_all[during_all["read"] == 1]["length_ns"]
    if len(read):
        usual = np.median(during_all[during_all["read"] == 0]["length_ns"])
        seconds = sum(last - first for first, last in halves.attached) / 1e9
        share = (np.median(read) - usual) * len(read) / seconds / 1e9
        print(
            f"  metrics: {len(read)} steps with a reading, {usual / 1e6:.3f} ms usually, median "
            f"{np.median(read) / 1e6:.3f}: {100 * share:.3f} % of the time"
        )
    sys.stdout.flush()


def ranges_over_none(steps: npt.NDArray[np.void], time_of: str) -> npt.NDArray[np.float64]:
    """Of each two steps one after the other, of which one opened its ranges: how many times as long
    that one was."""
    differ = np.flatnonzero(steps["ranges"][1:] != steps["ranges"][:-1])
    firsts = [int(place) for place in differ]
    kept, last = [], -1
    for place in firsts:
        if place > last:
            kept.append(place)
            last = place + 1
    first, second = steps[kept], steps[[place + 1 for place in kept]]
    logs = np.log(second[time_of] / first[time_of])
    ratios: npt.NDArray[np.float64] = np.exp(np.where(second["ranges"] == 1, logs, -logs))
    return ratios


def say(what: str, ratios: npt.NDArray[np.float64]) -> None:
    """The geometric mean with its 90 % interval, and that of the middle four fifths."""
    logs = np.sort(np.log(ratios))
    half_width = 1.7 * statistics.stdev(logs.tolist()) / len(logs) ** 0.5
    trimmed = logs[len(logs) // 10 : len(logs) - len(logs) // 10]
    print(
        f"  {what}: {len(logs)} pairs, times as long {np.exp(logs.mean()):.4f} ± {half_width:.4f}, "
        f"middle four fifths {np.exp(trimmed.mean()):.4f}, median {np.exp(np.median(logs)):.4f}"
    )


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--half", type=float, default=3.0, help="seconds")
    parser.add_argument("--size", default="qwen2.5-0.5b")
    parser.add_argument("--prompt", type=int, default=64, help="tokens")
    parser.add_argument("--together", type=int, default=1, help="requests at a time")
    parser.add_argument("--port", type=int, default=8400)
    with tempfile.TemporaryDirectory() as folder:
        measure(parser.parse_args(), folder)


if __name__ == "__main__":
    main()
