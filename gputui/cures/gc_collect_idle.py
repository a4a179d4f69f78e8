"""No gc.collect(), which goes through all that the program holds, in the loop."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from . import EXACT, Cure
from ._counting import Idled

if TYPE_CHECKING:
    from collections.abc import Callable

_CALLS = Idled("gc.collect", 0)


def _prepare(_library: object) -> None:
    _CALLS.prepare((gc, "collect"))


def _apply(_library: object) -> Callable[[], None]:
    _prepare(None)
    return _CALLS.apply()


CURE = Cure(
    name="gc_collect_idle",
    title="gc.collect() does nothing",
    answers=("garbage_collection", "idle.host", "idle.alloc"),
    result=EXACT,
    change="no gc.collect() in the loop",
    apply=_apply,
    prepare=_prepare,
    advice="gc.collect",
)
