"""No torch.cuda.empty_cache(), which gives the allocator's blocks back to the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import EXACT, Cure
from ._counting import Idled

if TYPE_CHECKING:
    from collections.abc import Callable

_CALLS = Idled("torch.cuda.empty_cache")


def _prepare(torch: Any) -> None:
    # The function below too: a program may have the one above under a name of its own.
    _CALLS.prepare(
        (torch.cuda, "empty_cache"),
        (torch.cuda.memory, "empty_cache"),
        (torch._C, "_cuda_emptyCache"),
    )


def _apply(torch: Any) -> Callable[[], None]:
    _prepare(torch)
    return _CALLS.apply()


CURE = Cure(
    name="empty_cache_idle",
    title="torch.cuda.empty_cache() does nothing",
    answers=("idle.alloc", "allocator_thrash"),
    result=EXACT,
    change="no torch.cuda.empty_cache() in the loop",
    apply=_apply,
    library="torch",
    prepare=_prepare,
    advice="empty_cache",
)
