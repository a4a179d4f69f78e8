"""Norms of all gradients at once where they are clipped."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from . import ROUNDING, CannotApply, Cure
from ._replacing import replaced

if TYPE_CHECKING:
    from collections.abc import Callable

_ACTIVE = [False]
_SEEN = [False]
"""Whether a call said foreach=False."""
_PREPARED = "_gputui_prepared"


def _prepare(torch: Any) -> None:
    utils = torch.nn.utils
    clip = utils.clip_grad_norm_
    if hasattr(clip, _PREPARED):
        return

    @functools.wraps(clip)
    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("foreach") is False:
            _SEEN[0] = True
            if _ACTIVE[0]:
                kwargs["foreach"] = None
        return clip(*args, **kwargs)

    setattr(clip_grad_norm_, _PREPARED, True)
    replaced(
        (utils, "clip_grad_norm_", clip_grad_norm_),
        (utils.clip_grad, "clip_grad_norm_", clip_grad_norm_),
    )


def _apply(torch: Any) -> Callable[[], None]:
    _prepare(torch)
    if not _SEEN[0]:
        raise CannotApply("clip_grad_norm_(foreach=False) was not called until now")
    _ACTIVE[0] = True

    def undo() -> None:
        _ACTIVE[0] = False

    return undo


CURE = Cure(
    name="foreach_clip",
    title="clip_grad_norm_(foreach=False) takes all norms at once",
    answers=("idle.launch",),
    result=ROUNDING,
    change="torch.nn.utils.clip_grad_norm_(parameters, limit), without foreach=False",
    apply=_apply,
    library="torch",
    prepare=_prepare,
    advice="clip_grad_norm_",
)
