"""The device of a run, and what is known about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from .ceilings import BANDWIDTH, Ceilings, measured_ceilings
from .declaration import Value, Workload
from .devices import device_name, find_device, free_bytes
from .errors import CannotRun
from .peaks import Chip, Peak, configured_peaks, find_peak, why_no_peak

_GIB = 2**30


@dataclass(frozen=True)
class Place:
    """A device, its name, its peak if that is known, and what was measured of it."""

    device: torch.device
    name: str
    peak: Peak | None
    ceilings: Ceilings

    @classmethod
    def find(cls, given: Mapping[str, Value]) -> Place:
        """The requested device. Raises CannotRun if it is not available."""
        device = find_device(str(given.get("device", "auto")))
        name = device_name(device)
        peak = find_peak(name, _chip(device), configured_peaks())
        return cls(device, name, peak, measured_ceilings(name))

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def why_no_peak(self) -> str:
        return why_no_peak(self.name)

    def fill(self, workload: Workload, given: Mapping[str, Value]) -> dict[str, Value]:
        """Every parameter of `workload`, with the device that was found."""
        return {**workload.fill(given, on_cpu=not self.on_gpu), "device": str(self.device)}

    def refuse_unless_fits(self, needed_bytes: int, made_of: str, advice: str) -> None:
        """Raise CannotRun, with the sum and what to do, for more than is free on the device."""
        free = free_bytes(self.device)
        if needed_bytes > free:
            raise CannotRun(
                f"needs {needed_bytes / _GIB:.1f} GiB = {made_of}; {self.device} has "
                f"{free / _GIB:.1f} GiB free; {advice}"
            )

    def flops_per_s(self, precision: str) -> float | None:
        """The dense peak of `precision`, None if unknown."""
        return self.peak.flops_per_s(precision) if self.peak else None

    @property
    def bytes_per_s(self) -> float | None:
        """The memory's peak, None if unknown."""
        return self.peak.bytes_per_s if self.peak else None

    def ceiling_flops_per_s(self, precision: str) -> float | None:
        """The best product of `precision` that `gemm` measured on this card, None if it did not."""
        return self.ceilings.get(precision)

    @property
    def ceiling_bytes_per_s(self) -> float | None:
        """The best copy that `bandwidth` measured on this card, None if it did not."""
        return self.ceilings.get(BANDWIDTH)


def _chip(device: torch.device) -> Chip | None:
    """What CUDA says of a GPU; None of the CPU."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)

    def hertz(name: str) -> float | None:
        kilohertz = getattr(properties, name, None)  # from torch 2.9 on
        return 1e3 * kilohertz if kilohertz else None

    return Chip(
        (properties.major, properties.minor),
        properties.multi_processor_count,
        hertz("clock_rate"),
        hertz("memory_clock_rate"),
        getattr(properties, "memory_bus_width", None) or None,
    )
