"""Runs `attention`: every shape, implementation and precision in turn, one row each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product

import nvtx
import torch
from torch import Tensor

from ..declaration import FigureValue, Outcome, Row, Value
from ..devices import set_precision, synchronize
from ..dram import DramCounter
from ..formulas import attention_backward_flops, attention_bytes, attention_flops
from ..peaks import share_percent
from ..report import Report
from ..rows import Cells, Rows
from ..runner import STEP, Runner
from ..timing import Times, measure, repeat
from . import ATTENTION
from .grids import GRIDS, IMPLEMENTATIONS, AttentionShape
from .implementations import WRITES_SCORES, attention

FORWARD = nvtx.annotate("forward")
BACKWARD = nvtx.annotate("backward")

# Of the counter, which is read at moments of its own: over several they matter little.
_WINDOWS = 5


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """Measure the grid. Raises CannotRun if the device is unavailable."""
    run = Runner(ATTENTION, given, report)
    place, values = run.place, run.values
    shapes = GRIDS[str(values["grid"])].shapes
    asked = set(str(values["implementations"]).split(","))
    names = [name for name in IMPLEMENTATIONS if name in asked]
    precisions = list(dict.fromkeys(str(values["precision"]).split(",")))
    rows = run.rows(len(shapes) * len(names) * len(precisions))
    report.say(
        f"attention: {len(shapes)} shapes × {', '.join(names)} × {', '.join(precisions)} on "
        f"{place.name}"
    )
    with run:
        for shape, precision, name in run.until_stopped(product(shapes, precisions, names)):
            head: Cells = {
                "implementation": name,
                "precision": precision,
                "causal": shape.causal,
                "batch": shape.batch,
                "heads": shape.heads,
                "d_model": shape.head_width,
                "seq_len": shape.length,
            }
            with rows.row(f"{name} {precision} {shape.label}", **head) as cells:
                _Measurement(name, precision, shape, run, cells).fill()
    _add_speedups(rows.rows)
    tables: dict[str, Sequence[Row]] = {
        "attention": rows.rows,
        "attention_tf32": tf32_rows(rows.rows),
    }
    reasons = {"largest_speedup": "naive was not measured"}
    return run.outcome(_results(rows), tables, "no row came to its end", reasons)


class _Measurement:
    """One row. Fills its cells as it goes, so that a failure keeps the earlier ones."""

    def __init__(
        self, name: str, precision: str, shape: AttentionShape, run: Runner, cells: Cells
    ) -> None:
        self.name, self.precision, self.shape, self.run = name, precision, shape, run
        self.place, self.cells = run.place, cells
        self.budget_ms = 1e3 * float(run.values["budget"])
        self.backward = bool(run.values["backward"])

    def fill(self) -> None:
        chosen = set_precision(self.precision, self.place.device)
        self.cells["precision"] = chosen.effective
        shape, device, cells = self.shape, self.place.device, self.cells
        dimensions = (shape.batch, shape.heads, shape.length, shape.head_width)
        fused = self.name not in WRITES_SCORES
        if self.name != "math":  # whose operations differ from one torch to another
            cells["hbm_bytes"], bwd_hbm_bytes = attention_bytes(
                *dimensions,
                chosen.dtype.itemsize,
                implementation=self.name,
                causal=shape.causal,
                dropout=bool(self.run.values["dropout"]),
            )
            if self.backward:
                cells["bwd_hbm_bytes"] = bwd_hbm_bytes
        generator = torch.Generator(device).manual_seed(self.run["seed"])

        def random(*, requires_grad: bool) -> Tensor:
            tensor = torch.randn(dimensions, device=device, generator=generator)
            return tensor.to(chosen.dtype).requires_grad_(requires_grad)

        q, k, v = (random(requires_grad=self.backward) for _ in range(3))
        compute = attention(
            self.name, causal=shape.causal, length=shape.length, device=device,
            dropout=float(self.run.values["dropout"]),
        )  # fmt: skip

        def forward() -> Tensor:
            return compute(q, k, v)

        with FORWARD:
            started_ns = time.perf_counter_ns()
            with self.run.interruptible():
                forward()
                synchronize(device)
            first_ms = (time.perf_counter_ns() - started_ns) / 1e6
            if self.name == "compiled":
                cells["compile_ms"] = first_ms
            forward_times = self._time(forward)
            on_gpu = self.run.in_graph(forward, forward_times)
            cells["fwd_gpu_ms"] = on_gpu.gpu_only_ms
            cells["measured_hbm_bytes"] = self._moved(forward, forward_times)
        flops = attention_flops(
            shape.batch, shape.heads, shape.length, shape.length, shape.head_width,
            causal=shape.causal and fused,
        )  # fmt: skip
        rate = flops / forward_times.best_ms * 1e3
        cells |= {
            "fwd_ms": forward_times.best_ms,
            "fwd_total_ms": forward_times.best_ms * forward_times.passes,
            "passes": forward_times.passes,
            "host_ms": forward_times.host_ms,
            "fwd_flops_per_s": rate,
            "peak_percent": share_percent(rate, self.place.flops_per_s(self.precision)),
            "ceiling_percent": share_percent(rate, self.place.ceiling_flops_per_s(self.precision)),
        }
        self._note_peak()
        if not self.backward:
            return
        out = compute(q, k, v)
        if self.place.on_gpu:
            synchronize(device)
            cells["mem_before_bwd_bytes"] = torch.cuda.memory_allocated(device)
        upstream = random(requires_grad=False)

        def backward() -> None:
            torch.autograd.grad(out, (q, k, v), upstream, retain_graph=True)

        def both() -> None:
            torch.autograd.grad(compute(q, k, v), (q, k, v), upstream)

        with BACKWARD:
            with self.run.interruptible():
                backward()
            backward_times = self._time(backward)
            cells["measured_bwd_hbm_bytes"] = self._moved(backward, backward_times)
        more = attention_backward_flops(flops, recomputes=fused)
        total_ms = forward_times.best_ms + backward_times.best_ms
        cells |= {
            "bwd_ms": backward_times.best_ms,
            "bwd_total_ms": backward_times.best_ms * backward_times.passes,
            "bwd_flops_per_s": more / backward_times.best_ms * 1e3,
            "fwd_bwd_flops_per_s": (flops + more) / total_ms * 1e3,
        }
        self._note_peak()
        cells["bwd_gpu_ms"] = self._backward_gpu_ms(both, on_gpu, backward_times)

    def _time(self, once: Callable[[], object]) -> Times:
        """As many passes as requested, or as fit the budget."""
        # One more pass, now warm, shows how many fit the budget.
        alone = measure(once, self.place.device, 1)
        holds = max(1, int(self.budget_ms / max(alone.wall_ms, 1e-3)))
        repeat(once, min(self.run["warmup"], holds), self.place.device)
        passes = min(self.run["passes"], holds)

        def step() -> None:
            with STEP:
                once()

        self.run.begin()
        times = measure(step, self.place.device, passes, lambda: self.run.is_stopped)
        self.run.count_steps(times.passes, times.wall_ms)
        return times

    def _backward_gpu_ms(
        self, both: Callable[[], object], forward: Times, backward: Times
    ) -> float | None:
        """GPU time of a backward pass. It can be captured with its forward pass only: that of both
        in a graph, less the forward's."""
        if forward.gpu_ms is None or backward.gpu_ms is None:
            return None
        host_ms = forward.host_ms + backward.host_ms
        events = replace(
            backward, host_ms=host_ms, gpu_ms=forward.gpu_ms + backward.gpu_ms, graph_ms=None
        )
        together = self.run.in_graph(both, events)
        if together.graph_ms is None or forward.gpu_only_ms is None:
            return backward.gpu_ms if not events.is_hosts else None
        return max(0.0, together.graph_ms - forward.gpu_only_ms) or None

    def _moved(self, once: Callable[[], object], times: Times) -> float | None:
        """Bytes of a pass by the GPU's counter, in a window as long as that needs."""
        counter = DramCounter.for_place(self.place)
        if counter is None:
            return None
        passes = max(times.passes, math.ceil(_WINDOWS * DramCounter.WINDOW_MS / times.best_ms))
        if passes * times.best_ms > max(self.budget_ms, 2 * _WINDOWS * DramCounter.WINDOW_MS):
            return None
        with counter:
            for _ in range(passes):
                once()
            synchronize(self.place.device)
        return None if counter.moved_bytes is None else counter.moved_bytes / passes

    def _note_peak(self) -> None:
        if self.place.on_gpu:
            peak = torch.cuda.max_memory_allocated(self.place.device)
            self.cells["peak_memory_allocated_bytes"] = peak


_SHAPE = ("precision", "causal", "batch", "heads", "d_model", "seq_len")


def _add_speedups(rows: list[Cells]) -> None:
    """Speedups over the naive row of the same shape and precision, if there is one."""
    naive = {
        tuple(row[name] for name in _SHAPE): row for row in rows if row["implementation"] == "naive"
    }
    for row in rows:
        against = naive.get(tuple(row[name] for name in _SHAPE))
        if against is None:
            continue
        for direction in ("fwd", "bwd"):
            own, other = row.get(f"{direction}_ms"), against.get(f"{direction}_ms")
            if isinstance(own, float) and isinstance(other, float):
                row[f"{direction}_speedup"] = other / own


def tf32_rows(rows: Sequence[Row]) -> list[Row]:
    """Rows measured in fp32 beside the same in TF32, and how much the time changed, the GPU's where
    both have one."""
    same = ("implementation", "causal", "batch", "heads", "d_model", "seq_len")
    tf32 = {
        tuple(row[name] for name in same): row for row in rows if row["precision"] == "fp32 (tf32)"
    }
    compared: list[Row] = []
    for row in rows:
        other = tf32.get(tuple(row[name] for name in same))
        if other is None or row["precision"] != "fp32 (ieee)":
            continue
        cells: Cells = {name: row[name] for name in ("implementation", "d_model", "seq_len")}
        for direction in ("fwd", "bwd"):
            names = f"{direction}_gpu_ms", f"{direction}_ms"
            name = next((name for name in names if row.get(name) and other.get(name)), names[1])
            before, after = row.get(name), other.get(name)
            cells |= {f"{direction}_fp32_ms": before, f"{direction}_tf32_ms": after}
            if isinstance(before, float) and isinstance(after, float):
                cells[f"{direction}_change_percent"] = 100 * (after / before - 1)
        compared.append(cells)
    return compared


def _results(rows: Rows) -> dict[str, FigureValue]:
    def rate(row: Row) -> float:
        value = row.get("fwd_flops_per_s")
        return value if isinstance(value, float) else 0.0

    fastest = max(rows.rows, key=rate, default={})
    speedups = [value for row in rows.rows if isinstance(value := row.get("fwd_speedup"), float)]
    return {
        "rows_measured": len(rows.measured),
        "out_of_memory_rows": rows.out_of_memory,
        "best_fwd_flops_per_s": fastest.get("fwd_flops_per_s"),
        "best_implementation": fastest.get("implementation") if rate(fastest) else None,
        "largest_speedup": max(speedups, default=None),
    }
