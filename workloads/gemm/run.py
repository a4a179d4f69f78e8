"""Times the products of `gemm` and remembers the best rate of each precision."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from ..ceilings import remember_ceilings
from ..declaration import FigureValue, Outcome, Value
from ..formulas import gemm_bytes, gemm_flops
from ..peaks import PRECISIONS, share_percent
from ..report import Report
from ..rows import Cells, best
from ..runner import Runner
from . import GEMM, SIZES
from .products import element_bytes, factors, precisions, product

_NOT_ASKED = "not requested, or not available on this device"


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """Products of every size in every precision. Raises DoesNotFit and CannotRun."""
    run = Runner(GEMM, given, report)
    place = run.place
    smallest, largest = run["smallest"], run["largest"]
    sizes = [size for size in SIZES if smallest <= size <= largest]
    asked = precisions(str(run.values["precision"]), place.device)
    rows = run.rows(len(sizes) * len(asked))
    report.say(f"gemm: {', '.join(asked)} at {smallest} to {largest} on {place.name}")
    with run:
        for precision, size in run.until_stopped(itertools.product(asked, sizes)):
            head: Cells = {"precision": precision, "size": size}
            with rows.row(f"{precision} {size}", **head) as cells:
                _measure(precision, size, run, cells)
    results: dict[str, FigureValue] = {}
    reasons = {}
    for precision in PRECISIONS:
        label = f"{precision}_flops_per_s"
        results[label] = best(rows.measured, "flops_per_s", precision=precision)
        reasons[label] = rows.why_none(precision=precision) if precision in asked else _NOT_ASKED
    if place.on_gpu:
        best_rates = {name: results[f"{name}_flops_per_s"] for name in PRECISIONS}
        remember_ceilings(place.name, {k: v for k, v in best_rates.items() if isinstance(v, float)})
    results["peak_source"] = place.peak.source if place.peak else None
    return run.outcome(results, {"gemm": rows.rows}, place.why_no_peak, reasons)


def _measure(precision: str, size: int, run: Runner, cells: Cells) -> None:
    place = run.place
    left, right = factors(size, place.device, run["seed"])
    multiply, cells["effective_precision"] = product(precision, left, right)
    del left, right

    times = run.timed(multiply, "products")
    flops = gemm_flops(size, size, size)
    rate = flops / times.best_ms * 1e3
    cells |= {
        "wall_ms": times.wall_ms,
        "host_ms": times.host_ms,
        "gpu_ms": times.gpu_ms,
        "p50_ms": times.percentile(50),
        "flops_per_s": rate,
        "peak_percent": share_percent(rate, place.flops_per_s(precision)),
        "intensity": flops / gemm_bytes(size, size, size, *element_bytes(precision)),
    }
