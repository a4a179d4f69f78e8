"""torch.profiler off, where it was left in the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import EXACT, Cure
from ._objects import instances
from ._replacing import idle, replaced

if TYPE_CHECKING:
    from collections.abc import Callable


def _apply(profiler: Any) -> Callable[[], None]:
    profile = profiler.profile

    def entered(self: Any) -> Any:
        return self

    return replaced(
        (profile, "__enter__", entered),
        (profile, "__exit__", idle),
        (profile, "start", idle),
        (profile, "step", idle),
        (profile, "stop", idle),
    )


def _useless(profiler: Any) -> str | None:
    made = instances(profiler.profile)
    return "torch.profiler is not in use" if made == [] else None


CURE = Cure(
    name="profiler_off",
    title="torch.profiler records nothing",
    answers=("idle.host", "idle.launch", "idle.cuda"),
    result=EXACT,
    change="no torch.profiler around the loop, or of a few steps only (schedule)",
    apply=_apply,
    library="torch.profiler",
    in_one_run=False,
    forecast=None,
    useless=_useless,
)
