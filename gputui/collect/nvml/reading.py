"""One reading of a GPU: values, and the reason for each that is missing.

For `device` (each tick) and `status` (every few seconds). Here, too, is what turns the driver's
numbers into figures: counters into rates, and bits of throttling into words.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from gputui.collect.nvml.bindings import DriverLibrary, GpuProcess, ProcessUse
from gputui.collect.nvml.driver_calls import GPU_IS_LOST, NOT_SUPPORTED, DriverError, Handle
from gputui.model.events import GpuSample, GpuStatus

# Rates from monotonic counters.


class CounterRate:
    """Units per second between two readings of one counter."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None

    def update(self, value: int, now_ns: int | None = None) -> float | None:
        """The rate since the previous reading; None for the first, and if the counter went back (it
        wrapped or was reset, so the difference is unknown).
        """
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        before, self._last = self._last, (value, now_ns)
        if before is None or value < before[0] or now_ns <= before[1]:
            return None
        return (value - before[0]) * 1e9 / (now_ns - before[1])


# One reading of a GPU: values, and the reason for each that is missing.

T = TypeVar("T")

DEVICE = "device"
"""The key of a reason that holds for the whole card."""

SAMPLE_FIELDS = tuple(
    name for name in GpuSample.__struct_fields__ if name not in ("index", "mig_instances")
)

STATUS_FIELDS = tuple(
    name for name in GpuStatus.__struct_fields__ if name not in ("time_ns", "gpu")
)


def calls_named(fields: Iterable[str]) -> tuple[str, ...]:
    """The fields that a call of the library is named after: it reads them and nothing else."""
    return tuple(field for field in fields if hasattr(DriverLibrary, field))


_TOO_MUCH = 1 << 63
"""Some drivers return 64 one bits for "unknown"; no event can hold that."""


class DeviceReading(msgspec.Struct, frozen=True):
    """One GPU at one tick. `processes` is None if they could not be listed, or were not requested.
    `process_use` has every process that was present when it was measured.

    `reasons` says why fields are None, `process_reasons` the same for the processes' fields.
    """

    sample: GpuSample
    reasons: dict[str, str]
    processes: tuple[GpuProcess, ...] | None = None
    process_use: dict[int, ProcessUse] | None = None
    process_reasons: dict[str, str] = msgspec.field(default_factory=dict)

    @classmethod
    def without(cls, index: int, reason: str, more: dict[str, str] | None = None) -> DeviceReading:
        """A card without any value, for one reason."""
        reasons = (more or {}) | dict.fromkeys((DEVICE, *SAMPLE_FIELDS), reason)
        return cls(GpuSample(index=index), reasons, process_reasons={"processes": reason})


class Fields:
    """Reads fields one by one and keeps the reason of each that failed."""

    def __init__(self, mig: bool | None = None) -> None:
        self.reasons: dict[str, str] = {}
        self._mig = mig

    def read(
        self, name: str, call: Callable[[Handle], T | DriverError], handle: Handle
    ) -> T | None:
        """The field's value or None. Raises `DriverError` only if the GPU is lost."""
        try:
            value = call(handle)
        except DriverError as error:
            value = error
        return self.keep(name, value)

    def keep(self, name: str, value: T | DriverError) -> T | None:
        """The value, or None if it is an error, whose reason is kept.

        Raises the error if the GPU is lost.
        """
        if isinstance(value, int) and value >= _TOO_MUCH:
            value = DriverError(999, "the driver's answer makes no sense")
        if not isinstance(value, DriverError):
            return value
        if value.code == GPU_IS_LOST:
            raise value
        self.reasons[name] = self.reason(value)
        return None

    def reason(self, error: DriverError) -> str:
        """The error in words, naming MIG if that is the cause."""
        on_mig = self._mig and error.code == NOT_SUPPORTED
        return "not supported while MIG is on" if on_mig else error.reason
