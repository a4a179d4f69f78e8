"""Data of charts: a value over time, from every sample or from a day's averages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gputui.state.history import History
from gputui.state.long_history import LongHistory, Stretches

WINDOWS_S = (30, 60, 300, 900, 3600, 3 * 3600, 12 * 3600, 24 * 3600)
"""How far back charts can reach."""

USUAL = 2


class Series(msgspec.Struct, frozen=True):
    """One field of samples over time. `recent` has (time, sample) pairs, oldest first."""

    recent: History[tuple[int, Any]]
    long: LongHistory
    field: str

    def samples(self, column_ns: int) -> Iterator[tuple[int, float | None]]:
        """(time, value) newest first: every sample, then means of older ones.

        If columns are as long as an averaged stretch, the means suffice, and far fewer values are
        read.
        """
        until_ns, levels = self._parts(column_ns)
        oldest_ns, field = self.last_ns + 1, self.field
        for time_ns, sample in reversed(self.recent):
            if time_ns < until_ns:
                break
            oldest_ns = time_ns
            yield time_ns, getattr(sample, field)
        for level in levels:
            before_ns = oldest_ns
            for time_ns, value in level.means(self.field):
                if time_ns < before_ns:
                    oldest_ns = time_ns
                    yield time_ns, value

    def extremes(self, start_ns: int, column_ns: int) -> tuple[float, float, float] | None:
        """(least, mean, most) since `start_ns`; None if nothing is known."""
        until_ns, levels = self._parts(column_ns)
        oldest_ns, field = self.last_ns, self.field
        since_ns = max(start_ns, until_ns)
        values: list[float] = []
        for time_ns, sample in reversed(self.recent):
            if time_ns < since_ns:
                break
            oldest_ns = time_ns
            value = getattr(sample, field)
            if value is not None:
                values.append(value)
        known: list[tuple[float, float, float, float]] = []
        if values:
            known = [(min(values), sum(values) / len(values), max(values), float(len(values)))]
        for level in levels:
            for begun_ns, *figures in level.figures(field, start_ns, oldest_ns):
                oldest_ns = begun_ns
                known.append((figures[0], figures[1], figures[2], figures[3]))
        if not known:
            return None
        total = sum(mean * count for _, mean, _, count in known)
        mean = total / sum(count for _, _, _, count in known)
        return min(low for low, _, _, _ in known), mean, max(high for _, _, high, _ in known)

    def _parts(self, column_ns: int) -> tuple[int, Sequence[Stretches]]:
        """Since when every sample is read, and what is read of the time before."""
        levels = self.long.levels
        first = sum(level.stretch_ns <= column_ns for level in levels)
        if not first:
            return 0, levels
        return levels[first - 1].end_ns, levels[first - 1 :]

    @property
    def first_ns(self) -> int:
        """When the oldest sample still kept individually was taken."""
        return self.recent.oldest[0] if self.recent.oldest else 0

    @property
    def last_ns(self) -> int:
        """When the newest sample was taken."""
        return self.recent.newest[0] if self.recent.newest else 0


class Look(msgspec.Struct):
    """What all charts of a view show: how much time, and the moment being read, if any.

    `marks` are (when, name) of phases that began.
    """

    level: int = USUAL
    at_ns: int | None = None
    marks: tuple[tuple[int, str], ...] = ()
    end: str = "now"
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
