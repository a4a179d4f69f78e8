"""What a rule finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Insight:
    """One verdict. `value` and `threshold` share a unit, which the verdict names. `headline` is the
    verdict in half a line, for a screen that shows other things too.
    """

    rule: str
    value: float
    threshold: float
    source: str
    headline: str
    verdict: str
    advice: str
