"""Common benchmark shapes for attention."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

IMPLEMENTATIONS = {
    "naive": "every matrix written out",
    "compiled": "naive through torch.compile, which is kept from taking a fused kernel",
    "math": "PyTorch's reference",
    "flash": "FlashAttention",
    "efficient": "xFormers' memory-efficient kernel",
    "cudnn": "cuDNN's fused attention",
}


@dataclass(frozen=True)
class AttentionShape:
    """The shape of q, k and v: [batch, heads, length, head width]."""

    batch: int
    heads: int
    length: int
    head_width: int
    causal: bool

    @property
    def label(self) -> str:
        mask = "causal" if self.causal else "full"
        return f"B{self.batch} H{self.heads} T{self.length} d{self.head_width} {mask}"


@dataclass(frozen=True)
class Grid:
    """Shapes in the order they are measured."""

    help: str
    shapes: tuple[AttentionShape, ...]


def _crossed(
    batch: int, widths: Iterable[int], lengths: tuple[int, ...], *, causal: bool
) -> tuple[AttentionShape, ...]:
    return tuple(
        AttentionShape(batch, 1, length, width, causal) for width in widths for length in lengths
    )


def _flash_paper() -> tuple[AttentionShape, ...]:
    """16,384 tokens per batch and 2,048 features, for every length and head width."""
    return tuple(
        AttentionShape(16384 // length, 2048 // width, length, width, causal)
        for causal in (False, True)
        for width in (64, 128)
        for length in (512, 1024, 2048, 4096, 8192, 16384)
    )


GRIDS = {
    "tiny": Grid("two small shapes", _crossed(2, (32,), (64, 128), causal=False)),
    "llm": Grid(
        "16 k tokens, 16 heads of 128, causal, lengths 1 k to 16 k",
        tuple(
            AttentionShape(16384 // length, 16, length, 128, True) for length in (1024, 4096, 16384)
        ),
    ),
    "seed-004": Grid(
        "the CS336 solution's",
        _crossed(8, (32, 64, 128, 256, 512), (64, 128, 256, 1024, 4096, 8192, 16384), causal=False),
    ),
    "seed-004-long": Grid(
        "of the CS336 solution's, the shapes of 1,024 tokens and more, in which the GPU is busy",
        _crossed(8, (32, 64, 128, 256, 512), (1024, 4096, 8192, 16384), causal=False),
    ),
    "seed-004-wide": Grid(
        "of these the widest heads, in which TF32 gains the most",
        _crossed(8, (512,), (1024, 4096, 8192, 16384), causal=False),
    ),
    "handout": Grid(
        "the CS336 assignment's",
        _crossed(8, (16, 32, 64, 128), (256, 1024, 4096, 8192, 16384), causal=False),
    ),
    "seed-003": Grid(
        "GPT-2 medium's, as the FlashAttention paper's first table",
        (AttentionShape(64, 16, 1024, 64, causal=False),),
    ),
    "gpt2": Grid(
        "GPT-2's heads at its context, causal",
        (AttentionShape(16, 12, 1024, 64, causal=True),),
    ),
    "flash-handout": Grid(
        "the assignment's for FlashAttention",
        _crossed(1, (16, 32, 64, 128), tuple(2**power for power in range(7, 17)), causal=True),
    ),
    "flash-paper": Grid("FlashAttention-2's", _flash_paper()),
}
"""`seed-004`, `handout`: Stanford CS336, assignment 2, problem pytorch_attention. `flash-handout`:
problem flash_benchmarking. `flash-paper`: Dao, 2023, section 4.1. `seed-003`: Dao et al., 2022,
figure 2."""
