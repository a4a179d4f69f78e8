"""What a run needs of memory, worked out before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.errors import CannotRun
from workloads.inference.shapes import CONTEXT, Shape

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def parameter_count(shape: Shape) -> int:
    """Weights of the model; the output head shares the token embedding's.

    A layer has 12 d² weights in its matrices (qkv 3, out 1, mlp 4 + 4), 9 d in their biases and
    4 d in its two norms.
    """
    width = shape.width
    embeddings = (shape.padded_vocabulary + CONTEXT) * width
    return embeddings + shape.layers * (12 * width**2 + 13 * width) + 2 * width


def kv_cache_bytes(shape: Shape, batch: int, positions: int, element_bytes: int) -> int:
    """A key and a value of the model's width, for every layer, position and sequence."""
    return 2 * shape.layers * shape.width * positions * batch * element_bytes


def decode_step_bytes(shape: Shape, batch: int, positions: float, element_bytes: int) -> float:
    """What one decode step must read: all weights but the unused positions, and the KV cache.

    `positions` is how many the step attends to, on average over the steps. Activations are
    left out, being small beside both.
    """
    weights = (parameter_count(shape) - (CONTEXT - 1) * shape.width) * element_bytes
    return weights + positions * kv_cache_bytes(shape, batch, 1, element_bytes)


@dataclass(frozen=True)
class Footprint:
    """Memory of one run, by what it is for."""

    weight_bytes: int
    kv_cache_bytes: int
    activation_bytes: int

    @classmethod
    def of(
        cls, shape: Shape, batch: int, prompt: int, tokens: int, element_bytes: int
    ) -> Footprint:
        """The activations are those of the prompt pass at its widest, inside an MLP.

        There a token holds its residual and its norm (d each), and the MLP before and after its
        GELU (4 d each). The logits of one position a sequence come on top.
        """
        elements = batch * (10 * shape.width * prompt + shape.padded_vocabulary)
        return cls(
            weight_bytes=parameter_count(shape) * element_bytes,
            kv_cache_bytes=kv_cache_bytes(shape, batch, prompt + tokens, element_bytes),
            activation_bytes=elements * element_bytes,
        )

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_cache_bytes + self.activation_bytes

    def refuse_unless_fits(self, free_bytes: int, device: str) -> None:
        """Raises CannotRun, with the sum, when the run needs more than is free on `device`."""
        if self.total_bytes <= free_bytes:
            return
        unit, size = next(
            ((unit, size) for unit, size in _UNITS if self.total_bytes >= size), _UNITS[-1]
        )
        raise CannotRun(
            f"needs {self.total_bytes / size:.1f} {unit} = "
            f"weights {self.weight_bytes / size:.1f} + KV cache {self.kv_cache_bytes / size:.1f} "
            f"+ activations {self.activation_bytes / size:.1f}; "
            f"{device} has {free_bytes / size:.1f} {unit} free; "
            "use a smaller size, batch, prompt or tokens"
        )
