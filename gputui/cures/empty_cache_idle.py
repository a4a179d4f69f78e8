"""No torch.cuda.empty_cache(), which gives the allocator's blocks back to the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import EXACT, Cure
from ._replacing import idle, replaced

if TYPE_CHECKING:
    from collections.abc import Callable


def _apply(torch: Any) -> Callable[[], None]:
    # The function below too: a program may have the one above under a name of its own.
    return replaced(
        (torch.cuda, "empty_cache", idle),
        (torch.cuda.memory, "empty_cache", idle),
        (torch._C, "_cuda_emptyCache", idle),
    )


CURE = Cure(
    name="empty_cache_idle",
    title="torch.cuda.empty_cache() does nothing",
    answers=("idle.alloc", "allocator_thrash"),
    result=EXACT,
    change="no torch.cuda.empty_cache() in the loop",
    apply=_apply,
    library="torch",
)
