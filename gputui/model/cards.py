"""A program's GPUs as cards: which of them it sees through CUDA_VISIBLE_DEVICES and under which
numbers, as CUDA reads it; what a card can do (its tensor cores beside its FP32 units, its link to
the host); and why its clocks are low.

For advice and gains, which must not promise a number format that the card lacks, or that is no
faster on it, and for all that reads or judges throttling. Rates of single cards are in
`workloads/peak_table.py`; here are ratios, which all cards of a kind share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:  # what opens the driver before the first frame needs no events
    from gputui.model.events import GpuFacts

_LEADING_NUMBER = re.compile(r"[+-]?[0-9]+")
# Python refuses numbers of thousands of digits, and no machine has that many GPUs.
_MOST_DIGITS = 9
# The ways people write "none", besides a negative index.
_QUIET_ENDS = ("", "NoDevFiles")

Why = Literal["no GPU", "several GPUs", "twice", "mixed"]


class Visible(NamedTuple):
    """What the variable makes visible to a program."""

    gpus: tuple[int, ...]
    """NVML indices in the order of CUDA's device numbers."""
    instance: str | None = None
    """The entry that names a MIG instance; its GPU is among `gpus`."""
    problem: tuple[str, Why] | None = None
    """The entry at which the list ended prematurely, and why; None if it did not."""


def read_visible_devices(
    visible: str, gpus: Mapping[int, str], gpu_of_instance: Callable[[str], int | None]
) -> Visible:
    """Parse the text of the variable.

    `gpus` is each NVML index with its UUID; without any, indices stand for themselves.
    `gpu_of_instance` returns the GPU that contains the named MIG instance, or None.

    By the CUDA Programming Guide (section 5.2.1.1, CUDA_VISIBLE_DEVICES): a list of indices, or of
    UUIDs as `nvidia-smi -L` prints them or a prefix that only one GPU has; numbered in the order of
    the list; only what precedes the first invalid entry is visible; one MIG instance at most; if
    empty, nothing is visible. Where the guide is silent, as PyTorch and nvitop do: a device named
    twice hides all, an index ends at its last digit, and indices and UUIDs do not mix. UUIDs are
    hexadecimal, so case does not matter. Indices are taken in NVML's order, which is CUDA's for
    GPUs of one kind and under CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    visible_gpus: list[int] = []
    numbered: bool | None = None
    for entry in map(str.strip, visible.split(",")):
        number = _LEADING_NUMBER.match(entry)
        if entry in _QUIET_ENDS or (number and number[0].startswith("-")):
            break
        if numbered is not None and numbered is not bool(number):
            return Visible(tuple(visible_gpus), None, (entry, "mixed"))
        numbered = bool(number)
        matching = _numbered(number[0], gpus) if number else _named(entry, gpus, gpu_of_instance)
        if len(matching) != 1:
            return Visible(
                tuple(visible_gpus), None, (entry, "several GPUs" if matching else "no GPU")
            )
        if is_instance(entry):
            # Entries after the instance are not visible. Its GPU may be in the list already.
            return Visible(tuple(dict.fromkeys([*visible_gpus, *matching])), entry)
        if matching[0] in visible_gpus:
            return Visible((), None, (entry, "twice"))
        visible_gpus += matching
    return Visible(tuple(visible_gpus))


def entry_of(device: int, visible: str | None) -> str:
    """Which GPU a process means by a device number: the entry of CUDA_VISIBLE_DEVICES at that place
    or, without one, the number itself."""
    names = visible.split(",") if visible else []
    return names[device].strip() if device < len(names) else str(device)


def is_instance(entry: str) -> bool:
    """Whether an entry of the list names a MIG instance."""
    return entry.upper().startswith("MIG-")


def _numbered(text: str, gpus: Mapping[int, str]) -> list[int]:
    digits = text.removeprefix("+").lstrip("0") or "0"
    if len(digits) > _MOST_DIGITS:
        return []
    # A recording made without the driver's facts of its GPUs still has their numbers.
    return [int(digits)] if not gpus or int(digits) in gpus else []


def _named(
    entry: str, gpus: Mapping[int, str], gpu_of_instance: Callable[[str], int | None]
) -> list[int]:
    if is_instance(entry):
        index = gpu_of_instance(entry)
        return [] if index is None else [index]
    if not entry.upper().startswith("GPU-"):
        return []
    return [index for index, uuid in gpus.items() if uuid.lower().startswith(entry.lower())]


# --- What a card can do, and what holds it down.


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
