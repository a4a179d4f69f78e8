"""Why a GPU's clocks are held down: the driver's reasons in words, and which of them are no fault.

In the model because the collector says the words, and reports, replays and screens judge them.
"""

from __future__ import annotations

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
