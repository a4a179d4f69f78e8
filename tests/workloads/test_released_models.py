"""Models in the layout of released ones: logits as transformers gives them, and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workloads.released import CONFIGS, LOGITS, PROMPT, write_folder
from workloads.errors import CannotRun
from workloads.inference.checkpoint import Folder, gpt2_into, llama_weights
from workloads.inference.configuration import shape_of
from workloads.inference.generation import Generator
from workloads.inference.memory import Footprint, decode_step_bytes, forward_flops, parameter_count
from workloads.inference.model import Model
from workloads.inference.network import Network, make_network
from workloads.inference.parts import KVCache
from workloads.inference.shapes import SHAPES

CPU = torch.device("cpu")
SAID = json.loads(LOGITS.read_text(encoding="utf-8"))


def network(path: Path, positions: int = 64) -> Network:
    folder = Folder(str(path))
    shape = folder.shape
    weights = llama_weights(folder, torch.float32, CPU) if shape.family == "llama" else None
    model = make_network(
        shape, torch.float32, CPU, seed=0, positions=positions, attention="auto", compiled=False,
        weights=weights,
    )  # fmt: skip
    if isinstance(model, Model):
        gpt2_into(model, folder)
    return model


def test_the_prompt_is_that_of_the_logits() -> None:
    assert SAID["prompt"] == PROMPT
    assert SAID.keys() - {"prompt", "transformers"} == CONFIGS.keys()


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    write_folder(tmp_path, CONFIGS[name])
    with torch.inference_mode():
        model = network(tmp_path)
        cache = KVCache(model.shape, 1, 64, torch.float32, CPU)
        whole = model.forward(torch.tensor([PROMPT]), cache)[0]
        cache.length = 0
        model.forward(torch.tensor([PROMPT[:-1]]), cache)
        stepped = model.forward(torch.tensor([PROMPT[-1:]]), cache)[0]
    expected = torch.tensor(SAID[name])
    torch.testing.assert_close(whole[: len(expected)], expected, rtol=0, atol=2e-4)
    torch.testing.assert_close(stepped[: len(expected)], expected, rtol=0, atol=2e-4)
    assert parameter_count(model.shape) == sum(one.numel() for one in model.tensors())


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("gpt2", "activation_function", "relu"),
        ("gpt2", "n_inner", 128),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("gpt2", "scale_attn_weights", False),
        ("gpt2", "tie_word_embeddings", False),
        ("gpt2", "add_cross_attention", True),
        ("llama", "attention_bias", True),
        ("llama", "mlp_bias", True),
        ("llama", "hidden_act", "gelu"),
        ("llama", "quantization_config", {"quant_method": "gptq"}),
        ("llama", "auto_map", {"AutoModelForCausalLM": "modeling.Mine"}),
        ("llama", "architectures", ["LlamaForSequenceClassification"]),
        ("llama", "partial_rotary_factor", 0.5),
        ("llama", "model_type", "gemma2"),
        ("mistral", "num_key_value_heads", None),
        ("mistral", "rope_theta", None),
        ("qwen3", "head_dim", None),
        ("qwen3", "attention_bias", True),
        ("qwen3_moe", "decoder_sparse_step", 2),
        ("qwen3_moe", "mlp_only_layers", [1]),
        ("mixtral", "num_experts_per_tok", 5),
    ],
)
def test_what_the_network_does_not_do_is_refused_by_its_field(
    name: str, field: str, value: object
) -> None:
    shape_of(CONFIGS[name])
    with pytest.raises(CannotRun, match=rf"\b{field} ") as refusal:
        shape_of({**CONFIGS[name], field: value})
    assert "\n" not in str(refusal.value)


def test_a_sliding_window_bounds_the_context() -> None:
    def context(name: str, **changes: Any) -> int:
        config = {**CONFIGS[name], "max_position_embeddings": 32_768, **changes}
        return shape_of(config).context

    assert context("mistral", sliding_window=None) == 32_768
    assert context("mistral", sliding_window=4096) == 4096
    without = {key: value for key, value in CONFIGS["mistral"].items() if key != "sliding_window"}
    # The default of its class: a file that says nothing has a window.
    assert shape_of({**without, "max_position_embeddings": 32_768}).context == 4096
    assert context("qwen2", sliding_window=4096) == 32_768
    assert context("qwen2", sliding_window=4096, use_sliding_window=True) == 4096


def test_llama_3_2_is_what_its_release_says() -> None:
    shape = SHAPES["llama-3.2-1b"]
    assert shape.rope_scaling is not None
    assert (shape.context, shape.rope_scaling.factor, shape.tied) == (131_072, 32.0, True)
    assert SHAPES["llama-3.1-70b"].context == 131_072
    eight = SHAPES["llama-3.1-8b"].rope_scaling
    assert eight is not None
    assert (eight.factor, eight.original_context) == (8.0, 8192)


def test_a_mixture_reads_the_experts_that_tokens_choose() -> None:
    mixture = SHAPES["mixtral-8x7b"]
    dense = replace(mixture, experts=0, experts_per_token=0)
    router = mixture.layers * mixture.experts * mixture.width
    one = mixture.layers * 3 * mixture.width * mixture.inner
    assert parameter_count(mixture) == parameter_count(dense) + router + 7 * one
    # One sequence chooses 2 of 8; very many choose all.
    assert decode_step_bytes(mixture, 1, 0, 2) == pytest.approx(
        decode_step_bytes(dense, 1, 0, 2) + 2 * (router + one)
    )
    table = (mixture.padded_vocabulary - 1) * mixture.width
    assert decode_step_bytes(mixture, 1000, 0, 2) == pytest.approx(
        2 * (parameter_count(mixture) - table)
    )
    assert forward_flops(mixture, 1, 10) == forward_flops(dense, 1, 10) + 20 * (router + one)
    assert Footprint.estimate(mixture, 1, 10, 1, 2).weight_bytes == 2 * parameter_count(mixture)


def test_a_mixture_writes_text() -> None:
    with torch.inference_mode():
        model = make_network(
            SHAPES["moe-tiny"], torch.float32, CPU, seed=1, positions=20, attention="auto",
            compiled=False,
        )  # fmt: skip
        generator = Generator(model, torch.arange(12).view(2, 6), 4)
        generator.prefill()
        for _ in range(3):
            generator.decode_step()
    assert generator.text.shape == (2, 4)
