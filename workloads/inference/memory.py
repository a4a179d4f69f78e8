"""What a run needs of memory, computed before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import CannotRun
from ..formulas import attention_flops, gpus_needed, sharding_advice
from .shapes import Shape

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def parameter_count(shape: Shape) -> int:
    """Weights of the model, counting a head that is the token table once.

    A layer of GPT-2 has 12 d² weights in its matrices (qkv 3, out 1, mlp 4 + 4), 9 d in their
    biases and 4 d in its two norms. One of Llama has those of its queries and output, of its keys
    and values, three matrices of its SwiGLU, and a gain for each of two norms; with experts, the
    three of each and a router.
    """
    width = shape.width
    tables = shape.padded_vocabulary * width * (1 if shape.tied else 2)
    if shape.family == "gpt2":
        positions = shape.context * width
        return tables + positions + shape.layers * (12 * width**2 + 13 * width) + 2 * width
    return tables + shape.layers * _layer_weights(shape, shape.experts or 1) + width


def _layer_weights(shape: Shape, experts: float) -> int:
    """Of one layer of Llama, with so many experts where it has any."""
    width = shape.width
    weights = 2 * width * (shape.query_width + shape.kv_width) + 2 * width
    weights += round(experts * 3 * width * shape.inner) + shape.experts * width
    if shape.qkv_bias:
        weights += shape.query_width + 2 * shape.kv_width
    return weights + (2 * shape.head_width if shape.qk_norm else 0)


def kv_cache_bytes(shape: Shape, batch: int, positions: int, element_bytes: int) -> int:
    """A key and a value of every KV head, for every layer, position and sequence."""
    return 2 * shape.layers * shape.kv_width * positions * batch * element_bytes


def decode_step_bytes(shape: Shape, batch: int, positions: float, element_bytes: int) -> float:
    """What one decode step must read: the weights it multiplies with, and the KV cache.

    `positions` is how many the step attends to, averaged over the steps. Of a table that is only
    looked up (GPT-2's positions, a token table separate from the head) it reads a row. Activations
    are left out, being small compared with both. Of the experts it reads those that some sequence
    chose: of E, with k a token, E (1 - (1 - k / E)^batch) are expected where the choice is even.
    """
    looked_up = (shape.context - 1) * shape.width if shape.family == "gpt2" else 0
    if not shape.tied:
        looked_up += (shape.padded_vocabulary - 1) * shape.width
    weights = float(parameter_count(shape) - looked_up)
    if shape.experts:
        used = shape.experts * (1 - (1 - shape.experts_per_token / shape.experts) ** batch)
        unused = _layer_weights(shape, shape.experts) - _layer_weights(shape, used)
        weights -= shape.layers * unused
    weights *= element_bytes
    return weights + positions * kv_cache_bytes(shape, batch, 1, element_bytes)


def forward_flops(shape: Shape, batch: int, tokens: int) -> float:
    """Operations of a prompt pass: 2 for every weight a token is multiplied with, the head only for
    the last token, and attention over half of the square (`workloads.formulas`, causal).
    """
    width, vocabulary = shape.width, shape.padded_vocabulary
    if shape.family == "gpt2":
        a_layer = 12 * width**2
    else:
        a_layer = 2 * width * (shape.query_width + shape.kv_width) + shape.experts * width
        a_layer += (shape.experts_per_token or 1) * 3 * width * shape.inner
    attention = attention_flops(batch, shape.heads, tokens, tokens, shape.head_width, causal=True)
    products = 2.0 * batch * (tokens * shape.layers * a_layer + vocabulary * width)
    return products + shape.layers * attention


@dataclass(frozen=True)
class Footprint:
    """Memory of one run, by purpose."""

    weight_bytes: int
    kv_cache_bytes: int
    activation_bytes: int
    kv_heads: int = 1
    """Of the model: tensor parallelism leaves a rank one at least."""

    @classmethod
    def estimate(
        cls,
        shape: Shape,
        batch: int,
        prompt: int,
        tokens: int,
        element_bytes: int,
        *,
        naive: bool = False,
    ) -> Footprint:
        """The activations are those of the prompt pass at its widest: inside an MLP or, with
        `naive` attention, where the scores are.

        A token holds its residual and its norm (d each), its query, key and value, and in Llama the
        turned query and key. The MLP holds what it has before and after its activation: 2 inner in
        GPT-2; 4 inner in Llama, the gate and what it multiplies, the activation and the product.
        Scores, per head and pair of positions: 8 bytes at once, those divided or masked beside
        those before in fp32; else the scores, their softmax in fp32, and that in the type. The
        logits of one position per sequence are added.
        """
        held = 2 * shape.width + shape.query_width + 2 * shape.kv_width
        is_llama = shape.family == "llama"
        if is_llama:
            held += shape.query_width + shape.kv_width
        positions = batch * prompt
        inside = (4 if is_llama else 2) * shape.inner
        if shape.experts:
            # Each token's copies for its experts, what they made of it, and that weighted.
            inside = 3 * shape.experts_per_token * shape.width + inside
        widest = positions * (held + inside) * element_bytes
        if naive:
            repeated = 2 * shape.query_width if shape.groups > 1 else 0
            scores = 8 * shape.heads * prompt
            widest = max(widest, positions * ((held + repeated) * element_bytes + scores))
        logits = batch * shape.padded_vocabulary * element_bytes
        return cls(
            weight_bytes=parameter_count(shape) * element_bytes,
            kv_cache_bytes=kv_cache_bytes(shape, batch, prompt + tokens, element_bytes),
            activation_bytes=widest + logits,
            kv_heads=shape.kv_heads,
        )

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_cache_bytes + self.activation_bytes

    def refuse_unless_fits(self, free_bytes: int, device: str) -> None:
        """Raise CannotRun, with the sum, if the run needs more than is free on `device`."""
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
            + sharding_advice(free_bytes, device, self._shards)
        )

    def _shards(self, free_bytes: int) -> dict[str, int | None]:
        """On how many GPUs it would fit: tensor parallelism divides weights, KV cache and
        activations by heads, a pipeline weights and KV cache by layers.
        """
        return {
            "tensor parallelism": gpus_needed(
                free_bytes, divided=self.total_bytes, divides=self.kv_heads
            ),
            "a pipeline": gpus_needed(
                free_bytes,
                divided=self.weight_bytes + self.kv_cache_bytes,
                kept=self.activation_bytes,
            ),
        }
