"""Runs `bandwidth`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import nvtx
import torch

from ..declaration import FigureValue, Outcome, Value
from ..errors import WrongUsage
from ..peaks import share_percent
from ..place import Place
from ..report import Report
from ..rows import Cells, Rows
from ..stopping import StopRequest
from ..timing import measure, repeat
from . import BANDWIDTH, OPERATIONS

STEP = nvtx.annotate("step")

_ARRAYS_MOVED = {"copy": 2, "read": 1, "write": 1, "add": 3}
"""Arrays that each operation reads and writes, as STREAM counts them (McCalpin, 1995)."""

_MIB = 2**20


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """Every operation at every size. Raises WrongUsage and CannotRun."""
    place = Place.of(given)
    values = place.fill(BANDWIDTH, given)
    smallest, largest = int(values["smallest"]), int(values["largest"])
    if smallest > largest:
        raise WrongUsage(f"smallest is {smallest} MiB, which is more than largest, {largest} MiB")
    place.refuse_unless_fits(
        3 * largest * _MIB, f"3 arrays × {largest} MiB", "use a smaller largest"
    )
    sizes = [smallest * 4**power * _MIB for power in range(9) if smallest * 4**power <= largest]
    rows = Rows(len(sizes) * len(OPERATIONS), place.device, report)
    report.say(f"bandwidth: arrays of {smallest} to {largest} MiB on {place.name}")
    with StopRequest() as stop:
        for operation in OPERATIONS:
            for size in sizes:
                if stop.signal is not None:
                    break
                label = f"{operation} {size // _MIB} MiB"
                with rows.row(label, operation=operation, array_bytes=size) as cells:
                    _measure(operation, size, place, values, cells, stop)
    results: dict[str, FigureValue] = {"device_name": place.name}
    unavailable = {}
    for operation in OPERATIONS:
        rates = [row["bytes_per_s"] for row in rows.measured if row["operation"] == operation]
        results[f"{operation}_bytes_per_s"] = rates[-1] if rates else None
        if not rates:
            unavailable[f"{operation}_bytes_per_s"] = rows.why_none(operation=operation)
    results["peak_bytes_per_s"] = place.bytes_per_s
    if place.peak is None:
        unavailable["peak_bytes_per_s"] = place.why_no_peak
    return Outcome(
        parameters=values,
        results=results,
        unavailable=unavailable,
        tables={"bandwidth": rows.rows},
        stopped_by=stop.signal,
    )


def _measure(
    operation: str,
    size: int,
    place: Place,
    values: Mapping[str, Value],
    cells: Cells,
    stop: StopRequest,
) -> None:
    once = _operation(operation, size, place.device)

    def step() -> None:
        with STEP:
            once()

    repeat(once, int(values["warmup"]), place.device)
    times = measure(step, place.device, int(values["passes"]), lambda: stop.signal is not None)
    moved = _ARRAYS_MOVED[operation] * size
    rate = moved / times.best_ms * 1e3
    cells |= {
        "moved_bytes": moved,
        "wall_ms": times.wall_ms,
        "host_ms": times.host_ms,
        "gpu_ms": times.gpu_ms,
        "bytes_per_s": rate,
        "peak_percent": share_percent(rate, place.bytes_per_s),
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
