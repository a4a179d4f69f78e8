"""The shapes of GPT-2, and one tiny one for machines without a GPU."""

from __future__ import annotations

from dataclasses import dataclass

CONTEXT = 1024
"""Positions every shape has an embedding for (Radford et al., 2019, section 2.3)."""

VOCABULARY_MULTIPLE = 128
"""The vocabulary is padded to this, so that the head's matrix suits the tensor cores.

50,257 becomes 50,304, as in llm.c and nanoGPT.
"""


@dataclass(frozen=True)
class Shape:
    """The dimensions of one model."""

    layers: int
    width: int
    heads: int
    vocabulary: int

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def padded_vocabulary(self) -> int:
        return -(-self.vocabulary // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    def __str__(self) -> str:
        return f"{self.layers} layers, {self.width} wide, {self.heads} heads"


SHAPES = {
    "tiny": Shape(layers=2, width=128, heads=4, vocabulary=1024),
    "small": Shape(layers=12, width=768, heads=12, vocabulary=50257),
    "medium": Shape(layers=24, width=1024, heads=16, vocabulary=50257),
    "large": Shape(layers=36, width=1280, heads=20, vocabulary=50257),
    "xl": Shape(layers=48, width=1600, heads=25, vocabulary=50257),
}
"""`small` to `xl` are GPT-2's (Radford et al., 2019, table 2; heads from the released models)."""
