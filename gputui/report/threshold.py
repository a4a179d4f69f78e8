"""One condition as it is typed, for `--fail-if` and for `--alert`."""

from __future__ import annotations

import re
from typing import Self

import msgspec

from gputui.base.errors import WRONG_USAGE, GputuiError

_THRESHOLD = re.compile(
    r"(?P<what>.+?)\s*(?P<operator>[<>])\s*(?P<sign>[+-]?)(?P<number>\d+(?:\.\d+)?)"
    r"\s?(?P<unit>%|[kKMGT]i?B|)(?:\s+for\s+(?P<time>\d{1,6}(?:\.\d{1,6})?)\s?(?P<scale>ms|s|m|h))?"
)
_SCALES = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
LONGEST = 1000

ANY_GPU = "gpu"
"""Stands for every GPU, where gpu0 is one."""


class ThresholdError(GputuiError):
    """A condition that cannot be parsed, or names something that does not exist. One line, which
    begins with where it was typed."""

    exit_status = WRONG_USAGE


class Threshold(msgspec.Struct, frozen=True):
    """A parsed condition. `relative` compares with a baseline, otherwise with a number; `for_ns` is
    how long it must hold, None where nothing was typed."""

    text: str
    where: str
    """Where it was typed: a flag, a file."""
    what: str
    above: bool
    limit: float
    relative: bool
    percent: bool
    for_ns: int | None

    @classmethod
    def parse(cls, text: str, where: str = "--fail-if") -> Self:
        """Raises ThresholdError."""
        match = _THRESHOLD.fullmatch(text.strip()) if len(text) <= LONGEST else None
        if match is None:
            raise ThresholdError(
                f"{where} {text[:80]!r} is not a condition; write for example "
                "'decode.gpu_busy_ns>+5%', 'tokens_per_s<-3%' or "
                "'gpu.temperature_celsius > 85 for 30s'"
            )
        unit, scale = match["unit"], match["scale"]
        factor = 1024.0 ** " KMGT".index(unit[0].upper()) if unit and unit != "%" else 1.0
        limit = float(f"{match['sign']}{match['number']}") * factor
        return cls(
            text=text.strip(),
            where=where,
            what=match["what"],
            above=match["operator"] == ">",
            limit=limit,
            relative=bool(match["sign"]),
            percent=unit == "%",
            for_ns=round(float(match["time"]) * _SCALES[scale]) if scale else None,
        )

    def meets(self, amount: float) -> bool:
        """Whether an amount is beyond the limit."""
        return amount > self.limit if self.above else amount < self.limit

    def error(self, reason: str) -> ThresholdError:
        """Why it makes no sense."""
        return ThresholdError(f"{self.where} {self.text!r}: {reason}")
