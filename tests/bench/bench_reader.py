"""How many records a second the capture reader takes in, and in how much memory.

`python tests/bench/bench_reader.py [records] [--no-ranges]` feeds a launch-bound decode, token
after token: 53 nested ranges (or none, so that steps have to be found), 200 calls, 175 kernels and
3 copies a token, activity arriving in flushes of 100 ms as CUPTI delivers it, and collects once a
second of the program's time, or as many records as CaptureReader does. `--graphs` feeds replays of
a CUDA graph of 150 kernels, 300,000 records a second; memory is printed at each tenth. `--ratio
SECONDS` compares, in CPU time, the reader as it is with one that finds no steps and accounts for no
time: both take in each second of the program in turn, so that what else runs slows both.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import numpy as np

from gputui.attribute import traced_process
from gputui.attribute.accounting import Accounting
from gputui.attribute.collection import DeltaParts
from gputui.attribute.reader import UNCOLLECTED_RECORDS
from gputui.attribute.traced_process import TracedProcess
from gputui.model.events import ProcessAttached, RunStarted
from gputui.model.hub import Numbering
from gputui.ring import SLOT, RecordKind
from gputui.state import Session

TOKEN_NS = 3_000_000
TOKENS_A_FLUSH = 33
FLUSHES_A_TICK = 10
FLUSH_NS = TOKENS_A_FLUSH * TOKEN_NS
BEGAN_NS = 1_700_000_000_000_000_000
LAYERS = 12
KERNELS = 175
CALLS = 200
STEP, LAYER, PARTS, HEAD = 1, 2, (3, 4, 5), (6, 7, 8, 9)
KERNEL_NAMES = 100
API_NAMES = 200
GRAPH, NODES = 4, 150
REPLAYS_A_FLUSH, REPLAY_NS = 200, 500_000
GRAPH_LAUNCH = API_NAMES + 3


def strings() -> dict[int, str]:
    """Id → text for all names of the stream."""
    names = {1: "decode_step", 2: "layer", 3: "norm", 4: "attention", 5: "mlp"}
    names |= {6: "embedding", 7: "lm_head", 8: "sample", 9: "copy_back"}
    names |= {KERNEL_NAMES + i: f"_Z6kernelILi{i}EEvv" for i in range(40)}
    calls = ("cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cudaStreamSynchronize_v3020",
             "cudaGraphLaunch_v10000")  # fmt: skip
    return names | {API_NAMES + i: name for i, name in enumerate(calls)}


def token() -> tuple[np.ndarray, np.ndarray]:
    """Ranges, then activity, of one token that starts at 0."""
    events: list[tuple[int, int]] = [(RecordKind.RANGE_PUSH, STEP)]
    for _ in range(LAYERS):
        events.append((RecordKind.RANGE_PUSH, LAYER))
        for part in PARTS:
            events += [(RecordKind.RANGE_PUSH, part), (RecordKind.RANGE_POP, 0)]
        events.append((RecordKind.RANGE_POP, 0))
    for part in HEAD:
        events += [(RecordKind.RANGE_PUSH, part), (RecordKind.RANGE_POP, 0)]
    events.append((RecordKind.RANGE_POP, 0))
    ranges = np.zeros(len(events), SLOT)
    ranges["kind"] = [kind for kind, _ in events]
    ranges["name"] = [name for _, name in events]
    pushed = ranges["kind"] == RecordKind.RANGE_PUSH
    ranges["d"] = np.cumsum(np.where(pushed, 1, -1)) - pushed
    ranges["thread"] = 100
    ranges["start"] = np.linspace(0, TOKEN_NS - 1000, len(events)).astype(np.uint64)

    calls = np.zeros(CALLS, SLOT)
    calls["kind"] = RecordKind.API
    calls["thread"] = 100
    calls["correlation"] = np.arange(CALLS)
    calls["start"] = np.linspace(3000, TOKEN_NS - 9000, CALLS).astype(np.uint64)
    calls["end"] = calls["start"] + 4000
    calls["name"] = API_NAMES
    calls["name"][KERNELS : KERNELS + 3] = API_NAMES + 1
    calls["name"][KERNELS + 3 :] = API_NAMES + 2

    operations = np.zeros(KERNELS + 3, SLOT)
    operations["kind"] = RecordKind.KERNEL
    operations["kind"][KERNELS:] = RecordKind.MEMCPY
    operations["correlation"] = np.arange(KERNELS + 3)
    operations["start"] = calls["start"][: KERNELS + 3] + 6000
    operations["end"] = operations["start"] + 5000
    operations["name"][:KERNELS] = KERNEL_NAMES + np.arange(KERNELS) % 40
    operations["sub"][KERNELS:] = 2
    operations["source_kind"][KERNELS:] = 3
    operations["destination_kind"][KERNELS:] = 2
    operations["value"][KERNELS:] = 8
    return ranges, np.concatenate((calls, operations))


def flush_of(number: int, noise: np.random.Generator, with_ranges: bool) -> np.ndarray:
    """All records between two flushes, in ring order."""
    ranges, activity = token()
    ranges = ranges if with_ranges else ranges[:0]
    first = number * TOKENS_A_FLUSH

    def shifted(one: np.ndarray) -> np.ndarray:
        many = np.tile(one, TOKENS_A_FLUSH)
        index = np.repeat(np.arange(first, first + TOKENS_A_FLUSH), len(one)).astype(np.uint64)
        offset = index * np.uint64(TOKEN_NS) + np.uint64(BEGAN_NS)
        many["start"] += offset
        many["end"] += offset
        many["correlation"] += (index * np.uint64(CALLS)).astype(np.uint32)
        return many

    work = shifted(activity)
    work["end"] += noise.integers(0, 900, len(work)).astype(np.uint64)
    flush = np.zeros(1, SLOT)
    flush["kind"] = RecordKind.FLUSH
    return np.concatenate((shifted(ranges), work, flush))


def replays_of(number: int, noise: np.random.Generator) -> np.ndarray:
    """All records between two flushes of a program that replays a graph every 0.5 ms: a range, the
    launch, its kernels."""
    index = np.arange(number * REPLAYS_A_FLUSH, (number + 1) * REPLAYS_A_FLUSH, dtype=np.uint64)
    starts = np.uint64(BEGAN_NS) + index * np.uint64(REPLAY_NS)
    replays = np.zeros((REPLAYS_A_FLUSH, NODES + 3), SLOT)
    push, pop, call, kernels = replays[:, 0], replays[:, 1], replays[:, 2], replays[:, 3:]
    push["kind"], pop["kind"], push["name"] = RecordKind.RANGE_PUSH, RecordKind.RANGE_POP, STEP
    push["start"], pop["start"] = starts, starts + np.uint64(9000)
    push["thread"] = pop["thread"] = call["thread"] = 100
    call["kind"], call["name"], call["correlation"] = RecordKind.API, GRAPH_LAUNCH, index
    call["start"], call["end"] = starts + np.uint64(1000), starts + np.uint64(5000)
    node = np.arange(NODES, dtype=np.uint64)
    kernels["kind"], kernels["name"] = RecordKind.KERNEL, KERNEL_NAMES + np.arange(NODES) % 40
    kernels["correlation"], kernels["e"] = index[:, None], GRAPH
    kernels["value"] = (GRAPH << 32) + node
    kernels["start"] = starts[:, None] + np.uint64(8000) + node * np.uint64(3000)
    kernels["end"] = kernels["start"] + noise.integers(2000, 2900, kernels.shape).astype(np.uint64)
    flush = np.zeros(1, SLOT)
    flush["kind"] = RecordKind.FLUSH
    return np.concatenate((replays.ravel(), flush))


class NoAccounting(Accounting):
    """Takes nothing in: what is left is the reader without steps and leaves."""

    def add_calls(self, *_: object) -> None:
        pass

    def add_operations(self, *_: object) -> None:
        pass

    def mark_steps(self, *_: object) -> None:
        pass

    def collect(self, *_: object) -> DeltaParts:
        return {}


def a_reader() -> TracedProcess:
    """Of one process, the program's."""
    return TracedProcess(1, 100, Numbering())


def compare(seconds: int, with_ranges: bool) -> None:
    """CPU time of reading with steps and leaves over without."""
    readers = {"steps and leaves": a_reader()}
    vars(traced_process)["Accounting"] = NoAccounting
    readers["bare"] = a_reader()
    spent: dict[str, list[float]] = {name: [] for name in readers}
    noise, texts = np.random.default_rng(1), strings()
    for second in range(seconds):
        first = second * FLUSHES_A_TICK
        numbers = range(first, first + FLUSHES_A_TICK)
        batches = [flush_of(number, noise, with_ranges) for number in numbers]
        for name in sorted(readers, reverse=bool(second % 2)):
            reader, began = readers[name], time.thread_time()
            for number, batch in zip(numbers, batches, strict=True):
                now_ns = BEGAN_NS + (number + 1) * FLUSH_NS
                reader.feed(batch, texts, now_ns)
            reader.collect(now_ns)
            spent[name].append(time.thread_time() - began)
        texts = {}
    both, bare = np.array(spent["steps and leaves"]), np.array(spent["bare"])
    for name, taken in (("bare", bare), ("steps and leaves", both)):
        print(f"{name:<16} {1e3 * np.median(taken):7.1f} ms for a second of the program (median)")
    low, middle, high = np.quantile(both / bare, (0.25, 0.5, 0.75))
    print(f"in all {both.sum() / bare.sum():.3f}, a second {middle:.3f} ({low:.3f} to {high:.3f})")


def resident_mib() -> float:
    """What the process holds of the machine's memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


def main(total: int, with_ranges: bool, with_graphs: bool) -> None:
    """Feed `total` records; print records a second and the memory they took."""
    noise = np.random.default_rng(1)
    process = a_reader()
    session = Session.from_events(
        [
            RunStarted(time_ns=0, run=1, kind="command", name="bench", arguments=(), pid=100),
            ProcessAttached(
                time_ns=0, run=1, process=1, pid=100, parent_pid=1, command="", cuda_status=""
            ),
        ]
    )
    texts = strings()
    done = number = 0
    feeding_s = collecting_s = folding_s = 0.0
    memory_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    flush_ns = REPLAYS_A_FLUSH * REPLAY_NS if with_graphs else FLUSH_NS
    tenth = total / 10
    while done < total:
        batch = replays_of(number, noise) if with_graphs else flush_of(number, noise, with_ranges)
        number += 1
        now_ns = BEGAN_NS + number * flush_ns
        began = time.thread_time()
        process.feed(batch, texts, now_ns)
        feeding_s += time.thread_time() - began
        texts = {}
        done += len(batch)
        if number % FLUSHES_A_TICK == 0 or process.uncollected > UNCOLLECTED_RECORDS:
            began = time.thread_time()
            events = process.collect(now_ns)
            collecting_s += time.thread_time() - began
            began = time.thread_time()
            session.apply(events)
            folding_s += time.thread_time() - began
        if with_graphs and done >= tenth:
            tenth += total / 10
            print(f"{done:>12,} records {resident_mib():8.1f} MiB", flush=True)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kernels = sum(part.time.count for part in session.run.kernels.values()) if session.run else 0
    reading_s = feeding_s + collecting_s
    print(f"{done:,} records: {done / reading_s:,.0f} records/s on one core")
    print(f"feeding {feeding_s:.2f} s, collecting {collecting_s:.2f} s, folding {folding_s:.2f} s")
    print(f"{kernels:,} kernels; peak memory {memory >> 10} MiB, {memory_before >> 10} before")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("records", type=int, nargs="?", default=10_000_000)
    parser.add_argument("--no-ranges", action="store_true")
    parser.add_argument("--graphs", action="store_true")
    parser.add_argument("--ratio", type=int, metavar="SECONDS")
    chosen = parser.parse_args()
    if chosen.ratio:
        compare(chosen.ratio, not chosen.no_ranges)
    else:
        main(chosen.records, not chosen.no_ranges, chosen.graphs)
