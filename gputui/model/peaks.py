"""What a card can do, and what holds it down: its tensor cores beside its FP32 units, its link to
the host, and why its clocks are low.

For advice and gains, which must not promise a number format that the card has not, or that is no
faster on it, and for what reads and judges throttling.

The workloads have rates of single cards in `workloads/peak_table.py`; here are ratios, which all
cards of a kind share.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gputui.model.events import GpuFacts


class ProductRates(NamedTuple):
    """Dense rates of matrix products with FP32 accumulation, as times the FP32 rate; None for a
    format that the card's tensor cores do not take."""

    tf32: float | None
    bf16: float | None
    fp16: float | None


# Cards whose tensor cores accumulate FP32 at full rate; GeForce cards, the L40 and the A10G do at
# half of it, which makes their TF32 no faster than FP32.
_PROFESSIONAL = re.compile(r"\b(A10|A16|A2|A30|A40|A[2-6]000|L4|L40S|RTX (PRO )?[2-6]000)\b(?! D)")

_HALF_RATE, _FULL_RATE = ProductRates(1.0, 2.0, 2.0), ProductRates(2.0, 4.0, 4.0)

# Data sheets: V100 15.7 and 125 TFLOP/s, T4 8.1 and 65, A100 19.5, 156 and 312, H100 SXM 67, 494.5
# and 989.4, B200 75, 1,100 and 2,250.
_BY_CAPABILITY = {
    "7.0": ProductRates(None, None, 8.0),
    "7.2": ProductRates(None, None, 8.0),
    "7.5": ProductRates(None, None, 8.0),
    "8.0": ProductRates(8.0, 16.0, 16.0),
    "9.0": ProductRates(7.4, 14.8, 14.8),
    "10.0": ProductRates(14.7, 30.0, 30.0),
    "10.3": ProductRates(14.7, 30.0, 30.0),
}

# Capabilities of cards for both uses (white papers of GA102, Ada and RTX Blackwell): FP32 35.6,
# TF32 35.6, FP16 71 TFLOP/s for an RTX 3090; 31.2, 62.5 and 125 for an A10.
_ONE_RATE = ("8.6", "8.9", "12.0", "12.1")


def product_rates(facts: GpuFacts | None) -> ProductRates | None:
    """What a card's tensor cores do with matrix products; all None where it has none (before
    Volta), None where nothing is known of the card."""
    capability = facts.compute_capability if facts is not None else None
    if facts is None or not capability:
        return None
    if capability in _BY_CAPABILITY:
        return _BY_CAPABILITY[capability]
    if capability in _ONE_RATE:
        return _FULL_RATE if _PROFESSIONAL.search(facts.name) else _HALF_RATE
    major = capability.partition(".")[0]
    return ProductRates(None, None, None) if major.isdecimal() and int(major) < 7 else None


def has_tensor_cores(facts: GpuFacts | None) -> bool:
    """Whether a card has a faster way for matrix products than its FP32 units, as far as is
    known."""
    rates = product_rates(facts)
    return rates is None or any(rate is not None and rate > 1.0 for rate in rates)


LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.56e9}
"""What a lane of PCIe carries by its generation, after line coding (PCI-SIG)."""


def link_bytes_per_s(facts: GpuFacts | None) -> float | None:
    """What the link to the host carries one way, None where lanes or generation are not known."""
    if facts is None or not facts.pcie_width or not facts.pcie_generation:
        return None
    lane = LANE_BYTES_PER_S.get(facts.pcie_generation)
    return None if lane is None else lane * facts.pcie_width


# --- Why a GPU's clocks are held down: the driver's reasons in words, and which of them are no
# fault.
#
# In the model because the collector says the words, and reports, replays and screens judge them.

_REASONS = (
    # nvml.h, nvmlClocksEventReasons: the bit, our words for it, whether it is a fault. Idle (0x001)
    # is no throttling, and 0x008 comes with either of the two hardware reasons.
    (0x002, "clocks set by the user", False),
    (0x004, "power cap", False),  # at full load a card works at its power limit
    (0x010, "sync boost", False),  # the clocks of a group of GPUs are held together
    (0x020, "thermal slowdown (software)", True),
    (0x040, "thermal slowdown (hardware)", True),
    (0x080, "power brake", True),
    (0x100, "display clock setting", False),
    (0x200, "board limit", True),
    (0x400, "reliability", True),
)
_IDLE = 0x001
_HARDWARE_SLOWDOWN = 0x008

HARMLESS_THROTTLING = frozenset(words for _, words, is_fault in _REASONS if not is_fault)
"""The reasons that are no fault of the card, its cooling or its power supply."""


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """The driver's mask `bits` in words, in the order of the bits. Idle does not count as
    throttling; an unknown bit is shown as such.
    """
    reasons = [words for bit, words, _ in _REASONS if bits & bit]
    if bits & _HARDWARE_SLOWDOWN and not bits & (0x040 | 0x080):
        reasons.append("hardware slowdown")
    if rest := bits & ~(_IDLE | _HARDWARE_SLOWDOWN | sum(bit for bit, *_ in _REASONS)):
        reasons.append(f"unknown reason {rest:#x}")
    return tuple(reasons)
