"""A network of either family, with random weights or a checkpoint's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from .llama import LlamaModel, Weights, random_weights
from .model import Model
from .parts import ANNOTATED, SILENT, Attend, KVCache, attend_fused, attend_naive
from .shapes import Shape

Forward = Callable[[Tensor, KVCache], Tensor]


class Network(Protocol):
    """The interface of a network."""

    shape: Shape
    token_table: Tensor

    def tensors(self) -> Iterator[Tensor]:
        """Yield each tensor of weights once, a tied head not again."""

    def forward(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """Logits of the token after `tokens`."""


def make_network(
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    *,
    seed: int,
    positions: int,
    attention: str,
    compiled: bool,
    weights: Weights | None = None,
) -> Network:
    """A network of `shape`, random unless `weights` of a Llama are given.

    `compiled` leaves out the ranges of its parts. Sets the process's attention back end.
    """
    choose_back_end(attention)
    ranges = SILENT if compiled else ANNOTATED
    attend: Attend = attend_naive if attention == "naive" else attend_fused
    if shape.family == "gpt2":
        return Model(shape, dtype, device, seed, ranges=ranges, attend=attend)
    if weights is None:
        weights = random_weights(shape, dtype, device, seed)
    return LlamaModel(shape, weights, positions, ranges=ranges, attend=attend)


def choose_back_end(name: str) -> None:
    """Enable the attention kernels that `name`, one of ATTENTION, allows.

    Not cuDNN's unless requested: it plans again for every length, 2 ms each on an H200, and a cache
    grows by one every step. Decode spent 90 % of its time planning.
    """
    allowed = {"math", "flash", "efficient"} if name in ("auto", "naive") else {name}
    torch.backends.cuda.enable_math_sdp("math" in allowed)
    torch.backends.cuda.enable_flash_sdp("flash" in allowed)
    torch.backends.cuda.enable_mem_efficient_sdp("efficient" in allowed)
    torch.backends.cuda.enable_cudnn_sdp("cudnn" in allowed)
