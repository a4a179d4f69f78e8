"""A process that lives long, in short: millions of records, and who grows meanwhile.

    python tests/bench/bench_long.py [--ranges 10000000] [--rate 150000]
    python tests/bench/bench_long.py --replays 30000 [--rate 2000]

Runs a program under `gputui --record`, and prints the memory of both and the size of the recording
as it goes on: a C program that makes steps of three ranges each, so many steps a second; or one
that replays a CUDA graph of 150 kernels, which a stand-in for libcupti records: no GPU is needed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

PROGRAMS = Path(__file__).parents[1] / "inject" / "programs"
NODES = 150
KERNEL = np.dtype(
    {
        "names": ["size", "kind", "start", "end", "correlation", "name", "node", "graph"],
        "formats": ["<u8", "<u4", "<u8", "<u8", "<u4", "<u8", "<u8", "<u4"],
        "offsets": [0, 8, 24, 32, 100, 112, 152, 164],
        "itemsize": 224,
    }
)
"""CUPTI's record of a kernel behind its size."""

CALL = np.dtype(
    {
        "names": ["size", "kind", "cbid", "start", "end", "thread", "correlation", "result"],
        "formats": ["<u8", "<u4", "<u4", "<u8", "<u8", "<u4", "<u4", "<u4"],
        "offsets": [0, 8, 12, 16, 24, 36, 40, 44],
        "itemsize": 48,
    }
)


def replay(cupti: str, count: int, rate: float) -> None:
    """Capture a graph in ranges, and replay it so many times."""
    import nvtx

    ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"]).InitializeInjection()
    fake = ctypes.CDLL(cupti)
    fake.fake_graph.argtypes = [ctypes.c_uint32, *[ctypes.c_uint64] * 3]
    fake.fake_queue_all.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
    with nvtx.annotate("capture"):
        fake.fake_graph(9, 3, 0, 0)
        for node in range(NODES):
            with nvtx.annotate(f"h.{node // 12}"):
                fake.fake_graph(13, 3, 3 << 32 | node, 0)
    for node in range(NODES):
        fake.fake_graph(20, 4, 4 << 32 | node, 3 << 32 | node)
    name = ctypes.c_char_p(b"_Z4gemmPf")
    kernels, calls = np.zeros(NODES, KERNEL), np.zeros(1, CALL)
    kernels["size"], kernels["kind"], kernels["graph"] = 216, 10, 4
    kernels["node"] = (4 << 32) + np.arange(NODES, dtype=np.uint64)
    kernels["name"] = ctypes.cast(name, ctypes.c_void_p).value
    calls["size"], calls["kind"], calls["cbid"], calls["thread"] = 40, 5, 311, os.getpid()
    offsets = 100 * np.arange(NODES, dtype=np.uint64)
    began = time.monotonic()
    for number in range(1, count + 1):
        with nvtx.annotate("step"):
            calls["start"] = time.time_ns()
            calls["end"] = calls["start"] + 1000
            calls["correlation"] = kernels["correlation"] = number
            kernels["start"] = calls["end"] + offsets
            kernels["end"] = kernels["start"] + 90
            records = calls.tobytes() + kernels.tobytes()
            fake.fake_queue_all(records, len(records))
        if number % 64 == 0:
            fake.cuptiActivityFlushAll(0)
            time.sleep(max(0.0, number / rate - (time.monotonic() - began)))


def main() -> int:
    """Run it and print a line at each tenth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranges", type=int, default=10_000_000)
    parser.add_argument("--replays", type=int, default=0, help="of a graph, instead of ranges")
    parser.add_argument("--rate", type=int, help="steps a second")
    parser.add_argument("--inside", metavar="CUPTI", help="for its own use")
    options = parser.parse_args()
    rate = options.rate or (2_000 if options.replays else 150_000)
    if options.inside:
        replay(options.inside, options.replays, rate)
        return 0
    steps = options.replays or options.ranges // 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recording = folder / "long.gputui"
        environment = os.environ | {"GPUTUI_TEST_RATE": str(rate)}
        if options.replays:
            cupti = _compiled(folder, "fake_cupti.c", "libcupti.so.13", "-shared", "-fPIC")
            environment["GPUTUI_CUPTI_PATH"] = cupti
            words = ["--inside", cupti, "--replays", str(steps), "--rate", str(rate)]
            command = [sys.executable, __file__, *words]
        else:
            command = [_compiled(folder, "nvtx_program.c", "program"), "paced", str(steps)]
        record = [sys.executable, "-m", "gputui", "--record", "-o", str(recording), "--"]
        monitor = subprocess.Popen([*record, *command], env=environment)
        about = psutil.Process(monitor.pid)
        began, tenth = time.monotonic(), steps / rate / 10
        print(f"{'seconds':>8}{'gputui MiB':>12}{'program MiB':>12}{'recording KiB':>15}")
        while monitor.poll() is None:
            time.sleep(tenth)
            try:
                own = about.memory_info().rss / 2**20
                theirs = sum(
                    child.memory_info().rss - child.memory_info().shared
                    for child in about.children(True)
                )
            except psutil.Error:
                continue
            size = recording.stat().st_size / 1024 if recording.exists() else 0
            seconds = time.monotonic() - began
            print(f"{seconds:>8.1f}{own:>12.1f}{theirs / 2**20:>12.2f}{size:>15.1f}", flush=True)
        summary = [sys.executable, "-m", "gputui", "summary", str(recording), "--table", "phases"]
        return monitor.returncode or (subprocess.call(summary) if options.replays else 0)


def _compiled(folder: Path, source: str, target: str, *flags: str) -> str:
    path = folder / target
    words = ["-O1", "-w", *flags, str(PROGRAMS / source), "-o", str(path), "-ldl", "-lpthread"]
    subprocess.run(["cc", *words], check=True)
    return str(path)


if __name__ == "__main__":
    sys.exit(main())
