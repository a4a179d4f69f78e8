"""How long a step is that is not as the others are."""

from __future__ import annotations

PAUSE = 10.0
PAUSE_NS = 100_000_000
"""A step this many times as long as the usual one, and this long, holds a pause."""

SLOW = 1.5
"""A step this many times as long as the usual one is slow."""
