"""Times a linear layer with each type of weights and compares it with bf16."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..declaration import FigureValue, Outcome, Value
from ..devices import is_out_of_memory
from ..peaks import share_percent
from ..report import Report
from ..rows import Cells, Rows, Unsupported, best
from ..runner import Runner
from . import QUANTIZED
from .formats import FORMATS
from .layers import WAYS, Layer, first_line


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """A row for each type and way. Raises DoesNotFit for a size that cannot be grouped, CannotRun
    if the device is unavailable or too small.
    """
    run = Runner(QUANTIZED, given, report)
    inputs, outputs, tokens = run["inputs"], run["outputs"], run["tokens"]
    place = run.place
    rows = run.rows(len(WAYS))
    report.say(f"quantized: {inputs} → {outputs} over {tokens} tokens on {place.name}")
    with run, torch.inference_mode():
        generator = torch.Generator(place.device).manual_seed(run["seed"])
        weight, x = (
            torch.randn(size, inputs, device=place.device, generator=generator)
            for size in (outputs, tokens)
        )
        x = x.bfloat16()
        exact = x.double() @ weight.double().t()
        for weights, way, make in run.until_stopped(WAYS):
            with rows.row(f"{weights} by {way}", weights=weights, way=way) as cells:
                try:
                    _measure(make(weight), x, exact, run, cells)
                except (RuntimeError, NotImplementedError) as error:
                    if is_out_of_memory(error):
                        raise
                    raise Unsupported(f"{weights} by {way}: {first_line(error)}") from None
    results: dict[str, FigureValue] = {"bf16_ms": _compare(rows)}
    results |= {f"{name}_speedup": best(rows.rows, "speedup", weights=name) for name in FORMATS[1:]}
    reasons = {f"{name}_speedup": rows.why_none(weights=name) for name in FORMATS[1:]}
    return run.outcome(results, {"quantized": rows.rows}, rows.why_none(weights="bf16"), reasons)


def _measure(layer: Layer, x: Tensor, exact: Tensor, run: Runner, cells: Cells) -> None:
    product, held = layer
    times = run.timed(lambda: product(x), in_graph=True)
    size = sum(tensor.nbytes for tensor in held)
    rate = size / (times.best_ms / 1e3)
    cells |= {
        "weight_bytes": size,
        "wall_ms": times.wall_ms,
        "gpu_ms": times.best_ms if run.place.on_gpu else None,
        "timed_by": times.timed_by,
        "weight_bytes_per_s": rate,
        "mbu_percent": share_percent(rate, run.place.bytes_per_s),
        "error_percent": 100 * ((product(x).double() - exact).norm() / exact.norm()).item(),
    }


def _compare(rows: Rows) -> float | None:
    """Fill in each row's speed-up; the time of bf16."""
    clock = "gpu_ms" if any(row.get("gpu_ms") for row in rows.rows) else "wall_ms"
    plain = next((row.get(clock) for row in rows.measured if row["weights"] == "bf16"), None)
    if not isinstance(plain, float):
        return None
    for row in rows.measured:
        if isinstance(this := row[clock], float):
            row["speedup"] = plain / this
    return plain
