"""What a thread is at, by the CUDA call that it is in."""

from __future__ import annotations

import re
from enum import IntEnum

from gputui.model.leaves import Leaf

SHORT_NS = 200_000
"""Time between two CUDA calls up to which the thread counts as busy launching. What a framework
does to dispatch an operation, a module or a layer lies below; a tokenizer, a data loader or a
garbage collection above."""


class Doing(IntEnum):
    """What a thread is at."""

    LAUNCHING = 0
    """In a call that launches, or between two calls, shortly."""
    WAITING = 1
    """In a call that waits for the GPU."""
    ALLOCATING = 2
    OTHER_CALL = 3
    AWAY = 4
    """Outside CUDA for longer than SHORT_NS."""
    COPYING = 5
    """In an asynchronous copy: waiting if it takes long, else launching."""


LEAF_OF_CALL: dict[int, Leaf] = {
    Doing.WAITING: Leaf.SYNC,
    Doing.ALLOCATING: Leaf.ALLOCATION,
    Doing.OTHER_CALL: Leaf.CUDA,
}
"""What a GPU idles for meanwhile."""

_WAITS = re.compile(r"Synchronize|^cudaMemcpy(?!.*Async)|^cuMemcpy(?!.*Async)|StreamQuery")
_ALLOCATES = re.compile(
    r"cudaMalloc|cudaFree|cudaHost(Alloc|Register|Unregister)"
    r"|cuMem(Alloc|Free|Create|Map|Unmap|Release|SetAccess|HostAlloc)"
)
_LAUNCHES = re.compile(r"Launch|Memcpy.*Async|Memset")


def kind_of_call(name: str) -> Doing:
    """What a thread is at during a CUDA call of this name."""
    if _WAITS.search(name):
        return Doing.WAITING
    if _ALLOCATES.search(name):
        return Doing.ALLOCATING
    if not _LAUNCHES.search(name):
        return Doing.OTHER_CALL
    return Doing.COPYING if "Memcpy" in name else Doing.LAUNCHING
