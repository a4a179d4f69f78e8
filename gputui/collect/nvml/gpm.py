"""GPM: the hardware counters of Hopper and later GPUs, read without root and without a daemon.

A metric is the share of cycles between two samples, so the first reading has none. Samples closer
than 100 ms give zeros and NaN on Hopper (NVIDIA's documented minimum, also measured), so a faster
caller gets the previous values again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import msgspec

from gputui.collect.nvml.bindings import DriverLibrary, GpmSample
from gputui.collect.nvml.driver_calls import INVALID_ARGUMENT, DriverError, Handle

MINIMUM_WINDOW_NS = 100_000_000
_JITTER_NS = 15_000_000
"""A tick that comes this much too early waits: at 100 ms per tick, every second one is early."""

_MIB = 1024 * 1024

METRICS: dict[str, tuple[int, float]] = {
    "sm_active_percent": (2, 1),
    "sm_occupancy_percent": (3, 1),
    "tensor_active_percent": (5, 1),
    "memory_bandwidth_percent": (10, 1),
    "integer_active_percent": (4, 1),
    "fp64_active_percent": (11, 1),
    "fp32_active_percent": (12, 1),
    "fp16_active_percent": (13, 1),
    "pcie_tx_bytes_per_s": (20, _MIB),
    "pcie_rx_bytes_per_s": (21, _MIB),
    "nvlink_rx_bytes_per_s": (60, _MIB),
    "nvlink_tx_bytes_per_s": (61, _MIB),
}
"""Field → NVML's metric id (nvml.h, nvmlGpmMetricId_t) and factor to the field's unit.

Id 1 (graphics activity) is left out: it takes 1.9 ms per call, all these together 0.06.
"""

FIELDS = tuple(METRICS)
INSTANCE_FIELDS = FIELDS[:4]
"""The metrics of a MIG instance."""

_LAST_CORE_METRIC = 13
"""Every driver with GPM knows the ids up to here; an unknown id makes it refuse the whole query."""

SUPPORT_NEEDED = "needs the counters (GPM) of a Hopper or later GPU"


class GpmReading(msgspec.Struct, frozen=True):
    """Values by field name, and the reason for each field that has none."""

    values: dict[str, float] = msgspec.field(default_factory=dict)
    reasons: dict[str, str] = msgspec.field(default_factory=dict)

    @classmethod
    def without(cls, reason: str, fields: Sequence[str] = FIELDS) -> GpmReading:
        return cls({}, dict.fromkeys(fields, reason))


class GpmReader:
    """Reads one GPU, or the `INSTANCE_FIELDS` of one MIG instance.

    Not to be shared between threads. Close it to free its two samples.
    """

    def __init__(
        self, library: DriverLibrary, handle: Handle, gpu_instance_id: int | None = None
    ) -> None:
        """Raises `DriverError` if the driver cannot say whether the GPU has GPM."""
        self._library = library
        self._handle = handle
        self._instance = gpu_instance_id
        self.fields = FIELDS if gpu_instance_id is None else INSTANCE_FIELDS
        self.supported = library.gpm_supported(handle)
        self._samples: list[GpmSample] = []
        self._sampled_ns: int | None = None
        self._last = self._without("measured from the second reading on")
        if self.supported:
            self._request = library.gpm_request([METRICS[name][0] for name in self.fields])

    def warm(self) -> None:
        """Make the driver initialize its computing state while no other thread uses it.

        Driver 580.159.04 does so at the first query, and crashed one in four programs in which
        other threads were calling it meanwhile (two H200); later queries never crashed.
        """
        if not self.supported:
            return
        with contextlib.suppress(DriverError):
            older, newer = self._allocate()
            self._library.gpm_sample(self._handle, older, self._instance)
            self._library.gpm_sample(self._handle, newer, self._instance)
            self._library.gpm_metrics(self._request, older, newer)

    def read(self) -> GpmReading:
        """The values since the previous sample. May wait some milliseconds to fill the window.

        Raises `DriverError`; the next call then starts over.
        """
        if not self.supported:
            return self._without(SUPPORT_NEEDED)
        if self._sampled_ns is not None:
            early_ns = MINIMUM_WINDOW_NS - (time.monotonic_ns() - self._sampled_ns)
            if early_ns > _JITTER_NS:
                return self._last
            time.sleep(max(0, early_ns) / 1e9)
        try:
            self._last = self._sample()
        except DriverError as error:
            self._sampled_ns = None
            self._last = self._without(error.reason)
            raise
        return self._last

    def close(self) -> None:
        """Free the samples. Raises `DriverError` if the driver refuses."""
        while self._samples:
            self._library.gpm_free(self._samples.pop())

    def _without(self, reason: str) -> GpmReading:
        return GpmReading.without(reason, self.fields)

    def _sample(self) -> GpmReading:
        older, newer = self._allocate()
        if self._sampled_ns is None:
            self._library.gpm_sample(self._handle, older, self._instance)
            self._sampled_ns = time.monotonic_ns()
            return self._without("measured from the second reading on")
        self._library.gpm_sample(self._handle, newer, self._instance)
        self._samples, self._sampled_ns = [newer, older], time.monotonic_ns()
        answers = self._metrics(older, newer)
        reading = GpmReading()
        for name in self.fields:
            metric, factor = METRICS[name]
            answer = answers.get(metric, "unknown to this driver: a newer one is needed")
            if isinstance(answer, str):
                reading.reasons[name] = answer
            else:
                # Cycles and time are counted separately, so a share may exceed 100 %.
                share = name.endswith("_percent")
                reading.values[name] = min(answer, 100.0) if share else answer * factor
        return reading

    def _allocate(self) -> tuple[GpmSample, GpmSample]:
        while len(self._samples) < 2:
            self._samples.append(self._library.gpm_allocate())
        older, newer = self._samples
        return older, newer

    def _metrics(self, older: GpmSample, newer: GpmSample) -> dict[int, float | str]:
        try:
            return self._library.gpm_metrics(self._request, older, newer)
        except DriverError as error:
            core = [i for i in self._request.identifiers if i <= _LAST_CORE_METRIC]
            if error.code != INVALID_ARGUMENT or len(core) == len(self._request.identifiers):
                raise
        request = self._library.gpm_request(core)
        answers = self._library.gpm_metrics(request, older, newer)
        self._request = request
        return answers
