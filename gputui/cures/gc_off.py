"""Python's garbage collector off, which stops the program for each full collection."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from . import EXACT, Cure

if TYPE_CHECKING:
    from collections.abc import Callable


def _apply(_library: object) -> Callable[[], None]:
    was_on = gc.isenabled()
    gc.disable()
    return gc.enable if was_on else gc.disable


CURE = Cure(
    name="gc_off",
    title="Python's garbage collector is off",
    answers=("garbage_collection",),
    result=EXACT,
    change="gc.freeze() once the model is built, or gc.disable() and gc.collect() every N steps",
    apply=_apply,
    forecast=None,
)
