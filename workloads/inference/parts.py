"""What the networks share: the ranges of their parts, the KV cache, ways to attend."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields

import nvtx
import torch
import torch.nn.functional as F
from torch import Tensor

from .shapes import Shape

Attend = Callable[[Tensor, Tensor, Tensor, bool], Tensor]
"""Queries [batch, heads, n, width], keys and values [batch, KV heads, m, width], and whether they
are a prompt's, whose tokens see only earlier ones → [batch, heads, n, width].
"""


@dataclass(frozen=True)
class PartRanges:
    """A reusable range for every part of a network."""

    embedding: AbstractContextManager[object]
    norm: AbstractContextManager[object]
    qkv_proj: AbstractContextManager[object]
    attention: AbstractContextManager[object]
    out_proj: AbstractContextManager[object]
    router: AbstractContextManager[object]
    mlp: AbstractContextManager[object]
    lm_head: AbstractContextManager[object]


# Created once and reused: a new `nvtx.annotate` per range would cost four times as much, and a step
# enters dozens.
ANNOTATED = PartRanges(**{field.name: nvtx.annotate(field.name) for field in fields(PartRanges)})

SILENT = PartRanges(**{field.name: nullcontext() for field in fields(PartRanges)})
"""For a compiled network, which every range would split."""


class KVCache:
    """Keys and values of every position so far, in memory allocated once.

    `layers` has one tensor per layer, of shape [2 (key, value), batch, KV heads, positions, head
    width]. `length` counts the positions filled; set it to 0 to start over.
    """

    def __init__(
        self, shape: Shape, batch: int, positions: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        dimensions = (2, batch, shape.kv_heads, positions, shape.head_width)
        self.layers = [
            torch.empty(dimensions, dtype=dtype, device=device) for _ in range(shape.layers)
        ]
        self.length = 0


def attend_fused(q: Tensor, keys: Tensor, values: Tensor, is_prompt: bool) -> Tensor:
    """PyTorch's scaled_dot_product_attention, by whichever back end is enabled."""
    is_grouped = q.shape[1] != keys.shape[1]
    return F.scaled_dot_product_attention(
        q, keys, values, is_causal=is_prompt, enable_gqa=is_grouped
    )


def attend_naive(q: Tensor, keys: Tensor, values: Tensor, is_prompt: bool) -> Tensor:
    """Every matrix written out, keys and values repeated for the heads that share them."""
    groups = q.shape[1] // keys.shape[1]
    if groups > 1:
        keys, values = (part.repeat_interleave(groups, dim=1) for part in (keys, values))
    scores = q @ keys.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if is_prompt:
        length = q.shape[2]
        above = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(above, float("-inf"))
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype) @ values
