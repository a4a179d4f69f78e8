"""The device of a run, and what is known about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from .declaration import Value, Workload
from .devices import device_name, find_device, free_bytes
from .errors import CannotRun
from .peaks import Peak, find_peak, why_no_peak

_GIB = 2**30


@dataclass(frozen=True)
class Place:
    """A device, its name, and its peak if the table has it."""

    device: torch.device
    name: str
    peak: Peak | None

    @classmethod
    def of(cls, given: Mapping[str, Value]) -> Place:
        """The requested device. Raises CannotRun if it is not available."""
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
        """Every parameter of `workload`, with the device that was found."""
        return {**workload.fill(given, on_cpu=not self.on_gpu), "device": str(self.device)}

    def refuse_unless_fits(self, needed_bytes: int, made_of: str, mend: str) -> None:
        """Raise CannotRun, with the sum and what to do, for more than is free on the device."""
        free = free_bytes(self.device)
        if needed_bytes > free:
            raise CannotRun(
                f"needs {needed_bytes / _GIB:.1f} GiB = {made_of}; {self.device} has "
                f"{free / _GIB:.1f} GiB free; {mend}"
            )

    def flops_per_s(self, precision: str) -> float | None:
        """The dense peak of `precision`, None if unknown."""
        return self.peak.flops_per_s(precision) if self.peak else None

    @property
    def bytes_per_s(self) -> float | None:
        """The memory's peak, None if unknown."""
        return self.peak.bytes_per_s if self.peak else None
