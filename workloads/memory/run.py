"""Shows PyTorch's allocator at work: blocks, holes, the cost of an allocation, out of memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import nvtx
import psutil
import torch
from torch import Tensor

from ..declaration import FigureValue, Outcome, Row, Value
from ..devices import (
    NO_MEMORY_COUNT,
    free_bytes,
    out_of_memory_explained,
    release_memory,
    synchronize,
)
from ..errors import OutOfMemory
from ..place import Place
from ..report import Report
from ..runner import STEP, Runner
from . import MEMORY

_MIB = 2**20

# Nothing runs on the GPU in it, so that it is no step.
ALLOCATION = nvtx.annotate("allocation")


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """The four experiments in turn. Raises CannotRun if the blocks cannot fit."""
    run = Runner(MEMORY, given, report)
    place = run.place
    block, blocks = run["block"] * _MIB, run["blocks"]
    place.refuse_unless_fits(
        blocks * block, f"{blocks} blocks × {run['block']} MiB", "use fewer or smaller blocks"
    )
    report.say(f"memory: {blocks} blocks of {run['block']} MiB on {place.name}")
    torch.ones(block, dtype=torch.uint8, device=place.device)  # loads what fills a block
    release_memory(place.device)
    diary = _Diary(run)
    experiments: dict[str, Callable[[], object]] = {
        "lifecycle": lambda: _lifecycle(diary, block, blocks),
        "fragmentation": lambda: _fragment(diary, block, blocks),
        "allocators": lambda: _allocators(place, block, run["passes"]),
        "out_of_memory": lambda: _run_out(diary),
    }
    outcomes: dict[str, Any] = {}
    with run:
        for done, (name, experiment) in enumerate(experiments.items()):
            report.progress("memory", done, len(experiments), "experiments")
            with nvtx.annotate(name):
                outcomes[name] = experiment()
        report.progress("memory", len(experiments), len(experiments), "experiments")
    explained, allocators = outcomes["out_of_memory"], outcomes["allocators"]
    report.say(f"out of memory, on purpose: {explained}")
    release_memory(place.device)
    by_way = {row["way"]: row["p50_us"] for row in allocators}
    results: dict[str, FigureValue] = {
        "driver_allocation_us": by_way.get("driver") if place.on_gpu else None,
        "cached_allocation_us": by_way.get("cache") if place.on_gpu else None,
        "fragmented_bytes": outcomes["fragmentation"],
        "alloc_retries": diary.rows[-1].get("alloc_retries"),
        "out_of_memory_explained": explained,
    }
    tables = {"memory_lifecycle": diary.rows, "memory_allocators": allocators}
    return run.outcome(results, tables, NO_MEMORY_COUNT)


class _Diary:
    """The state of memory after each step."""

    def __init__(self, run: Runner) -> None:
        self.run, self.place = run, run.place
        self.rows: list[Row] = []
        self._process = psutil.Process()

    def write(self, step: str) -> None:
        row: dict[str, FigureValue] = {
            "step": step,
            "process_bytes": self._process.memory_info().rss,
        }
        device = self.place.device
        if self.place.on_gpu:
            stats = torch.cuda.memory_stats(device)
            free, total = torch.cuda.mem_get_info(device)
            allocated = stats.get("allocated_bytes.all.current", 0)
            reserved = stats.get("reserved_bytes.all.current", 0)
            row |= {
                "allocated_bytes": allocated,
                "active_bytes": stats.get("active_bytes.all.current", 0),
                "reserved_bytes": reserved,
                "inactive_split_bytes": stats.get("inactive_split_bytes.all.current", 0),
                "outside_bytes": total - free - reserved,
                "fragmentation_percent": 100 * (1 - allocated / reserved) if reserved else 0.0,
                "alloc_retries": stats.get("num_alloc_retries", 0),
            }
        self.rows.append(row)

    def allocate(self, count: int, pieces: int) -> list[Tensor | None]:
        """Pieces of `count` bytes that are really allocated: the host gives memory only once it is
        written. Each is a step of the workload, which goes on until the next one begins.
        """
        made: list[Tensor | None] = []
        started_ns = time.perf_counter_ns()
        for _ in range(pieces):
            with STEP:
                made.append(torch.ones(count, dtype=torch.uint8, device=self.place.device))
                synchronize(self.place.device)
        self.run.count_steps(pieces, (time.perf_counter_ns() - started_ns) / pieces / 1e6)
        return made


def _lifecycle(diary: _Diary, block: int, blocks: int) -> None:
    diary.write("start")
    held = diary.allocate(block, blocks)
    diary.write(f"allocate {blocks} blocks")
    del held[: blocks // 2]
    diary.write(f"free {blocks // 2} of them")
    held += diary.allocate(block, blocks // 2)
    diary.write("allocate as many again")
    held.clear()
    diary.write("free all")
    release_memory(diary.place.device)
    diary.write("empty the cache")


def _fragment(diary: _Diary, block: int, blocks: int) -> int | None:
    """Leave every second piece of a segment; returns what is free in the holes."""
    # Small tensors share a segment of 20 MiB (PyTorch, CUDACachingAllocator: kLargeBuffer), and a
    # segment is returned to the driver only as a whole.
    piece = min(4 * _MIB, block)
    held = diary.allocate(piece, 4 * blocks)
    diary.write(f"allocate {4 * blocks} pieces of {piece // _MIB} MiB")
    for number in range(0, len(held), 2):
        held[number] = None
    diary.write("free every second one")
    if diary.place.on_gpu:
        torch.cuda.empty_cache()
    diary.write("empty the cache: the holes stay")
    fragmented = diary.rows[-1].get("inactive_split_bytes")
    large = diary.allocate(2 * piece * blocks, 1)
    diary.write("allocate as much as the holes hold together")
    del large
    held.clear()
    release_memory(diary.place.device)
    diary.write("free all and empty the cache")
    return fragmented if isinstance(fragmented, int) else None


def _allocators(place: Place, block: int, passes: int) -> list[Row]:
    """Time of an allocation that torch must request from the driver, and of one from its cache."""

    def times_us(*, empty_first: bool) -> list[float]:
        durations_us = []
        for _ in range(passes):
            if empty_first and place.on_gpu:
                torch.cuda.empty_cache()
            synchronize(place.device)
            started_ns = time.perf_counter_ns()
            with ALLOCATION:
                held = torch.empty(block, dtype=torch.uint8, device=place.device)
            durations_us.append((time.perf_counter_ns() - started_ns) / 1e3)
            del held
        return durations_us

    ways = {"driver": True, "cache": False} if place.on_gpu else {"host": False}
    rows: list[Row] = []
    for way, empty_first in ways.items():
        times = times_us(empty_first=empty_first)
        median, longest = float(np.median(times)), max(times)
        rows.append({"way": way, "bytes": block, "p50_us": median, "max_us": longest})
    return rows


def _run_out(diary: _Diary) -> str:
    """Request more than there is; returns the sum that explains why it fails."""
    device = diary.place.device
    free = free_bytes(device)
    wanted = free + free // 10 if diary.place.on_gpu else 2**50
    try:
        with out_of_memory_explained(), ALLOCATION:
            torch.empty(wanted, dtype=torch.uint8, device=device)
    except OutOfMemory as error:
        diary.write("ask for more than there is")
        asked, has = wanted / 2**30, free / 2**30
        return f"asked for {asked:,.1f} GiB where {has:,.1f} GiB were free: {error}"
    diary.write("ask for more than there is")
    return f"{wanted / 2**30:,.1f} GiB could be allocated after all"
