"""Runs `gemm`."""

from __future__ import annotations

from collections.abc import Mapping

import nvtx
import torch

from ..declaration import FigureValue, Outcome, Value
from ..errors import WrongUsage
from ..formulas import gemm_bytes, gemm_flops
from ..peaks import share_percent
from ..place import Place
from ..report import Report
from ..rows import Cells, Rows, best
from ..stopping import StopRequest
from ..timing import measure, repeat
from . import GEMM, PRECISIONS, SIZES
from .products import element_bytes, precisions, product

_NOT_ASKED = "not requested, or not available on this device"

STEP = nvtx.annotate("step")


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """Products of every size in every precision. Raises WrongUsage and CannotRun."""
    place = Place.of(given)
    values = place.fill(GEMM, given)
    smallest, largest = int(values["smallest"]), int(values["largest"])
    if smallest > largest:
        raise WrongUsage(f"smallest is {smallest}, which is more than largest, {largest}")
    # The fp32 factors, their converted copies and the result: at most 20 bytes per element.
    place.refuse_unless_fits(20 * largest**2, f"20 bytes × {largest}²", "use a smaller largest")
    sizes = [size for size in SIZES if smallest <= size <= largest]
    asked = precisions(str(values["precision"]), place.device)
    rows = Rows(len(sizes) * len(asked), place.device, report)
    report.say(f"gemm: {', '.join(asked)} at {smallest} to {largest} on {place.name}")
    with StopRequest() as stop:
        for precision in asked:
            for size in sizes:
                if stop.signal is not None:
                    break
                head: Cells = {"precision": precision, "size": size}
                with rows.row(f"{precision} {size}", **head) as cells:
                    _measure(precision, size, place, values, cells, stop)
    results: dict[str, FigureValue] = {"device_name": place.name}
    unavailable = {}
    for precision in PRECISIONS:
        label = f"{precision}_flops_per_s"
        of_it = [row for row in rows.measured if row["precision"] == precision]
        results[label] = best(of_it, "flops_per_s")
        if results[label] is None:
            unavailable[label] = (
                rows.why_none(precision=precision) if precision in asked else _NOT_ASKED
            )
    results["peak_source"] = place.peak.source if place.peak else None
    if place.peak is None:
        unavailable["peak_source"] = place.why_no_peak
    return Outcome(
        parameters=values,
        results=results,
        unavailable=unavailable,
        tables={"gemm": rows.rows},
        stopped_by=stop.signal,
    )


def _measure(
    precision: str,
    size: int,
    place: Place,
    values: Mapping[str, Value],
    cells: Cells,
    stop: StopRequest,
) -> None:
    # Random numbers: zeros draw less power, and a card at its power limit is then faster.
    generator = torch.Generator(place.device).manual_seed(int(values["seed"]))
    left, right = (
        torch.randn(size, size, device=place.device, generator=generator) for _ in range(2)
    )
    multiply, cells["effective_precision"] = product(precision, left, right)
    del left, right

    def step() -> None:
        with STEP:
            multiply()

    repeat(multiply, int(values["warmup"]), place.device)
    times = measure(step, place.device, int(values["products"]), lambda: stop.signal is not None)
    flops = gemm_flops(size, size, size)
    rate = flops / times.best_ms * 1e3
    cells |= {
        "wall_ms": times.wall_ms,
        "host_ms": times.host_ms,
        "gpu_ms": times.gpu_ms,
        "p50_ms": times.percentile(50),
        "flops_per_s": rate,
        "peak_percent": share_percent(rate, place.flops_per_s(precision)),
        "intensity": flops / gemm_bytes(size, size, size, element_bytes(precision)),
    }
