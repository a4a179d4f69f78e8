"""What a training step needs of memory, computed before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import CannotRun
from ..formulas import adamw_state_bytes
from .shapes import Shape

_GIB = 2**30


@dataclass(frozen=True)
class Footprint:
    """The minimum a step holds at once, by purpose."""

    model_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int

    @classmethod
    def estimate(
        cls,
        shape: Shape,
        batch: int,
        length: int,
        *,
        mode: str,
        naive: bool,
        checkpoint: int,
        element_bytes: int,
    ) -> Footprint:
        """Parameters are fp32 whatever the products compute in; `element_bytes` applies to those.

        The activations are those no implementation can avoid, a lower bound: the factors of every
        product (the input of each matrix, q, k, v, and naive attention's probabilities), and the
        logits. With checkpoints every `checkpoint` layers, only the layers' inputs and one group of
        layers.
        """
        state = adamw_state_bytes(shape.parameters)
        tokens = batch * length
        a_layer = tokens * (6 * shape.width + (3 if shape.family == "llama" else 1) * shape.inner)
        if naive:
            a_layer += shape.heads * tokens * length
        if checkpoint:
            groups = -(-shape.layers // checkpoint)
            elements = groups * tokens * shape.width + min(checkpoint, shape.layers) * a_layer
        else:
            elements = shape.layers * a_layer
        elements += tokens * shape.vocabulary
        return cls(
            model_bytes=state["model"],
            gradient_bytes=state["gradients"] if mode != "fwd" else 0,
            optimizer_bytes=state["optimizer"] if mode == "full" else 0,
            activation_bytes=elements * element_bytes,
        )

    @property
    def peak_bytes(self) -> int:
        """The peak: optimizer state stays, activations are released as gradients appear."""
        return (
            self.model_bytes
            + self.optimizer_bytes
            + max(self.gradient_bytes, self.activation_bytes)
        )

    def refuse_unless_fits(self, free_bytes: int, device: str) -> None:
        """Raise CannotRun, with the sum, if a step needs more than is free on `device`."""
        if self.peak_bytes <= free_bytes:
            return
        raise CannotRun(
            f"needs at least {self.peak_bytes / _GIB:.1f} GiB = "
            f"model {self.model_bytes / _GIB:.1f} + optimizer {self.optimizer_bytes / _GIB:.1f} "
            f"+ the larger of gradients {self.gradient_bytes / _GIB:.1f} and activations "
            f"{self.activation_bytes / _GIB:.1f}; {device} has {free_bytes / _GIB:.1f} GiB free; "
            "use a smaller size, batch or ctx, or checkpoint"
        )
