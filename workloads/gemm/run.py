"""Times the products of `gemm` and remembers the best rate of each precision."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from ..ceilings import remember_ceilings
from ..declaration import FigureValue, Outcome, Value
from ..formulas import gemm_bytes, gemm_flops
from ..peaks import share_percent
from ..report import Report
from ..rows import Cells, best
from ..runner import Runner
from . import GEMM, PRODUCTS, SIZES, UNALIGNED
from .products import element_bytes, factors, precisions, product

_NOT_ASKED = "not requested, or not available on this device"


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """Products of every size in every precision. Raises DoesNotFit and CannotRun."""
    run = Runner(GEMM, given, report)
    place = run.place
    smallest, largest = run["smallest"], run["largest"]
    sizes = [size for size in SIZES if smallest <= size <= largest]
    if UNALIGNED + 1 in sizes:
        sizes.insert(sizes.index(UNALIGNED + 1), UNALIGNED)
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
    for precision in PRODUCTS:
        label = f"{precision}_flops_per_s"
        results[label] = best(rows.measured, "flops_per_s", precision=precision)
        reasons[label] = rows.why_none(precision=precision) if precision in asked else _NOT_ASKED
    if place.on_gpu:
        best_rates = {name: results[f"{name}_flops_per_s"] for name in PRODUCTS}
        remember_ceilings(place.name, {k: v for k, v in best_rates.items() if isinstance(v, float)})
    results["unaligned_percent"] = _unaligned_percent(rows.measured)
    reasons["unaligned_percent"] = "no product of 4,095 was measured in bf16 or fp16"
    results["peak_source"] = place.peak.source if place.peak else None
    return run.outcome(results, {"gemm": rows.rows}, place.why_no_peak, reasons)


def _measure(precision: str, size: int, run: Runner, cells: Cells) -> None:
    place = run.place
    left, right = factors(size, place.device, run["seed"])
    made = product(precision, left, right)
    cells["effective_precision"] = made.effective
    del left, right

    times = run.timed(made.multiply, "products", in_graph=True)
    flops = gemm_flops(size, size, size)
    rate = flops / times.best_ms * 1e3
    cells |= {
        "wall_ms": times.wall_ms,
        "host_ms": times.host_ms,
        "gpu_ms": times.best_ms if place.on_gpu else None,
        "timed_by": times.timed_by,
        "p50_ms": times.percentile(50),
        "flops_per_s": rate,
        "peak_percent": share_percent(rate, place.flops_per_s(precision)),
        "intensity": flops / gemm_bytes(size, size, size, *element_bytes(precision)),
    }


def _unaligned_percent(rows: list[Cells]) -> float | None:
    """The rate at 4,095 in percent of that at 4,096, of bf16 or else fp16."""
    for precision in ("bf16", "fp16"):
        rates = [
            best(rows, "flops_per_s", precision=precision, size=size)
            for size in (UNALIGNED, UNALIGNED + 1)
        ]
        if rates[0] is not None and rates[1] is not None:
            return 100 * rates[0] / rates[1]
    return None
