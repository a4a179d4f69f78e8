"""Numbers with their units as text, and energy with its price: in one place, so that a figure reads
the same in tables, reports and on the screen."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, TypeGuard

MISSING = "n/a"

_DURATIONS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("", "k", "M", "G", "T", "P")


def _is_figure(value: float | None) -> TypeGuard[float]:
    """Whether there is something to show: damaged recordings add up to infinity."""
    return value is not None and math.isfinite(value)


def _three_digits(value: float) -> str:
    """Three significant digits below a thousand: 1.23, 12.3, 123."""
    magnitude = abs(value)
    if magnitude < 9.995:
        return f"{value:.2f}"
    if magnitude < 99.95:
        return f"{value:.1f}"
    return f"{value:.0f}"


def duration(ns: float | None) -> str:
    """Nanoseconds as "950 ns", "12.3 µs", "1.23 ms", "45.6 s", "2m05s" or "3h07m"."""
    if not _is_figure(ns):
        return MISSING
    sign, magnitude = "-" if ns < 0 else "", abs(ns)
    if magnitude >= 3599.5e9:  # a whole hour after rounding to seconds
        minutes = round(magnitude / 60e9)
        return f"{sign}{minutes // 60}h{minutes % 60:02d}m"
    if magnitude >= 99.95e9:
        # Rounded before it is divided: 3,599.6 s would be 60m00s.
        seconds = round(magnitude / 1e9)
        return f"{sign}{seconds // 60}m{seconds % 60:02d}s"
    for unit_ns, name in _DURATIONS:
        if abs(ns) >= unit_ns * 0.9995:
            return f"{_three_digits(ns / unit_ns)} {name}"
    return f"{ns:.0f} ns"


def size(count: float | None) -> str:
    """Bytes in binary units: "512 B", "1.20 GiB"."""
    if not _is_figure(count):
        return MISSING
    value = float(count)
    for unit in _BINARY[:-1]:
        if abs(value) < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" else f"{_three_digits(value)} {unit}"
        value /= 1024
    return f"{_three_digits(value)} {_BINARY[-1]}"


def quantity(value: float | None, unit: str = "") -> str:
    """A count or a rate in decimal steps: "950", "12.3 k", "1.20 M tok/s"."""
    if not _is_figure(value):
        return MISSING
    number = float(value)
    for prefix in _DECIMAL[:-1]:
        if abs(number) < 999.5:
            digits = (
                f"{number:.0f}"
                if not prefix and float(value).is_integer()
                else _three_digits(number)
            )
            return f"{digits} {prefix}{unit}".rstrip()
        number /= 1000
    return f"{_three_digits(number)} {_DECIMAL[-1]}{unit}"


def joules(value: float | None) -> str:
    """Energy, to three digits however small: a token takes millijoules."""
    if value is not None and 0 < abs(value) < 0.0995:
        return f"{_three_digits(1e3 * value)} mJ"
    return quantity(value, "J")


def count(value: int | None) -> str:
    """A count: "950", "12.3 k"."""
    return quantity(value)


def rate(bytes_per_s: float | None) -> str:
    """A data rate in decimal units, as bandwidth is quoted: "3.21 TB/s"."""
    return quantity(bytes_per_s, "B/s")


def percent(value: float | None) -> str:
    """A share: "97 %", "3.4 %", "0.12 %"; "<0.01 %" for a tiny nonzero one."""
    if not _is_figure(value):
        return MISSING
    if value == 0:
        return "0 %"
    if abs(value) < 0.01:
        return "<0.01 %"
    if abs(value) < 0.995:
        return f"{value:.2f} %"
    if abs(value) < 9.95:
        return f"{value:.1f} %"
    return f"{value:.0f} %"


def whole_percent(value: float | None) -> str:
    """A share that changes all the time without meaning anything by it: "97 %", "<1 %"."""
    if not _is_figure(value):
        return MISSING
    return "<1 %" if 0 < value < 1 else f"{value:.0f} %"


def parameter(value: str | int | float | bool | None) -> str:
    """A parameter's value as it is typed: "true", not "True"."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def watt_hours(joules: float | None) -> str:
    """Energy in the unit that people pay it by: "312 Wh", "1.20 kWh"."""
    return quantity(None if joules is None else joules / 3600, "Wh")


def watts(value: float | None) -> str:
    """A power in whole watts, as "312 W"."""
    return MISSING if value is None else f"{value:.0f} W"


def celsius(value: float | None) -> str:
    """A temperature in whole degrees, as "45 °C"."""
    return MISSING if value is None else f"{value:.0f} °C"


def times_by_reason(seconds: Mapping[str, float] | None) -> str:
    """How long each reason has held, the longest first: "power cap 12.3 s"."""
    if seconds is None:
        return MISSING
    held = sorted(((s, reason) for reason, s in seconds.items() if s > 0), reverse=True)
    return ", ".join(f"{reason} {duration(s * 1e9)}" for s, reason in held) or "never"


def moment(time_ns: int) -> str:
    """A moment as ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat(timespec="milliseconds")


# What energy costs: set once, from the command line or its settings.

# 1000 W for 3600 s.
_JOULES_PER_KWH = 3.6e6


class Price(NamedTuple):
    """The price of a kilowatt-hour, or of an hour of a GPU."""

    amount: float
    currency: str = ""


_configured: list[Price] = []


def configure_price(price: Price | None) -> None:
    """Sets the price of energy, so that tables show its cost from here on; None: they do not."""
    _configured[:] = [] if price is None else [price]


_gpu_hour: list[Price] = []


def configure_gpu_price(price: Price | None) -> None:
    """Sets the price of a GPU's hour, so that tables show the cost of tokens from here on; None:
    they do not."""
    _gpu_hour[:] = [] if price is None else [price]


def gpu_cost(gpu_seconds: float | None) -> float | None:
    """The price of GPUs' time, in the currency given for it; None where no price is configured."""
    if gpu_seconds is None or not _gpu_hour:
        return None
    return gpu_seconds / 3600 * _gpu_hour[0].amount


def gpu_cost_text(amount: float | None) -> str:
    """Such a price in words, to three digits however small."""
    if amount is None or not _gpu_hour:
        return MISSING
    return f"{amount:,.3g} {_gpu_hour[0].currency}".rstrip()


def cost(joules: float | None) -> float | None:
    """The price of an energy; None where no price is configured."""
    if joules is None or not _configured:
        return None
    return joules / _JOULES_PER_KWH * _configured[0].amount


def cost_text(amount: float | None) -> str:
    """A price in words, to three digits however small: "0.0123 EUR"."""
    if amount is None or not _configured:
        return MISSING
    return f"{amount:,.3g} {_configured[0].currency}".rstrip()


# Times in a recording: how they are displayed, and what a person may type.


_CLOCK = re.compile(r"(?:(\d{1,6}):)?(\d{1,6}):(\d{1,6}(?:\.\d+)?)")
_UNITS = re.compile(r"(?=\d)(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9}(?:\.\d+)?)s?)?")
_SHARE = re.compile(r"(\d{1,3}(?:\.\d+)?)\s*%")


def clock_text(seconds: float) -> str:
    """ "1:05.2", or "2:01:05" from an hour on."""
    minutes, tenths = divmod(int(max(0.0, seconds) * 10), 600)
    hours, minutes = divmod(minutes, 60)
    rest = f"{minutes:02d}:{tenths // 10:02d}" if hours else f"{minutes}:{tenths / 10:04.1f}"
    return f"{hours}:{rest}" if hours else rest


def parse_moment(text: str, position_s: float, length_s: float) -> float:
    """Seconds from the beginning: "90", "1:30", "1m30s", "50%", or "+10" and "-1m" from here.

    A time before the beginning is the beginning. Raises ValueError, one line.
    """
    words = text.strip()
    sign = words[:1] if words[:1] in ("+", "-") else ""
    words = words.removeprefix(sign).strip()
    if share := _SHARE.fullmatch(words):
        seconds = length_s * float(share[1]) / 100
    elif match := _CLOCK.fullmatch(words):
        seconds = int(match[1] or 0) * 3600 + int(match[2]) * 60 + float(match[3])
    elif (match := _UNITS.fullmatch(words)) and words:
        seconds = int(match[1] or 0) * 3600 + int(match[2] or 0) * 60 + float(match[3] or 0)
    else:
        raise ValueError("give a time like 90, 1:30, 1m30s, 50% or +10")
    if sign:
        seconds = position_s + (seconds if sign == "+" else -seconds)
    return max(0.0, seconds)


def percent_range(values: Sequence[float]) -> str:
    """The least and the most of some percentages, once where they read alike."""
    if not values:
        return MISSING
    least, most = percent(min(values)), percent(max(values))
    return least if least == most else f"{least} to {most}"
