"""How long a key takes to the terminal while 100,000 ranges a second are traced.

    python -m tests.bench.bench_keys [--rate 100000] [--rounds 10] [--size 160x50]

A program makes NVTX ranges at that rate and sleeps between; keys turn through the views. From the
key to the first and the last byte of the answer, and beside it the same with the program asleep.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from tests.bench.bench_start import Terminal

PROGRAM = """
import sys, time
import nvtx
rate = int(sys.argv[1])
each = max(1, rate // 500)
push, pop = nvtx.push_range, nvtx.pop_range
start = time.monotonic()
done = 0
push("loop")
while True:
    if rate:
        for _ in range(each):
            push("step")
            pop()
        done += each
        time.sleep(max(0.0, start + done / rate - time.monotonic()))
    else:
        time.sleep(1)
"""

QUIET_S = 0.04
"""Without a byte for so long the answer is taken to be over."""


def press(terminal: Terminal, key: bytes) -> tuple[float, float]:
    """Milliseconds to the first byte of a new view and to its last."""
    while terminal.read(0):
        pass
    began = time.monotonic()
    terminal.write(key)
    taken, got = 0, 0.0
    first = last = 0.0
    while True:
        data = terminal.read(QUIET_S if taken > 500 else 2)
        if not data:
            break
        got = 1000 * (time.monotonic() - began)
        first, last = first or got, got
        taken += len(data)
    return first, last


def measure(rate: int, rounds: int, size: tuple[int, int]) -> None:
    """Print medians and the slowest."""
    command = [sys.executable, "-m", "gputui", "--", sys.executable, "-c", PROGRAM, str(rate)]
    terminal = Terminal(command, *size)
    terminal.first_frame()
    terminal.run_for(8)
    found = [press(terminal, key) for _ in range(rounds) for key in (b"2", b"4", b"6", b"1")]
    terminal.close()
    firsts, lasts = zip(*found, strict=True)
    print(
        f"{rate:>8} ranges/s  first byte {statistics.median(firsts):5.1f} ms "
        f"(slowest {max(firsts):5.1f})   last {statistics.median(lasts):5.1f} ms "
        f"(slowest {max(lasts):5.1f})"
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--size", default="160x50")
    options = parser.parse_args()
    columns, lines = map(int, options.size.split("x"))
    for rate in (0, options.rate):
        measure(rate, options.rounds, (columns, lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
