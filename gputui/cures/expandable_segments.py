"""An allocator whose segments grow, where sizes vary."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from . import EXACT, CannotApply, Cure

if TYPE_CHECKING:
    from collections.abc import Callable

_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_OPTION = "expandable_segments"


def _apply(_library: object) -> Callable[[], None]:
    name = next((name for name in _VARIABLES if os.environ.get(name)), _VARIABLES[1])
    before = os.environ.get(name)
    if before and _OPTION in before:
        raise CannotApply(f"{name} says already what segments are")
    os.environ[name] = f"{before},{_OPTION}:True" if before else f"{_OPTION}:True"

    def undo() -> None:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before

    return undo


CURE = Cure(
    name="expandable_segments",
    title="the allocator's segments grow instead of being freed",
    answers=("idle.alloc", "allocator_thrash"),
    result=EXACT,
    change="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    apply=_apply,
    in_one_run=False,
    forecast=None,
    advice="expandable_segments",
)
