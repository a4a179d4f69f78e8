"""No torch.cuda.synchronize(), which has the CPU wait for all that the GPU has to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import EXACT, Cure
from ._counting import Idled

if TYPE_CHECKING:
    from collections.abc import Callable

_CALLS = Idled("torch.cuda.synchronize")


def _prepare(torch: Any) -> None:
    # The function below too: a program may have the one above under a name of its own.
    _CALLS.prepare((torch.cuda, "synchronize"), (torch._C, "_cuda_synchronize"))


def _apply(torch: Any) -> Callable[[], None]:
    _prepare(torch)
    return _CALLS.apply()


CURE = Cure(
    name="synchronize_idle",
    title="torch.cuda.synchronize() does nothing",
    answers=("idle.sync", "idle.launch"),
    result=EXACT,
    change="no torch.cuda.synchronize() in the loop",
    apply=_apply,
    library="torch",
    prepare=_prepare,
    advice="synchronize()",
)
