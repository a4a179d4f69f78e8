"""GPT-2's decoder, written out.

Plain tensors and functions instead of modules: at batch 1 the GPU waits for Python, and the code
reads in the order the kernels run. Every operation is inside a range named after its part of the
network, and these ranges do not nest, so each kernel belongs to exactly one part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .parts import ANNOTATED, Attend, KVCache, PartRanges, attend_fused
from .shapes import Shape

# Of the weights (Radford et al., 2018, section 4.1).
_INITIAL_DEVIATION = 0.02


class Affine(NamedTuple):
    """A matrix and its bias, or the gain and bias of a norm."""

    weight: Tensor
    bias: Tensor


class Layer(NamedTuple):
    """The weights of one layer."""

    attention_norm: Affine
    qkv: Affine
    out: Affine
    mlp_norm: Affine
    up: Affine
    down: Affine


class Model:
    """The decoder with random weights, the same for the same `seed`, device and type."""

    def __init__(
        self,
        shape: Shape,
        dtype: torch.dtype,
        device: torch.device,
        seed: int,
        *,
        ranges: PartRanges = ANNOTATED,
        attend: Attend = attend_fused,
    ) -> None:
        generator = torch.Generator(device).manual_seed(seed)

        def random(*dimensions: int, deviation: float = _INITIAL_DEVIATION) -> Tensor:
            empty = torch.empty(dimensions, dtype=dtype, device=device)
            return empty.normal_(std=deviation, generator=generator)

        def affine(weight: Tensor) -> Affine:
            return Affine(weight, torch.zeros(weight.shape[0], dtype=dtype, device=device))

        def norm() -> Affine:
            return affine(torch.ones(width, dtype=dtype, device=device))

        width = shape.width
        # Weights that add to the residual are scaled by depth (Radford et al., 2019, section 2.3).
        residual = _INITIAL_DEVIATION / math.sqrt(2 * shape.layers)
        self.shape, self.ranges, self.attend = shape, ranges, attend
        self.token_table = random(shape.padded_vocabulary, width)
        self.position_table = random(shape.context, width)
        self.layers = [
            Layer(
                attention_norm=norm(),
                qkv=affine(random(3 * width, width)),
                out=affine(random(width, width, deviation=residual)),
                mlp_norm=norm(),
                up=affine(random(4 * width, width)),
                down=affine(random(width, 4 * width, deviation=residual)),
            )
            for _ in range(shape.layers)
        ]
        self.final_norm = norm()

    def tensors(self) -> Iterator[Tensor]:
        """Every weight once; the output head is the token table."""
        yield self.token_table
        yield self.position_table
        for layer in self.layers:
            for affine in layer:
                yield from affine
        yield from self.final_norm

    def forward(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """Logits [batch, padded vocabulary] of the token after `tokens` [batch, length].

        `tokens` continue the cache, which grows by them. More than one token at a time is a prompt,
        and a prompt comes first: the causal mask assumes an empty cache.
        """
        batch, length = tokens.shape
        rows = batch * length
        width, heads, head_width = self.shape.width, self.shape.heads, self.shape.head_width
        first, last = cache.length, cache.length + length
        cache.length = last
        ranges, epsilon = self.ranges, self.shape.epsilon
        is_prompt = length > 1
        if is_prompt and first:
            raise ValueError("a prompt must come first")

        with ranges.embedding:
            x = F.embedding(tokens, self.token_table)
            x += self.position_table[first:last]
            x = x.view(rows, width)

        for layer, cached in zip(self.layers, cache.layers, strict=True):
            with ranges.norm:
                h = F.layer_norm(x, (width,), *layer.attention_norm, epsilon)
            with ranges.qkv_proj:
                qkv = F.linear(h, *layer.qkv)
            with ranges.attention:
                # [row, 3 · heads · head width] → [3, batch, heads, length, head width]
                qkv = qkv.view(batch, length, 3, heads, head_width).permute(2, 0, 3, 1, 4)
                cached.narrow(3, first, length).copy_(qkv[1:])
                keys, values = cached.narrow(3, 0, last).unbind()
                h = self.attend(qkv[0], keys, values, is_prompt)
                h = h.transpose(1, 2).reshape(rows, width)
            with ranges.out_proj:
                x += F.linear(h, *layer.out)
            with ranges.norm:
                h = F.layer_norm(x, (width,), *layer.mlp_norm, epsilon)
            with ranges.mlp:
                h = F.gelu(F.linear(h, *layer.up), approximate="tanh")
                x += F.linear(h, *layer.down)

        with ranges.norm:
            h = F.layer_norm(
                x.view(batch, length, width)[:, -1], (width,), *self.final_norm, epsilon
            )
        with ranges.lm_head:
            return F.linear(h, self.token_table)
