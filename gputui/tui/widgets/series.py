"""What the charts of a view show: how much time, and which moment."""

from __future__ import annotations

import msgspec

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
