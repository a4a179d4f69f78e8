"""The shapes of GPT-2 and Llama models, and tiny ones for machines without a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CONTEXT = 1024
"""Positions every shape of GPT-2 has an embedding for (Radford et al., 2019, section 2.3)."""

VOCABULARY_MULTIPLE = 128
"""The vocabulary is padded to this, so that the head's matrix suits the tensor cores.

50,257 becomes 50,304, as in llm.c and nanoGPT.
"""


@dataclass(frozen=True)
class RopeScaling:
    """How Llama 3.1 and later stretch their rotary positions to a longer context (Grattafiori et
    al., 2024; the "llama3" rule of their configuration files).
    """

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context: int


@dataclass(frozen=True)
class Shape:
    """The dimensions of one model.

    "gpt2" has LayerNorm, learned positions, GELU and biases; "llama" RMSNorm, rotary positions,
    SwiGLU, no biases, and `kv_heads` shared by groups of query heads. `tied` means that the output
    head is the token table.
    """

    layers: int
    width: int
    heads: int
    vocabulary: int
    family: Literal["gpt2", "llama"] = "gpt2"
    kv_heads: int = 0
    inner: int = 0
    context: int = CONTEXT
    tied: bool = True
    head_width: int = 0
    epsilon: float = 1e-5
    rope_base: float = 10_000.0
    rope_scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        # What GPT-2 leaves open follows from its width.
        for name, value in (
            ("kv_heads", self.heads),
            ("inner", 4 * self.width),
            ("head_width", self.width // self.heads),
        ):
            if not getattr(self, name):
                object.__setattr__(self, name, value)

    @property
    def groups(self) -> int:
        """Query heads that share a key and value head."""
        return self.heads // self.kv_heads

    @property
    def kv_width(self) -> int:
        """Elements of one position's keys in one layer."""
        return self.kv_heads * self.head_width

    @property
    def query_width(self) -> int:
        """Elements of one position's queries in one layer."""
        return self.heads * self.head_width

    @property
    def padded_vocabulary(self) -> int:
        return -(-self.vocabulary // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    def __str__(self) -> str:
        kv = "" if self.kv_heads == self.heads else f" ({self.kv_heads} KV)"
        return f"{self.layers} layers, {self.width} wide, {self.heads} heads{kv}"


def _llama(
    layers: int,
    width: int,
    inner: int,
    heads: int,
    kv_heads: int,
    *,
    vocabulary: int = 128_256,
    context: int = 8192,
    tied: bool = False,
    rope_base: float = 500_000.0,
) -> Shape:
    return Shape(
        layers=layers,
        width=width,
        heads=heads,
        vocabulary=vocabulary,
        family="llama",
        kv_heads=kv_heads,
        inner=inner,
        context=context,
        tied=tied,
        rope_base=rope_base,
    )


def _llama_2(layers: int, width: int, inner: int, heads: int) -> Shape:
    return _llama(
        layers, width, inner, heads, heads, vocabulary=32_000, context=4096, rope_base=10_000.0
    )


SHAPES = {
    "tiny": Shape(layers=2, width=128, heads=4, vocabulary=1024),
    "small": Shape(layers=12, width=768, heads=12, vocabulary=50257),
    "medium": Shape(layers=24, width=1024, heads=16, vocabulary=50257),
    "large": Shape(layers=36, width=1280, heads=20, vocabulary=50257),
    "xl": Shape(layers=48, width=1600, heads=25, vocabulary=50257),
    "llama-tiny": _llama(2, 128, 384, 4, 2, vocabulary=1024, context=1024),
    "llama-1b": _llama(16, 2048, 8192, 32, 8, tied=True),
    "llama-3b": _llama(28, 3072, 8192, 24, 8, tied=True),
    "llama-7b": _llama_2(32, 4096, 11008, 32),
    "llama-8b": _llama(32, 4096, 14336, 32, 8),
    "llama-13b": _llama_2(40, 5120, 13824, 40),
    "llama-70b": _llama(80, 8192, 28672, 64, 8),
}
"""`small` to `xl` are GPT-2's (Radford et al., 2019, table 2; heads from the released models);
`llama-7b` and `-13b` Llama 2's (Touvron et al., 2023), `-8b` and `-70b` Llama 3's (Grattafiori et
al., 2024, table 3), `-1b` and `-3b` Llama 3.2's (their model cards)."""
