"""A KV cache of a fixed size in transformers' generate, which then compiles its forward pass."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from . import ROUNDING, Cure

if TYPE_CHECKING:
    from collections.abc import Callable


def _apply(utils: Any) -> Callable[[], None]:
    mixin = utils.GenerationMixin
    generate = mixin.generate

    @functools.wraps(generate)
    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.update(use_cache=True, cache_implementation="static")
        return generate(self, *args, **kwargs)

    mixin.generate = changed

    def undo() -> None:
        if mixin.generate is changed:
            mixin.generate = generate

    return undo


CURE = Cure(
    name="static_cache",
    title="generate() has a KV cache of a fixed size",
    answers=("idle.launch", "idle.host"),
    result=ROUNDING,
    change='model.generate(..., cache_implementation="static")',
    apply=_apply,
    library="transformers.generation.utils",
    in_one_run=False,
    advice="use_cache",
)
