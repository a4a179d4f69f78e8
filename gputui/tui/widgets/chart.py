"""Charts over time as rows: a scale that fits what is seen, axes, a fixed time per column."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import msgspec
from rich.cells import cell_len

from gputui.model.units import size
from gputui.state import Track
from gputui.tui.widgets.canvas import Row, Span, fit, joined, nice_top

# What the charts of a view show: how much time, and which moment.


WINDOWS_S = (30, 60, 300, 900, 3600, 3 * 3600, 12 * 3600, 24 * 3600)
"""How far back charts can reach."""

USUAL = 2

NOW = "now"
"""What the newest moment is called where the time goes on by itself."""


class Look(msgspec.Struct):
    """What all charts of a view show: how much time, and the moment being read, if any.

    `marks` are (when, name) of phases that began.
    """

    level: int = USUAL
    at_ns: int | None = None
    marks: tuple[tuple[int, str], ...] = ()
    own_scale: bool = False
    """Whether charts end at the next round figure above what is seen, not at all there is."""
    end: str = NOW
    """What the newest moment is called."""
    column_ns: int = 0
    """The time per column of the last charts drawn."""

    @property
    def window_ns(self) -> int:
        """How far back."""
        return WINDOWS_S[self.level] * 1_000_000_000

    def zoom(self, step: int) -> str:
        """A longer or a shorter time; returns it in words."""
        self.level = min(len(WINDOWS_S) - 1, max(0, self.level + step))
        seconds = WINDOWS_S[self.level]
        text = f"{seconds} s" if seconds < 60 else f"{seconds // 60} min"
        return text if seconds < 3600 else f"{seconds // 3600} h"

    def step(self, columns: int, last_ns: int) -> None:
        """Read the moment this many columns later; beyond the newest, the newest again."""
        at_ns = (last_ns if self.at_ns is None else self.at_ns) + columns * self.column_ns
        self.at_ns = at_ns if at_ns < last_ns else None


SECOND_NS = 1_000_000_000
_NICE_SECONDS = (0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 6, 10, 15, 20, 30, 60, 120, 300, 600, 1800, 3600)
_ZOOM_SECONDS = (
    *(0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.075, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6),
    *(0.75, 1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 75, 90),
    *(120, 150, 180, 240, 300, 360, 450, 600, 720, 900, 1200, 1800, 2700, 3600),
)
_LABEL_SECONDS = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 2 * 3600, 3 * 3600, 6 * 3600),
    12 * 3600,
)
_NARROWEST_MAXIMUM = 12
_LEAST_NAME = 4
"""Shorter phase names are useless."""
_BLOCKS = " ▁▂▃▄▅▆▇█"


def _column(needed_ns: float, seconds: Sequence[float]) -> int:
    """The shortest of some times, in ns, that is as long as is needed; the longest of all if none
    is."""
    return int(next((s for s in seconds if s * SECOND_NS >= needed_ns), seconds[-1]) * SECOND_NS)


class TimeAxis(msgspec.Struct, frozen=True):
    """The stretch of time of each column: the last one ends at `end_ns`.

    Columns begin at whole multiples of `column_ns`, so that a finished column keeps its value and
    its neighbours while the chart moves on.
    """

    end_ns: int
    column_ns: int
    interval_ns: int

    @classmethod
    def over(
        cls, first_ns: int, last_ns: int, columns: int, interval_ns: int, window_ns: int,
        *, moves: bool = True,
    ) -> TimeAxis:  # fmt: skip
        """The axis with the shortest columns that hold what is known, up to `window_ns`. Where it
        `moves` with the time none is shorter than a sample: each tick would move it by several."""
        needed = min(window_ns, max(last_ns - first_ns, 0)) / max(1, columns)
        column_ns = _column(needed, _NICE_SECONDS if moves else _ZOOM_SECONDS)
        column_ns = max(column_ns, interval_ns if moves else 1)
        # If a column gathers several samples, the unfinished one is left out: it would change, and
        # be sent to the terminal, at every tick.
        current = last_ns // column_ns
        whole = current if column_ns > interval_ns * 1.5 else current + 1
        return cls(int(whole * column_ns), column_ns, interval_ns)

    @classmethod
    def of_window(cls, last_ns: int, columns: int, interval_ns: int, window_ns: int) -> TimeAxis:
        """The axis that shows `window_ns`, however much of it is known, or little more."""
        column_ns = _column(window_ns / max(1, columns), _ZOOM_SECONDS)
        whole = last_ns // column_ns + (column_ns <= interval_ns * 1.5)
        return cls(int(whole * column_ns), column_ns, interval_ns)

    def start_ns(self, count: int) -> int:
        """Where the first of `count` columns begins."""
        return self.end_ns - count * self.column_ns

    def column_of(self, time_ns: int, count: int) -> int | None:
        """Which of `count` columns holds a moment; None for one before or after them."""
        column = (time_ns - self.start_ns(count)) // self.column_ns
        return int(column) if 0 <= column < count else None

    def columns(
        self, samples: Iterable[tuple[int, float | None]], count: int
    ) -> list[float | None]:
        """The mean of each column's samples, oldest column first. `samples` come newest first.

        A column between two samples takes the earlier one's value; one without any sample nearby is
        None.
        """
        totals = [0.0] * count
        counts = [0] * count
        start_ns = self.start_ns(count)
        for time_ns, value in samples:
            if time_ns < start_ns:
                break
            if time_ns < self.end_ns and value is not None:
                column = (time_ns - start_ns) // self.column_ns
                totals[column] += value
                counts[column] += 1
        result: list[float | None] = []
        reach = max(1, int(2.5 * self.interval_ns // self.column_ns))
        since = reach + 1
        for total, number in zip(totals, counts, strict=True):
            if number:
                result.append(total / number)
                since = 0
            else:
                since += 1
                result.append(result[-1] if since <= reach and result else None)
        return result

    def label_row(self, count: int, end: str = "now") -> str:
        """The axis itself: a line with "-2m" and its `end` where they belong."""
        return _label_row(self.column_ns, count, end)

    def axis_spans(
        self, count: int, marks: Sequence[tuple[int, str]], end: str = "now"
    ) -> list[Span]:
        """The axis with the starts of phases: a tick, and its name if there is room."""
        if not marks:
            return [(self.label_row(count, end), "dim")]
        line = list(self.label_row(count, end))
        roles = ["dim"] * count
        for time_ns, name in reversed(marks):
            column = self.column_of(time_ns, count)
            if column is None or line[column] != "─":
                continue
            line[column] = "┬"
            roles[column] = "head"
            free = next((n - 1 for n in range(column + 1, count) if line[n] != "─"), count)
            text = fit(name, min(cell_len(name), free - column - 1))
            # A phase is named on the axis only where its name can be read.
            if len(text) >= min(_LEAST_NAME, len(name)) and cell_len(text) == len(text):
                for place, character in enumerate(text, start=column + 1):
                    line[place], roles[place] = character, "head"
        return joined(zip(line, roles, strict=True))


@lru_cache(maxsize=64)
def _label_row(column_ns: int, count: int, end: str) -> str:
    line = ["─"] * count
    span_s = count * column_ns / SECOND_NS
    step_s = next((s for s in _LABEL_SECONDS if span_s / s <= count / 12), _LABEL_SECONDS[-1])
    limit = count - len(end) - 1
    ago = step_s
    while ago < span_s + step_s:
        column = count - round(ago * SECOND_NS / column_ns)
        label = _ago(ago, step_s)
        if column >= 0 and column + len(label) <= limit:
            line[column : column + len(label)] = label
        ago += step_s
    if count >= len(end):
        line[count - len(end) :] = end
    return "".join(line)


def _ago(seconds: int, step_s: int) -> str:
    """A label in the unit of the axis, the largest that its steps are whole in."""
    if step_s % 3600 == 0:
        return f"-{seconds // 3600}h"
    return f"-{seconds // 60}m" if step_s % 60 == 0 else f"-{seconds}s"


def block_rows(values: Sequence[float | None], maximum: float, height: int) -> Sequence[str]:
    """`values` as columns of eighth blocks, `height` rows high, top row first.

    A value above zero shows at least one eighth. None is blank.
    """
    return _block_rows(tuple(values), maximum, height)


@lru_cache(maxsize=64)
def _block_rows(values: tuple[float | None, ...], maximum: float, height: int) -> tuple[str, ...]:
    full = height * 8
    # Cells from a table of eighths, no tuple for each sample: an idle tick at 160×50 took 17 ms of
    # CPU, and 11 since.
    scale = full / maximum if maximum > 0 else 0.0
    eighths = [
        0 if value is None or not value > 0 or not scale
        else full if value >= maximum
        else round(value * scale) or 1
        for value in values
    ]  # fmt: skip
    rows = []
    for base in range(full - 8, -1, -8):
        cells = _cells(base, full)
        rows.append("".join([cells[level] for level in eighths]))
    return tuple(rows)


@lru_cache(maxsize=1024)
def _cells(base: int, full: int) -> str:
    """The block of a row that begins at `base` eighths, by how many there are in the column."""
    return "".join(_BLOCKS[min(8, max(0, level - base))] for level in range(full + 1))


_DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""The bits of a braille cell's dots, from below, in its left and in its right column."""


def has_braille() -> bool:
    """Whether the terminal's font has it: the console of Linux has 512 glyphs, none of them
    braille."""
    return os.environ.get("TERM") != "linux"


def braille_rows(values: Sequence[float | None], maximum: float, height: int) -> list[str]:
    """`values` as an area, two to a cell and four dots to a row, top row first. What is known has
    one dot at least; None is blank."""
    top = 4 * height - 1
    cells = [[0] * (len(values) // 2) for _ in range(height)]
    for column, value in enumerate(values):
        if value is None or not maximum > 0:
            continue
        for dot in range(min(top, max(0, int(value / maximum * (top + 1)))) + 1):
            cells[height - 1 - dot // 4][column // 2] |= _DOTS[column % 2][dot % 4]
    return ["".join(chr(0x2800 + bits) if bits else " " for bits in row) for row in cells]


class Chart(msgspec.Struct, frozen=True):
    """The content of one chart. `maximum` is None if the scale is unknown.

    `titles` are (name, newest value) pairs, the fullest first: the first that fits is shown.
    `reason` says why there is nothing to show; `format` formats the y axis.
    """

    titles: tuple[tuple[str, str], ...]
    role: str
    maximum: float | None
    format: Callable[[float], str]
    series: Track
    reason: str = ""
    value_role: str = "value"

    def top(self, values: Sequence[float | None], *, own_scale: bool) -> float:
        """Where the axis ends: at all there is, or with `own_scale` at the next round figure above
        what is seen; 0 if the scale is unknown."""
        if not self.maximum:
            return 0.0
        if not own_scale:
            return self.maximum
        seen = max((value for value in values if value is not None), default=0.0)
        if seen <= 0:
            return self.maximum
        unit = _binary_unit(seen) if self.format is size else 1.0
        top = nice_top(seen / unit)
        return min(self.maximum, unit * (1024.0 if top >= 1000 and unit > 1 else top))


def _binary_unit(count: float) -> float:
    return float(1024 ** max(0, int(math.log(max(count, 1), 1024))))


def label_width(charts: Iterable[Chart]) -> int:
    """Cells that the y axes of `charts` need, wherever they end, so that their plots line up."""
    needed = [
        cell_len("1000 GiB" if chart.format is size else chart.format(0.25))
        for chart in charts
        if chart.maximum
    ]
    return max([3, *needed])


def chart_rows(
    chart: Chart, axis: TimeAxis, width: int, height: int, labels: int, look: Look
) -> list[Row]:
    """A chart in exactly `width` × `height`: title and value, the plot, the time axis.

    `labels` is the width of the y axis's labels, from `label_width`. If `look` reads a moment, the
    title has the value of its column.
    """
    plot_height = height - 2
    count = max(1, width - labels - 1)
    shown = chart.maximum and not chart.reason
    columns = axis.columns(chart.series.samples(axis.column_ns), count) if shown else []
    at = axis.column_of(look.at_ns, count) if look.at_ns is not None and columns else None
    rows: list[Row] = [_title(chart, axis, columns, at, width, count)]
    if plot_height < 1:
        return rows[:height]
    maximum = chart.top(columns, own_scale=look.own_scale)
    enlarged = chart.maximum / maximum if chart.maximum and maximum else 1.0
    top = chart.format(maximum) if maximum else ""
    if chart.reason or not chart.maximum:
        text = f"n/a: {chart.reason}" if chart.reason else "n/a"
        blank = [((" " * labels + "│", "dim"),) for _ in range(plot_height)]
        rows += blank
        rows[1 + plot_height // 2] = ((" " * labels + "│", "dim"), (fit(f" {text}", count), "dim"))
    else:
        if has_braille():
            # Half columns of the same axis.
            half = TimeAxis(axis.end_ns, axis.column_ns // 2, axis.interval_ns)
            fine = half.columns(chart.series.samples(half.column_ns), 2 * count)
            lines: Sequence[str] = braille_rows(fine, maximum, plot_height)
        else:
            lines = block_rows(columns, maximum, plot_height)
        for y, text in enumerate(lines):
            label = fit(top, labels, right=True) + "┤" if y == 0 else " " * labels + "│"
            if y == 1 and enlarged >= 1.05:
                by = f"×{enlarged:.{int(enlarged < 10)}f}"
                label = fit(by, labels, right=True) + "│"
            plot: Row = ((text, chart.role),)
            if at is not None:
                under = text[at] if text[at] != " " else "│"
                plot = ((text[:at], chart.role), (under, "accent"), (text[at + 1 :], chart.role))
            rows.append(((label, "dim"), *plot))
    spans = axis.axis_spans(count, look.marks, look.end)
    rows.append(((fit("0", labels, right=True) + "└", "dim"), *spans))
    return rows


def _title(
    chart: Chart,
    axis: TimeAxis,
    columns: Sequence[float | None],
    at: int | None,
    width: int,
    count: int,
) -> Row:
    """The fullest title that fits, with the extremes of the displayed time if they fit too."""
    titles = chart.titles
    if at is not None:
        value = columns[at]
        titles = ((titles[0][0], "n/a" if value is None else chart.format(value)),)
    name, value_text = next(
        (pair for pair in titles if cell_len(pair[0]) + 2 + cell_len(pair[1]) <= width), titles[-1]
    )
    row: Row = ((f"{name}  ", "label"), (value_text, chart.value_role))
    left = width - cell_len(name) - cell_len(value_text) - 4
    if columns and left >= _NARROWEST_MAXIMUM:
        known = chart.series.extremes(axis.start_ns(count), axis.column_ns)
        if known is not None:
            low, mean, high = map(chart.format, known)
            texts = (f"min {low}  mean {mean}  max {high}", f"max {high}")
            fitting = [text for text in texts if cell_len(text) <= left]
            row = (*row, *[(f"  {text}", "dim") for text in fitting[:1]])
    return row


def spark(values: list[float | None], maximum: float) -> str:
    """One row of eighth blocks: a history in the width of its values."""
    return block_rows(values, maximum, 1)[0]
