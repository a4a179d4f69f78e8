"""What gputui costs a decode step of a server: its ranges, and its metrics read each second.

    python tests/bench/bench_serving.py [--pairs 20] [--half 2] [--size qwen2.5-0.5b]
    python tests/bench/bench_serving.py --servers 4

One request decodes at a time and nothing is streamed, so that the engine's thread meets no other
of its process. A step is the server's own gap between tokens. With one server, halves of a pair
beside each other: bare, and attached to. With four, two are started by gputui, and all are asked in
turn: nothing is attached or detached meanwhile, but each has memory and cores of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

PORT = 8400
GPUTUI = [sys.executable, "-m", "gputui"]
ATTACHES_S = 2.4
"""From the start of gputui until ranges and metrics come and its own start is over."""


def ask(port: int, tokens: int) -> None:
    body = json.dumps({"prompt": [5] * 64, "max_tokens": tokens}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        answer.read()


def gaps(port: int) -> tuple[float, float]:
    """How many gaps between tokens there were, and their sum in seconds."""
    name = "vllm:inter_token_latency_seconds"
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
    by_name = {line.partition("{")[0]: line.rpartition(" ")[2] for line in page.splitlines()}
    return float(by_name[name + "_count"]), float(by_name[name + "_sum"])


def step_ms(port: int, meanwhile: Callable[[], None]) -> float:
    count, sum_s = gaps(port)
    meanwhile()
    count_after, sum_after_s = gaps(port)
    return 1e3 * (sum_after_s - sum_s) / max(1.0, count_after - count)


def options(port: int) -> list[str]:
    return ["--no-kernels", "--metrics", f"http://127.0.0.1:{port}/metrics", "-i", "1"]


@contextlib.contextmanager
def servers(size: str, folder: str, by_gputui: Sequence[bool]) -> Iterator[list[int]]:
    """PIDs of servers that answer, at PORT and the ports after it."""
    started = []
    for port, is_recorded in enumerate(by_gputui, PORT):
        given = [f"size={size}", "arrivals=http", f"port={port}", "requests=100000", "pages=3000"]
        words = [sys.executable, "-m", "workloads", "serve", *(f"--{text}" for text in given)]
        if is_recorded:
            recorded = ["--record", "-o", f"{folder}/{port}.gputui", *options(port)]
            words = [*GPUTUI, *recorded, "--workload", "serve", *(f"-p{text}" for text in given)]
        with open(f"{folder}/{port}.log", "wb") as log:
            started.append(subprocess.Popen(words, stdout=log, stderr=log))
    try:
        for port, server in enumerate(started, PORT):
            while server.poll() is None:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
                    break
                time.sleep(0.2)
            else:
                raise SystemExit(Path(f"{folder}/{port}.log").read_text())
        yield [server.pid for server in started]
    finally:
        for server in started:
            server.send_signal(signal.SIGINT)
        for server in started:
            server.wait(60)


def report(what: str, bare: Sequence[float], ratios: Sequence[float]) -> None:
    half = 1.73 * statistics.stdev(ratios) / len(ratios) ** 0.5
    print(
        f"{what}: {len(ratios)} pairs, {statistics.mean(bare):.2f} ms a step; times as long: mean "
        f"{statistics.mean(ratios):.4f} ± {half:.4f} (90 %), median "
        f"{statistics.median(ratios):.4f}, {min(ratios):.3f} to {max(ratios):.3f}"
    )


def attach_in_turn(size: str, pairs: int, half_s: float, folder: str) -> None:
    ends = threading.Event()

    def decode() -> None:
        while not ends.is_set():
            ask(PORT, 900)

    def attached(pid: int, number: int) -> float:
        words = ["attach", str(pid), "--record", "-o", f"{folder}/{number}.gputui", *options(PORT)]
        with open(f"{folder}/attach.log", "ab") as log:
            gputui = subprocess.Popen([*GPUTUI, *words], stdout=log, stderr=log)
        time.sleep(ATTACHES_S)
        value = step_ms(PORT, partial(time.sleep, half_s))
        gputui.send_signal(signal.SIGINT)
        gputui.wait(60)
        time.sleep(0.4)
        return value

    with servers(size, folder, [False]) as [pid]:
        threading.Thread(target=decode, daemon=True).start()
        time.sleep(5)
        bare, with_gputui = [], []
        for number in range(pairs):
            if number % 2:
                with_gputui.append(attached(pid, number))
            bare.append(step_ms(PORT, partial(time.sleep, half_s)))
            if not number % 2:
                with_gputui.append(attached(pid, number))
        ends.set()
    report("attached", bare, [y / x for x, y in zip(bare, with_gputui, strict=True)])


def ask_in_turn(size: str, rounds: int, tokens: int, folder: str) -> None:
    by_gputui = [False, True, True, False]
    steps: list[list[float]] = [[] for _ in by_gputui]
    with servers(size, folder, by_gputui):
        for number in range(-1, rounds):  # the first is not counted
            for place in range(len(steps)):
                which = (place + number) % len(steps)
                port = PORT + which
                value = step_ms(port, partial(ask, port, tokens))
                if number >= 0:
                    steps[which].append(value)
    bare = [x + y for x, y in zip(steps[0], steps[3], strict=True)]
    with_gputui = [x + y for x, y in zip(steps[1], steps[2], strict=True)]
    report("started", steps[0], [y / x for x, y in zip(bare, with_gputui, strict=True)])
    report("two bare ones", steps[0], [y / x for x, y in zip(steps[0], steps[3], strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--half", type=float, default=2.0, help="seconds")
    parser.add_argument("--size", default="qwen2.5-0.5b")
    parser.add_argument("--servers", type=int, choices=(1, 4), default=1)
    parser.add_argument("--tokens", type=int, default=50, help="of a request, with four servers")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.servers == 1:
            attach_in_turn(given.size, given.pairs, given.half, folder)
        else:
            ask_in_turn(given.size, given.pairs, given.tokens, folder)


if __name__ == "__main__":
    main()
