"""One GPU as views see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gputui.model.events import GpuFacts, GpuSample, GpuStatus, MigSample
from gputui.model.metrics import Metric, metrics_of
from gputui.state.long_history import Samples


def gpu_metrics() -> Mapping[str, Metric]:
    """Every figure and fact of a GPU by its field, as `Gpu.figure` finds it."""
    return metrics_of(GpuSample, GpuStatus, GpuFacts)


def mig_metrics() -> Mapping[str, Metric]:
    """The figures of a MIG instance: those of its GPU's fields by the same names."""
    of_gpu = metrics_of(GpuSample)
    return {field: of_gpu[field] for field in MigSample.__struct_fields__ if field in of_gpu}


class Gpu(msgspec.Struct):
    """One GPU: its facts, its state, its samples."""

    facts: GpuFacts
    status: GpuStatus | None = None
    """What is read seldom; its own `time_ns` gives its age."""
    sample_ns: int = 0
    """When the card last answered: if it hangs, this stays while time goes on."""
    energy: tuple[int, float] | None = None
    """When the energy counter was last read, and the joules it showed."""
    unavailable: dict[str, str] = {}
    samples: Samples[GpuSample] = msgspec.field(default_factory=lambda: Samples.of(GpuSample))

    @property
    def sample(self) -> GpuSample | None:
        """The newest."""
        return self.samples.newest

    def figure(self, field: str) -> Any:
        """The newest value of a field of GpuSample, GpuStatus or GpuFacts, None for none."""
        for part in (self.sample, self.status, self.facts):
            value = getattr(part, field, None)
            if value is not None:
                return value
        return None
