"""The trainable shapes, and what each needs, as arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..formulas import attention_backward_flops, attention_flops

GPT2_CONTEXT = 1024
"""Positions GPT-2 has an embedding for (Radford et al., 2019, section 2.3)."""


@dataclass(frozen=True)
class Shape:
    """The dimensions of one model.

    "llama" has RMSNorm, rotary positions, SwiGLU, no biases and a head of its own unless `tied`,
    like the CS336 assignments' model; `kv_heads` may be fewer than heads, and groups of queries
    then share them. "gpt2" has LayerNorm, learned positions, GELU, biases and a head that is the
    token table.
    """

    family: Literal["llama", "gpt2"]
    layers: int
    width: int
    inner: int
    heads: int
    vocabulary: int
    kv_heads: int = 0
    tied: bool = False

    def __post_init__(self) -> None:
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)

    @property
    def kv_width(self) -> int:
        """Elements of one position's keys in one layer."""
        return self.kv_heads * self.head_width

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def products_per_layer(self) -> int:
        """Matrix products of one layer's forward pass with naive attention.

        llama: q, k, v, QKᵀ, PV, output, three in the SwiGLU; gpt2 has qkv in one and two in
        its MLP.
        """
        return 9 if self.family == "llama" else 6

    def products(self, *, backward: bool) -> int:
        """Matrix products of a pass with naive attention, including the head.

        Each has two more in the backward pass, for its two factors' gradients.
        """
        return (self.layers * self.products_per_layer + 1) * (3 if backward else 1)

    @property
    def matrix_parameters(self) -> int:
        """Parameters that every token is multiplied with: all matrices and the head."""
        width, inner = self.width, self.inner
        per_layer = (
            2 * width * (width + self.kv_width)
            + (3 if self.family == "llama" else 2) * width * inner
        )
        return self.layers * per_layer + self.vocabulary * width

    @property
    def parameters(self) -> int:
        width, inner = self.width, self.inner
        if self.family == "llama":
            # A token table besides the head; two norms per layer and a last one.
            table = 0 if self.tied else self.vocabulary * width
            return self.matrix_parameters + table + (2 * self.layers + 1) * width
        # A position table; biases of qkv, output and both MLP matrices; norms with biases.
        per_layer = 3 * width + width + inner + width + 4 * width
        return self.matrix_parameters + GPT2_CONTEXT * width + self.layers * per_layer + 2 * width

    def __str__(self) -> str:
        return (
            f"{self.layers} layers, {self.width} wide, {self.inner} inside, {self.heads} heads, "
            f"{_count(self.parameters)}"
        )


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.1f} B" if parameters >= 1e9 else f"{parameters / 1e6:.1f} M"


_CS336_VOCABULARY = 10_000
# 50,257 padded to a multiple of 128, as llm.c and nanoGPT do.
_GPT2_VOCABULARY = 50_304


def _cs336(layers: int, width: int, inner: int, heads: int) -> Shape:
    return Shape("llama", layers, width, inner, heads, _CS336_VOCABULARY)


def _gpt2(layers: int, width: int, heads: int) -> Shape:
    return Shape("gpt2", layers, width, 4 * width, heads, _GPT2_VOCABULARY)


OLD_NAMES = {
    name: f"cs336-{name}" for name in ("tiny", "small", "medium", "large", "xl", "2.7B", "10B")
}
"""What they were called before; `small` to `xl` are GPT-2's in `workloads.inference`."""

SHAPES = {
    "cs336-tiny": Shape("llama", layers=2, width=128, inner=512, heads=4, vocabulary=1024),
    "cs336-small": _cs336(12, 768, 3072, 12),
    "cs336-medium": _cs336(24, 1024, 4096, 16),
    "cs336-large": _cs336(36, 1280, 5120, 20),
    "cs336-xl": _cs336(48, 1600, 6400, 25),
    "cs336-2.7B": _cs336(32, 2560, 10240, 32),
    "cs336-10B": _cs336(50, 4608, 12288, 36),
    "llama-tiny": Shape("llama", 2, 128, 384, 4, 1024, kv_heads=2, tied=True),
    "llama-3.2-1b": Shape("llama", 16, 2048, 8192, 32, 128_256, kv_heads=8, tied=True),
    "llama-3.2-3b": Shape("llama", 28, 3072, 8192, 24, 128_256, kv_heads=8, tied=True),
    "llama-3.1-8b": Shape("llama", 32, 4096, 14336, 32, 128_256, kv_heads=8),
    "gpt2-tiny": Shape("gpt2", layers=2, width=128, inner=512, heads=4, vocabulary=1024),
    "gpt2": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
}
"""`cs336-small` to `-2.7B` are the 2025 handout's of Stanford CS336's second assignment (table 1),
`-10B` the 2026 one's. The names mislead: `-2.7B` has 3.4 billion parameters and is 2026's `xl`.
Llama's are those of the released models, with the rotary base of the others."""


@dataclass(frozen=True)
class StepFlops:
    """Operations of one step. Model: what the mathematics needs; hardware: what is actually
    done.
    """

    model: float
    hardware: float


def step_flops(
    shape: Shape, batch: int, length: int, *, backward: bool, naive: bool, recomputes: bool
) -> StepFlops:
    """Model operations are PaLM's 6 N + 12 L H Q T per token, a third of that for a forward pass
    alone (Chowdhery et al., 2022, appendix B; no discount for the causal mask). N is what a token
    is multiplied with: no embedding table but the head.

    The hardware does a second forward pass through the layers where activations are recomputed, and
    about half of attention where a fused kernel skips masked blocks, but its backward pass
    recomputes the scores (`workloads.formulas`).
    """
    matrices = 2.0 * shape.matrix_parameters * batch * length
    head = 2.0 * shape.vocabulary * shape.width * batch * length
    whole = shape.layers * attention_flops(batch, shape.heads, length, length, shape.head_width)
    done = whole if naive else whole / 2
    passes = 3 if backward else 1
    model = passes * (matrices + whole)
    hardware = matrices * passes + done
    if backward:
        hardware += attention_backward_flops(done, recomputes=not naive)
    if recomputes and backward:
        hardware += matrices - head + done
    return StepFlops(model, hardware)
