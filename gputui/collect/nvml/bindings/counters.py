"""GPM: hardware counters, Hopper and later."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, NewType

from gputui.collect.nvml.bindings.calls import Calls, DriverError, Handle

GpmSample = NewType("GpmSample", object)

_METRICS_LOCK = threading.Lock()
_LOCK_TIMEOUT_S = 0.3
"""Shorter than a tick waits for a GPU."""


class GpmRequest:
    """The buffer of a GPM query and its answer; made once, reused each time."""

    def __init__(self, block: Any, identifiers: Sequence[int]) -> None:
        self.block = block
        self.identifiers = tuple(identifiers)


class CounterCalls(Calls):
    """Takes samples, and computes metrics between two of them."""

    def gpm_supported(self, handle: Handle) -> bool:
        return bool(self._call("nvmlGpmQueryDeviceSupport", handle).isSupportedDevice)

    def gpm_allocate(self) -> GpmSample:
        return GpmSample(self._call("nvmlGpmSampleAlloc"))

    def gpm_free(self, sample: GpmSample) -> None:
        self._call("nvmlGpmSampleFree", sample)

    def gpm_sample(self, handle: Handle, sample: GpmSample, gpu_instance_id: int | None) -> None:
        """A sample of the whole GPU, or of one MIG instance."""
        if gpu_instance_id is None:
            self._call("nvmlGpmSampleGet", handle, sample)
        else:
            self._call("nvmlGpmMigSampleGet", handle, gpu_instance_id, sample)

    def gpm_request(self, identifiers: Sequence[int]) -> GpmRequest:
        block = self._nvml.c_nvmlGpmMetricsGet_t()
        block.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        block.numMetrics = len(identifiers)
        for metric, identifier in zip(block.metrics, identifiers, strict=False):
            metric.metricId = identifier
        return GpmRequest(block, identifiers)

    def gpm_metrics(
        self, request: GpmRequest, first: GpmSample, second: GpmSample
    ) -> dict[int, float | str]:
        """By metric id, the value between two samples, or the reason why there is none."""
        block = request.block
        block.sample1, block.sample2 = first, second
        # The driver computes with state shared between threads (see GpmReader.warm). The wait is
        # bounded, so that a GPU whose call hangs costs the others no more than that.
        if not _METRICS_LOCK.acquire(timeout=_LOCK_TIMEOUT_S):
            raise DriverError(999, "the counters of another GPU do not answer")
        try:
            self._call("nvmlGpmMetricsGet", block)
        finally:
            _METRICS_LOCK.release()
        answers: dict[int, float | str] = {}
        for metric, identifier in zip(block.metrics, request.identifiers, strict=False):
            code, value = int(metric.nvmlReturn), float(metric.value)
            if code != 0:
                answers[identifier] = self._reason(code)
            elif not math.isfinite(value):
                answers[identifier] = "the counters gave no figure for this window"
            else:
                answers[identifier] = value
        return answers
