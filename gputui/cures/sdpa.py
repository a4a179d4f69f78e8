"""Fused attention in models of Hugging Face transformers."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from . import ROUNDING, CannotApply, Cure
from ._objects import instances

if TYPE_CHECKING:
    from collections.abc import Callable

_FUSED = ("sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")


def _apply(modeling: Any) -> Callable[[], None]:
    model = modeling.PreTrainedModel
    init = model.__init__
    if not hasattr(model, "_supports_sdpa"):
        raise CannotApply("this transformers has no SDPA")

    @functools.wraps(init)
    def changed(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        if getattr(type(self), "_supports_sdpa", False) and (
            getattr(config, "_attn_implementation", None) not in _FUSED
        ):
            config._attn_implementation = "sdpa"
        init(self, config, *args, **kwargs)

    model.__init__ = changed

    def undo() -> None:
        if model.__init__ is changed:
            model.__init__ = init

    return undo


def _useless(modeling: Any) -> str | None:
    made = instances(modeling.PreTrainedModel)
    if made is None:
        return None
    ways = {getattr(model.config, "_attn_implementation", None) for model in made}
    return None if made and not ways <= {*_FUSED} else f"attention is {', '.join(map(str, ways))}"


CURE = Cure(
    name="sdpa",
    title="models of transformers use scaled_dot_product_attention",
    answers=("busy.attention_unfused",),
    result=ROUNDING,
    change='from_pretrained(..., attn_implementation="sdpa")',
    apply=_apply,
    library="transformers.modeling_utils",
    in_one_run=False,
    useless=_useless,
    advice="scaled_dot_product_attention",
)
