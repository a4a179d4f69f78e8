"""What exists by now is left out of Python's garbage collections."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from . import EXACT, Cure

if TYPE_CHECKING:
    from collections.abc import Callable


def _apply(_library: object) -> Callable[[], None]:
    gc.collect()
    gc.freeze()
    return gc.unfreeze


CURE = Cure(
    name="gc_freeze",
    title="garbage collections leave out what was made before the loop",
    answers=("garbage_collection",),
    result=EXACT,
    change="gc.collect(); gc.freeze() once the model is built",
    apply=_apply,
    advice="gc.freeze",
)
