"""What a training step needs of memory, computed before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import CannotRun
from ..formulas import gpus_needed, sharding_advice, training_state_bytes
from .shapes import Shape

_GIB = 2**30


def activation_bytes(
    shape: Shape, batch: int, length: int, *, naive: bool, checkpoint: int, autocast: bool
) -> int:
    """What autograd keeps of a forward pass, operation by operation, without autocast's copies of
    weights. With checkpoints every `checkpoint` layers: the inputs of the groups and one group.
    """
    tokens = batch * length
    layer = _layer_bytes(shape, tokens, length, naive=naive, autocast=autocast)
    stream = 4 * tokens * shape.width
    if checkpoint:
        groups = -(-shape.layers // checkpoint)
        kept = groups * stream + min(checkpoint, shape.layers) * layer
    else:
        kept = shape.layers * layer
    # The last norm, the head's input, and the fp32 log-softmax of the logits.
    head = tokens * shape.width * (2 if autocast else 4)
    return kept + _norm_bytes(shape, tokens) + head + 4 * tokens * shape.vocabulary


def _norm_bytes(shape: Shape, tokens: int) -> int:
    """A norm in fp32: RMSNorm's own operations keep input, normalized input and 1/rms; LayerNorm
    its input, mean and 1/deviation.
    """
    if shape.family == "llama":
        return 4 * tokens * (2 * shape.width + 1)
    return 4 * tokens * (shape.width + 2)


def _layer_bytes(shape: Shape, tokens: int, length: int, *, naive: bool, autocast: bool) -> int:
    """Inputs and intermediate results of one layer's products, and of what lies between them."""
    element = 2 if autocast else 4
    is_llama = shape.family == "llama"
    # Under autocast every product converts its input anew: q, k and v keep a copy each.
    copies_of_input = (3, 2) if is_llama and autocast else (1, 1)
    vectors = tokens * shape.width * sum(copies_of_input)
    vectors += tokens * (shape.width + 2 * shape.kv_width)  # q, k, v
    vectors += tokens * shape.width  # the heads' results, joined
    vectors += tokens * shape.inner * (4 if is_llama else 2)
    if is_llama and naive and shape.kv_heads < shape.heads:
        vectors += 2 * tokens * (shape.width - shape.kv_width)  # repeated for the queries' groups
    kept = vectors * element + 2 * _norm_bytes(shape, tokens)
    scores = shape.heads * tokens * length
    if naive:
        # Softmax computes in fp32 under autocast and keeps its result; the next product keeps its
        # own copy in the short type.
        kept += scores * (4 + 2 if autocast else 4)
    else:
        kept += 4 * shape.heads * tokens  # the fused kernel's logarithms of sums
    return kept


@dataclass(frozen=True)
class Footprint:
    """The minimum a step holds at once, by purpose."""

    model_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    heads: int
    """Of the model, which tensor parallelism divides."""

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
        optimizer: str = "adamw",
    ) -> Footprint:
        """Parameters are fp32 whatever the products compute in; `element_bytes` applies to those: 2
        under autocast. `activation_bytes` are what the networks of `model` keep for the backward
        pass; in mode "fwd" they are kept, too, until the loss is computed.
        """
        state = training_state_bytes(shape.parameters, optimizer)
        return cls(
            model_bytes=state["model"],
            gradient_bytes=state["gradients"] if mode != "fwd" else 0,
            optimizer_bytes=state["optimizer"] if mode == "full" else 0,
            activation_bytes=activation_bytes(
                shape, batch, length, naive=naive, checkpoint=checkpoint,
                autocast=element_bytes < 4,
            ),
            heads=shape.heads,
        )  # fmt: skip

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
            + sharding_advice(free_bytes, device, self._shards)
        )

    def _shards(self, free_bytes: int) -> dict[str, int | None]:
        """On how many GPUs it would fit, by the ways of `parallel` that divide the model: tensor
        parallelism divides all, sequence parallelism included; ZeRO-3 the state and not the
        activations, whose batch each rank has.
        """
        state = self.model_bytes + self.optimizer_bytes + self.gradient_bytes
        return {
            "tensor parallelism": gpus_needed(
                free_bytes, divided=self.peak_bytes, divides=self.heads
            ),
            "ZeRO-3": gpus_needed(free_bytes, divided=state, kept=self.activation_bytes),
        }
