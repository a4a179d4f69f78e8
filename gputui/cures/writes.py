"""How often tensors were written to: what was kept of one that was written to since is stale."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import Undo

UNCOUNTED = "not counted"

_fused_steps: dict[int, int] = {}
"""By a parameter's id, how often a fused optimizer wrote to it, which torch does not count (seen of
torch 2.13's AdamW). Another tensor with the id of one that is gone only seems newer."""


def writes_of(value: Any) -> Any:
    """How often a tensor was written to; UNCOUNTED where it was made in inference mode; None of
    what is no tensor."""
    if not hasattr(value, "data_ptr"):
        return None
    if value.is_inference():
        return UNCOUNTED
    return value._version + _fused_steps.get(id(value), 0)


MOST_COMPARED_BYTES = 1 << 25
"""Of a tensor, rows that are as far from each other as it takes."""


def rows_all_over(value: Any) -> Any:
    """Of a tensor those that are looked at where nobody counts writes."""
    every = max(1, value.numel() * value.element_size() // MOST_COMPARED_BYTES)
    return value.detach()[::every] if value.dim() else value.detach()


def differ(first: Any, second: Any) -> bool:
    """Whether tensors of one shape and type have other bits. They are compared on the host."""
    uint8 = sys.modules["torch"].uint8
    bits = [each.cpu().contiguous().view(-1).view(uint8) for each in (first, second)]
    return not bits[0].equal(bits[1])


def writes_of_weights(model: Any) -> tuple[Any, ...]:
    """Of each of a model's weights: what is kept of one that was trained since is stale."""
    return tuple(map(writes_of, model.parameters()))


def counting_fused_steps() -> Undo:
    """Counts what fused optimizers write from now on; returns what ends that."""

    def stepped(optimizer: Any, *_words: Any) -> None:
        for group in optimizer.param_groups:
            for each in group["params"] if group.get("fused") else ():
                _fused_steps[id(each)] = _fused_steps.get(id(each), 0) + 1

    optimizers = sys.modules["torch.optim.optimizer"]
    undo: Undo = optimizers.register_optimizer_step_post_hook(stepped).remove
    return undo


def writes_to_first(name: str) -> bool:
    """Whether a function writes to its first argument."""
    is_in_place = name.endswith("_") and not name.startswith("_")
    return is_in_place or name in _IN_PLACE


_IN_PLACE = (
    "__setitem__",
    "__iadd__",
    "__isub__",
    "__imul__",
    "__idiv__",
    "__itruediv__",
    "__ipow__",
)
