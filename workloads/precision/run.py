"""Runs the four experiments of `precision` and makes a table of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import nvtx

from ..declaration import FigureValue, Outcome, Row, Value
from ..devices import free_bytes, peak_memory, set_precision
from ..errors import CannotRun
from ..formulas import gemm_flops
from ..gemm.products import factors, precisions, product
from ..peaks import share_percent
from ..report import Report
from ..rows import Cells
from ..runner import GRAPH, Runner
from ..timing import repeat
from ..train.memory import Footprint
from ..train.settings import AUTOCAST
from ..train.shapes import SHAPES, step_flops
from ..train.step import Trainer
from ..train.tables import bound_of, step_figures
from . import PRECISION
from .experiments import accumulation_rows, autocast_rows, errors

WARMUP = nvtx.annotate("warmup")

_BATCH = 4
_WARMUP_STEPS = 3


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """All four experiments. Raises CannotRun for what cannot fit."""
    run = Runner(PRECISION, given, report)
    place, size = run.place, run["size"]
    if size % 16:
        raise CannotRun(f"size: {size} is not a multiple of 16, which fp8 products need")
    # Factors in fp32 and in the precision, the result, and a part of them in fp64.
    place.refuse_unless_fits(28 * size**2, f"28 bytes × {size}²", "use a smaller size")
    asked = precisions("all", place.device)
    trained = [name for name in asked if name not in ("fp8", "int8")]
    products = run.rows(len(asked))
    training = run.rows(len(trained))
    report.say(f"precision: {', '.join(asked)} on {place.name}")
    with run:
        with nvtx.annotate("products"):
            for name in asked:
                with products.row(f"{name} product", precision=name, size=size) as cells:
                    _measure_product(name, size, run, cells)
        with nvtx.annotate("accumulation"):
            sums = list(accumulation_rows())
        with nvtx.annotate("autocast"):
            types = list(autocast_rows(place.device, tuple(AUTOCAST.values())))
        with nvtx.annotate("training"):
            for name in run.until_stopped(trained):
                with training.row(f"{name} training", precision=name) as cells:
                    _measure_training(name, run, cells)
    _add_speedups(products.rows)
    results: dict[str, FigureValue] = {}
    fastest = max(products.measured, key=lambda row: _number(row, "flops_per_s"), default=None)
    quickest = _quickest(training.measured)
    trained_ms = {str(row["precision"]): _training_ms(row) for row in training.measured}
    gain = trained_ms.get("fp32", 0.0) / trained_ms["bf16"] if trained_ms.get("bf16") else None
    results["bf16_training_speedup"] = gain or None
    bf16 = next((row for row in products.measured if row["precision"] == "bf16"), None)
    results["fastest_product"] = fastest["precision"] if fastest else None
    results["fastest_flops_per_s"] = fastest["flops_per_s"] if fastest else None
    results["bf16_product_speedup"] = bf16.get("speedup") if bf16 else None
    results["fastest_training"] = quickest
    results["fp16_sum"] = next(row["sum"] for row in sums if row["accumulator"] == "fp16")
    tables: dict[str, Sequence[Row]] = {
        "precision_products": products.rows,
        "accumulation": sums,
        "autocast_types": types,
        "precision_training": training.rows,
    }
    return run.outcome(results, tables, "no such row came to its end")


def _measure_product(name: str, size: int, run: Runner, cells: Cells) -> None:
    place = run.place
    left, right = factors(size, place.device, run["seed"])
    made = product(name, left, right)
    cells["effective_precision"] = made.effective
    repeat(made.multiply, 3, place.device)
    times = run.timed(made.multiply, "products", in_graph=True)
    rate = gemm_flops(size, size, size) / times.best_ms * 1e3
    absolute, relative = errors(made.multiply() * made.scale, left, right)
    cells |= {
        "gpu_ms": times.best_ms if place.on_gpu else None,
        "wall_ms": times.wall_ms,
        "flops_per_s": rate,
        "peak_percent": share_percent(rate, place.flops_per_s(name)),
        "ceiling_percent": share_percent(rate, place.ceiling_flops_per_s(name)),
        "max_absolute_error": absolute,
        "relative_error": relative,
    }


def _measure_training(name: str, run: Runner, cells: Cells) -> None:
    place = run.place
    shape, ctx = SHAPES[str(run.values["model"])], run["ctx"]
    chosen = set_precision(name, place.device)
    autocast = AUTOCAST.get(name)
    scaled = " + scaler" if name == "fp16" else ""
    cells["effective_precision"] = f"{name} autocast{scaled}" if autocast else chosen.effective
    Footprint.estimate(
        shape, _BATCH, ctx, mode="full", naive=True, checkpoint=0,
        element_bytes=chosen.dtype.itemsize,
    ).refuse_unless_fits(free_bytes(place.device), str(place.device))  # fmt: skip
    trainer = Trainer(
        shape,
        _BATCH,
        ctx,
        mode="full",
        naive=True,
        checkpoint=0,
        compiled=False,
        optimizer="fused",
        lr=1e-3,
        autocast=autocast,
        device=place.device,
        seed=run["seed"],
    )
    with WARMUP:
        for _ in range(_WARMUP_STEPS):
            trainer.step(counted=False)
    walls_ns = [trainer.step()]
    walls_ns += [trainer.step() for _ in run.until_stopped(range(run["steps"] - 1))]
    flops = step_flops(shape, _BATCH, ctx, backward=True, naive=True, recomputes=False)
    figures = step_figures(walls_ns, _BATCH * ctx, flops, place, name)
    cells |= {key: figures[key] for key in ("avg_ms", "tokens_per_s", "mfu_percent")}
    cells |= peak_memory(place.device)[0]
    cells["final_loss"] = trainer.loss
    with GRAPH:
        busy_ms = cells["gpu_busy_ms"] = trainer.graph_ms()
    cells["bound"] = bound_of(float(figures["avg_ms"] or 0), busy_ms)
    run.count_steps(len(walls_ns), sum(walls_ns) / len(walls_ns) / 1e6)


_ALIKE = 1.03
"""Steps on the GPU that are no further apart are alike: two runs differ by as much."""


def _quickest(rows: list[Cells]) -> str | None:
    """The precision whose step takes the GPU least, with those whose steps are alike."""
    least_ms = min(map(_training_ms, rows), default=0.0)
    return " and ".join(
        str(row["precision"]) for row in rows if _training_ms(row) <= _ALIKE * least_ms
    ) or None  # fmt: skip


def _training_ms(row: Cells) -> float:
    """A step on the GPU; by the host's clock where the GPU's is missing."""
    return _number(row, "gpu_busy_ms") or _number(row, "avg_ms")


def _add_speedups(rows: list[Cells]) -> None:
    slowest = next((row for row in rows if row["precision"] == "fp32"), None)
    base = _number(slowest, "flops_per_s") if slowest else 0.0
    for row in rows:
        if base and _number(row, "flops_per_s"):
            row["speedup"] = _number(row, "flops_per_s") / base


def _number(row: Cells, name: str) -> float:
    value = row.get(name)
    return value if isinstance(value, float) else 0.0
