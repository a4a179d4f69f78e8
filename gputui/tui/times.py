"""Times in a recording: how they are displayed, and what a person may type."""

from __future__ import annotations

import re

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
    elif parts := _CLOCK.fullmatch(words):
        seconds = int(parts[1] or 0) * 3600 + int(parts[2]) * 60 + float(parts[3])
    elif (parts := _UNITS.fullmatch(words)) and words:
        seconds = int(parts[1] or 0) * 3600 + int(parts[2] or 0) * 60 + float(parts[3] or 0)
    else:
        raise ValueError("give a time like 90, 1:30, 1m30s, 50% or +10")
    if sign:
        seconds = position_s + (seconds if sign == "+" else -seconds)
    return max(0.0, seconds)
