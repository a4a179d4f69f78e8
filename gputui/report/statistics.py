"""Rows of kernels, CUDA calls and memory operations, with the statistics that `nsys stats` gives;
and means with their uncertainty.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from gputui.model.events.distributions import FINE, Accumulator, Statistics, Totals
from gputui.model.kernel_categories import category
from gputui.model.naming import short_name
from gputui.model.steps import SLOW
from gputui.model.units import duration
from gputui.report.schema import Cell, Column, count, percent, time
from gputui.state import Run, Session

# How sure a mean is, and a difference of two means.

FEWEST_BLOCKS = 4
"""Blocks that give the error of a mean; from fewer it would be of chance."""

# Student's t for 1 to 30 degrees of freedom, two-sided 95 %.
_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mean:
    """A figure of one run. `error` is its standard error, None where nobody knows it; `freedom`
    the degrees of freedom that it has."""

    amount: float
    error: float | None = None
    freedom: float = 0.0


def mean_of_blocks(blocks: Sequence[tuple[float, float]]) -> Mean:
    """Σ amount / Σ count over (count, amount) of blocks, with the error of that ratio
    (W. G. Cochran, Sampling Techniques, 6.19). The blocks are not empty."""
    count = sum(block[0] for block in blocks)
    mean = sum(block[1] for block in blocks) / count
    size = len(blocks)
    if size < FEWEST_BLOCKS:
        return Mean(mean)
    squares = sum((amount - mean * steps) ** 2 for steps, amount in blocks)
    return Mean(mean, math.sqrt(squares * size / (size - 1)) / count, size - 1.0)


def inflation(mean: Mean, single: Statistics) -> float:
    """How much larger the error of a mean is than if all its instances were independent; at least
    1."""
    if mean.error is None or single.count < 2 or not single.deviation:
        return 1.0
    return max(1.0, mean.error / (single.deviation / math.sqrt(single.count)))


def noise(first: Mean, second: Mean) -> float | None:
    """Half the width of the 95 % interval of their difference (Welch 1947); None if unknown."""
    if first.error is None or second.error is None:
        return None
    if not math.isfinite(first.error) or not math.isfinite(second.error):
        return None
    squares = first.error * first.error, second.error * second.error
    square = sum(squares)
    if not math.isfinite(square * square):
        return None
    if not square:
        return 0.0
    # Squares of squares of small errors may vanish: then the better known mean decides.
    spread = sum(
        squared * squared / mean.freedom
        for squared, mean in zip(squares, (first, second), strict=True)
        if mean.freedom
    )
    freedom = square * square / spread if spread else max(first.freedom, second.freedom)
    return _student(freedom) * math.sqrt(square)


def half_width(mean: Mean) -> float | None:
    """Half the width of its 95 % interval; None if its error is not known."""
    return None if mean.error is None else _student(mean.freedom) * mean.error


def _student(freedom: float) -> float:
    """The 97.5 % quantile of Student's t, for the next lower whole number of degrees of freedom."""
    whole = max(1, int(min(freedom, 1e9)))
    if whole <= len(_T_975):
        return _T_975[whole - 1]
    return 1.960 + 2.4 / whole


R = TypeVar("R")

NameStyle = Literal["full", "base", "mangled"]

Key = tuple[str, str]
"""(name, label): the key rows are summed by. Kernels have no label."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line of a statistics table. Times in ns, or bytes where the table is of sizes.

    Figures are computed when they are asked for: of a table of 10⁵ names few are shown.
    """

    name: str
    label: str
    """What kind of thing has this name; empty where only the name says it."""
    times: Statistics
    percent: float

    @property
    def short_name(self) -> str:
        """The function's own name: no namespaces, template or call arguments."""
        return short_name(self.name)

    @property
    def category(self) -> str:
        """The label, or the kind of work that the kernel's name stands for."""
        return self.label or category(self.name)

    @property
    def instances(self) -> int:
        """How many operations or calls the row sums up."""
        return self.times.count

    @property
    def total(self) -> int:
        """The sum over all instances."""
        return self.times.total

    @property
    def average(self) -> float:
        """The mean of an instance."""
        return self.times.average or 0.0

    @property
    def median(self) -> float:
        """Exact, or within 1 %."""
        return self.times.median or 0.0

    @property
    def p99(self) -> float:
        """What 99 % are at most; exact where the median is."""
        return self.times.percentile(99) or 0.0

    @property
    def minimum(self) -> int:
        """The least of an instance."""
        return self.times.minimum or 0

    @property
    def maximum(self) -> int:
        """The most of an instance."""
        return self.times.maximum or 0

    @property
    def deviation(self) -> float:
        """The sample standard deviation (divided by n − 1)."""
        return self.times.deviation or 0.0

    @property
    def exact(self) -> bool:
        """Whether the median is exact, or read from a sketch."""
        return self.times.exact


def kernel_name(session: Session, number: int, style: NameStyle = "full") -> str:
    """A kernel's name: demangled, the function's own (nsys's `:base`), or the symbol."""
    name = session.kernel_names.get(number)
    if name is None:
        return f"(kernel {number})"
    if style == "mangled":
        return name.mangled
    return short_name(name.name) if style == "base" else name.name


def kernel_rows(
    session: Session,
    run: Run,
    ranges: Iterable[int] | None = None,
    names: NameStyle = "full",
) -> list[TableRow]:
    """One row for each kernel's name; with `ranges`, only kernels that count in one of these
    ranges."""
    wanted = None if ranges is None else set(ranges)
    sums: Totals[Key] = Totals()
    for kernels in run.kernels.values():
        if wanted is None or kernels.phase in wanted:
            sums.add((kernel_name(session, kernels.kernel, names), ""), kernels.time)
    return statistics_rows(sums)


def api_rows(run: Run) -> list[TableRow]:
    """A row for each CUDA call, by the name of its function."""
    sums: Totals[Key] = Totals()
    _add_calls(sums, run)
    return statistics_rows(sums)


def memory_time_rows(run: Run) -> list[TableRow]:
    """Time of copies and memsets by operation."""
    sums: Totals[Key] = Totals()
    _add_operations(sums, run)
    return statistics_rows(sums)


def memory_size_rows(run: Run) -> list[TableRow]:
    """Bytes of copies and memsets by operation; `total`, `average` … are bytes."""
    sums: Totals[Key] = Totals()
    for copies in run.memory_operations.values():
        sums.add((copies.operation, _OPERATION), copies.size)
    return statistics_rows(sums)


def gpu_rows(session: Session, run: Run, names: NameStyle = "full") -> list[TableRow]:
    """Kernels and memory operations in one table."""
    return statistics_rows(_gpu_sums(session, run, names))


def all_rows(session: Session, run: Run, names: NameStyle = "full") -> list[TableRow]:
    """CUDA calls, kernels and memory operations in one table."""
    sums = _gpu_sums(session, run, names)
    _add_calls(sums, run)
    return statistics_rows(sums)


_OPERATION = "MEMORY_OPER"


def _gpu_sums(session: Session, run: Run, names: NameStyle) -> Totals[Key]:
    sums: Totals[Key] = Totals()
    for kernels in run.kernels.values():
        sums.add((kernel_name(session, kernels.kernel, names), "CUDA_KERNEL"), kernels.time)
    _add_operations(sums, run)
    return sums


def _add_operations(sums: Totals[Key], run: Run) -> None:
    for copies in run.memory_operations.values():
        sums.add((copies.operation, _OPERATION), copies.time)


def _add_calls(sums: Totals[Key], run: Run) -> None:
    for calls in run.api.values():
        sums.add((calls.name, "CUDA_API"), calls.time)


def kernel_sums(run: Run) -> dict[int, tuple[int, int]]:
    """How often each kernel ran, and its ns, by its number."""
    sums: dict[int, tuple[int, int]] = {}
    for kernels in run.kernels.values():
        instances, total = sums.get(kernels.kernel, (0, 0))
        sums[kernels.kernel] = instances + kernels.time.count, total + kernels.time.total
    return sums


_BACKWARD = re.compile("backward|bwd|grad", re.IGNORECASE)


def _category_of_pass(name: str) -> str:
    """A kernel's category; a backward softmax apart, which reads twice what a forward one does."""
    kind = category(name)
    return f"{kind} (backward)" if kind == "softmax" and _BACKWARD.search(name) else kind


def category_rows(session: Session, run: Run) -> list[tuple[str, int, int, float]]:
    """Kernels by category: (category, kernels, total ns, percent), longest first."""
    sums: dict[str, list[int]] = {}
    for number, (instances, total) in kernel_sums(run).items():
        if instances:
            entry = sums.setdefault(_category_of_pass(kernel_name(session, number)), [0, 0])
            entry[0] += instances
            entry[1] += total
    whole = sum(total for _, total in sums.values())
    return sorted(
        (
            (name, instances, total, 100.0 * total / whole if whole else 0.0)
            for name, (instances, total) in sums.items()
        ),
        key=lambda entry: (-entry[2], entry[0]),
    )


def statistics_rows(sums: Totals[Key]) -> list[TableRow]:
    """A row for each key, longest total first; percent is of the total of all."""
    whole = sum(times.total for times in sums.values())
    rows = [
        TableRow(*key, times, 100.0 * times.total / whole if whole else 0.0)
        for key, times in sums.items()
        if times.count
    ]
    rows.sort(key=lambda row: (-row.times.total, row.name))
    return rows


def statistics_columns(counted: str) -> tuple[Column[TableRow], ...]:
    """The columns of a statistics table in nsys's order: Time (%), Total Time, the count, Avg …
    StdDev."""
    return (
        percent(
            "Time", "time_percent", lambda row: row.percent, "Of this table's total",
            decimals=1, priority=1, label="share", width=7,
        ),
        time("Total Time", "total_ns", lambda row: row.total, "All of them together",
             label="total", width=8),
        count(counted, counted.lower().replace(" ", "_"), lambda row: row.instances, "How many",
              priority=2, label="count", width=6),
        *(
            time(title, key, get, meaning, kind=kind, decimals=1 if kind is float else None,
                 priority=order, label=label, width=width)
            for title, key, get, meaning, kind, order, label, width in _SPREAD
        ),
        # A median and the longest do not say how long the slow ones are.
        time("P99", "p99_ns", lambda row: row.p99, "What 99 % are at most", kind=float, priority=4,
             label="p99", width=8, in_table=False),
        Column("Median Exact", None, "median_exact", lambda row: row.exact,
               meaning="Whether the median is exact, not within 1 %", kind=bool, in_table=False),
    )  # fmt: skip


_SPREAD: tuple[tuple[str, str, Callable[[TableRow], Cell], str, Any, int, str, int], ...] = (
    ("Avg", "avg_ns", lambda row: row.average, "Mean", float, 3, "average", 8),
    ("Med", "med_ns", lambda row: row.median, "Median", float, 4, "median", 8),
    ("Min", "min_ns", lambda row: row.minimum, "The shortest", int, 6, "shortest", 8),
    ("Max", "max_ns", lambda row: row.maximum, "The longest", int, 5, "longest", 8),
    ("StdDev", "stddev_ns", lambda row: row.deviation, "Sample standard deviation", float, 7,
     "deviation", 9),
)  # fmt: skip


def spread_columns(
    get: Callable[[R], Statistics],
    title: str,
    key: str,
    meaning: str,
    *,
    priority: int = 1,
) -> tuple[Column[R], ...]:
    """Mean, median, least, most and deviation of times; their names begin with `title` and `key`,
    and `meaning` says of what."""
    figures: tuple[tuple[str, str, str, Any, int], ...] = (
        ("Avg", "average", "mean", float, 1),
        ("Med", "median", "median", float, 0),
        ("Min", "minimum", "least", int, 1),
        ("Max", "maximum", "most", int, 0),
        ("StdDev", "deviation", "sample standard deviation", float, 1),
    )

    def cell(name: str) -> Callable[[R], Cell]:
        return lambda row: getattr(get(row), name)

    return tuple(
        time(
            f"{title}{name}",
            f"{key}_{name.lower()}_ns",
            cell(attribute),
            f"{meaning}: {what}",
            kind=kind | None,
            decimals=1 if kind is float else None,
            priority=priority + later,
        )
        for name, attribute, what, kind, later in figures
    )


def medians_note(exact: Iterable[bool]) -> str:
    """What to say beside medians that are not exact."""
    return "" if all(exact) else "medians within 1 %"


# How many took how long, in classes.


def classes_of(lengths: Accumulator, most: int) -> list[tuple[str, int]]:
    """Classes of lengths, the usual ones alike wide: what each is called, and how many it has."""
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
        class_at, begin = _equal_classes(first, last, min(most, len(usual)))
    else:
        class_at, begin = _of_buckets(first, last, most)
    counts = [0] * (class_at(last) + 1)
    for value, often in usual.items():
        counts[class_at(value)] += often
    shorter = sum(often for value, often in lengths.values.items() if value < first)
    longer = sum(often for value, often in lengths.values.items() if value > last)
    classes = [(duration(begin(number)), often) for number, often in enumerate(counts)]
    if shorter:
        classes.insert(0, (f"< {duration(first)}", shorter))
    if longer:
        # From the shortest of them on, which may be far from the others.
        least = min(value for value in lengths.values if value > last)
        longest = max(lengths.maximum or 0, least)
        ends = [duration(least), duration(longest)]
        classes.append((ends[0] if ends[0] == ends[1] else " to ".join(ends), longer))
    return classes


def _equal_classes(
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
