"""Llama's network, and models read from a folder, on the CPU in fp32."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tests.workloads.products import CountProducts
from workloads.errors import CannotRun, WrongUsage
from workloads.formulas import attention_flops
from workloads.inference.checkpoint import Folder, gpt2_into, llama_weights
from workloads.inference.generation import Generator
from workloads.inference.llama import LlamaModel, Weights, random_weights, rotary_tables
from workloads.inference.memory import forward_flops, kv_cache_bytes, parameter_count
from workloads.inference.model import Model
from workloads.inference.network import Network, choose_back_end, make_network
from workloads.inference.parts import KVCache, attend_naive
from workloads.inference.run import run
from workloads.inference.shapes import SHAPES, RopeScaling, Shape
from workloads.report import Report

CPU = torch.device("cpu")
TINY = SHAPES["llama-tiny"]
UNPADDED = replace(TINY, vocabulary=1000)
LENGTH, TOKENS = 9, 7


@pytest.fixture(autouse=True)
def _inference_mode() -> Iterator[None]:
    with torch.inference_mode():
        yield
    choose_back_end("auto")


def network(size: str = "llama-tiny", **changes: Any) -> Network:
    settings = {"seed": 0, "positions": 64, "attention": "auto", "compiled": False}
    return make_network(SHAPES[size], torch.float32, CPU, **{**settings, **changes})


def tokens(batch: int = 2, length: int = LENGTH) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1000, (batch, length), generator=generator)


def logits(model: Network, prompt: Tensor) -> Tensor:
    batch, length = prompt.shape
    return model.forward(prompt, KVCache(model.shape, batch, length, torch.float32, CPU))


def written(model: Network) -> Tensor:
    generator = Generator(model, tokens(), TOKENS)
    generator.prefill()
    for _ in range(TOKENS - 1):
        generator.decode_step()
    return generator.text


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.1-8b", 8_030_261_248),
        ("mistral-7b", 7_248_023_552),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-8b", 8_190_735_360),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("llama-3.2-3b", 3_212_749_824),
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("llama-2-13b", 13_015_864_320),
        ("llama-3-70b", 70_553_706_496),
    ],
)
def test_the_sizes_are_those_of_the_released_models(size: str, parameters: int) -> None:
    assert parameter_count(SHAPES[size]) == parameters


def plain_logits(shape: Shape, weights: Weights, prompt: Tensor) -> Tensor:
    """Llama once more, after its papers, a token and a head at a time."""
    width = shape.head_width
    rates = [shape.rope_base ** (-2 * i / width) for i in range(width // 2)]

    def turned(x: Tensor, position: int) -> Tensor:
        pairs = zip(x[: width // 2], x[width // 2 :], rates, strict=True)
        out = [
            (a * cos - b * sin, b * cos + a * sin)
            for a, b, rate in pairs
            for cos, sin in [(math.cos(position * rate), math.sin(position * rate))]
        ]
        return torch.stack([pair[0] for pair in out] + [pair[1] for pair in out])

    def normal(x: Tensor, gain: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + shape.epsilon).sqrt() * gain

    x = weights.token_table[prompt]
    length = len(prompt)
    for layer in weights.layers:
        qkv = normal(x, layer.attention_norm) @ layer.qkv.T
        heads = qkv.view(length, shape.heads + 2 * shape.kv_heads, width)
        mixed = torch.zeros(length, shape.heads, width)
        for head in range(shape.heads):
            shared = shape.heads + head // shape.groups
            keys = [turned(heads[i, shared], i) for i in range(length)]
            for i in range(length):
                query = turned(heads[i, head], i)
                scores = torch.stack([query @ key for key in keys[: i + 1]]) / math.sqrt(width)
                values = heads[: i + 1, shared + shape.kv_heads]
                mixed[i, head] = torch.softmax(scores, 0) @ values
        x = x + mixed.view(length, -1) @ layer.out.T
        h = normal(x, layer.mlp_norm)
        gate, up = (h @ layer.gate_up.T).chunk(2, dim=-1)
        x = x + (gate * torch.sigmoid(gate) * up) @ layer.down.T
    return normal(x[-1], weights.final_norm) @ weights.head.T


def test_the_network_is_what_the_papers_write() -> None:
    # Large weights, so that what attention does is seen in the logits.
    weights = random_weights(TINY, torch.float32, CPU, seed=2)
    for tensor in LlamaModel(TINY, weights, 1).tensors():
        if tensor.dim() > 1:
            tensor.mul_(5)
    prompt = tokens(batch=1, length=6)
    found = logits(LlamaModel(TINY, weights, 6), prompt)[0]
    torch.testing.assert_close(found, plain_logits(TINY, weights, prompt[0]), rtol=1e-3, atol=1e-4)


def test_grouped_heads_share_their_cache() -> None:
    assert kv_cache_bytes(SHAPES["llama-3-8b"], 1, 8192, 2) == 2**30
    assert kv_cache_bytes(SHAPES["llama-2-7b"], 1, 4096, 2) == 2 * 2**30


@pytest.mark.parametrize("size", ["gpt2-tiny", "llama-tiny"])
def test_weights_and_products_are_as_many_as_the_formulas_say(size: str) -> None:
    model = network(size)
    assert sum(tensor.numel() for tensor in model.tensors()) == parameter_count(SHAPES[size])
    cache = KVCache(model.shape, 2, LENGTH + 1, torch.float32, CPU)
    for step in (tokens(), tokens()[:, :1]):
        with CountProducts() as products:
            model.forward(step, cache)
        # linear dispatches to addmm, or to mm where there is no bias.
        assert products.count == 4 * 2 + 1


@pytest.mark.parametrize("size", ["gpt2-tiny", "llama-tiny"])
def test_operations_are_those_that_torch_counts(size: str) -> None:
    shape = SHAPES[size]
    with FlopCounterMode(display=False) as counter:
        logits(network(size), tokens())
    # torch counts whole squares, and not every attention kernel of the CPU.
    square = attention_flops(2, shape.heads, LENGTH, LENGTH, shape.head_width)
    products = forward_flops(shape, 2, LENGTH) - shape.layers * square / 2
    assert counter.get_total_flops() in (products, products + shape.layers * square)


def test_each_token_from_the_cache_is_the_one_a_whole_pass_gives() -> None:
    model = network()
    text = torch.cat([tokens(), written(model)], dim=1)
    for position in range(LENGTH, LENGTH + TOKENS):
        found = logits(model, text[:, :position])[:, : TINY.vocabulary].argmax(-1)
        assert torch.equal(found, text[:, position])


@pytest.mark.parametrize("size", ["gpt2-tiny", "llama-tiny"])
@pytest.mark.parametrize("attention", ["naive", "math", "flash"])
def test_every_way_to_attend_gives_the_same_logits(size: str, attention: str) -> None:
    expected = logits(network(size), tokens())
    torch.testing.assert_close(logits(network(size, attention=attention), tokens()), expected)


def test_shared_heads_are_those_heads_repeated() -> None:
    q, kv = torch.randn(1, 4, 1, 8), torch.randn(2, 1, 2, 5, 8)
    repeated = kv.repeat_interleave(2, dim=2)
    torch.testing.assert_close(
        attend_naive(q, kv[0], kv[1], False), attend_naive(q, repeated[0], repeated[1], False)
    )


def test_rotary_positions_depend_on_distance_alone() -> None:
    cos, sin = rotary_tables(TINY, 16, CPU)
    q, k = torch.randn(TINY.head_width), torch.randn(TINY.head_width)

    def turned(x: Tensor, position: int) -> Tensor:
        first, second = x.chunk(2)
        return x * cos[position] + torch.cat([-second, first]) * sin[position]

    near = turned(q, 5) @ turned(k, 3)
    torch.testing.assert_close(near, turned(q, 12) @ turned(k, 10))


def test_scaled_positions_stretch_slow_turns_and_leave_fast_ones() -> None:
    shape = replace(SHAPES["llama-3-8b"], rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192))
    plain = rotary_tables(SHAPES["llama-3-8b"], 2, CPU)[1][1]
    scaled = rotary_tables(shape, 2, CPU)[1][1]
    half = shape.head_width // 2
    torch.testing.assert_close(scaled[0], plain[0])
    torch.testing.assert_close(scaled[half - 1].asin(), plain[half - 1].asin() / 8)


# --- a folder ---------------------------------------------------------------------------------


def llama_tensors(weights: Weights, shape: Shape) -> dict[str, Tensor]:
    """The weights under the names of a released checkpoint."""
    named = {
        "model.embed_tokens.weight": weights.token_table[: shape.vocabulary],
        "model.norm.weight": weights.final_norm,
        "lm_head.weight": weights.head[: shape.vocabulary],
    }
    kv = shape.kv_width
    for number, layer in enumerate(weights.layers):
        prefix = f"model.layers.{number}"
        q, k, v = layer.qkv.split([shape.query_width, kv, kv])
        gate, up = layer.gate_up.chunk(2)
        named |= {
            f"{prefix}.input_layernorm.weight": layer.attention_norm,
            f"{prefix}.post_attention_layernorm.weight": layer.mlp_norm,
            f"{prefix}.self_attn.q_proj.weight": q,
            f"{prefix}.self_attn.k_proj.weight": k,
            f"{prefix}.self_attn.v_proj.weight": v,
            f"{prefix}.self_attn.o_proj.weight": layer.out,
            f"{prefix}.mlp.gate_proj.weight": gate,
            f"{prefix}.mlp.up_proj.weight": up,
            f"{prefix}.mlp.down_proj.weight": layer.down,
        }
    return {name: tensor.contiguous().clone() for name, tensor in named.items()}


def llama_config(shape: Shape) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.inner,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.epsilon,
        "rope_theta": shape.rope_base,
    }


def gpt2_tensors(model: Model) -> dict[str, Tensor]:
    named = {
        "wte.weight": model.token_table[: model.shape.vocabulary],
        "wpe.weight": model.position_table,
        "ln_f.weight": model.final_norm.weight,
        "ln_f.bias": model.final_norm.bias,
    }
    for number, layer in enumerate(model.layers):
        for name, affine, is_matrix in (
            ("ln_1", layer.attention_norm, False), ("attn.c_attn", layer.qkv, True),
            ("attn.c_proj", layer.out, True), ("ln_2", layer.mlp_norm, False),
            ("mlp.c_fc", layer.up, True), ("mlp.c_proj", layer.down, True),
        ):  # fmt: skip
            weight = affine.weight.t() if is_matrix else affine.weight
            named |= {f"h.{number}.{name}.weight": weight, f"h.{number}.{name}.bias": affine.bias}
    return {name: tensor.contiguous().clone() for name, tensor in named.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama whose vocabulary needs padding, in one file."""
    weights = random_weights(UNPADDED, torch.float32, CPU, seed=3)
    save_file(llama_tensors(weights, UNPADDED), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(llama_config(UNPADDED)))
    return tmp_path


def loaded_llama(folder: Path) -> LlamaModel:
    found = Folder(str(folder))
    return LlamaModel(found.shape, llama_weights(found, torch.float32, CPU), 64)


def test_a_llama_folder_gives_the_network_it_holds(folder: Path) -> None:
    original = LlamaModel(UNPADDED, random_weights(UNPADDED, torch.float32, CPU, seed=3), 64)
    found = loaded_llama(folder)
    assert found.shape == UNPADDED
    expected = logits(original, tokens())[:, : UNPADDED.vocabulary]
    assert torch.equal(logits(found, tokens())[:, : UNPADDED.vocabulary], expected)


def test_a_model_in_several_files_is_the_same(folder: Path) -> None:
    expected = logits(loaded_llama(folder), tokens())
    tensors = llama_tensors(random_weights(UNPADDED, torch.float32, CPU, seed=3), UNPADDED)
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2])):
        file = f"part-{number}.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert torch.equal(logits(loaded_llama(folder), tokens()), expected)


def test_a_gpt2_folder_gives_the_network_it_holds(tmp_path: Path) -> None:
    shape = replace(SHAPES["gpt2-tiny"], vocabulary=1000)
    original = Model(shape, torch.float32, CPU, seed=5)
    save_file(gpt2_tensors(original), tmp_path / "model.safetensors")
    config = {
        "model_type": "gpt2", "n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": 1000,
        "n_positions": 1024, "n_inner": None,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = Folder(str(tmp_path))
    model = Model(found.shape, torch.float32, CPU, seed=6)
    gpt2_into(model, found)
    expected = logits(original, tokens())[:, :1000]
    torch.testing.assert_close(logits(model, tokens())[:, :1000], expected)


def test_the_whole_workload_runs_a_folder(folder: Path) -> None:
    given = {"device": "cpu", "model": str(folder), "prompt": 5, "tokens": 3, "warmup": 1}
    outcome = run(given, Report(None, io.StringIO()))
    assert outcome.results["parameter_count"] == parameter_count(UNPADDED)
    assert outcome.results["output_text"] is None
    with pytest.raises(CannotRun, match=r"has no tokenizer\.json$"):
        run({**given, "text": "Hello"}, Report(None, io.StringIO()))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"model_type": "bert"}, "its model_type is 'bert'; gpt2, llama, mistral,"),
        ({"hidden_size": -1}, "configuration's hidden_size is '-1': not a dimension"),
        ({"num_hidden_layers": "2"}, "configuration's num_hidden_layers is '2': not a dimension"),
        ({"num_key_value_heads": 3}, "num_key_value_heads of 3 does not divide 4"),
        ({"rope_theta": "x"}, "configuration's rope_theta is 'x': out of range"),
        ({"rope_scaling": {"type": "yarn"}}, "its rope_scaling is 'yarn'; llama3 is known"),
        (
            {"intermediate_size": 100},
            r"gate_proj\.weight is \(384, 128\), but .* implies \(100, 12",
        ),
        ({"num_hidden_layers": 3}, r"has no tensor 'model\.layers\.2\."),
    ],
)
def test_a_folder_that_does_not_fit_is_told_in_one_line(
    folder: Path, change: dict[str, Any], complaint: str
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CannotRun, match=complaint) as refusal:
        loaded_llama(folder)
    assert "\n" not in str(refusal.value)


def test_an_index_cannot_name_files_outside_its_folder(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    for name in ("../secret", "/etc/passwd", 7):
        index.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
        with pytest.raises(CannotRun, match=r"the index of .* names"):
            Folder(str(folder))


def test_files_that_are_none_are_told(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x00" * 64)
    with pytest.raises(CannotRun, match="cannot be read"):
        Folder(str(folder))
    (folder / "config.json").write_text("[1")
    with pytest.raises(CannotRun, match="cannot be read"):
        Folder(str(folder))
    with pytest.raises(CannotRun, match="is not a folder; name one with a config"):
        Folder(str(folder / "none"))


def test_what_contradicts_itself_is_refused() -> None:
    report = Report(None, io.StringIO())
    with pytest.raises(WrongUsage, match="CUDA graphs need a GPU"):
        run({"device": "cpu", "graphs": True}, report)
    with pytest.raises(WrongUsage, match="text: needs a tokenizer"):
        run({"device": "cpu", "text": "Hello"}, report)
    with pytest.raises(WrongUsage, match="more than the context of 8192"):
        run({"device": "cpu", "size": "llama-3-8b", "prompt": 9000}, report)
    with pytest.raises(CannotRun, match="attention: cudnn has no kernel for fp32"):
        run({"device": "cpu", "attention": "cudnn", "tokens": 2}, report)


def test_a_compiled_network_writes_the_same_text() -> None:
    model = network()
    compiled = network(compiled=True)
    # The whole network is one graph, whatever then compiles it.
    forward = torch.compile(compiled.forward, backend="eager", fullgraph=True)
    generator = Generator(compiled, tokens(), TOKENS, forward)
    generator.prefill()
    for _ in range(TOKENS - 1):
        generator.decode_step()
    assert torch.equal(generator.text, written(model))
