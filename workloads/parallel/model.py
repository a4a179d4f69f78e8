"""The model that every engine divides: a GPT with separate projections, and experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Sizes:
    """Of the model and its batch: `batch` is of each rank."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    ctx: int
    batch: int
    microbatches: int


Exchange = Callable[[Tensor, bool], Tensor]
"""Heads for positions (True) or back (False), among the ranks of a context."""


class Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.hidden
        self.head = width // sizes.heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.exchange: Exchange | None = None

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        query, key, value = (
            project(x).view(rows, length, -1, self.head).transpose(1, 2)
            for project in (self.wq, self.wk, self.wv)
        )
        if self.exchange is not None:
            query, key, value = (self.exchange(part, True) for part in (query, key, value))
        out = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        if self.exchange is not None:
            out = self.exchange(out, False)
        mixed: Tensor = self.wo(out.transpose(1, 2).reshape(rows, length, -1))
        return mixed


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, 4 * width, bias=False)
        self.w2 = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w2(functional.gelu(self.w1(x)))
        return out


class Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(sizes.hidden), nn.LayerNorm(sizes.hidden)
        self.attention, self.mlp = Attention(sizes), Mlp(sizes.hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Gpt(nn.Module):
    """`first` is the position of the first token: not 0 where ranks share a sequence."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocab, sizes.hidden)
        self.positions = nn.Embedding(sizes.ctx, sizes.hidden)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.hidden)
        self.head = nn.Linear(sizes.hidden, sizes.vocab, bias=False)
        self.first = 0

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(self.first, self.first + x.shape[1], device=x.device)
        out = self.tokens(x) + self.positions(places)
        for block in self.blocks:
            out = block(out)
        logits: Tensor = self.head(self.norm(out))
        return logits


class Stage(nn.Module):
    """Consecutive blocks of a Gpt, with its embeddings or its head at the ends."""

    def __init__(self, model: Gpt, index: int, count: int) -> None:
        super().__init__()
        each = len(model.blocks) // count
        self.tokens = model.tokens if index == 0 else None
        self.positions = model.positions if index == 0 else None
        self.blocks = nn.ModuleList(model.blocks[index * each : (index + 1) * each])
        self.norm = model.norm if index == count - 1 else None
        self.head = model.head if index == count - 1 else None

    def forward(self, x: Tensor) -> Tensor:
        if self.tokens is not None and self.positions is not None:
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def gpt_of(model: nn.Module) -> Gpt:
    """`model`, asserted to be a `Gpt`, for type checkers."""
    assert isinstance(model, Gpt)
    return model


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy in fp32, the mean over all tokens of the batch."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def batch_of(sizes: Sizes, ranks: int, step: int, seed: int) -> tuple[Tensor, Tensor]:
    """The whole batch of a step, the same on every rank."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step + 1)
    shape = (sizes.batch * ranks, sizes.ctx + 1)
    # Tokens that follow one another by a rule, so that there is something to learn.
    first = torch.randint(sizes.vocab, (shape[0], 1), generator=generator)
    words = (first + torch.arange(shape[1]) * 7) % sizes.vocab
    return words[:, :-1].contiguous(), words[:, 1:].contiguous()
