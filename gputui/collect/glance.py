"""What the driver says of each GPU in a few quick calls: the first frame's figures.

Nothing here imports msgspec, which takes as long as all of this.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from gputui.collect.nvml.bindings import Library, Memory
from gputui.collect.nvml.driver_calls import DriverError, Handle
from gputui.collect.nvml.opening import open_library

T = TypeVar("T")


class Glance(NamedTuple):
    """One GPU; None is what the driver does not say."""

    gpu: int
    name: str
    utilization_percent: float | None
    memory: Memory | None
    power_watts: float | None
    power_limit_watts: float | None
    temperature_celsius: float | None
    sm_clock_mhz: int | None


def glance(only: Sequence[int] | None) -> tuple[list[Glance], str | None]:
    """The GPUs that a session shows, and why there is none. The driver stays initialized, so that
    the session need not wait for it."""
    try:
        opened = open_library(only, os.environ.get("CUDA_VISIBLE_DEVICES"))
        found = [_read(opened.library, index) for index in opened.chosen.indexes]
    except DriverError as error:
        return [], error.reason
    return found, opened.chosen.reason


def _read(library: Library, index: int) -> Glance:
    handle = library.handle(index)

    def read(call: Callable[[Handle], T]) -> T | None:
        try:
            return call(handle)
        except DriverError:
            return None

    return Glance(
        index,
        read(library.name) or f"GPU {index}",
        read(library.utilization_percent),
        read(library.memory),
        read(library.power_watts),
        read(library.power_limit_watts),
        read(library.temperature_celsius),
        read(library.sm_clock_mhz),
    )
