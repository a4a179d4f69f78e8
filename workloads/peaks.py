"""Peak rates of GPUs, from the vendors' data sheets.

Matrix rates are dense: data sheets of Ampere and later print twice as much, with 2:4 sparsity,
which no workload here has. Consumer cards are listed with fp32 accumulation, which torch uses. A
GPU not listed has no peak: a share of a guess would be worse than none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

UNKNOWN_GPU = "this GPU's peak is not in the table of dense peaks"
NO_GPU_PEAK = "the CPU's peak is unknown"

_T = 1e12
_G = 1e9


@dataclass(frozen=True)
class Peak:
    """Of one GPU: operations per second in each type (None if it has no such units), bytes per
    second of its memory, and where the figures are published.
    """

    name: str
    fp32: float | None
    tf32: float | None
    bf16: float | None
    fp16: float | None
    fp8: float | None
    bytes_per_s: float
    source: str

    def flops_per_s(self, precision: str) -> float | None:
        """The dense peak of `precision`: fp32, tf32, bf16, fp16 or fp8."""
        rates = {
            "fp32": self.fp32,
            "tf32": self.tf32,
            "bf16": self.bf16,
            "fp16": self.fp16,
            "fp8": self.fp8,
        }
        return rates.get(precision)


def _gpu(
    name: str,
    fp32: float | None,
    tf32: float | None,
    half: float,
    gigabytes_per_s: float,
    source: str,
    *,
    fp8: float | None = None,
    has_bf16: bool = True,
) -> Peak:
    def rate(tera: float | None) -> float | None:
        return None if tera is None else tera * _T

    return Peak(
        name=name,
        fp32=rate(fp32),
        tf32=rate(tf32),
        bf16=rate(half) if has_bf16 else None,
        fp16=rate(half),
        fp8=rate(fp8),
        bytes_per_s=gigabytes_per_s * _G,
        source=source,
    )


_ADA = "NVIDIA Ada GPU architecture white paper, appendix A"
_BLACKWELL_RTX = "NVIDIA RTX Blackwell GPU architecture white paper, appendix A"

# Each pattern must match as whole words; the first match wins, so a variant precedes the name it
# contains.
_PEAKS: tuple[tuple[str, Peak], ...] = (
    (r"GB200", _gpu("GB200", 80, 1250, 2500, 8000, "NVIDIA GB200 data sheet", fp8=5000)),
    (r"B200", _gpu("B200", 80, 1125, 2250, 8000, "NVIDIA HGX B200 data sheet", fp8=4500)),
    (r"H200 NVL", _gpu("H200 NVL", 60, 417.5, 835, 4800, "NVIDIA H200 data sheet", fp8=1671)),
    (r"H200", _gpu("H200 SXM", 67, 494.5, 989.4, 4800, "NVIDIA H200 data sheet", fp8=1979)),
    (r"H100 NVL", _gpu("H100 NVL", 60, 417.5, 835, 3900, "NVIDIA H100 data sheet", fp8=1671)),
    (r"H100 PCIe", _gpu("H100 PCIe", 51, 378, 756, 2000, "NVIDIA H100 data sheet", fp8=1513)),
    (r"H100", _gpu("H100 SXM", 67, 494.5, 989.4, 3350, "NVIDIA H100 data sheet", fp8=1979)),
    (r"A100.*80GB PCIe", _gpu("A100 80 PCIe", 19.5, 156, 312, 1935, "NVIDIA A100 data sheet")),
    (r"A100.*80GB", _gpu("A100 80 SXM", 19.5, 156, 312, 2039, "NVIDIA A100 data sheet")),
    (r"A100", _gpu("A100 40", 19.5, 156, 312, 1555, "NVIDIA A100 data sheet")),
    (r"A40", _gpu("A40", 37.4, 74.8, 149.7, 696, "NVIDIA A40 data sheet")),
    (r"L40S", _gpu("L40S", 91.6, 183, 362, 864, "NVIDIA L40S data sheet", fp8=733)),
    (r"L4", _gpu("L4", 30.3, 60, 121, 300, "NVIDIA L4 data sheet", fp8=242)),
    (r"RTX 3090", _gpu("RTX 3090", 35.6, 35.6, 71, 936, "NVIDIA GA102 white paper, table 2")),
    (r"RTX 4090", _gpu("RTX 4090", 82.6, 82.6, 165.2, 1008, _ADA, fp8=330.3)),
    (r"RTX 5090", _gpu("RTX 5090", 104.8, 104.8, 209.5, 1792, _BLACKWELL_RTX, fp8=419)),
    (r"T4", _gpu("T4", 8.1, None, 65, 320, "NVIDIA T4 data sheet", has_bf16=False)),
    (
        r"V100.*PCIE",
        _gpu("V100 PCIe", 14, None, 112, 900, "NVIDIA V100 data sheet", has_bf16=False),
    ),
    (r"V100", _gpu("V100 SXM2", 15.7, None, 125, 900, "NVIDIA V100 data sheet", has_bf16=False)),
)


def find_peak(device_name: str) -> Peak | None:
    """The peak of the GPU with the driver's `device_name`, None if unknown.

    A slice of a GPU (MIG) has no peak here, and neither has a laptop variant.
    """
    if re.search(r"\b(MIG|Laptop|Max-Q)\b", device_name):
        return None
    for pattern, peak in _PEAKS:
        if re.search(rf"\b{pattern}\b", device_name):
            return peak
    return None


def share_percent(rate: float | None, peak: float | None) -> float | None:
    """`rate` in percent of `peak`, None if either is missing."""
    return None if rate is None or not peak else 100.0 * rate / peak


def why_no_peak(device_name: str) -> str:
    """Why no share of the peak of this device can be given."""
    return NO_GPU_PEAK if device_name == "CPU" else UNKNOWN_GPU
