"""What a run would need, in a line of its form."""

from __future__ import annotations

from typing import NamedTuple

from gputui.collect.forecast import Forecast
from gputui.model import units
from gputui.tui.widgets.canvas import Row, fit


class Target(NamedTuple):
    """The GPU that a run would use, and what is free of its memory."""

    name: str
    memory_bytes: int | None
    free_bytes: int | None


def needs_row(found: Forecast, target: Target | None, width: int) -> Row:
    """The least memory and time of a run, in a line, and where the memory does not fit."""
    memory, time = units.size(found.memory_bytes), "no estimate"
    role = "dim"
    if found.memory_bytes is not None:
        memory = f"≥ {memory}"
        if target is not None and target.memory_bytes is not None:
            memory += f" of {units.size(target.memory_bytes)}"
            free = target.free_bytes
            if found.memory_bytes > target.memory_bytes:
                memory, role = f"{memory}: does not fit", "warn"
            elif free is not None and found.memory_bytes > free:
                memory, role = f"{memory}, {units.size(free)} free: does not fit now", "warn"
    if found.seconds is not None:
        time = f"≥ {units.duration(found.seconds * 1e9)} at the GPU's peak rates"
    return ((fit(f"memory {memory}   time {time}", width), role),)
