"""Times every operation of `bandwidth` at every size and remembers the best large copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import nvtx
import torch

from ..ceilings import BANDWIDTH as CEILING
from ..ceilings import remember_ceilings
from ..declaration import FigureValue, Outcome, Value
from ..peaks import share_percent
from ..report import Report
from ..rows import Cells, best
from ..runner import Runner
from . import BANDWIDTH, OPERATIONS
from .levels import HBM, HOST, L2, PCIE_TO, SHARED, Levels, level_of

# Arrays that each operation reads and writes, as STREAM counts them (McCalpin, 1995).
_ARRAYS_MOVED = {"copy": 2, "read": 1, "write": 1, "add": 3}

_MIB = 2**20
# Values that `read` sums at a time.
_ROW = 1024

# A copy of arrays many times an L2 cache's size is of memory.
_LARGE = 1024 * _MIB


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
        levels = _measure_levels(run, largest * _MIB)
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
    for name, level in _LEVEL_FIGURES.items():
        results[name] = next(
            (row.get("bytes_per_s") for row in levels if row["level"] == level), None
        )
        status = next((str(row["status"]) for row in levels if row["level"] == level), "")
        reasons[name] = status or "the CPU has no such level, or the run was stopped earlier"
    tables = {"bandwidth": rows.rows, "memory_levels": levels}
    return run.outcome(results, tables, place.why_no_peak, reasons)


_LEVEL_FIGURES = {
    "shared_bytes_per_s": SHARED,
    "l2_bytes_per_s": L2,
    "host_bytes_per_s": HOST,
    "link_bytes_per_s": PCIE_TO,
}


def _measure_levels(run: Runner, largest_bytes: int) -> list[Cells]:
    """A row for each level of the hierarchy, the fastest first."""
    levels = Levels(run.place, largest_bytes)
    rows = run.rows(len(levels.names))
    with nvtx.annotate("levels"):
        for name in run.until_stopped(levels.names):
            with rows.row(name, level=name) as cells:
                cells |= levels.measure(name)
                rate, peak = cells["bytes_per_s"], cells.get("peak_bytes_per_s")
                if isinstance(rate, float) and isinstance(peak, float):
                    cells["peak_percent"] = share_percent(rate, peak)
    hbm = best(rows.measured, "bytes_per_s", level=HBM)
    for row in rows.measured:
        if hbm and isinstance(rate := row["bytes_per_s"], float):
            row["of_hbm"] = rate / hbm
    return rows.rows


def _measure(operation: str, size: int, run: Runner, cells: Cells) -> None:
    times = run.timed(_operation(operation, size, run.place.device), in_graph=True)
    on_gpu = run.place.on_gpu
    l2_bytes = torch.cuda.get_device_properties(run.place.device).L2_cache_size if on_gpu else None
    moved = _ARRAYS_MOVED[operation] * size
    rate = moved / times.best_ms * 1e3
    cells |= {
        "level": level_of(size, _ARRAYS_MOVED[operation], l2_bytes),
        "moved_bytes": moved,
        "wall_ms": times.wall_ms,
        "host_ms": times.host_ms,
        "gpu_ms": times.best_ms if on_gpu else None,
        "timed_by": times.timed_by,
        "bytes_per_s": rate,
        "peak_percent": share_percent(rate, run.place.bytes_per_s),
    }


def _operation(name: str, size: int, device: torch.device) -> Callable[[], object]:
    """One pass over fp32 arrays of `size` bytes."""
    count = size // 4
    first = torch.ones(count, device=device)
    rows = first.view(-1, _ROW)
    sums = torch.empty(rows.shape[0], device=device)
    match name:
        case "copy":
            second = torch.empty_like(first)
            return lambda: second.copy_(first)
        case "read":
            # By rows: one sum of everything first clears a counter that its blocks share, a second
            # operation of a microsecond beside a short kernel.
            return lambda: torch.sum(rows, dim=1, out=sums)
        case "write":
            return lambda: first.fill_(1.0)
        case _:
            second, third = torch.ones_like(first), torch.empty_like(first)
            return lambda: torch.add(first, second, out=third)
