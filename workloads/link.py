"""The links of a GPU: PCIe as the driver describes it, NVLink by the card's name."""

from __future__ import annotations

import pynvml
import torch

# Of one lane in one direction after line coding, by generation (PCI Express Base Specification:
# 8b/10b to generation 2, 128b/130b to 5, FLIT mode from 6).
_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}

# One GPU's links, one direction, SXM: 12 × 25, 18 × 25, 18 × 50 GB/s (NVIDIA quotes both directions
# together). PCIe cards have none, or bridges.
_NVLINK_BYTES_PER_S = {"A100": 300e9, "H100": 450e9, "H200": 450e9, "B200": 900e9, "GB200": 900e9}

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


def nvlink_bytes_per_s(name: str) -> float | None:
    """The peak of a GPU's links to others in one direction, None where it is not known."""
    words = name.replace("-", " ").split()
    if "PCIe" in name or "NVL" in words:
        return None
    return next((rate for card, rate in _NVLINK_BYTES_PER_S.items() if card in words), None)
