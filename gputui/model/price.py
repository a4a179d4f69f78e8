"""What energy costs: set once, from the command line or its settings."""

from __future__ import annotations

from typing import NamedTuple

from gputui.model import units

_JOULES_PER_KWH = 3.6e6


class Price(NamedTuple):
    """The price of a kilowatt-hour."""

    per_kwh: float
    currency: str = ""


_configured: list[Price] = []


def configure(price: Price | None) -> None:
    """From here on, tables show what energy costs; None: they do not."""
    _configured[:] = [] if price is None else [price]


def cost(joules: float | None) -> float | None:
    """The price of an energy; None where no price is configured."""
    if joules is None or not _configured:
        return None
    return joules / _JOULES_PER_KWH * _configured[0].per_kwh


def cost_text(amount: float | None) -> str:
    """A price in words, to three digits however small: "0.0123 EUR"."""
    if amount is None or not _configured:
        return units.MISSING
    return f"{amount:,.3g} {_configured[0].currency}".rstrip()
