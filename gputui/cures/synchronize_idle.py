"""No torch.cuda.synchronize(), which has the CPU wait for all that the GPU has to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import EXACT, Cure
from ._replacing import idle, replaced

if TYPE_CHECKING:
    from collections.abc import Callable


def _apply(torch: Any) -> Callable[[], None]:
    return replaced((torch.cuda, "synchronize", idle), (torch._C, "_cuda_synchronize", idle))


CURE = Cure(
    name="synchronize_idle",
    title="torch.cuda.synchronize() does nothing",
    answers=("idle.sync", "idle.launch"),
    result=EXACT,
    change="no torch.cuda.synchronize() in the loop",
    apply=_apply,
    library="torch",
    forecast=None,
)
