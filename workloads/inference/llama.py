"""The decoder of Llama, Mistral, Qwen and Mixtral, written like GPT-2's: the same ranges, the same
interface.
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

_INITIAL_DEVIATION = 0.02


class Layer(NamedTuple):
    """The weights of one layer. `qkv` is queries, keys and values one after another; `gate_up`
    the two matrices of the SwiGLU that read the same input. With a `router`, `gate_up` and `down`
    have one of each for every expert, [experts, out, in].
    """

    attention_norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor
    qkv_bias: Tensor | None = None
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    router: Tensor | None = None


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

    def unit_gain(count: int = width) -> Tensor:
        return torch.ones(count, dtype=dtype, device=device)

    residual = _INITIAL_DEVIATION / math.sqrt(2 * shape.layers)
    experts = (shape.experts,) if shape.experts else ()
    token_table = random(shape.padded_vocabulary, width)
    layers = [
        Layer(
            attention_norm=unit_gain(),
            qkv=random(query_width + 2 * kv_width, width),
            out=random(width, query_width, deviation=residual),
            mlp_norm=unit_gain(),
            gate_up=random(*experts, 2 * shape.inner, width),
            down=random(*experts, width, shape.inner, deviation=residual),
            qkv_bias=random(query_width + 2 * kv_width) if shape.qkv_bias else None,
            query_norm=unit_gain(shape.head_width) if shape.qk_norm else None,
            key_norm=unit_gain(shape.head_width) if shape.qk_norm else None,
            router=random(shape.experts, width) if shape.experts else None,
        )
        for _ in range(shape.layers)
    ]
    head = token_table if shape.tied else random(shape.padded_vocabulary, width)
    return Weights(token_table, layers, unit_gain(), head)


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
        ranges: PartRanges = ANNOTATED,
        attend: Attend = attend_fused,
    ) -> None:
        self.shape, self.ranges, self.attend = shape, ranges, attend
        self.weights = weights
        self.token_table = weights.token_table
        cos, sin = rotary_tables(shape, positions, self.token_table.device)
        first, second = sin.chunk(2, dim=-1)
        sin = torch.cat([-first, second], dim=-1)
        self._cos, self._sin = cos.to(self.token_table.dtype), sin.to(self.token_table.dtype)

    def tensors(self) -> Iterator[Tensor]:
        """Yield each tensor of weights once, a tied head not again."""
        yield self.token_table
        for layer in self.weights.layers:
            yield from (tensor for tensor in layer if tensor is not None)
        yield self.weights.final_norm
        if not self.shape.tied:
            yield self.weights.head

    def forward(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """Logits [batch, padded vocabulary] of the token after `tokens` [batch, length]: see
        `workloads.inference.model.Model.forward`.
        """
        shape, ranges = self.shape, self.ranges
        batch, length = tokens.shape
        rows = batch * length
        first, last = cache.length, cache.length + length
        cache.length = last
        is_prompt = length > 1
        if is_prompt and first:
            raise ValueError("a prompt must come first")

        with ranges.embedding:
            x = F.embedding(tokens, self.token_table).view(rows, shape.width)

        for layer, cached in zip(self.weights.layers, cache.layers, strict=True):
            with ranges.norm:
                h = self.norm(x, layer.attention_norm)
            with ranges.qkv_proj:
                qkv = F.linear(h, layer.qkv, layer.qkv_bias)
            with ranges.attention:
                heads = qkv.view(batch, length, -1, shape.head_width).transpose(1, 2)
                q, k, v = self.prepared(heads, layer, slice(first, last))
                cached[0].narrow(2, first, length).copy_(k)
                cached[1].narrow(2, first, length).copy_(v)
                keys, values = cached.narrow(3, 0, last).unbind()
                h = self.attend(q, keys, values, is_prompt)
                h = h.transpose(1, 2).reshape(rows, shape.query_width)
            with ranges.out_proj:
                x = x + F.linear(h, layer.out)
            with ranges.norm:
                h = self.norm(x, layer.mlp_norm)
            x = x + self.mlp(h, layer)

        with ranges.norm:
            h = self.norm(x.view(batch, length, shape.width)[:, -1], self.weights.final_norm)
        with ranges.lm_head:
            return F.linear(h, self.weights.head)

    def prepared(
        self, heads: Tensor, layer: Layer, positions: slice | Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of `heads` [batch, all heads, length, head width], turned to
        their positions.
        """
        shape = self.shape
        cos, sin = self._cos[positions], self._sin[positions]
        q, k, v = torch.split(heads, [shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        if layer.query_norm is not None:
            width = (shape.head_width,)
            q = F.rms_norm(q, width, layer.query_norm, shape.epsilon)
            k = F.rms_norm(k, width, layer.key_norm, shape.epsilon)
            return _turned(q, cos, sin), _turned(k, cos, sin), v
        # Queries and keys are rotated together: a third of the kernels.
        together = _turned(heads[:, : shape.heads + shape.kv_heads], cos, sin)
        return together[:, : shape.heads], together[:, shape.heads :], v

    def mlp(self, h: Tensor, layer: Layer) -> Tensor:
        """The MLP of `h` [rows, width], or the mixture of a token's experts."""
        if layer.router is None:
            with self.ranges.mlp:
                return _swiglu(h, layer.gate_up, layer.down)
        shape, rows = self.shape, len(h)
        with self.ranges.router:
            shares = torch.softmax(F.linear(h, layer.router), dim=-1, dtype=torch.float32)
            weights, chosen = shares.topk(shape.experts_per_token, dim=-1)
            if shape.renormalized:
                weights = weights / weights.sum(dim=-1, keepdim=True)
            # Tokens in order of their experts; the host must know how many each has.
            order = chosen.flatten().argsort(stable=True)
            counts = torch.bincount(chosen.flatten(), minlength=shape.experts).tolist()
        with self.ranges.mlp:
            sources = order // shape.experts_per_token
            by_expert = torch.split(h[sources], counts)
            done = [
                _swiglu(part, layer.gate_up[expert], layer.down[expert])
                for expert, part in enumerate(by_expert)
                if len(part)
            ]
            weighted = torch.cat(done) * weights.flatten()[order, None].to(h.dtype)
            mixed = torch.zeros_like(h)
            mixed.index_add_(0, sources, weighted)
            return mixed.view(rows, shape.width)

    def norm(self, x: Tensor, gain: Tensor) -> Tensor:
        return F.rms_norm(x, (self.shape.width,), gain, self.shape.epsilon)


def _swiglu(h: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """A function: what it holds is released before the next layer."""
    gate, up = F.linear(h, gate_up).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, down)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs of the two halves; `sin` is negative in its first half."""
    first, second = x.chunk(2, dim=-1)
    return torch.addcmul(x * cos, torch.cat([second, first], dim=-1), sin)
