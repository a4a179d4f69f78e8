"""What models of transformers were given last, for cures that ask whether they have anything to
change."""

from __future__ import annotations

import functools
import sys
import types
from collections import deque
from typing import Any, NamedTuple

from . import replaced

LAST = 16
"""Calls of models that are remembered, of all together."""
MASKS = 4
"""Of them, those whose padding is looked at."""
LEAST_TRIMMED = 0.1
"""Part of the columns of a batch that is worth to be left out."""


class _Call(NamedTuple):
    """A call of a model that no other of transformers calls."""

    model: int
    shape: tuple[int, ...]
    """Of the text that it writes, or reads."""
    mask: Any
    has_cache: bool


_calls: deque[_Call] = deque(maxlen=LAST)
_watched: list[Any] = []


def watch(modeling: Any) -> None:
    """Has models note what they are given, from now on."""
    if modeling in _watched:
        return
    _watched.append(modeling)
    torch, inside = sys.modules["torch"], [False]
    module = torch.nn.Module

    @functools.wraps(module.__call__)
    def called(model: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or inside[0]:
            return module.__call__(model, *args, **kwargs)
        inside[0] = True
        try:
            note(model, args, kwargs)
            return module.__call__(model, *args, **kwargs)
        finally:
            inside[0] = False

    replaced((modeling.PreTrainedModel, "__call__", called))


def note(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Remember what a model is given."""
    text = kwargs.get("decoder_input_ids", kwargs.get("input_ids", args[0] if args else None))
    shape = tuple(getattr(text, "shape", ()))
    if len(shape) == 2:
        mask = kwargs.get("attention_mask")
        cache = kwargs.get("past_key_values")
        _calls.append(_Call(id(model), shape, mask, cache is not None))


def with_forward(model: Any, forward: Any) -> tuple[Any, str, Any]:
    """What `replaced` takes to have a model call this one. transformers looks at a forward's words
    for what it may pass: they stay."""
    real = model.forward

    if getattr(real, "__self__", None) is not model:  # another's wrapper

        @functools.wraps(real)
        def called(*args: Any, **kwargs: Any) -> Any:
            return forward(*args, **kwargs)

        return model, "forward", called

    own = real.__func__

    @functools.wraps(own)
    def called_of(itself: Any, *args: Any, **kwargs: Any) -> Any:
        # A copy of the model has what is called here as its own, bound to itself.
        return forward(*args, **kwargs) if itself is model else own(itself, *args, **kwargs)

    return model, "forward", types.MethodType(called_of, model)


def is_gone_through_again() -> bool:
    """Whether a model was given a text as long as the last one, and a few tokens more, without
    keys and values of the tokens before."""
    calls = list(_calls)
    return any(
        call.model == before.model and not call.has_cache and not before.has_cache
        and call.shape[0] == before.shape[0]
        and before.shape[1] < call.shape[1] <= before.shape[1] + MOST_NEW
        for place, call in enumerate(calls[1:])
        for before in (calls[place],)
    )  # fmt: skip


MOST_NEW = 8
"""Tokens by which a text grows."""


def is_padded_at_end() -> bool:
    """Whether columns at the end of the last batches are padding. It waits for the GPU."""
    masks = [call.mask for call in _calls if getattr(call.mask, "ndim", 0) == 2][-MASKS:]
    wholes = [mask.shape[1] for mask in masks]
    used = [int((mask != 0).any(0).nonzero().max()) + 1 for mask in masks if bool(mask.any())]
    return sum(used) <= (1.0 - LEAST_TRIMMED) * sum(map(int, wholes)) if masks else False
