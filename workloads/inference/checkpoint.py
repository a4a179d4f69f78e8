"""The user's model: a local folder in Hugging Face's layout, with safetensors.

The folder is untrusted input: its names stay inside it, nothing in it is executed, and what does
not fit is reported in one line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import CannotRun
from .configuration import shape_of
from .llama import Layer, Weights
from .model import Model

_CONFIG_LIMIT = 16 * 2**20


class Folder:
    """Configuration, weights and, if present, tokenizer of one model.

    Raises CannotRun if the folder is not one of a model that the networks here are.
    """

    def __init__(self, name: str) -> None:
        self.path = Path(name).expanduser()
        if not self.path.is_dir():
            raise CannotRun(f"model: {name[:200]!r} is not a folder; name one with a config.json")
        self.config = self._json("config.json")
        self.shape = shape_of(self.config)
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
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            line = " ".join(str(error).split())[:200]
            raise CannotRun(f"model: {str(path)!r} cannot be read: {line}") from error
        if not isinstance(document, dict):
            raise CannotRun(f"model: {str(path)!r} is not a JSON object")
        return document


Mlp = tuple[Tensor, Tensor, Tensor | None]
"""The gate and up matrices one after another, the down matrix, and the router of a mixture."""


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
    """The weights of a Llama's, Mistral's, Qwen's or mixture's folder on `device`, as `dtype`."""
    shape = folder.shape
    width, inner = shape.width, shape.inner

    def get(name: str, *dimensions: int) -> Tensor:
        return folder.tensor(name, *dimensions).to(device=device, dtype=dtype)

    def padded(name: str) -> Tensor:
        table = torch.zeros(shape.padded_vocabulary, width, dtype=dtype, device=device)
        table[: shape.vocabulary] = get(name, shape.vocabulary, width)
        return table

    def head_norm(name: str) -> Tensor | None:
        return get(name, shape.head_width) if shape.qk_norm else None

    def plain(mlp: str, names: Sequence[str] = ("gate_proj", "up_proj", "down_proj")) -> Mlp:
        gate, up, down = (f"{mlp}.{name}.weight" for name in names)
        gate_up = torch.cat([get(gate, inner, width), get(up, inner, width)])
        return gate_up, get(down, width, inner), None

    def experts(prefix: str) -> Mlp:
        mlp, names = f"{prefix}.mlp", ("gate_proj", "up_proj", "down_proj")
        if folder.has(f"{prefix}.block_sparse_moe.gate.weight"):
            mlp, names = f"{prefix}.block_sparse_moe", ("w1", "w3", "w2")
        projections = [plain(f"{mlp}.experts.{number}", names) for number in range(shape.experts)]
        gates = torch.stack([gate_up for gate_up, _, _ in projections])
        downs = torch.stack([down for _, down, _ in projections])
        return gates, downs, get(f"{mlp}.gate.weight", shape.experts, width)

    token_table = padded("model.embed_tokens.weight")
    layers = []
    for number in range(shape.layers):
        prefix = f"model.layers.{number}"
        attention = f"{prefix}.self_attn"
        qkv = [
            get(f"{attention}.q_proj.weight", shape.query_width, width),
            get(f"{attention}.k_proj.weight", shape.kv_width, width),
            get(f"{attention}.v_proj.weight", shape.kv_width, width),
        ]
        bias = None
        if shape.qkv_bias:
            counts = (shape.query_width, shape.kv_width, shape.kv_width)
            bias = torch.cat(
                [
                    get(f"{attention}.{part}_proj.bias", count)
                    for part, count in zip("qkv", counts, strict=True)
                ]
            )
        gate_up, down, router = experts(prefix) if shape.experts else plain(f"{prefix}.mlp")
        layers.append(
            Layer(
                attention_norm=get(f"{prefix}.input_layernorm.weight", width),
                qkv=torch.cat(qkv),
                out=get(f"{attention}.o_proj.weight", width, shape.query_width),
                mlp_norm=get(f"{prefix}.post_attention_layernorm.weight", width),
                gate_up=gate_up,
                down=down,
                qkv_bias=bias,
                query_norm=head_norm(f"{attention}.q_norm.weight"),
                key_norm=head_norm(f"{attention}.k_norm.weight"),
                router=router,
            )
        )
    head = token_table if shape.tied else padded("lm_head.weight")
    return Weights(token_table, layers, get("model.norm.weight", width), head)
