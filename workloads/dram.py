"""Memory traffic by the GPU's own counter (GPM, Hopper and later), where its library is there."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

import torch

from .place import Place

# NVML_GPM_METRIC_DRAM_BW_UTIL (nvml.h): percent of the peak, reads and writes.
_DRAM_BANDWIDTH = 10


class DramCounter:
    """Counts what moves to and from the memory inside `with`: `moved_bytes` after it, None if the
    counter gave nothing. The window must be longer than WINDOW_MS.
    """

    WINDOW_MS = 100.0
    """Closer samples are invalid."""

    def __init__(self, nvml: Any, handle: Any, peak_bytes_per_s: float) -> None:
        self.moved_bytes: float | None = None
        self._nvml, self._handle, self._peak = nvml, handle, peak_bytes_per_s
        self._samples: list[Any] = []
        self._started_ns = 0

    @classmethod
    def for_place(cls, place: Place) -> DramCounter | None:
        """For a GPU with such a counter and a known peak, else None."""
        if not place.on_gpu or place.bytes_per_s is None:
            return None
        try:
            import pynvml

            pynvml.nvmlInit()
            uuid = f"GPU-{torch.cuda.get_device_properties(place.device).uuid}"
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            support = pynvml.nvmlGpmQueryDeviceSupport(handle)
        except Exception:
            # No library, an old driver, an older GPU, a MIG slice: the formula stands alone.
            return None
        return cls(pynvml, handle, place.bytes_per_s) if support.isSupportedDevice else None

    def __enter__(self) -> DramCounter:
        self._started_ns = time.perf_counter_ns()
        self._sample()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        passed_s = (time.perf_counter_ns() - self._started_ns) / 1e9
        self._sample()
        if kind is None and len(self._samples) == 2:
            share = self._share()
            if share is not None:
                self.moved_bytes = share * self._peak * passed_s
        for sample in self._samples:
            self._nvml.nvmlGpmSampleFree(sample)

    def _sample(self) -> None:
        try:
            sample = self._nvml.nvmlGpmSampleAlloc()
            self._samples.append(sample)
            self._nvml.nvmlGpmSampleGet(self._handle, sample)
        except self._nvml.NVMLError:
            self._samples.clear()

    def _share(self) -> float | None:
        """Of the peak, 0 to 1."""
        query = self._nvml.c_nvmlGpmMetricsGet_t()
        query.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        query.numMetrics = 1
        query.sample1, query.sample2 = self._samples
        query.metrics[0].metricId = _DRAM_BANDWIDTH
        try:
            self._nvml.nvmlGpmMetricsGet(query)
        except self._nvml.NVMLError:
            return None
        percent = float(query.metrics[0].value)
        return percent / 100 if query.metrics[0].nvmlReturn == 0 and 0 <= percent <= 100 else None
