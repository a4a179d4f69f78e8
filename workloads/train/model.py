"""The networks to train: CS336's (llama) and GPT-2's, of plain modules.

Ranges inside the layers are those of the seeds' attention study. They exist only where Python runs:
a compiled model has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..ranges import Range
from .shapes import GPT2_CONTEXT, Shape

# Su et al., 2021, RoFormer, section 3.2.2.
_ROPE_BASE = 10_000.0

_INITIAL_DEVIATION = 0.02

MHA = "MHA(total)"
INSIDE_MHA = (
    "QKV projections", "RoPE(Q)", "RoPE(K)", "attn_logits (QK^T) + mask", "softmax",
    "attn*V (context)", "scaled_dot_product_attention", "output proj",
)  # fmt: skip
OUTSIDE_MHA = ("embedding", "norm", "FFN", "lm_head")

RangeOf = Callable[[str], AbstractContextManager[None]]


class LayerRanges:
    """The ranges inside a forward pass, by name; `counting` while one runs separately."""

    def __init__(self) -> None:
        self._ranges = {name: Range(name) for name in (MHA, *INSIDE_MHA, *OUTSIDE_MHA)}

    def __call__(self, name: str) -> AbstractContextManager[None]:
        return self._ranges[name]

    def count(self, counting: bool) -> None:
        """Whether the following passes count: one that checkpoints repeat does not."""
        for span in self._ranges.values():
            span.counting = counting

    def reset(self) -> None:
        for span in self._ranges.values():
            span.reset()

    def used(self) -> Iterable[Range]:
        """The ranges that were entered at least once while counting."""
        return (span for span in self._ranges.values() if span.count)


def no_ranges(_name: str) -> AbstractContextManager[None]:
    """A stand-in for `LayerRanges` in a compiled model, whose graph every range would split."""
    return nullcontext()


def naive_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, ranges: RangeOf) -> Tensor:
    """softmax(QKᵀ/√d + mask) V with every matrix written out. q, k, v: [batch, heads, T, d]."""
    with ranges("attn_logits (QK^T) + mask"):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(mask, float("-inf"))
    with ranges("softmax"):
        probabilities = torch.softmax(scores, dim=-1)
    with ranges("attn*V (context)"):
        return probabilities.to(v.dtype) @ v


class RMSNorm(nn.Module):
    """x / rms(x), scaled (Zhang and Sennrich, 2019)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (normal * self.weight).to(x.dtype)


class Rotary(nn.Module):
    """Rotary positions, neighbouring pairs rotated by their position's angle."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_width: int, length: int) -> None:
        super().__init__()
        rates = _ROPE_BASE ** (-torch.arange(0, head_width, 2).float() / head_width)
        angles = torch.outer(torch.arange(length).float(), rates)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = (even * self.cos - odd * self.sin, even * self.sin + odd * self.cos)
        return torch.stack(turned, dim=-1).flatten(-2).to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention of one layer; naive with a mask, else fused."""

    def __init__(self, shape: Shape, length: int, ranges: RangeOf) -> None:
        super().__init__()
        self.shape, self.ranges = shape, ranges
        width = shape.width
        self.rotary: Rotary | None = None
        if shape.family == "llama":
            self.rotary = Rotary(shape.head_width, length)
            widths = (width, shape.kv_width, shape.kv_width)
            self.projections = nn.ModuleList(nn.Linear(width, out, bias=False) for out in widths)
        else:
            self.projections = nn.ModuleList([nn.Linear(width, 3 * width)])
        self.out = nn.Linear(width, width, bias=shape.family == "gpt2")

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, width = x.shape
        head_width = self.shape.head_width
        groups = self.shape.heads // self.shape.kv_heads
        with self.ranges(MHA):
            with self.ranges("QKV projections"):
                projected = [part(x) for part in self.projections]
                projected = projected[0].chunk(3, dim=-1) if len(projected) == 1 else projected
                q, k, v = (
                    part.view(batch, length, -1, head_width).transpose(1, 2) for part in projected
                )
            if self.rotary is not None:
                with self.ranges("RoPE(Q)"):
                    q = self.rotary(q)
                with self.ranges("RoPE(K)"):
                    k = self.rotary(k)
            if mask is not None:
                if groups > 1:
                    k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
                context = naive_attention(q, k, v, mask, self.ranges)
            else:
                with self.ranges("scaled_dot_product_attention"):
                    context = F.scaled_dot_product_attention(
                        q, k, v, is_causal=True, enable_gqa=groups > 1
                    )
            with self.ranges("output proj"):
                joined = context.transpose(1, 2).reshape(batch, length, width)
                return self.out(joined)  # type: ignore[no-any-return]


class Block(nn.Module):
    """One layer: attention and feed-forward network, each after its norm."""

    def __init__(self, shape: Shape, length: int, ranges: RangeOf) -> None:
        super().__init__()
        self.ranges = ranges
        width, inner = shape.width, shape.inner
        self.attention = Attention(shape, length, ranges)
        self.gated = shape.family == "llama"
        biased = not self.gated
        self.norms = nn.ModuleList(_norm(shape) for _ in range(2))
        self.up = nn.Linear(width, inner, bias=biased)
        self.down = nn.Linear(inner, width, bias=biased)
        self.gate = nn.Linear(width, inner, bias=False) if self.gated else None

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        with self.ranges("norm"):
            h = self.norms[0](x)
        x = x + self.attention(h, mask)
        with self.ranges("norm"):
            h = self.norms[1](x)
        with self.ranges("FFN"):
            if self.gate is not None:
                h = F.silu(self.gate(h)) * self.up(h)
            else:
                h = F.gelu(self.up(h), approximate="tanh")
            return x + self.down(h)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Tokens [batch, length] → logits [batch, length, vocabulary], only for that `length`.

    Naive attention has one mask for all layers; the fused one needs none.
    """

    mask: Tensor | None

    def __init__(
        self,
        shape: Shape,
        length: int,
        *,
        naive: bool,
        checkpoint_every: int = 0,
        ranges: RangeOf = no_ranges,
    ) -> None:
        super().__init__()
        self.shape, self.ranges, self.every = shape, ranges, checkpoint_every
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions: nn.Embedding | None = None
        if shape.family == "gpt2":
            self.positions = nn.Embedding(GPT2_CONTEXT, shape.width)
        self.blocks = nn.ModuleList(Block(shape, length, ranges) for _ in range(shape.layers))
        above = torch.ones(length, length, dtype=torch.bool).triu(1) if naive else None
        self.register_buffer("mask", above, persistent=False)
        self.norm = _norm(shape)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        if shape.family == "gpt2" or shape.tied:
            self.head.weight = self.tokens.weight

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Random weights, the same for the same seed and device; biases 0 and norms 1."""
        generator = torch.Generator(self.tokens.weight.device).manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=_INITIAL_DEVIATION, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()

    def forward(self, tokens: Tensor) -> Tensor:
        with self.ranges("embedding"):
            x = self.tokens(tokens)
            if self.positions is not None:
                x = x + self.positions.weight[: tokens.shape[1]]
        if self.every:
            for first in range(0, len(self.blocks), self.every):
                x = checkpoint(self._group, x, first, use_reentrant=False)
        else:
            x = self._through(x, 0, len(self.blocks))
        with self.ranges("norm"):
            x = self.norm(x)
        with self.ranges("lm_head"):
            return self.head(x)  # type: ignore[no-any-return]

    def _group(self, x: Tensor, first: int) -> Tensor:
        return self._through(x, first, first + self.every)

    def _through(self, x: Tensor, first: int, last: int) -> Tensor:
        for block in self.blocks[first:last]:
            x = block(x, self.mask)
        return x


def _norm(shape: Shape) -> nn.Module:
    return RMSNorm(shape.width) if shape.family == "llama" else nn.LayerNorm(shape.width)
