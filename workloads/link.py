"""The link between host and GPU, as the driver describes it."""

from __future__ import annotations

import pynvml
import torch

# Of one lane in one direction after line coding, by generation (PCI Express Base Specification:
# 8b/10b to generation 2, 128b/130b to 5, FLIT mode from 6).
_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}

NO_LINK = "the driver does not report the PCIe link"


def link_bytes_per_s(device: torch.device) -> float | None:
    """The PCIe link's peak in one direction: its highest generation and width. None on the CPU or
    if the driver does not report it, as in some virtual machines.
    """
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    try:
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")
            generation = pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
            width = pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
    lane = _LANE_BYTES_PER_S.get(generation)
    return lane * width if lane and width else None
