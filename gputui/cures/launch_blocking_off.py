"""No CUDA_LAUNCH_BLOCKING, by which each launch waits for its kernel."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from . import EXACT, CannotApply, Cure
from ._replacing import replaced

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = "CUDA_LAUNCH_BLOCKING"


def _apply(torch: Any) -> Callable[[], None]:
    """The driver reads it once, at CUDA's first use; until then the program may set it."""
    if torch.cuda.is_initialized():
        raise CannotApply("CUDA has read it before this")
    before = os.environ.pop(_NAME, None)
    initialize = torch.cuda._lazy_init

    @functools.wraps(initialize)
    def without(*args: Any, **kwargs: Any) -> Any:
        os.environ.pop(_NAME, None)
        return initialize(*args, **kwargs)

    restore = replaced((torch.cuda, "_lazy_init", without))

    def undo() -> None:
        restore()
        if before is not None:
            os.environ[_NAME] = before

    return undo


def _useless(_torch: Any) -> str | None:
    return None if os.environ.get(_NAME, "0") != "0" else f"{_NAME} is not set"


CURE = Cure(
    name="launch_blocking_off",
    title="launches do not wait for their kernels",
    answers=("idle.launch", "idle.sync"),
    result=EXACT,
    change="unset CUDA_LAUNCH_BLOCKING",
    apply=_apply,
    library="torch",
    in_one_run=False,
    useless=_useless,
    advice="CUDA_LAUNCH_BLOCKING",
)
