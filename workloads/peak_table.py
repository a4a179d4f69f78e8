"""Data sheets of GPUs: what they do without sparsity, and the names that drivers give them."""

from __future__ import annotations

from typing import NamedTuple


class Card(NamedTuple):
    """Rates in 10¹² operations a second, dense; `half` is fp16 and bf16 by tensor cores, with fp32
    accumulation. `names` are those of the driver, with or without "NVIDIA", "Tesla", "GeForce".
    """

    names: tuple[str, ...]
    fp32: float | None
    tf32: float | None
    half: float
    fp8: float | None
    gigabytes_per_s: float
    source: str
    has_bf16: bool = True


_ADA = "NVIDIA Ada GPU architecture white paper, appendix A"
_GA102 = "NVIDIA GA102 white paper, table 2"
_RTX_BLACKWELL = "NVIDIA RTX Blackwell GPU architecture white paper, appendix A"
_H100 = "NVIDIA H100 data sheet"
_H200 = "NVIDIA H200 data sheet"
_A100 = "NVIDIA A100 data sheet"
_V100 = "NVIDIA V100 data sheet"

# fmt: off
CARDS = (
    Card(("GB300",), 80, 1250, 2500, 5000, 8000, "NVIDIA GB300 NVL72 data sheet"),
    Card(("B300", "B300 SXM6 AC", "B300 SXM6"), 75, 1100, 2250, 4500, 7700,
         "NVIDIA HGX B300 data sheet"),
    Card(("GB200",), 80, 1250, 2500, 5000, 8000, "NVIDIA GB200 NVL72 data sheet"),
    Card(("B200",), 75, 1100, 2250, 4500, 7700, "NVIDIA HGX B200 data sheet"),
    Card(("GH200 480GB", "GH200 120GB", "GH200 96GB HBM3"), 67, 494.5, 989.4, 1979, 4000,
         "NVIDIA GH200 data sheet"),
    Card(("GH200 144G HBM3e",), 67, 494.5, 989.4, 1979, 4900, "NVIDIA GH200 data sheet"),
    Card(("H200", "H200 SXM", "H200 141GB HBM3e"), 67, 494.5, 989.4, 1979, 4800, _H200),
    Card(("H200 NVL",), 60, 417.5, 835, 1671, 4800, _H200),
    Card(("H100 80GB HBM3", "H100 SXM", "H100 SXM5 80GB"), 67, 494.5, 989.4, 1979, 3350, _H100),
    Card(("H100 NVL",), 60, 417.5, 835, 1671, 3900, _H100),
    Card(("H100 PCIe", "H100 80GB HBM2e"), 51, 378, 756, 1513, 2000, _H100),
    Card(("H800",), 67, 494.5, 989.4, 1979, 3350, "NVIDIA H800 data sheet"),
    Card(("H20",), 44, 74, 148, 296, 4000, "NVIDIA H20 product brief"),
    Card(("A100-SXM4-80GB", "A100 80GB SXM"), 19.5, 156, 312, None, 2039, _A100),
    Card(("A100-SXM4-40GB",), 19.5, 156, 312, None, 1555, _A100),
    Card(("A100 80GB PCIe", "A100-PCIE-80GB"), 19.5, 156, 312, None, 1935, _A100),
    Card(("A100-PCIE-40GB",), 19.5, 156, 312, None, 1555, _A100),
    Card(("A800-SXM4-80GB",), 19.5, 156, 312, None, 2039, "NVIDIA A800 data sheet"),
    Card(("A800 80GB PCIe",), 19.5, 156, 312, None, 1935, "NVIDIA A800 data sheet"),
    Card(("A40",), 37.4, 74.8, 149.7, None, 696, "NVIDIA A40 data sheet"),
    Card(("A30",), 10.3, 82, 165, None, 933, "NVIDIA A30 data sheet"),
    Card(("A10",), 31.2, 62.5, 125, None, 600, "NVIDIA A10 data sheet"),
    Card(("A10G",), 35, 35, 70, None, 600, "NVIDIA A10G data sheet (AWS)"),
    Card(("L40S",), 91.6, 183, 362, 733, 864, "NVIDIA L40S data sheet"),
    Card(("L40",), 90.5, 90.5, 181, 362, 864, "NVIDIA L40 data sheet"),
    Card(("L4",), 30.3, 60, 121, 242, 300, "NVIDIA L4 data sheet"),
    Card(("RTX PRO 6000 Blackwell Workstation Edition",), 126, 251.9, 503.8, 1007.6, 1792,
         "NVIDIA RTX PRO Blackwell GPU architecture white paper"),
    Card(("RTX 6000 Ada Generation", "RTX 6000 Ada"), 91.1, 182.1, 364.2, 728.5, 960,
         "NVIDIA RTX 6000 Ada data sheet"),
    Card(("RTX A6000",), 38.7, 77.4, 154.8, None, 768, "NVIDIA RTX A6000 data sheet"),
    Card(("RTX 5090",), 104.8, 104.8, 209.5, 419, 1792, _RTX_BLACKWELL),
    Card(("RTX 4090",), 82.6, 82.6, 165.2, 330.3, 1008, _ADA),
    Card(("RTX 4090 D",), 73.5, 73.5, 147.1, 294.2, 1008, "NVIDIA GeForce RTX 4090 D, as the RTX "
         "4090 with 114 SMs"),
    Card(("RTX 3090 Ti",), 40, 40, 80, None, 1008, _GA102),
    Card(("RTX 3090",), 35.6, 35.6, 71, None, 936, _GA102),
    Card(("T4",), 8.1, None, 65, None, 320, "NVIDIA T4 data sheet", has_bf16=False),
    Card(("V100S-PCIE-32GB",), 16.4, None, 130, None, 1134, _V100, has_bf16=False),
    Card(("V100-SXM2-16GB", "V100-SXM2-32GB", "V100-SXM2-16GB-N", "V100-SXM2-32GB-LS"), 15.7, None,
         125, None, 900, _V100, has_bf16=False),
    Card(("V100-PCIE-16GB", "V100-PCIE-32GB"), 14, None, 112, None, 900, _V100, has_bf16=False),
)
# fmt: on
