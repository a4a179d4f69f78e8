"""Activations are kept instead of computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import EXACT, Cure
from ._replacing import replaced

if TYPE_CHECKING:
    from collections.abc import Callable

_OPTIONS = (
    "use_reentrant",
    "context_fn",
    "determinism_check",
    "debug",
    "early_stop",
    "preserve_rng_state",
)


def _direct(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **{name: kwargs[name] for name in kwargs if name not in _OPTIONS})


def _apply(checkpoint: Any) -> Callable[[], None]:
    return replaced((checkpoint, "checkpoint", _direct))


CURE = Cure(
    name="checkpointing_off",
    title="activations are kept, none is computed again",
    answers=("recomputation",),
    result=EXACT,
    change="no gradient checkpointing, or of fewer layers: it needs more memory",
    apply=_apply,
    library="torch.utils.checkpoint",
    in_one_run=False,
)
