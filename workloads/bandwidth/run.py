"""Times every operation of `bandwidth` at every size and remembers the best large copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import torch

from ..ceilings import BANDWIDTH as CEILING
from ..ceilings import remember_ceilings
from ..declaration import FigureValue, Outcome, Value
from ..peaks import share_percent
from ..report import Report
from ..rows import Cells
from ..runner import Runner
from . import BANDWIDTH, OPERATIONS

_ARRAYS_MOVED = {"copy": 2, "read": 1, "write": 1, "add": 3}
"""Arrays that each operation reads and writes, as STREAM counts them (McCalpin, 1995)."""

_MIB = 2**20
_LARGE = 1024 * _MIB
"""A copy of arrays many times an L2 cache's size is of memory."""


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """Every operation at every size. Raises DoesNotFit and CannotRun."""
    run = Runner(BANDWIDTH, given, report)
    place = run.place
    smallest, largest = run["smallest"], run["largest"]
    sizes = [smallest * 4**power * _MIB for power in range(9) if smallest * 4**power <= largest]
    rows = run.rows(len(sizes) * len(OPERATIONS))
    report.say(f"bandwidth: arrays of {smallest} to {largest} MiB on {place.name}")
    with run:
        for operation, size in run.until_stopped(product(OPERATIONS, sizes)):
            label = f"{operation} {size // _MIB} MiB"
            with rows.row(label, operation=operation, array_bytes=size) as cells:
                _measure(operation, size, run, cells)
    results: dict[str, FigureValue] = {}
    reasons = {}
    for operation in OPERATIONS:
        rates = [row["bytes_per_s"] for row in rows.measured if row["operation"] == operation]
        results[f"{operation}_bytes_per_s"] = rates[-1] if rates else None
        reasons[f"{operation}_bytes_per_s"] = rows.why_none(operation=operation)
    copied = results["copy_bytes_per_s"]
    if place.on_gpu and isinstance(copied, float) and sizes[-1] >= _LARGE:
        remember_ceilings(place.name, {CEILING: copied})
    results["peak_bytes_per_s"] = place.bytes_per_s
    results["l2_cache_bytes"] = None
    reasons["l2_cache_bytes"] = "a CPU's caches are not asked for"
    if place.on_gpu:
        results["l2_cache_bytes"] = torch.cuda.get_device_properties(place.device).L2_cache_size
    return run.outcome(results, {"bandwidth": rows.rows}, place.why_no_peak, reasons)


def _measure(operation: str, size: int, run: Runner, cells: Cells) -> None:
    times = run.timed(_operation(operation, size, run.place.device))
    moved = _ARRAYS_MOVED[operation] * size
    rate = moved / times.best_ms * 1e3
    cells |= {
        "moved_bytes": moved,
        "wall_ms": times.wall_ms,
        "host_ms": times.host_ms,
        "gpu_ms": times.gpu_ms,
        "bytes_per_s": rate,
        "peak_percent": share_percent(rate, run.place.bytes_per_s),
    }


def _operation(name: str, size: int, device: torch.device) -> Callable[[], object]:
    """One pass over fp32 arrays of `size` bytes."""
    count = size // 4
    first = torch.ones(count, device=device)
    match name:
        case "copy":
            second = torch.empty_like(first)
            return lambda: second.copy_(first)
        case "read":
            return first.sum
        case "write":
            return lambda: first.fill_(1.0)
        case _:
            second, third = torch.ones_like(first), torch.empty_like(first)
            return lambda: torch.add(first, second, out=third)
