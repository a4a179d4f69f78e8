"""Operations and bytes of the workloads, computed from shapes.

A multiplication and an addition are two operations. Operation counts agree with
torch.utils.flop_counter, which the tests check on the meta device.
"""

from __future__ import annotations

_ATTENTION_BACKWARD = 2.0
"""Backward over forward if the score matrix is kept: each product has two gradients."""

_FLASH_BACKWARD = 2.5
"""Backward over forward if the scores are recomputed: five products for two (Dao, 2023,
FlashAttention-2, section 4.1).
"""


def gemm_flops(m: int, n: int, k: int) -> int:
    """Of an [m, k] by [k, n] product."""
    return 2 * m * n * k


def gemm_bytes(m: int, n: int, k: int, element_bytes: int) -> int:
    """The minimum a product moves: both factors read and the result written once."""
    return (m * k + k * n + m * n) * element_bytes


def attention_flops(
    batch: int, heads: int, queries: int, keys: int, head_width: int, *, causal: bool = False
) -> float:
    """Operations of one forward pass: QKᵀ and PV, 2·T²·d each per head.

    `causal` counts half: what a kernel that skips the masked blocks does (Dao, 2023, section 4.1).
    A product of whole matrices followed by a mask does all of it.
    """
    whole = 4.0 * batch * heads * queries * keys * head_width
    return whole / 2 if causal else whole


def attention_backward_flops(forward: float, *, recomputes: bool) -> float:
    """Operations of the backward pass for a forward pass of `forward` operations."""
    return forward * (_FLASH_BACKWARD if recomputes else _ATTENTION_BACKWARD)


def naive_attention_bytes(
    batch: int, heads: int, length: int, head_width: int, element_bytes: int
) -> int:
    """Memory traffic of a forward pass that writes its scores: an estimate.

    Q, K, V are read and the output written; scores and probabilities are each written and read
    (Dao et al., 2022, FlashAttention, algorithm 0).
    """
    vectors = 4 * length * head_width
    scores = 4 * length * length
    return batch * heads * (vectors + scores) * element_bytes


def fused_attention_bytes(
    batch: int, heads: int, length: int, head_width: int, element_bytes: int
) -> int:
    """Memory traffic of a forward pass that keeps its scores on the chip: a lower bound.

    Q, K, V are read and the output written once; keys and values that no longer fit the cache are
    read again (Dao et al., 2022, theorem 2), which is left out.
    """
    return batch * heads * 4 * length * head_width * element_bytes


def score_matrix_bytes(batch: int, heads: int, length: int, element_bytes: int) -> int:
    """Bytes of the scores of every head: T² each."""
    return batch * heads * length * length * element_bytes


def adamw_state_bytes(parameters: int) -> dict[str, int]:
    """fp32 training state by purpose: 16 bytes per parameter (Rajbhandari et al., 2020, ZeRO,
    section 3.1, without the half-precision copies, which autocast does not keep).
    """
    return {"model": 4 * parameters, "gradients": 4 * parameters, "optimizer": 8 * parameters}
