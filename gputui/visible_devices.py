"""Which GPUs of the machine a process's CUDA device numbers stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping


def visible_gpus(
    visible: str | None, gpus: Mapping[int, str], instances: Mapping[str, int] | None = None
) -> tuple[int, ...]:
    """NVML indices in the order of CUDA's numbers.

    `visible` is the process's CUDA_VISIBLE_DEVICES (None where it has none), `gpus` each NVML
    index with its UUID, `instances` each MIG instance's UUID with the index of the GPU it is a
    part of. As CUDA reads the variable: indices, UUIDs or beginnings of UUIDs up to the first
    that names no GPU. Indices are taken in NVML's order, which is CUDA's for GPUs of one kind and
    under CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    if visible is None:
        return tuple(sorted(gpus))
    found: list[int] = []
    for word in map(str.strip, visible.split(",")):
        index = _gpu(word, gpus, instances or {})
        if index is None or index in found:
            break
        found.append(index)
    return tuple(found)


def _gpu(word: str, gpus: Mapping[int, str], instances: Mapping[str, int]) -> int | None:
    if re.fullmatch(r"[0-9]{1,4}", word):
        # A recording made where the driver told nothing of its GPUs still has numbers.
        return int(word) if int(word) in gpus or not gpus else None
    if not word.upper().startswith(("GPU-", "MIG-")):
        return None
    parts = [(uuid, index) for index, uuid in gpus.items()] + list(instances.items())
    matching = [index for uuid, index in parts if uuid.lower().startswith(word.lower())]
    return matching[0] if len(matching) == 1 else None
