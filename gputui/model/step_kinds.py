"""How long it takes until steps are known, and how long a step is that is not as the others."""

from __future__ import annotations

HELD_NS = 10_000_000_000
"""How long launches wait until it is clear where steps begin."""

PAUSE = 10.0
PAUSE_NS = 100_000_000
"""A step this many times as long as the usual one, and this long, holds a pause."""

SLOW = 1.5
"""A step this many times as long as the usual one is slow."""
