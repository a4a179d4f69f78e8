"""Llama's decoder, written like GPT-2's: the same ranges, the same interface."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .parts import ANNOTATED, Attend, KVCache, Parts, attend_fused
from .shapes import Shape

_INITIAL_DEVIATION = 0.02


class Layer(NamedTuple):
    """The weights of one layer. `qkv` is queries, keys and values one after another; `gate_up`
    the two matrices of the SwiGLU that read the same input."""

    attention_norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Weights(NamedTuple):
    """All weights. `head` is `token_table` itself where they are tied."""

    token_table: Tensor
    layers: list[Layer]
    final_norm: Tensor
    head: Tensor


def random_weights(shape: Shape, dtype: torch.dtype, device: torch.device, seed: int) -> Weights:
    """Normal random weights, the same for the same `seed`, device and type."""
    generator = torch.Generator(device).manual_seed(seed)
    width, query_width, kv_width = shape.width, shape.query_width, shape.kv_width

    def random(*dimensions: int, deviation: float = _INITIAL_DEVIATION) -> Tensor:
        empty = torch.empty(dimensions, dtype=dtype, device=device)
        return empty.normal_(std=deviation, generator=generator)

    def ones() -> Tensor:
        return torch.ones(width, dtype=dtype, device=device)

    residual = _INITIAL_DEVIATION / math.sqrt(2 * shape.layers)
    token_table = random(shape.padded_vocabulary, width)
    layers = [
        Layer(
            attention_norm=ones(),
            qkv=random(query_width + 2 * kv_width, width),
            out=random(width, query_width, deviation=residual),
            mlp_norm=ones(),
            gate_up=random(2 * shape.inner, width),
            down=random(width, shape.inner, deviation=residual),
        )
        for _ in range(shape.layers)
    ]
    head = token_table if shape.tied else random(shape.padded_vocabulary, width)
    return Weights(token_table, layers, ones(), head)


def rotary_tables(shape: Shape, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine [positions, head width] in fp32, halves repeated (Su et al., 2021).

    The first half of a head's elements is rotated with the second, as in the released weights.
    """
    steps = torch.arange(0, shape.head_width, 2, device=device).float()
    rates = shape.rope_base ** (-steps / shape.head_width)
    if shape.rope_scaling is not None:
        scaling = shape.rope_scaling
        # Slow rotations are stretched by the factor, fast ones kept, those in between blended.
        turns = scaling.original_context * rates / (2 * math.pi)
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        rates = rates * (kept + (1 - kept) / scaling.factor)
    angles = torch.outer(torch.arange(positions, device=device).float(), rates)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


class LlamaModel:
    """The decoder over `weights`, for at most `positions` positions."""

    def __init__(
        self,
        shape: Shape,
        weights: Weights,
        positions: int,
        *,
        parts: Parts = ANNOTATED,
        attend: Attend = attend_fused,
    ) -> None:
        self.shape, self.parts, self.attend = shape, parts, attend
        self.weights = weights
        self.token_table = weights.token_table
        cos, sin = rotary_tables(shape, positions, self.token_table.device)
        first, second = sin.chunk(2, dim=-1)
        sin = torch.cat([-first, second], dim=-1)
        self._cos, self._sin = cos.to(self.token_table.dtype), sin.to(self.token_table.dtype)

    def tensors(self) -> Iterator[Tensor]:
        """Every weight once."""
        yield self.token_table
        for layer in self.weights.layers:
            yield from layer
        yield self.weights.final_norm
        if not self.shape.tied:
            yield self.weights.head

    def forward(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """Logits [batch, padded vocabulary] of the token after `tokens` [batch, length]: see
        `workloads.inference.model.Model.forward`.
        """
        shape, parts = self.shape, self.parts
        batch, length = tokens.shape
        rows = batch * length
        first, last = cache.length, cache.length + length
        cache.length = last
        is_prompt = length > 1
        if is_prompt and first:
            raise ValueError("a prompt must come first")
        counts = [shape.heads + shape.kv_heads, shape.kv_heads]

        with parts.embedding:
            x = F.embedding(tokens, self.token_table).view(rows, shape.width)

        for layer, cached in zip(self.weights.layers, cache.layers, strict=True):
            with parts.norm:
                h = self._norm(x, layer.attention_norm)
            with parts.qkv_proj:
                qkv = F.linear(h, layer.qkv)
            with parts.attention:
                # Queries and keys are rotated together: a third of the kernels.
                heads = qkv.view(batch, length, -1, shape.head_width).transpose(1, 2)
                qk, v = torch.split(heads, counts, dim=1)
                qk = _turned(qk, self._cos[first:last], self._sin[first:last])
                cached[0].narrow(2, first, length).copy_(qk[:, shape.heads :])
                cached[1].narrow(2, first, length).copy_(v)
                keys, values = cached.narrow(3, 0, last).unbind()
                h = self.attend(qk[:, : shape.heads], keys, values, is_prompt)
                h = h.transpose(1, 2).reshape(rows, shape.query_width)
            with parts.out_proj:
                x = x + F.linear(h, layer.out)
            with parts.norm:
                h = self._norm(x, layer.mlp_norm)
            with parts.mlp:
                x = x + _swiglu(h, layer)

        with parts.norm:
            h = self._norm(x.view(batch, length, shape.width)[:, -1], self.weights.final_norm)
        with parts.lm_head:
            return F.linear(h, self.weights.head)

    def _norm(self, x: Tensor, gain: Tensor) -> Tensor:
        return F.rms_norm(x, (self.shape.width,), gain, self.shape.epsilon)


def _swiglu(h: Tensor, layer: Layer) -> Tensor:
    """A function: what it holds is released before the next layer."""
    gate, up = F.linear(h, layer.gate_up).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, layer.down)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs of the two halves; `sin` is negative in its first half."""
    first, second = x.chunk(2, dim=-1)
    return torch.addcmul(x * cos, torch.cat([second, first], dim=-1), sin)
