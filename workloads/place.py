"""The device of a run, and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from workloads.declaration import Value, Workload
from workloads.devices import device_name, find_device
from workloads.peaks import Peak, find_peak, why_no_peak


@dataclass(frozen=True)
class Place:
    """A device, its name, and its peak where the table has it."""

    device: torch.device
    name: str
    peak: Peak | None

    @classmethod
    def of(cls, given: Mapping[str, Value]) -> Place:
        """The device asked for. Raises CannotRun when it cannot be had."""
        device = find_device(str(given.get("device", "auto")))
        name = device_name(device)
        return cls(device, name, find_peak(name))

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def why_no_peak(self) -> str:
        return why_no_peak(self.name)

    def fill(self, workload: Workload, given: Mapping[str, Value]) -> dict[str, Value]:
        """Every parameter of `workload`, its device the one found."""
        return {**workload.fill(given, on_cpu=not self.on_gpu), "device": str(self.device)}

    def flops_per_s(self, precision: str) -> float | None:
        """The dense peak of `precision`, None where it is not known."""
        return self.peak.flops_per_s(precision) if self.peak else None

    @property
    def bytes_per_s(self) -> float | None:
        """The memory's peak, None where it is not known."""
        return self.peak.bytes_per_s if self.peak else None
