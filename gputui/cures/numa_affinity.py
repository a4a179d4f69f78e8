"""The program's threads on the cores that are next to its GPU."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from . import EXACT, CannotApply, Cure

if TYPE_CHECKING:
    from collections.abc import Callable


def near_cores(torch: Any) -> set[int]:
    """The cores of the NUMA node of the current GPU, by sysfs, of those that are allowed."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        raise CannotApply("the program does not use a GPU")
    card = torch.cuda.get_device_properties(torch.cuda.current_device())
    if not hasattr(card, "pci_bus_id"):
        raise CannotApply("this torch does not say where the GPU is")
    place = f"{card.pci_domain_id:04x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}.0"
    try:
        with open(f"/sys/bus/pci/devices/{place}/local_cpulist") as file:
            text = file.read().strip()
    except OSError:
        raise CannotApply("the system does not say which cores are next to the GPU") from None
    near: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        near.update(range(int(first), int(last or first) + 1))
    allowed = os.sched_getaffinity(0)
    if not near & allowed or near >= allowed:
        raise CannotApply("all cores that the program may use are next to its GPU, or none is")
    return near & allowed


def _apply(torch: Any) -> Callable[[], None]:
    near, before = near_cores(torch), {}
    for thread in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(OSError):  # it has ended
            before[thread] = os.sched_getaffinity(thread)
            os.sched_setaffinity(thread, near)

    def undo() -> None:
        for thread, cores in before.items():
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread, cores)

    return undo


CURE = Cure(
    name="numa_affinity",
    title="the program stays on the cores next to its GPU",
    answers=("idle.launch", "busy.copy_pageable", "busy.copy_pinned", "slow_link"),
    result=EXACT,
    change="numactl --cpunodebind=NODE --membind=NODE, of the GPU's node (nvidia-smi topo -m)",
    apply=_apply,
    library="torch",
    forecast=None,
)
