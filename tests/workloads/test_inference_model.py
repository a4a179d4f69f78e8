"""The network and its decoding, on the CPU in fp32 at the tiny size."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from workloads.devices import find_device, out_of_memory_explained, set_precision
from workloads.errors import CannotRun, OutOfMemory
from workloads.inference.generation import Generator
from workloads.inference.memory import parameter_count
from workloads.inference.model import Model
from workloads.inference.parts import KVCache
from workloads.inference.shapes import SHAPES

CPU = torch.device("cpu")
TINY = SHAPES["gpt2-tiny"]
PROMPT, TOKENS = 9, 12


@pytest.fixture(autouse=True)
def _inference_mode() -> Iterator[None]:
    with torch.inference_mode():
        yield


def tiny(seed: int = 0) -> Model:
    return Model(TINY, torch.float32, CPU, seed)


def prompt(batch: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(TINY.vocabulary, (batch, PROMPT), generator=generator)


def written(model: Model, tokens: int = TOKENS) -> torch.Tensor:
    generator = Generator(model, prompt(), tokens)
    generator.prefill()
    for _ in range(tokens - 1):
        generator.decode_step()
    return generator.text


def logits_without_cache(model: Model, tokens: torch.Tensor) -> torch.Tensor:
    """One pass over all of `tokens` into an empty cache: nothing is remembered."""
    batch, length = tokens.shape
    return model.forward(tokens, KVCache(TINY, batch, length, torch.float32, CPU))


def test_the_weights_are_as_many_as_the_formula_says() -> None:
    assert sum(tensor.numel() for tensor in tiny().tensors()) == parameter_count(TINY) == 658_944


def test_the_same_seed_writes_the_same_text_and_another_seed_another() -> None:
    text = written(tiny())
    assert text.shape == (2, TOKENS)
    assert torch.equal(text, written(tiny()))
    assert not torch.equal(text, written(tiny(seed=1)))


def test_each_token_from_the_cache_is_the_one_a_whole_pass_gives() -> None:
    model = tiny()
    text = torch.cat([prompt(), written(model)], dim=1)
    for position in range(PROMPT, PROMPT + TOKENS):
        logits = logits_without_cache(model, text[:, :position])
        assert torch.equal(logits[:, : TINY.vocabulary].argmax(-1), text[:, position])


def test_logits_from_the_cache_are_those_of_a_whole_pass() -> None:
    model, tokens = tiny(), prompt()
    cache = KVCache(TINY, 2, PROMPT, torch.float32, CPU)
    model.forward(tokens[:, :4], cache)
    for position in range(4, PROMPT):
        logits = model.forward(tokens[:, position : position + 1], cache)
    torch.testing.assert_close(logits, logits_without_cache(model, tokens))


def test_sequences_of_a_batch_do_not_see_each_other() -> None:
    model, tokens = tiny(), prompt()
    together = logits_without_cache(model, tokens)
    torch.testing.assert_close(together[:1], logits_without_cache(model, tokens[:1]))


def test_a_prompt_after_other_tokens_is_refused() -> None:
    cache = KVCache(TINY, 2, 2 * PROMPT, torch.float32, CPU)
    model = tiny()
    model.forward(prompt(), cache)
    with pytest.raises(ValueError, match="must come first"):
        model.forward(prompt(), cache)


def test_warming_up_leaves_no_trace_in_the_text() -> None:
    model = tiny()
    generator = Generator(model, prompt(), TOKENS)
    generator.prefill()
    generator.decode_step()
    generator.prefill()
    for _ in range(TOKENS - 1):
        generator.decode_step()
    assert torch.equal(generator.text, written(model))


def test_a_failed_allocation_is_explained_in_one_line() -> None:
    with pytest.raises(OutOfMemory) as failure, out_of_memory_explained():
        torch.empty(1 << 60, dtype=torch.uint8)
    assert "\n" not in str(failure.value)
    assert "1152921504606846976" in str(failure.value)


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot"), out_of_memory_explained():
        torch.zeros(2, 3) @ torch.zeros(2, 3)


def test_tf32_is_refused_where_there_is_none() -> None:
    with pytest.raises(CannotRun, match=r"precision: tf32 needs .* use fp32"):
        set_precision("tf32", CPU)
    assert set_precision("fp32", CPU).effective == "fp32 (ieee)"


@pytest.mark.skipif(torch.cuda.is_available(), reason="has CUDA")
def test_cuda_asked_for_but_absent_is_one_line_with_a_way_out() -> None:
    with pytest.raises(CannotRun, match=r"^device: cuda:1 is not available: .* use --device cpu$"):
        find_device("cuda:1")
    assert find_device("auto") == CPU


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_every_precision_writes_a_text(name: str) -> None:
    model = Model(TINY, set_precision(name, CPU).dtype, CPU, seed=0)
    assert written(model, tokens=3).shape == (2, 3)
