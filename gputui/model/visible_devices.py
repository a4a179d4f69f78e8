"""Which GPUs a process sees by CUDA_VISIBLE_DEVICES, and under which numbers, as CUDA reads it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

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
    """Which GPU a process means by a device number: the variable's entry, as far as it goes."""
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
