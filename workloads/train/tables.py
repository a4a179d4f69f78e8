"""Timed steps → figures and rows of the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..declaration import FigureValue, Row
from ..peaks import share_percent
from ..place import Place
from ..ranges import Range
from .memory import Footprint
from .model import INSIDE_MHA, MHA
from .shapes import StepFlops
from .step import BACKWARD, FORWARD, LOSS, OPTIMIZER, OPTIMIZER_STEP, OPTIMIZER_ZERO, Trainer

Figures = dict[str, FigureValue]

_LINEAR = ("QKV projections", "output proj")


def step_figures(
    wall_ns: Sequence[int], tokens: int, flops: StepFlops, place: Place, precision: str
) -> Figures:
    """Of the measured steps, at least one."""
    times_ms = np.asarray(wall_ns, dtype=np.float64) / 1e6
    mean_ms = float(times_ms.mean())
    best, ceiling = place.flops_per_s(precision), place.ceiling_flops_per_s(precision)
    return {
        "avg_ms": mean_ms,
        "std_ms": float(times_ms.std(ddof=1)) if len(wall_ns) > 1 else None,
        "step_p50_ms": float(np.percentile(times_ms, 50)),
        "step_p99_ms": float(np.percentile(times_ms, 99)),
        "tokens_per_s": tokens / mean_ms * 1e3,
        "mfu_percent": share_percent(flops.model / mean_ms * 1e3, best),
        "hfu_percent": share_percent(flops.hardware / mean_ms * 1e3, best),
        "ceiling_percent": share_percent(flops.hardware / mean_ms * 1e3, ceiling),
    }


LAUNCH_BOUND = 0.8
"""Of a step's wall time, below which the GPU's own time says that it waits for launches: above it,
what a graph saves is within the spread of our runs."""


def bound_of(avg_ms: float, busy_ms: float | None) -> str | None:
    """ "launch-bound" or "GPU-bound", by the GPU's own time of a step; None where it is missing."""
    if busy_ms is None:
        return None
    return "launch-bound" if busy_ms < LAUNCH_BOUND * avg_ms else "GPU-bound"


class _PhaseRows:
    """Makes rows of one configuration's phase table."""

    def __init__(self, label: str, steps: int) -> None:
        self._label, self._steps = label, steps

    def row(
        self,
        section: str,
        name: str,
        total_ms: float,
        count: int | None = None,
        *,
        parent: Range | None = None,
        span_ms: float | None = None,
    ) -> Row:
        """One row; with `parent`, its share of the parent's time."""
        cells: Figures = {
            "section": f"{self._label}: {section}",
            "metric": name,
            "count": count,
            "cpu_total_ms": total_ms,
            "cpu_per_step_ms": total_ms / self._steps,
            "gpu_span_per_step_ms": None if span_ms is None else span_ms / self._steps,
        }
        if parent is not None and parent.total_ns:
            cells["parent_percent"] = 100 * total_ms / parent.total_ms
            cells["parent"] = parent.name
        return cells


def phase_rows(label: str, trainer: Trainer, steps: int) -> Iterator[Row]:
    """Inclusive and exclusive times of the ranges, and shares of their parents.

    The sections and derived rows are those of the CS336 solution's table, whose times are also the
    host's, though it does not say so.
    """
    rows, phases = _PhaseRows(label, steps), trainer.phases
    for name in (FORWARD, LOSS, BACKWARD, OPTIMIZER):
        span = phases[name]
        if span.count:
            span_ms = trainer.span_ms.get(name)
            yield rows.row("phases", name, span.total_ms, span.count, span_ms=span_ms)
    optimizer = phases[OPTIMIZER]
    if optimizer.count:
        inner = [phases[name] for name in (OPTIMIZER_STEP, OPTIMIZER_ZERO)]
        for part in inner:
            yield rows.row("optimizer", part.name, part.total_ms, part.count, parent=optimizer)
        own_ms = optimizer.total_ms - sum(part.total_ms for part in inner)
        yield rows.row("optimizer", "OPTIMIZER (exclusive)", own_ms, parent=optimizer)
    ranges = {span.name: span for span in trainer.layers.used()}
    if MHA in ranges:
        yield from _attention_rows(rows, ranges, phases[FORWARD])


def _attention_rows(rows: _PhaseRows, ranges: Mapping[str, Range], forward: Range) -> Iterator[Row]:
    section, mha = "attention, forward", ranges[MHA]
    yield rows.row(section, "MHA (total)", mha.total_ms, mha.count, parent=forward)
    inner = [ranges[name] for name in INSIDE_MHA if name in ranges]
    for part in inner:
        yield rows.row(section, part.name, part.total_ms, part.count, parent=mha)
    linear_ms = sum(part.total_ms for part in inner if part.name in _LINEAR)
    residual_ms = mha.total_ms - sum(part.total_ms for part in inner)
    yield rows.row(section, "MHA linear (QKV + output)", linear_ms, parent=mha)
    yield rows.row(section, "MHA residual", residual_ms, parent=mha)
    rest_ms = forward.total_ms - mha.total_ms
    yield rows.row(section, "non-attention FORWARD", rest_ms, parent=forward)


def clock_row(label: str, trainer: Trainer, wall_ns: Sequence[int]) -> Row:
    """A step by the host's clock, by its ranges and by the GPU's events."""
    steps = len(wall_ns)
    wall_ms = sum(wall_ns) / steps / 1e6
    cpu_ms = trainer.step_cpu_ms / steps
    span_ms = trainer.whole_span_ms / steps if trainer.span_ms else None
    return {
        "configuration": label,
        "wall_ms": wall_ms,
        "cpu_ms": cpu_ms,
        "gpu_span_ms": span_ms,
        "host_wait_ms": wall_ms - cpu_ms,
        "gpu_idle_outside_ms": None if span_ms is None else wall_ms - span_ms,
    }


def memory_rows(
    label: str, footprint: Footprint, trainer: Trainer, peaks: Figures, *, on_gpu: bool
) -> Iterator[Row]:
    """What the model, its gradients, the optimizer and the activations should take, beside what
    they took.
    """
    expected = {
        "model": footprint.model_bytes,
        "gradients": footprint.gradient_bytes,
        "optimizer": footprint.optimizer_bytes,
        "activations": footprint.activation_bytes,
    }
    for what, measured in trainer.memory.items():
        yield {
            "configuration": label,
            "what": what,
            "expected_bytes": expected.get(what),
            "measured_bytes": measured if on_gpu else None,
        }
    for what, name in (
        ("peak allocated", "peak_memory_allocated_bytes"),
        ("peak reserved", "peak_memory_reserved_bytes"),
    ):
        least = footprint.peak_bytes if what == "peak allocated" else None
        yield {
            "configuration": label,
            "what": what,
            "expected_bytes": least,
            "measured_bytes": peaks[name],
        }
