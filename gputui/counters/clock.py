"""How far the samples' clock is from the operations': where both fit best.

Both are CLOCK_REALTIME, each as its own process's CUPTI converts the GPU's clock to it. Rates of
kernels of 20 µs are 6 % wrong where the two are 5 µs apart (simulated), so that it is measured: the
offset with which operations explain the samples with the smallest residual.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gputui.counters.separation import CounterSamples, Int64s, Operations, overlaps, solve

REACHES_NS = (200_000, 3_000_000)
"""How far apart they are looked for: first near each other, and where nothing fits well, further.
Beyond that it is not the same clock."""

STEP_NS = 10_000
"""From one offset that is tried to the next, before the best are refined: kernels of this length
have a minimum of their own. Twice as much further away."""

FEWEST_SAMPLES = 300
MOST_SAMPLES = 1500
# For the search, which solves them up to 340 times.
_FEW_SAMPLES = 250

# Of the best offsets that were tried.
_REFINED = 3

MOST_KINDS = 24
"""Kinds of operations distinguished, those with most time; all others count as one."""

WELL_EXPLAINED = 0.9
LEAST_EXPLAINED = 0.5
"""Share of the samples' variance that operations explain at the best offset: from the one on it is
not looked for further away, below the other it says nothing."""

_FINEST_NS = 250
_GOLDEN = (5**0.5 - 1) / 2


class ClockFit(NamedTuple):
    """What to add to samples' times, in ns, and how much of their variance is explained then."""

    offset_ns: int
    explained: float


def fit_clock(
    samples: CounterSamples, operations: Operations, near_ns: int | None = None
) -> ClockFit | None:
    """The offset that fits best; None where there is too little to tell, or nothing fits. With
    `near_ns`, one near an earlier fit."""
    if len(samples.starts_ns) < FEWEST_SAMPLES or not len(operations.starts_ns):
        return None
    samples = samples.pick(slice(-MOST_SAMPLES, None))
    varying = samples.amounts.std(0) > 0
    if not varying.any():
        return None
    amounts = samples.amounts[:, varying]
    samples = samples._replace(amounts=(amounts - amounts.mean(0)) / amounts.std(0))
    few = samples.pick(slice(-_FEW_SAMPLES, None))
    best: ClockFit | None = None
    for reach_ns in REACHES_NS[: 1 if near_ns is not None else None]:
        step_ns = STEP_NS if reach_ns == REACHES_NS[0] else 2 * STEP_NS
        offsets = (near_ns or 0) + np.arange(-reach_ns, reach_ns + 1, step_ns)
        quick = _Residuals(few, operations, reach_ns + abs(near_ns or 0))
        left = np.array([quick.at(offset) for offset in offsets.tolist()])
        exact = _Residuals(samples, operations, reach_ns + abs(near_ns or 0))
        for place in _minima(left)[:_REFINED]:
            middle = int(offsets[place])
            offset_ns, residual = _refined(exact.at, middle - step_ns, middle + step_ns)
            if best is None or 1.0 - residual > best.explained:
                best = ClockFit(round(offset_ns), 1.0 - residual)
        if best is not None and best.explained >= WELL_EXPLAINED:
            break
    return best if best is not None and best.explained >= LEAST_EXPLAINED else None


class _Residuals:
    """What operations leave unexplained of samples, as a share of their variance, by the offset."""

    def __init__(self, samples: CounterSamples, operations: Operations, reach_ns: int) -> None:
        self._samples = samples
        first, last = int(samples.starts_ns[0]) - reach_ns, int(samples.ends_ns[-1]) + reach_ns
        self._operations = operations.during(first, last).in_order()
        self._columns, self._size = _kinds(self._operations)

    def at(self, offset_ns: float) -> float:
        """The share with samples moved by so much."""
        samples, operations = self._samples.moved(int(offset_ns)), self._operations
        rows = (operations.ends_ns > samples.starts_ns[0]) & (
            operations.starts_ns < samples.ends_ns[-1]
        )
        ran, _ = overlaps(
            samples,
            operations.starts_ns[rows],
            operations.ends_ns[rows],
            self._columns[rows],
            self._size,
        )
        ran = ran[:, ran.any(0)]
        rates = solve(ran.T @ ran, ran.T @ samples.amounts)
        return float(((samples.amounts - ran @ rates) ** 2).mean())


def _minima(values: npt.NDArray[np.float64]) -> list[int]:
    """Places that are lower than their neighbours, the lowest first."""
    padded = np.pad(values, 1, constant_values=np.inf)
    lowest = np.flatnonzero((values <= padded[:-2]) & (values <= padded[2:]))
    order: list[int] = lowest[np.argsort(values[lowest], kind="stable")].tolist()
    return order


def _kinds(operations: Operations) -> tuple[Int64s, int]:
    """A column for each of the kinds with the most time, 1 for the others; and how many."""
    keys, rows = np.unique(operations.keys, return_inverse=True)
    time = np.bincount(rows, operations.ends_ns - operations.starts_ns)
    column = np.ones(len(keys), np.int64)
    largest = np.argsort(-time)[:MOST_KINDS]
    column[largest] = np.arange(2, 2 + len(largest))
    return column[rows], 2 + len(largest)


def _refined(residual: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """The smallest residual between two offsets, by golden section."""
    inner = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
    values = [residual(offset) for offset in inner]
    while high - low > _FINEST_NS:
        if values[0] < values[1]:
            high, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = high - _GOLDEN * (high - low)
            values[0] = residual(inner[0])
        else:
            low, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = low + _GOLDEN * (high - low)
            values[1] = residual(inner[1])
    return (low + high) / 2, min(values)
