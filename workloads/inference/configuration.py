"""config.json of a model in Hugging Face's layout → its shape, or the field that stands against it.

What the networks here do not do is refused by the name of its field: a model run without its bias
or with another activation would give figures of something else. Defaults are those of the classes
in transformers that read the same file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import CannotRun
from .shapes import RopeScaling, Shape

_DIMENSION_LIMIT = 2**24

KNOWN = ("gpt2", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")

_NONE = (None, False)
_ALWAYS: dict[str, tuple[object, ...]] = {
    "quantization_config": (None,),
    "auto_map": (None,),  # code of its own
    "is_encoder_decoder": _NONE,
    "add_cross_attention": _NONE,
}
_LLAMAS: dict[str, tuple[object, ...]] = {
    "hidden_act": (None, "silu", "swish"),
    "attention_bias": _NONE,
    "mlp_bias": _NONE,
    "partial_rotary_factor": (None, 1, 1.0),
}
# The values that a field may have, by kind of model.
_REQUIRED: dict[str, dict[str, tuple[object, ...]]] = {
    "gpt2": {
        "activation_function": (None, "gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (None, True),
        "scale_attn_by_inverse_layer_idx": _NONE,
        "reorder_and_upcast_attn": _NONE,
        "tie_word_embeddings": (None, True),
    },
    # Its class has the bias built in, and reads no such field.
    "qwen2": {name: values for name, values in _LLAMAS.items() if name != "attention_bias"},
    "qwen3_moe": {**_LLAMAS, "decoder_sparse_step": (None, 1), "mlp_only_layers": (None, [])},
}


def shape_of(config: Mapping[str, Any]) -> Shape:
    """The shape a config.json describes. Raises CannotRun, in one line."""
    kind = config.get("model_type")
    if kind not in KNOWN:
        raise CannotRun(
            f"model: its model_type is {str(kind)[:40]!r}; {', '.join(KNOWN)} are known"
        )
    for name, allowed in (_ALWAYS | _REQUIRED.get(kind, _LLAMAS)).items():
        if not any(config.get(name) == value for value in allowed):
            raise _not_done(name, config[name])
    heads = config.get("architectures") or []
    if not isinstance(heads, list) or not all(
        str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in heads
    ):
        raise _not_done("architectures", heads)
    return _gpt2(config) if kind == "gpt2" else _llama(config, kind)


def _gpt2(config: Mapping[str, Any]) -> Shape:
    width = _number(config, "n_embd")
    if config.get("n_inner") not in (None, 4 * width):
        raise _not_done("n_inner", config["n_inner"])
    return Shape(
        layers=_number(config, "n_layer"),
        width=width,
        heads=_dividing(config, "n_head", width),
        vocabulary=_number(config, "vocab_size"),
        context=_number(config, "n_positions"),
        epsilon=_real(config, "layer_norm_epsilon", 1e-5),
    )


def _llama(config: Mapping[str, Any], kind: str) -> Shape:
    width, heads = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    # transformers 5 renamed it, and moved rope_theta into it.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise CannotRun(f"model: its configuration's rope_scaling is {str(rope)[:40]!r}")
    # Only Llama's files may leave out what others' classes have other defaults for.
    is_llama = kind == "llama"
    mixture = {"mixtral": "num_local_experts", "qwen3_moe": "num_experts"}.get(kind)
    experts = _number(config, mixture) if mixture else 0
    per_token = _number(config, "num_experts_per_tok") if mixture else 0
    if per_token > experts:
        raise _not_done("num_experts_per_tok", per_token)
    inner = "moe_intermediate_size" if kind == "qwen3_moe" else "intermediate_size"
    context = _number(config, "max_position_embeddings")
    return Shape(
        layers=_number(config, "num_hidden_layers"),
        width=width,
        heads=heads,
        vocabulary=_number(config, "vocab_size"),
        family="llama",
        kv_heads=_dividing(config, "num_key_value_heads", heads, heads if is_llama else None),
        inner=_number(config, inner),
        # Up to its window, a sliding window sees everything.
        context=min(context, _window(config, kind)),
        tied=bool(config.get("tie_word_embeddings", False)),
        head_width=_number(
            config, "head_dim", None if kind == "qwen3" else _quotient(width, heads)
        ),
        epsilon=_real(config, "rms_norm_eps", 1e-6),
        rope_base=_real(
            config if "rope_theta" in config else rope,
            "rope_theta",
            10_000.0 if is_llama else math.nan,
        ),
        rope_scaling=_rope_scaling(rope),
        qkv_bias=kind == "qwen2",
        qk_norm=kind in ("qwen3", "qwen3_moe"),
        experts=experts,
        experts_per_token=per_token,
        renormalized=bool(config.get("norm_topk_prob", False)) if kind == "qwen3_moe" else True,
    )


def _window(config: Mapping[str, Any], kind: str) -> int:
    """How far back the layer that sees least can look."""
    window = config.get("sliding_window", 4096 if kind == "mistral" else None)
    if kind.startswith("qwen") and not config.get("use_sliding_window", False):
        window = None
    if window is None or kind == "llama":
        return _DIMENSION_LIMIT
    return _number({"sliding_window": window}, "sliding_window")


def _rope_scaling(scaling: Mapping[str, Any]) -> RopeScaling | None:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise CannotRun(f"model: its rope_scaling is {str(kind)[:40]!r}; llama3 is known")
    return RopeScaling(
        factor=_real(scaling, "factor", 1),
        low_frequency_factor=_real(scaling, "low_freq_factor", 1),
        high_frequency_factor=_real(scaling, "high_freq_factor", 4),
        original_context=_number(scaling, "original_max_position_embeddings"),
    )


def _not_done(name: str, value: object) -> CannotRun:
    return CannotRun(
        f"model: its configuration's {name} is {str(value)[:40]!r}: the network here does not do "
        "that"
    )


def _real(config: Mapping[str, Any], name: str, default: float) -> float:
    value = config.get(name, default)
    if not isinstance(value, int | float) or not 0 < value < 1e12:
        raise CannotRun(f"model: its configuration's {name} is {str(value)[:40]!r}: out of range")
    return float(value)


def _number(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _DIMENSION_LIMIT:
        raise CannotRun(
            f"model: its configuration's {name} is {str(value)[:40]!r}: not a dimension"
        )
    return value


def _quotient(width: int, heads: int) -> int:
    return max(1, width // heads)


def _dividing(config: Mapping[str, Any], name: str, whole: int, default: int | None = None) -> int:
    """A count that must divide `whole`."""
    divisor = _number(config, name, default)
    if whole % divisor:
        raise CannotRun(f"model: its configuration's {name} of {divisor} does not divide {whole}")
    return divisor
