"""What a training run was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from .shapes import SHAPES, Shape, StepFlops, step_flops

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Settings:
    """The parameters of one configuration, which becomes one row of the headline."""

    size: str
    batch: int
    accumulate: int
    ctx: int
    mode: str
    precision: str
    attention: str
    checkpoint: int
    compile: bool
    optimizer: str
    lr: float
    warmup: int
    steps: int
    sweep: str
    snapshot: bool
    device: str
    seed: int

    @property
    def shape(self) -> Shape:
        return SHAPES[self.size]

    @property
    def label(self) -> str:
        words = [self.size, f"ctx {self.ctx}", self.mode, self.precision, f"warm-up {self.warmup}"]
        if self.sweep == "checkpoint":
            words.append(f"checkpoint {self.checkpoint}")
        if self.sweep == "optimizer":
            words.append(self.optimizer)
        return " ".join(words)

    @property
    def global_batch(self) -> int:
        """Sequences between two updates of the weights: batch × accumulate."""
        return self.batch * self.accumulate

    @property
    def autocast(self) -> torch.dtype | None:
        """None for a precision that is the weights' own."""
        return AUTOCAST.get(self.precision)

    @property
    def flops(self) -> StepFlops:
        return step_flops(
            self.shape,
            self.global_batch,
            self.ctx,
            backward=self.mode != "fwd",
            naive=self.attention == "naive",
            recomputes=self.checkpoint > 0,
        )

    def rows(self) -> Sequence[Settings]:
        """The configurations of the sweep."""
        match self.sweep:
            case "precision":
                names = ("fp32", "bf16") if self.device == "cpu" else ("fp32", "tf32", *AUTOCAST)
                return [replace(self, precision=name) for name in names]
            case "ctx":
                return [replace(self, ctx=length) for length in (64, 128, 256, 512)]
            case "warmup":
                return [replace(self, warmup=count) for count in (0, 1, 2, 5)]
            case "checkpoint":
                every = (0, 4, 2, 1)
                return [replace(self, checkpoint=layers) for layers in every]
            case "optimizer":
                return [replace(self, optimizer=name) for name in ("sgd", "momentum", "fused")]
            case "mode":
                return [replace(self, mode=mode) for mode in ("fwd", "fwd_bwd", "full")]
            case "seed-004":
                medium = replace(self, size="cs336-medium", ctx=512, mode="full")
                # Its "fp32" is what torch does there by default of its flags: TF32.
                fp32 = "fp32" if self.device == "cpu" else "tf32"
                return [
                    replace(self, size="cs336-small", ctx=256, mode="fwd", precision=fp32),
                    replace(medium, precision=fp32),
                    replace(medium, precision="bf16"),
                    replace(medium, precision=fp32, warmup=0),
                ]
            case _:
                return [self]
