"""GGUF files: what is in them, and that nothing in them does harm. Written here by the format's
description (ggml/docs/gguf.md)."""

from __future__ import annotations

import io
import math
import struct
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.declaration import Value
from workloads.errors import CannotRun
from workloads.inference.gguf import is_gguf, read_gguf
from workloads.inference.run import run
from workloads.report import Report

MIB = 2**20


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def number(name: str, value: int) -> bytes:
    return entry(name, 4, struct.pack("<I", value))


def tensor(name: str, kind: int, *shape: int) -> bytes:
    lengths = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + lengths + struct.pack("<IQ", kind, 0)


def gpt2() -> bytes:
    """GPT-2 in F16 as the lecture has it, its norms in F32, its words in Q4_0."""
    facts = [
        entry("general.architecture", 8, text("gpt2")),
        entry("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("b")),
        entry("tokenizer.ggml.scores", 9, struct.pack("<IQ", 6, 3) + struct.pack("<3f", 1, 2, 3)),
        number("gpt2.context_length", 1024), number("gpt2.embedding_length", 768),
        number("gpt2.block_count", 12), number("gpt2.attention.head_count", 12),
    ]  # fmt: skip
    tensors = [
        tensor("token_embd.weight", 2, 768, 50257),
        tensor("blk.0.ffn_up.weight", 1, 768, 3072),
        tensor("output_norm.weight", 0, 768),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts))
    return head + b"".join(facts) + b"".join(tensors)


def test_weights_by_type_and_the_cache_by_formula(tmp_path: Path) -> None:
    path = tmp_path / "gpt2.gguf"
    path.write_bytes(gpt2())
    assert is_gguf(path)
    file = read_gguf(path)
    assert (file.architecture, file.tensors, file.context) == ("gpt2", 3, 1024)
    assert file.bytes_by_type == {
        "Q4_0": 768 * 50257 // 32 * 18, "F16": 2 * 768 * 3072, "F32": 4 * 768,
    }  # fmt: skip
    assert file.kv_bytes_per_token is not None
    assert file.kv_bytes_per_token * 1024 == 36 * MIB  # the lecture's 72 are of fp32


def tiny_llama() -> bytes:
    """A whole model of two layers that llama.cpp runs, its weights zero but for the words'."""
    width, inner, words = 32, 64, 40
    facts = [
        entry("general.architecture", 8, text("llama")),
        entry("tokenizer.ggml.model", 8, text("no_vocab")),
        entry("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)),
        number("llama.vocab_size", words), number("llama.context_length", 64),
        number("llama.embedding_length", width), number("llama.block_count", 2),
        number("llama.feed_forward_length", inner), number("llama.rope.dimension_count", 8),
        number("llama.attention.head_count", 4), number("llama.attention.head_count_kv", 2),
    ]  # fmt: skip
    shapes = {"token_embd": (width, words), "output_norm": (width,), "output": (width, words)}
    for layer in range(2):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in {
            "attn_norm": (width,), "attn_q": (width, width), "attn_k": (width, width // 2),
            "attn_v": (width, width // 2), "attn_output": (width, width), "ffn_norm": (width,),
            "ffn_gate": (width, inner), "ffn_up": (width, inner), "ffn_down": (inner, width),
        }.items()}  # fmt: skip
    headers, weights = [], b""
    for name, shape in shapes.items():
        lengths = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        headers.append(text(f"{name}.weight") + lengths + struct.pack("<IQ", 0, len(weights)))
        ones = name.startswith(("token_embd", "output"))
        weights += struct.pack("<f", ones) * math.prod(shape)  # each a multiple of 32 bytes
    head = b"GGUF" + struct.pack("<IQQ", 3, len(headers), len(facts))
    head += b"".join(facts) + b"".join(headers)
    return head + bytes(-len(head) % 32) + weights


def test_llama_cpp_answers_a_prompt_where_it_is_installed(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_llama())
    asked: dict[str, Value] = {"model": str(path), "prompt": 9, "tokens": 5, "device": "cpu"}
    if find_spec("llama_cpp") is None:
        with pytest.raises(CannotRun, match=r"llama, 21 tensors, .*pip install llama-cpp-python"):
            run(asked, Report(None, io.StringIO()))
        return
    results = run(asked, Report(None, io.StringIO())).results
    assert (results["output_tokens"], results["effective_precision"]) == (5, "F32 (GGUF)")
    weights = 4 * int(results["parameter_count"] or 0)
    looked_up = 4 * 32 * 40
    assert results["weight_bytes"] == weights
    assert results["kv_cache_bytes"] == 2 * 2 * 2 * 16 * 256
    assert results["model_bytes_per_step"] == weights - looked_up + 2 * 2 * 2 * 16 * 11.5
    assert results["peak_memory_allocated_bytes"] is None


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version is 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "entries"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 50), "a text has"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("x") + struct.pack("<I", 77), "type 77"),
        (gpt2()[:-3], "buffer"),
        (b"PK\3\4", "does not begin"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, data: bytes, fault: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(CannotRun, match=fault) as caught:
        read_gguf(path)
    assert "\n" not in str(caught.value)


@given(st.integers(0, len(gpt2()) - 1), st.integers(0, 255))
def test_no_byte_of_it_does_harm(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int
) -> None:
    data = bytearray(gpt2())
    data[at] = byte
    path = tmp_path_factory.getbasetemp() / "changed.gguf"
    path.write_bytes(data)
    with suppress(CannotRun):
        assert read_gguf(path).words
