"""Ink that equals a figure: parts of a whole, and scales that fit what is seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise


def apportion(shares: Sequence[float], whole: int) -> list[int]:
    """`whole` units divided like `shares`, by largest remainder: they add up to `whole`."""
    total = sum(shares)
    if total <= 0 or whole <= 0:
        return [0] * len(shares)
    exact = [share / total * whole for share in shares]
    given = [math.floor(part) for part in exact]
    order = sorted(range(len(exact)), key=lambda at: (given[at] - exact[at], at))
    for at in order[: whole - sum(given)]:
        given[at] += 1
    return given


def nice_top(value: float) -> float:
    """The next 1, 2, 2.5 or 5 × 10ⁿ at or above a value: where an axis ends."""
    if not (value > 0 and math.isfinite(value)):
        return 1.0
    decade = 10.0 ** math.floor(math.log10(value))
    return next(
        (each * decade for each in (1.0, 2.0, 2.5, 5.0) if each * decade >= value * (1 - 1e-9)),
        10.0 * decade,
    )


def grouped(
    values: Sequence[float], columns: int, merge: Callable[[Iterable[float]], float] = max
) -> list[float]:
    """The values in at most `columns` parts in a row, each part merged into one."""
    if len(values) <= columns:
        return list(values)
    bounds = [len(values) * at // columns for at in range(columns + 1)]
    return [merge(values[low:high]) for low, high in pairwise(bounds)]
