"""The user's model: a local folder in Hugging Face's layout, with safetensors.

The folder is untrusted input: its names stay inside it, nothing in it is executed, and what does
not fit is reported in one line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import CannotRun
from .llama import Layer, Weights
from .model import Model
from .shapes import RopeScaling, Shape

_CONFIG_LIMIT = 16 * 2**20
_DIMENSION_LIMIT = 2**24


class Folder:
    """Configuration, weights and, if present, tokenizer of one model.

    Raises CannotRun if the folder is not one of a GPT-2 or Llama model.
    """

    def __init__(self, name: str) -> None:
        self.path = Path(name).expanduser()
        if not self.path.is_dir():
            raise CannotRun(f"model: {name[:200]!r} is not a folder; name one with a config.json")
        self.config = self._json("config.json")
        self.shape = _shape(self.config)
        self._files = self._tensor_files()

    def tokenizer(self) -> Any | None:
        """The tokenizer of tokenizer.json, None without the file.

        Raises CannotRun if the file cannot be read or its library is not installed.
        """
        path = self.path / "tokenizer.json"
        if not path.is_file():
            return None
        try:
            return import_module("tokenizers").Tokenizer.from_file(str(path))
        except ModuleNotFoundError as error:
            raise CannotRun(
                "text: a tokenizer needs the package tokenizers; pip install tokenizers"
            ) from error
        except Exception as error:
            line = " ".join(str(error).split())[:200]
            raise CannotRun(f"model: {str(path)!r} is not a tokenizer: {line}") from error

    def tensor(self, name: str, *shape: int) -> Tensor:
        """The tensor `name`, which must have `shape`. GPT-2's may lack their prefix."""
        for candidate in (name, name.removeprefix("transformer."), f"transformer.{name}"):
            if candidate in self._files:
                break
        else:
            raise CannotRun(f"model: {str(self.path)!r} has no tensor {name!r}")
        path = self._files[candidate]
        try:
            with safe_open(path, framework="pt") as file:
                tensor: Tensor = file.get_tensor(candidate)
        except (OSError, SafetensorError) as error:
            line = " ".join(str(error).split())[:200]
            raise CannotRun(f"model: {str(path)!r} cannot be read: {line}") from error
        if tuple(tensor.shape) != shape:
            raise CannotRun(
                f"model: {name} is {tuple(tensor.shape)}, but its configuration implies {shape}"
            )
        return tensor

    def has(self, name: str) -> bool:
        return name in self._files

    def _tensor_files(self) -> dict[str, Path]:
        """Which file each tensor is in."""
        if (self.path / "model.safetensors.index.json").is_file():
            named = self._json("model.safetensors.index.json").get("weight_map")
            if not isinstance(named, dict):
                raise CannotRun(f"model: the index of {str(self.path)!r} has no weight_map")
            for file in named.values():
                if not isinstance(file, str) or Path(file).name != file:
                    raise CannotRun(f"model: the index of {str(self.path)!r} names {file!r}")
            return {str(tensor): self.path / file for tensor, file in named.items()}
        path = self.path / "model.safetensors"
        try:
            with safe_open(path, framework="pt") as opened:
                return dict.fromkeys(opened.keys(), path)
        except (OSError, SafetensorError) as error:
            line = " ".join(str(error).split())[:200]
            raise CannotRun(f"model: {str(path)!r} cannot be read: {line}") from error

    def _json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            if path.stat().st_size > _CONFIG_LIMIT:
                raise CannotRun(f"model: {str(path)!r} is too large for such a file")
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            line = " ".join(str(error).split())[:200]
            raise CannotRun(f"model: {str(path)!r} cannot be read: {line}") from error
        if not isinstance(found, dict):
            raise CannotRun(f"model: {str(path)!r} is not a JSON object")
        return found


def gpt2_into(model: Model, folder: Folder) -> None:
    """Fill a GPT-2 network. The released matrices are [in, out]; ours are [out, in]."""
    shape, width = model.shape, model.shape.width
    words = folder.tensor("transformer.wte.weight", shape.vocabulary, width)
    model.token_table.zero_()
    model.token_table[: shape.vocabulary].copy_(words)
    model.position_table.copy_(folder.tensor("transformer.wpe.weight", shape.context, width))
    norms = {"ln_1": "attention_norm", "ln_2": "mlp_norm"}
    matrices = {
        "attn.c_attn": ("qkv", width, 3 * width),
        "attn.c_proj": ("out", width, width),
        "mlp.c_fc": ("up", width, shape.inner),
        "mlp.c_proj": ("down", shape.inner, width),
    }
    for number, layer in enumerate(model.layers):
        prefix = f"transformer.h.{number}"
        for theirs, ours in norms.items():
            for part in ("weight", "bias"):
                tensor = folder.tensor(f"{prefix}.{theirs}.{part}", width)
                getattr(getattr(layer, ours), part).copy_(tensor)
        for theirs, (ours, inputs, outputs) in matrices.items():
            affine = getattr(layer, ours)
            affine.weight.copy_(folder.tensor(f"{prefix}.{theirs}.weight", inputs, outputs).t())
            affine.bias.copy_(folder.tensor(f"{prefix}.{theirs}.bias", outputs))
    for part in ("weight", "bias"):
        getattr(model.final_norm, part).copy_(folder.tensor(f"transformer.ln_f.{part}", width))


def llama_weights(folder: Folder, dtype: torch.dtype, device: torch.device) -> Weights:
    """The weights of a Llama folder on `device`, as `dtype`."""
    shape = folder.shape
    width, inner = shape.width, shape.inner

    def get(name: str, *dimensions: int) -> Tensor:
        return folder.tensor(name, *dimensions).to(device=device, dtype=dtype)

    def padded(name: str) -> Tensor:
        table = torch.zeros(shape.padded_vocabulary, width, dtype=dtype, device=device)
        table[: shape.vocabulary] = get(name, shape.vocabulary, width)
        return table

    token_table = padded("model.embed_tokens.weight")
    layers = []
    for number in range(shape.layers):
        prefix = f"model.layers.{number}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        qkv = [
            get(f"{attention}.q_proj.weight", shape.query_width, width),
            get(f"{attention}.k_proj.weight", shape.kv_width, width),
            get(f"{attention}.v_proj.weight", shape.kv_width, width),
        ]
        gate_up = [get(f"{mlp}.{name}_proj.weight", inner, width) for name in ("gate", "up")]
        layers.append(
            Layer(
                attention_norm=get(f"{prefix}.input_layernorm.weight", width),
                qkv=torch.cat(qkv),
                out=get(f"{attention}.o_proj.weight", width, shape.query_width),
                mlp_norm=get(f"{prefix}.post_attention_layernorm.weight", width),
                gate_up=torch.cat(gate_up),
                down=get(f"{mlp}.down_proj.weight", width, inner),
            )
        )
    head = token_table if shape.tied else padded("lm_head.weight")
    return Weights(token_table, layers, get("model.norm.weight", width), head)


def _shape(config: Mapping[str, Any]) -> Shape:
    """The shape a config.json describes."""
    kind = config.get("model_type")
    if kind == "gpt2":
        width = _number(config, "n_embd")
        return Shape(
            layers=_number(config, "n_layer"),
            width=width,
            heads=_dividing(config, "n_head", width),
            vocabulary=_number(config, "vocab_size"),
            inner=_number(config, "n_inner", 4 * width),
            context=_number(config, "n_positions"),
            epsilon=_real(config, "layer_norm_epsilon", 1e-5),
        )
    if kind != "llama":
        raise CannotRun(f"model: its model_type is {str(kind)[:40]!r}; gpt2 and llama are known")
    width, heads = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    # transformers 5 renamed it, and moved rope_theta into it.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise CannotRun(f"model: its configuration's rope_scaling is {str(rope)[:40]!r}")
    return Shape(
        layers=_number(config, "num_hidden_layers"),
        width=width,
        heads=heads,
        vocabulary=_number(config, "vocab_size"),
        family="llama",
        kv_heads=_dividing(config, "num_key_value_heads", heads, heads),
        inner=_number(config, "intermediate_size"),
        context=_number(config, "max_position_embeddings"),
        tied=bool(config.get("tie_word_embeddings", False)),
        head_width=_number(config, "head_dim", width // heads),
        epsilon=_real(config, "rms_norm_eps", 1e-5),
        rope_base=_real(config if "rope_theta" in config else rope, "rope_theta", 10_000.0),
        rope_scaling=_rope_scaling(rope),
    )


def _rope_scaling(found: Mapping[str, Any]) -> RopeScaling | None:
    kind = found.get("rope_type", found.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise CannotRun(f"model: its rope_scaling is {str(kind)[:40]!r}; llama3 is known")
    return RopeScaling(
        factor=_real(found, "factor", 1),
        low_frequency_factor=_real(found, "low_freq_factor", 1),
        high_frequency_factor=_real(found, "high_freq_factor", 4),
        original_context=_number(found, "original_max_position_embeddings"),
    )


def _real(config: Mapping[str, Any], name: str, default: float) -> float:
    found = config.get(name, default)
    if not isinstance(found, int | float) or not 0 < found < 1e12:
        raise CannotRun(f"model: its configuration's {name} is {str(found)[:40]!r}: out of range")
    return float(found)


def _number(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    found = config.get(name)
    found = default if found is None else found
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found <= _DIMENSION_LIMIT:
        raise CannotRun(
            f"model: its configuration's {name} is {str(found)[:40]!r}: not a dimension"
        )
    return found


def _dividing(config: Mapping[str, Any], name: str, whole: int, default: int | None = None) -> int:
    """A count that must divide `whole`."""
    found = _number(config, name, default)
    if whole % found:
        raise CannotRun(f"model: its configuration's {name} of {found} does not divide {whole}")
    return found
