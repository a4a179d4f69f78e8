"""GPM: the hardware counters of Hopper and later GPUs, read without root and without a daemon.

A figure is the share of cycles between two samples, so the first reading has none. Samples
closer than 100 ms give zeros and NaN on Hopper (NVIDIA's stated floor, also measured), so a
faster caller gets the last figures again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from gputui.sources.library import INVALID_ARGUMENT, DriverError, GpmSample, Handle, Library

MINIMUM_WINDOW_NS = 100_000_000
_JITTER_NS = 15_000_000
"""A tick this much too early is waited out: at 100 ms a tick, every second one comes early."""

_MIB = 1024 * 1024

_METRICS: dict[str, tuple[int, float]] = {
    "sm_active_percent": (2, 1),
    "sm_occupancy_percent": (3, 1),
    "tensor_active_percent": (5, 1),
    "memory_bandwidth_percent": (10, 1),
    "pcie_tx_bytes_per_s": (20, _MIB),
    "pcie_rx_bytes_per_s": (21, _MIB),
    "nvlink_rx_bytes_per_s": (60, _MIB),
    "nvlink_tx_bytes_per_s": (61, _MIB),
}
"""Field → NVML's metric id (nvml.h, nvmlGpmMetricId_t) and factor to the field's unit."""

FIELDS = tuple(_METRICS)

_CORE = tuple(_METRICS[name][0] for name in FIELDS[:4])
"""The ids every driver with GPM knows: one unknown id makes it refuse the whole query."""


@dataclass(frozen=True, slots=True)
class GpmReading:
    """Figures by field name, and the reason for each field that has none."""

    values: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @classmethod
    def without(cls, reason: str) -> GpmReading:
        return cls({}, dict.fromkeys(FIELDS, reason))


class GpmReader:
    """Reads one GPU. Not to be shared between threads. Close it to free its two samples."""

    def __init__(self, library: Library, handle: Handle) -> None:
        """Raises `DriverError` when the driver cannot say whether the GPU has GPM."""
        self._library = library
        self._handle = handle
        self.supported = library.gpm_supported(handle)
        self._samples: list[GpmSample] = []
        self._sampled_ns: int | None = None
        self._last = GpmReading.without("measured from the second reading on")
        if self.supported:
            self._request = library.gpm_request([metric for metric, _ in _METRICS.values()])

    def read(self) -> GpmReading:
        """The figures since the sample before. May wait some milliseconds, for a whole window.

        Raises `DriverError`; the next call then starts anew.
        """
        if not self.supported:
            return GpmReading.without("needs the counters (GPM) of a Hopper or later GPU")
        if self._sampled_ns is not None:
            early_ns = MINIMUM_WINDOW_NS - (time.monotonic_ns() - self._sampled_ns)
            if early_ns > _JITTER_NS:
                return self._last
            time.sleep(max(0, early_ns) / 1e9)
        try:
            self._last = self._sample()
        except DriverError as error:
            self._sampled_ns = None
            self._last = GpmReading.without(error.reason)
            raise
        return self._last

    def close(self) -> None:
        """Frees the samples. Raises `DriverError` when the driver will not."""
        while self._samples:
            self._library.gpm_free(self._samples.pop())

    def _sample(self) -> GpmReading:
        while len(self._samples) < 2:
            self._samples.append(self._library.gpm_allocate())
        older, newer = self._samples
        if self._sampled_ns is None:
            self._library.gpm_sample(self._handle, older)
            self._sampled_ns = time.monotonic_ns()
            return GpmReading.without("measured from the second reading on")
        self._library.gpm_sample(self._handle, newer)
        self._samples, self._sampled_ns = [newer, older], time.monotonic_ns()
        answers = self._metrics(older, newer)
        reading = GpmReading()
        for name, (metric, factor) in _METRICS.items():
            answer = answers.get(metric, "unknown to this driver: a newer one is needed")
            if isinstance(answer, str):
                reading.reasons[name] = answer
            else:
                reading.values[name] = answer * factor
        return reading

    def _metrics(self, older: GpmSample, newer: GpmSample) -> dict[int, float | str]:
        try:
            return self._library.gpm_metrics(self._request, older, newer)
        except DriverError as error:
            if error.code != INVALID_ARGUMENT or self._request.identifiers == _CORE:
                raise
        core = self._library.gpm_request(_CORE)
        answers = self._library.gpm_metrics(core, older, newer)
        self._request = core
        return answers
