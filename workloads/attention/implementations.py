"""The ways to compute attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import nvtx
import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..rows import Unsupported

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

_BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}

RANGES: Mapping[str, AbstractContextManager[object]] = {
    name: nvtx.annotate(name)
    for name in ("matmul QK^T", "scale", "mask", "softmax", "dropout", "matmul PV")
}
"""Of the naive implementation, in order: the bars that a fused kernel makes one of (Dao et al.,
2022, FlashAttention, figure 1)."""

WRITES_SCORES = {"naive", "compiled", "math"}
"""Those that keep the score matrix in memory; the others recompute it in the backward pass."""

# A compiled graph may release its saved tensors' memory in the backward pass, which then cannot run
# twice.
torch._functorch.config.donated_buffer = False


def attention(
    name: str, *, causal: bool, length: int, device: torch.device, dropout: float = 0.0
) -> Attention:
    """The implementation `name` for q, k, v [batch, heads, length, head width], which drops the
    share `dropout` of the probabilities. The naive one has a range for each operation.

    The returned function raises Unsupported if the back end has no kernel for such inputs.
    """
    if name in _BACKENDS:
        return _of_backend(_BACKENDS[name], causal, dropout)
    mask = torch.ones(length, length, dtype=torch.bool, device=device).triu(1) if causal else None
    # A compiled graph would be split by every range.
    ranges = RANGES if name == "naive" else dict.fromkeys(RANGES, nullcontext())

    def naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with ranges["matmul QK^T"]:
            scores = q @ k.transpose(-2, -1)
        with ranges["scale"]:
            scores = scores / math.sqrt(q.shape[-1])
        if mask is not None:
            with ranges["mask"]:
                scores = scores.masked_fill(mask, float("-inf"))
        with ranges["softmax"]:
            probabilities = torch.softmax(scores, dim=-1)
        if dropout:
            with ranges["dropout"]:
                probabilities = F.dropout(probabilities, dropout)
        with ranges["matmul PV"]:
            return probabilities @ v

    if name == "naive":
        return naive
    torch._dynamo.reset()
    # Its patterns would take a fused kernel where it recognises attention: without a mask, and in
    # fp32 with TF32 only, whose rows were then another computation than those in IEEE (recorded on
    # one H200: `fmha_cutlassB_f32`, 45 ms backward where the products take 34).
    compiled = torch.compile(naive, dynamic=False, options={"pattern_matcher": False})
    return cast(Attention, compiled)


def _of_backend(backend: SDPBackend, causal: bool, dropout: float) -> Attention:
    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        try:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal, dropout_p=dropout)
        except RuntimeError as error:
            if "No available kernel" not in str(error) and "No viable backend" not in str(error):
                raise
            raise Unsupported(
                f"no {backend.name.lower().replace('_', ' ')} kernel for {q.dtype} heads of "
                f"{q.shape[-1]} on {q.device.type}"
            ) from None

    return fused
