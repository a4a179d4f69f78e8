"""Operations and bytes of the workloads, computed from shapes.

A multiplication and an addition are two operations. Operation counts agree with
torch.utils.flop_counter, which the tests check on the meta device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

# Backward over forward if the score matrix is kept: each product has two gradients.
_ATTENTION_BACKWARD = 2.0

# Backward over forward if the scores are recomputed: five products for two (Dao, 2023,
# FlashAttention-2, section 4.1).
_FLASH_BACKWARD = 2.5


def gemm_flops(m: int, n: int, k: int) -> int:
    """Of an [m, k] by [k, n] product."""
    return 2 * m * n * k


def gemm_bytes(m: int, n: int, k: int, element_bytes: int, result_bytes: int) -> int:
    """The minimum a product moves: both factors read and the result written once, in elements of
    `result_bytes` (an fp8 product writes bf16).
    """
    return (m * k + k * n) * element_bytes + m * n * result_bytes


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


_SCORES = {
    # How often a pass reads or writes all scores: forward and backward, and what a mask adds to
    # each. Forward: QKᵀ writes them, the division reads and writes, the softmax too, PV reads.
    # Backward: PV's gradient writes, the softmax's multiplies two into a third before its kernel
    # reads that and the probabilities and writes (PyTorch's SoftMax.cu), the division reads and
    # writes, both gradients of QKᵀ read, as PV's other does. Recorded on one H200 at T 1024: a
    # multiplication of 6.4 GB in each backward pass, and by the GPU's counter 24.9 GiB where 12
    # accesses give 25.0 and 9 give 19.0.
    # A mask: masked_fill copies what it does not change (2), then fills the copy (2), and so does
    # its gradient. Recorded on one H100 at T 4096: 180 GiB of such copies in 90 passes, and by the
    # GPU's counter 20.8 GiB a forward pass where two accesses fewer give 16.3.
    "naive": ((6, 12), (4, 4)),
    # One kernel for the scale, the mask and the softmax, as torch.compile makes of it.
    "compiled": ((4, 7), (0, 0)),
}
# How often dropout reads or writes all probabilities, beside a byte each of what was dropped.
_DROPOUT = (2, 2)
# How often a pass reads or writes a vector for every position: Q, K, V and the output; backward,
# their gradients, and the operands of four products.
_VECTORS = 4, 8


def attention_bytes(
    batch: int,
    heads: int,
    length: int,
    head_width: int,
    element_bytes: int,
    *,
    implementation: str,
    causal: bool,
    dropout: bool = False,
) -> tuple[int, int]:
    """Memory traffic of a forward and a backward pass, operation by operation: what "naive" and
    "compiled" read and write where no cache holds it; of the others a lower bound.

    Those keep their scores on the chip: each vector is read or written once, and keys and values
    that no longer fit the cache are read again (Dao et al., 2022, FlashAttention, theorem 2), which
    is left out. A mask of bytes is shared by all heads, and read once.
    """
    plain, masked = _SCORES.get(implementation, ((0, 0), (0, 0)))
    scores, vectors = batch * heads * length * length, batch * heads * length * head_width

    def moved(way: int) -> int:
        accesses = plain[way] + (masked[way] if causal else 0)
        whole = (accesses * scores + _VECTORS[way] * vectors) * element_bytes
        if causal and masked[way]:
            whole += length * length
        if dropout and implementation == "naive":
            whole += scores * (_DROPOUT[way] * element_bytes + 1)
        return whole

    return moved(0), moved(1)


def score_matrix_bytes(batch: int, heads: int, length: int, element_bytes: int) -> int:
    """Bytes of the scores of every head: T² each."""
    return batch * heads * length * length * element_bytes


# Values that an optimizer keeps for each weight; AdamW keeps two.
_MOMENTS = {"sgd": 0, "momentum": 1}


def training_state_bytes(parameters: int, optimizer: str = "adamw") -> dict[str, int]:
    """fp32 training state by purpose: with AdamW 16 bytes per parameter (Rajbhandari et al., 2020,
    ZeRO, section 3.1, without the half-precision copies, which autocast does not keep), with
    momentum 12, with plain SGD 8.
    """
    state = 4 * parameters * _MOMENTS.get(optimizer, 2)
    return {"model": 4 * parameters, "gradients": 4 * parameters, "optimizer": state}


_MOST_GPUS = 1024


def gpus_needed(
    free_bytes: int, *, divided: int, kept: int = 0, divides: int | None = None
) -> int | None:
    """The fewest GPUs with `free_bytes` each that hold `divided` bytes, an equal part on each, and
    `kept` bytes on every one: a power of 2, a divisor of `divides` where that is given. None where
    1,024 are too few, or no such divisor.
    """
    gpus = 1
    while gpus <= _MOST_GPUS and (divides is None or divides % gpus == 0):
        if divided / gpus + kept <= free_bytes:
            return gpus
        gpus *= 2
    return None


GPU_BYTES = 80 * 10**9
"""Of an H100 or A100: what a model that is too large for a CPU is divided among."""


def sharding_advice(
    free_bytes: int, device: str, ways: Callable[[int], Mapping[str, int | None]]
) -> str:
    """ "; it fits on 8 such GPUs with tensor parallelism, on 4 with ZeRO-3": of `gpus_needed` by
    the way to divide, which `ways` gives for the bytes of a GPU: those free on `device`, for the
    CPU GPU_BYTES. "" where none fits.
    """
    on_cpu = device == "cpu"
    fitting = {
        way: gpus
        for way, gpus in ways(GPU_BYTES if on_cpu else free_bytes).items()
        if gpus is not None
    }
    words = [f"on {gpus} with {way}" for way, gpus in fitting.items()]
    if not words:
        return ""
    if set(fitting.values()) == {1}:
        return "; it fits on one GPU of 80 GB"
    gpus = "GPUs of 80 GB" if on_cpu else "such GPUs"
    words[0] = words[0].replace(" with", f" {gpus} with", 1)
    return f"; it fits {', '.join(words)}"
