"""Why clocks are lowered, in words."""

from __future__ import annotations

_THROTTLES = (
    (0x002, "clocks set by the user"),
    (0x004, "power cap"),
    (0x010, "sync boost"),
    (0x020, "thermal slowdown (software)"),
    (0x040, "thermal slowdown (hardware)"),
    (0x080, "power brake"),
    (0x100, "display clock setting"),
    (0x200, "board limit"),
    (0x400, "reliability"),
)
_IDLE = 0x001
_HARDWARE_SLOWDOWN = 0x008
"""nvml.h, nvmlClocksEventReasons; the two hardware ones (0x40, 0x80) come with 0x8 set."""


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """The driver's mask in words. Idle does not count as throttling; an unknown bit is shown as
    such.
    """
    words = [word for bit, word in _THROTTLES if bits & bit]
    if bits & _HARDWARE_SLOWDOWN and not bits & (0x040 | 0x080):
        words.append("hardware slowdown")
    known = _IDLE | _HARDWARE_SLOWDOWN | sum(bit for bit, _ in _THROTTLES)
    if rest := bits & ~known:
        words.append(f"unknown reason {rest:#x}")
    return tuple(words)
