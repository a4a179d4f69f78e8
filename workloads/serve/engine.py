"""The pass of one step: pieces of many requests as one row of tokens, keys and values in pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..inference.llama import LlamaModel
from .scheduler import Piece


@dataclass(frozen=True)
class Batch:
    """One step on the device: the tokens, their positions and places in the cache.

    `single` rows are those of requests with one token; `pages` and `seen` are theirs: the pages of
    each, padded, and which of their positions are known. `prompts` has the rows of each longer
    piece, its pages, and the mask where it does not begin its request. `last` are the rows after
    which a token is written.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    single: Tensor
    pages: Tensor
    seen: Tensor
    prompts: list[tuple[slice, Tensor, Tensor | None]]
    last: Tensor


class Engine:
    """A model with a paged KV cache."""

    def __init__(self, model: LlamaModel, pages: int, page: int) -> None:
        shape, table = model.shape, model.token_table
        self.model, self.page, self.device = model, page, table.device
        # [key and value, page, position, KV heads, head width]
        self._cache = [
            torch.zeros(
                (2, pages, page, shape.kv_heads, shape.head_width),
                dtype=table.dtype,
                device=table.device,
            )
            for _ in range(shape.layers)
        ]

    def batch(self, pieces: Sequence[Piece]) -> Batch:
        """What `forward` needs of a plan, copied to the device."""
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        single: list[int] = []
        prompts: list[tuple[slice, Tensor, Tensor | None]] = []
        last: list[int] = []
        tables: list[tuple[list[int], int]] = []
        for piece in pieces:
            request, first, count = piece
            row = len(tokens)
            tokens += request.tokens[first : first + count]
            places = range(first, first + count)
            positions += places
            slots += [
                request.pages[position // self.page] * self.page + position % self.page
                for position in places
            ]
            if count == 1:
                single.append(row)
                tables.append((request.pages, first + 1))
            else:
                prompts.append((slice(row, row + count), *self._prompt(piece)))
            if piece.writes:
                last.append(row + count - 1)
        longest = max((len(pages) for pages, _ in tables), default=0)
        padded = [pages + [0] * (longest - len(pages)) for pages, _ in tables]
        cached_lengths = self._tensor([length for _, length in tables])
        reach = torch.arange(longest * self.page, device=self.device)
        return Batch(
            tokens=self._tensor(tokens),
            positions=self._tensor(positions),
            slots=self._tensor(slots),
            single=self._tensor(single),
            pages=self._tensor(padded).view(len(tables), longest),
            seen=(reach < cached_lengths[:, None])[:, None, None],
            prompts=prompts,
            last=self._tensor(last),
        )

    def forward(self, batch: Batch) -> Tensor:
        """Logits [rows that are followed by a token, padded vocabulary]."""
        model, ranges = self.model, self.model.ranges
        shape, rows = model.shape, len(batch.tokens)
        with ranges.embedding:
            x = F.embedding(batch.tokens, model.token_table)
        for layer, cache in zip(model.weights.layers, self._cache, strict=True):
            with ranges.norm:
                h = model.norm(x, layer.attention_norm)
            with ranges.qkv_proj:
                qkv = F.linear(h, layer.qkv, layer.qkv_bias)
            with ranges.attention:
                heads = qkv.view(1, rows, -1, shape.head_width).transpose(1, 2)
                q, k, v = model.prepared(heads, layer, batch.positions)
                flat = cache.view(2, -1, shape.kv_heads, shape.head_width)
                flat[0, batch.slots] = k[0].transpose(0, 1)
                flat[1, batch.slots] = v[0].transpose(0, 1)
                h = self._attend(q[0].transpose(0, 1), cache, batch)
            with ranges.out_proj:
                x = x + F.linear(h, layer.out)
            with ranges.norm:
                h = model.norm(x, layer.mlp_norm)
            x = x + model.mlp(h, layer)
        with ranges.norm:
            h = model.norm(x[batch.last], model.weights.final_norm)
        with ranges.lm_head:
            return F.linear(h, model.weights.head)

    def _attend(self, q: Tensor, cache: Tensor, batch: Batch) -> Tensor:
        """q: [rows, heads, head width] → [rows, query width]."""
        out = torch.empty_like(q)
        groups = self.model.shape.groups
        if len(batch.single):
            # [2, requests, pages, positions, KV heads, width] → [2, requests, KV heads, all, width]
            cached = cache[:, batch.pages].flatten(2, 3).transpose(2, 3)
            # The queries that share keys stand as positions: no fused kernel takes a mask and
            # groups, and torch's own would repeat the keys.
            together = q[batch.single].view(len(batch.single), cached.shape[2], groups, -1)
            answer = F.scaled_dot_product_attention(together, cached[0], cached[1], batch.seen)
            out[batch.single] = answer.flatten(1, 2)
        for rows, pages, mask in batch.prompts:
            count = rows.stop - rows.start if mask is None else mask.shape[1]
            cached = cache[:, pages].flatten(1, 2)[:, :count].transpose(1, 2)[:, None]
            ahead = q[rows].transpose(0, 1)[None]
            if mask is None:
                answer = F.scaled_dot_product_attention(
                    ahead, cached[0], cached[1], is_causal=True, enable_gqa=groups > 1
                )
            else:
                together = ahead.reshape(1, cached.shape[2], groups * ahead.shape[2], -1)
                answer = F.scaled_dot_product_attention(
                    together, cached[0], cached[1], mask.repeat(groups, 1)
                )
                answer = answer.reshape(ahead.shape)
            out[rows] = answer[0].transpose(0, 1)
        return out.flatten(1)

    def _prompt(self, piece: Piece) -> tuple[Tensor, Tensor | None]:
        """The pages of a piece of a prompt, and the mask if others came before it."""
        request, first, count = piece
        pages = self._tensor(request.pages)
        if not first:
            return pages, None
        before = torch.ones(count, first + count, dtype=torch.bool, device=self.device)
        return pages, before.tril(first)

    def _tensor(self, values: Sequence[object]) -> Tensor:
        made = torch.tensor(values, dtype=torch.int64)
        if self.device.type == "cuda":
            return made.pin_memory().to(self.device, non_blocking=True)
        return made
