"""When the kernels A and B of the GPU of fake_cupti.c ran, and what each does while it runs."""

from __future__ import annotations

import numpy as np

from gputui.counters.separation import Int64s

PERIOD_NS = 97_000
B_START_NS = 52_000
A, B = 1, 2
RATES = {
    "sm_active_percent": {A: 99.0, B: 25.0},
    "tensor_active_percent": {A: 80.0, B: 0.0},
    "memory_read_bytes": {A: 900e9, B: 60e9},
    "memory_write_bytes": {A: 100e9, B: 40e9},
    "occupancy_percent": {A: 50.0, B: 3.0},
}


def kernels_between(start_ns: int, end_ns: int) -> tuple[Int64s, Int64s, Int64s]:
    """Starts, ends and numbers of the kernels of all periods that begin between two moments."""
    periods = np.arange(-(-start_ns // PERIOD_NS), -(-end_ns // PERIOD_NS), dtype=np.uint64)
    hashes = periods * np.uint64(2654435761) >> np.uint64(7)
    begin = (periods * np.uint64(PERIOD_NS)).astype(np.int64)
    a_ns = 10_000 + (hashes % np.uint64(31)).astype(np.int64) * 1000
    b_ns = 5_000 + ((hashes >> np.uint64(8)) % np.uint64(41)).astype(np.int64) * 1000
    starts = np.concatenate((begin, begin + B_START_NS))
    ends = np.concatenate((begin + a_ns, begin + B_START_NS + b_ns))
    return starts, ends, np.repeat(np.array([A, B]), len(begin))
