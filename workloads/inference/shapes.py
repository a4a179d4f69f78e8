"""The shapes of GPT-2 and Llama models, and tiny ones for machines without a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

PARTS = ("embedding", "norm", "qkv_proj", "attention", "out_proj", "router", "mlp", "lm_head")
"""The ranges of a network's parts."""

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
    SwiGLU, no biases, and `kv_heads` shared by groups of query heads; Mistral is the same. Qwen2
    has a bias in its queries, keys and values (`qkv_bias`), Qwen3 a norm of each query's and key's
    head (`qk_norm`). With `experts`, a router sends each token to `experts_per_token` of them, each
    an MLP `inner` wide, as in Mixtral and Qwen3's mixtures. `tied` means that the output head is
    the token table.
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
    qkv_bias: bool = False
    qk_norm: bool = False
    experts: int = 0
    experts_per_token: int = 0
    renormalized: bool = True
    """Whether the weights of a token's experts are made to add up to 1."""

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
        experts = f", {self.experts_per_token} of {self.experts} experts" if self.experts else ""
        return f"{self.layers} layers, {self.width} wide, {self.heads} heads{kv}{experts}"


_LLAMA_3_1 = RopeScaling(8.0, 1.0, 4.0, 8192)
# Factors of the released models' configuration files.
_LLAMA_3_2 = RopeScaling(32.0, 1.0, 4.0, 8192)


def _llama(layers: int, width: int, inner: int, heads: int, kv_heads: int, **more: Any) -> Shape:
    """Llama 3's vocabulary, context and positions where `more` does not say otherwise."""
    given = {"vocabulary": 128_256, "context": 8192, "tied": False, "rope_base": 500_000.0} | more
    return Shape(
        layers=layers,
        width=width,
        heads=heads,
        family="llama",
        kv_heads=kv_heads,
        inner=inner,
        **given,
    )


def _llama_2(layers: int, width: int, inner: int, heads: int) -> Shape:
    return _llama(
        layers, width, inner, heads, heads, vocabulary=32_000, context=4096, rope_base=10_000.0
    )


def _llama_3_1(layers: int, width: int, inner: int, heads: int, **more: Any) -> Shape:
    return _llama(
        layers, width, inner, heads, 8, context=131_072, **{"rope_scaling": _LLAMA_3_1} | more
    )


def _llama_3_2(layers: int, width: int, inner: int, heads: int) -> Shape:
    return _llama_3_1(layers, width, inner, heads, tied=True, rope_scaling=_LLAMA_3_2)


_MISTRAL = {"vocabulary": 32_768, "context": 32_768, "rope_base": 1e6}
_QWEN = {"vocabulary": 151_936, "rope_base": 1e6, "epsilon": 1e-6}
_QWEN2 = {**_QWEN, "context": 32_768, "qkv_bias": True}
_QWEN3 = {**_QWEN, "context": 40_960, "qk_norm": True, "head_width": 128}
_MIXTURE = {"experts": 4, "experts_per_token": 2}

OLD_NAMES = {
    "tiny": "gpt2-tiny", "small": "gpt2", "medium": "gpt2-medium", "large": "gpt2-large",
    "xl": "gpt2-xl", "llama-1b": "llama-3.2-1b", "llama-3b": "llama-3.2-3b",
    "llama-7b": "llama-2-7b", "llama-8b": "llama-3-8b", "llama-13b": "llama-2-13b",
    "llama-70b": "llama-3-70b",
}  # fmt: skip
"""What they were called before; `small` to `xl` are others' in `workloads.train`."""

SHAPES = {
    "gpt2-tiny": Shape(layers=2, width=128, heads=4, vocabulary=1024),
    "gpt2": Shape(layers=12, width=768, heads=12, vocabulary=50257),
    "gpt2-medium": Shape(layers=24, width=1024, heads=16, vocabulary=50257),
    "gpt2-large": Shape(layers=36, width=1280, heads=20, vocabulary=50257),
    "gpt2-xl": Shape(layers=48, width=1600, heads=25, vocabulary=50257),
    "llama-tiny": _llama(2, 128, 384, 4, 2, vocabulary=1024, context=1024),
    "llama-2-7b": _llama_2(32, 4096, 11008, 32),
    "llama-2-13b": _llama_2(40, 5120, 13824, 40),
    "llama-3-8b": _llama(32, 4096, 14336, 32, 8),
    "llama-3-70b": _llama(80, 8192, 28672, 64, 8),
    "llama-3.1-8b": _llama_3_1(32, 4096, 14336, 32),
    "llama-3.1-70b": _llama_3_1(80, 8192, 28672, 64),
    "llama-3.2-1b": _llama_3_2(16, 2048, 8192, 32),
    "llama-3.2-3b": _llama_3_2(28, 3072, 8192, 24),
    "mistral-7b": _llama(32, 4096, 14336, 32, 8, **_MISTRAL),
    "qwen2.5-0.5b": _llama(24, 896, 4864, 14, 2, tied=True, **_QWEN2),
    "qwen2.5-7b": _llama(28, 3584, 18944, 28, 4, **{**_QWEN2, "vocabulary": 152_064}),
    "qwen3-0.6b": _llama(28, 1024, 3072, 16, 8, tied=True, **_QWEN3),
    "qwen3-8b": _llama(36, 4096, 12288, 32, 8, **_QWEN3),
    "moe-tiny": _llama(2, 128, 192, 4, 2, vocabulary=1024, context=1024, **_MIXTURE),
    "mixtral-8x7b": _llama(
        32, 4096, 14336, 32, 8, vocabulary=32_000, context=32_768, rope_base=1e6, experts=8,
        experts_per_token=2,
    ),
    "qwen3-30b-a3b": _llama(
        48, 2048, 768, 32, 4, **_QWEN3, experts=128, experts_per_token=8
    ),
}  # fmt: skip
"""GPT-2's (Radford et al., 2019, table 2; heads from the released models), Llama 2's (Touvron et
al., 2023), Llama 3's and 3.1's (Grattafiori et al., 2024, table 3); the others are those of the
released models' configuration files."""
