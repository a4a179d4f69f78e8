"""How many steps took how long."""

from __future__ import annotations

import math
from collections.abc import Callable

from gputui.model.sketch import Accumulator
from gputui.model.statistics import FINE
from gputui.model.steps import SLOW
from gputui.model.units import count, duration
from gputui.tui.widgets.canvas import Row, bar
from gputui.tui.widgets.run_panels import Panel

_LABEL = 19


def distribution(lengths: Accumulator, height: int, width: int) -> Panel:
    """Classes of all but the shortest and the longest hundredth and slow steps, which are a class
    each: their tail would leave the others few."""
    found = _classes(lengths, max(1, height - 2))
    most = max((number for _, number in found), default=1)
    room = max(4, width - _LABEL - 10)
    rows: list[Row] = [
        ((f"{label:>{_LABEL - 1}} ", "dim"), (bar(number / most, room), "accent"),
         (f" {number:>8,}", "text"))
        for label, number in found
    ]  # fmt: skip
    return Panel("Distribution", rows, f"{count(lengths.count)} steps", view="steps")


def _classes(lengths: Accumulator, most: int) -> list[tuple[str, int]]:
    """What each is called, and how many steps it has."""
    low, high = lengths.percentile(1) or 0.0, lengths.percentile(99) or 0.0
    high = min(high, SLOW * (lengths.median or high))
    if not lengths.exact:  # the middle of their bucket may lie beyond them
        low, high = low / FINE.gamma, high * FINE.gamma
    usual = {value: often for value, often in lengths.values.items() if low <= value <= high}
    if not usual:
        return []
    first, last = min(usual), max(usual)
    # No more than there are steps for (Rice's rule), and none finer than what is known of them.
    most = min(most, math.ceil(2 * sum(usual.values()) ** (1 / 3)))
    if lengths.exact:
        at, begin = _equal(first, last, min(most, len(usual)))
    else:
        at, begin = _of_buckets(first, last, most)
    counts = [0] * (at(last) + 1)
    for value, often in usual.items():
        counts[at(value)] += often
    shorter = sum(often for value, often in lengths.values.items() if value < first)
    longer = sum(often for value, often in lengths.values.items() if value > last)
    found = [(duration(begin(number)), often) for number, often in enumerate(counts)]
    if shorter:
        found.insert(0, (f"< {duration(first)}", shorter))
    if longer:
        # From the shortest of them on, which may be far from the others.
        least = min(value for value in lengths.values if value > last)
        longest = max(lengths.maximum or 0, least)
        ends = [duration(least), duration(longest)]
        found.append((ends[0] if ends[0] == ends[1] else " to ".join(ends), longer))
    return found


def _equal(
    first: int, last: int, classes: int
) -> tuple[Callable[[int], int], Callable[[int], float]]:
    """Classes of one width: the class of a value, and where one begins."""
    each = max(1.0, (last - first) / classes)
    return lambda value: min(classes - 1, int((value - first) / each)), lambda n: first + n * each


def _of_buckets(
    first: int, last: int, most: int
) -> tuple[Callable[[int], int], Callable[[int], float]]:
    """The same of as many of the buckets that the values are in."""

    def bucket(value: int) -> int:
        return round(math.log(value / first) / FINE.log_gamma)

    several = bucket(last) // most + 1
    return lambda value: bucket(value) // several, lambda n: first * FINE.gamma ** (n * several)
