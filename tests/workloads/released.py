"""Small models in the layout of released ones, with made-up weights: what the networks here are
compared on with transformers.

Run it, where transformers is installed, to write `logits.json` anew: what transformers makes of
each folder.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

PROMPT = [3, 17, 42, 5, 99, 63, 8, 21, 70, 11, 2, 54]
LOGITS = Path(__file__).with_name("logits.json")

_LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 128, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "tie_word_embeddings": False,
    "hidden_act": "silu", "head_dim": 16,
}  # fmt: skip
_MIXTURE = {"num_experts_per_tok": 2, "intermediate_size": 48}

CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 2,
        "n_head": 4, "vocab_size": 128, "n_positions": 64, "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
    },
    "llama": _LLAMA,
    "llama3-scaled": _LLAMA | {
        "tie_word_embeddings": True, "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "mistral": _LLAMA | {
        "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None,
    },
    "qwen2": _LLAMA | {
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "rope_theta": 1e6,
        "tie_word_embeddings": True,
    },
    "qwen3": _LLAMA | {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 32,
        "attention_bias": False,
    },
    "mixtral": _LLAMA | _MIXTURE | {
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4,
    },
    "qwen3_moe": _LLAMA | _MIXTURE | {
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4,
        "moe_intermediate_size": 48, "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "qwen3_moe-unnormed": _LLAMA | _MIXTURE | {
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4,
        "moe_intermediate_size": 48, "norm_topk_prob": False, "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
}  # fmt: skip


def shapes_of(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names and shapes of the tensors that a checkpoint of this configuration has."""
    kind, vocabulary = config["model_type"], config["vocab_size"]
    if kind == "gpt2":
        width = config["n_embd"]
        yield "transformer.wte.weight", (vocabulary, width)
        yield "transformer.wpe.weight", (config["n_positions"], width)
        sides = {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width),
                 "mlp.c_fc": (width, 4 * width), "mlp.c_proj": (4 * width, width)}  # fmt: skip
        for number in range(config["n_layer"]):
            for name, (inputs, outputs) in sides.items():
                yield f"transformer.h.{number}.{name}.weight", (inputs, outputs)
                yield f"transformer.h.{number}.{name}.bias", (outputs,)
            for name in ("ln_1", "ln_2"):
                yield f"transformer.h.{number}.{name}.weight", (width,)
                yield f"transformer.h.{number}.{name}.bias", (width,)
        yield "transformer.ln_f.weight", (width,)
        yield "transformer.ln_f.bias", (width,)
        return
    width, head = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (vocabulary, width)
    yield "model.norm.weight", (width,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocabulary, width)
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        yield f"{layer}.input_layernorm.weight", (width,)
        yield f"{layer}.post_attention_layernorm.weight", (width,)
        for name, outputs in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{layer}.self_attn.{name}_proj.weight", (outputs, width)
            if kind == "qwen2":
                yield f"{layer}.self_attn.{name}_proj.bias", (outputs,)
        yield f"{layer}.self_attn.o_proj.weight", (width, queries)
        if kind.startswith("qwen3"):
            yield f"{layer}.self_attn.q_norm.weight", (head,)
            yield f"{layer}.self_attn.k_norm.weight", (head,)
        yield from _mlp(config, f"{layer}")


def _mlp(config: dict[str, Any], layer: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    kind, width = config["model_type"], config["hidden_size"]
    inner = config.get("moe_intermediate_size", config["intermediate_size"])
    up, down = (inner, width), (width, inner)
    if kind == "mixtral":
        mlp, names = f"{layer}.block_sparse_moe", ("w1", "w3", "w2")
        experts = [f"{mlp}.experts.{n}" for n in range(config["num_local_experts"])]
    else:
        mlp, names = f"{layer}.mlp", ("gate_proj", "up_proj", "down_proj")
        count = config.get("num_experts")
        experts = [f"{mlp}.experts.{n}" for n in range(count)] if count else [mlp]
    if len(experts) > 1:
        yield f"{mlp}.gate.weight", (len(experts), width)
    for expert in experts:
        for name, shape in zip(names, (up, up, down), strict=True):
            yield f"{expert}.{name}.weight", shape


def weight(name: str, shape: tuple[int, ...]) -> Tensor:
    """Numbers that any version of torch makes the same, others for every name; gains are near 1."""
    count = 1
    for side in shape:
        count *= side
    seed = sum(ord(letter) * (at + 1) for at, letter in enumerate(name)) % 9973
    angles = (torch.arange(count, dtype=torch.float64) * 12.9898 + seed) * 78.233
    values = torch.sin(angles) * 43758.5453
    values = values - values.floor() - 0.5
    is_gain = len(shape) == 1 and "norm" in name.lower() + ("norm" if ".ln_" in name else "")
    scale = 0.4 if len(shape) == 1 else 4.0 / shape[-1] ** 0.5
    found = values * scale + (1.0 if is_gain and name.endswith("weight") else 0.0)
    return found.reshape(shape).float()


def write_folder(folder: Path, config: dict[str, Any]) -> None:
    """A folder in Hugging Face's layout."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(
        {name: weight(name, shape) for name, shape in shapes_of(config)},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )


def main() -> None:
    """Write what transformers says."""
    import transformers

    found: dict[str, object] = {"transformers": transformers.__version__, "prompt": PROMPT}
    with tempfile.TemporaryDirectory() as place:
        for name, config in CONFIGS.items():
            folder = Path(place, name)
            write_folder(folder, config)
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            with torch.no_grad():
                logits = model(torch.tensor([PROMPT])).logits[0, -1]
            found[name] = [round(value, 5) for value in logits[:24].tolist()]
            print(f"{name}: {found[name][:4]}", file=sys.stderr)  # type: ignore[index]
    LOGITS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
