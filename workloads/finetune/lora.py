"""Low-rank additions to the matrices of a model (Hu et al., 2021, LoRA)."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from ..train.model import Decoder
from ..train.shapes import Shape

# Of the addition, over the rank: the paper's scale with α = 2 r.
_ALPHA = 2.0


class LowRank(nn.Module):
    """A frozen linear layer, and a product of two thin matrices added to it; 0 at first."""

    def __init__(self, whole: nn.Linear, rank: int) -> None:
        super().__init__()
        self.whole = whole
        like = whole.weight
        self.down = nn.Parameter(like.new_empty(rank, whole.in_features))
        self.up = nn.Parameter(like.new_zeros(whole.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.whole(x) + _ALPHA * F.linear(F.linear(x, self.down), self.up)  # type: ignore[no-any-return]


def add_to(model: Decoder, rank: int) -> None:
    """Freeze the model, and add to every matrix of its layers."""
    model.requires_grad_(False)
    for block in model.blocks:
        for holder in list(block.modules()):
            for name, child in list(holder.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(holder, name, LowRank(child, rank))


def added_parameters(shape: Shape, rank: int) -> int:
    """For each matrix of a layer, `rank` of its inputs and of its outputs."""
    width, inner, kv = shape.width, shape.inner, shape.kv_width
    attention = 2 * (width + width) + 2 * (width + kv)
    return shape.layers * rank * (attention + 3 * (width + inner))


def state_bytes(parameters: int, trained: int) -> int:
    """fp32 weights, and for each that is trained a gradient and AdamW's two moments."""
    return 4 * parameters + 12 * trained
