"""Short weights, drafts that guess, low-rank updates and packed documents, each another way."""

from __future__ import annotations

import math
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.finetune.documents import NO_TARGET, batch, draw, packed
from workloads.finetune.lora import add_to, added_parameters, state_bytes
from workloads.inference.generation import Generator
from workloads.inference.llama import LlamaModel
from workloads.inference.shapes import SHAPES as MODELS
from workloads.quantized.formats import GROUP
from workloads.quantized.layers import WAYS, bf16, fp8, int4, int8, int8_converted
from workloads.rows import Unsupported
from workloads.speculative.decoder import Decoder, models
from workloads.speculative.run import expected_tokens_per_pass
from workloads.train.model import Decoder as Trainee
from workloads.train.shapes import SHAPES

CPU = torch.device("cpu")


# --- quantized --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weight() -> Tensor:
    return torch.randn(48, 256, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.randn(32, 256, generator=torch.Generator().manual_seed(1)).bfloat16()


def weight_bytes(weights: str, outputs: int, inputs: int) -> int:
    """Of a matrix with its scales: an fp32 one for each output in fp8, a bf16 one in int8, a bf16
    scale and zero for each group in int4.
    """
    elements = outputs * inputs
    match weights:
        case "fp8":
            return elements + 4 * outputs
        case "int8":
            return elements + 2 * outputs
        case "int4":
            return elements // 2 + 4 * elements // GROUP
        case _:
            return 2 * elements


def apart(one: Tensor, other: Tensor) -> float:
    return ((one.double() - other).norm() / other.norm()).item()


@pytest.mark.parametrize(
    ("name", "make"),
    [("bf16", bf16), ("fp8", fp8), ("int8", int8), ("int8", int8_converted), ("int4", int4)],
)
def test_a_layer_holds_as_many_bytes_as_its_formula_says(
    name: str, make: object, weight: Tensor
) -> None:
    _, held = make(weight)  # type: ignore[operator]
    assert sum(part.nbytes for part in held) == weight_bytes(name, 48, 256)


def test_products_are_those_of_the_weights_that_the_codes_stand_for(
    weight: Tensor, x: Tensor
) -> None:
    for make in (int8, int8_converted):
        product, (codes, scale) = make(weight)
        meant = codes.double() * scale.double()[:, None]
        assert apart(product(x), x.double() @ meant.t()) < 2**-8
    product, (short, scale) = fp8(weight)
    of_token = x.abs().amax(1, keepdim=True).float() / 448
    seen = (x / of_token).to(torch.float8_e4m3fn).double() * of_token
    meant = short.double() * scale
    assert apart(product(x), seen @ meant.t()) < 2**-8


def test_errors_are_those_of_rounding_to_equal_steps(weight: Tensor, x: Tensor) -> None:
    exact = x.double() @ weight.double().t()
    # Evenly spread, an error of rounding to steps has the variance step² / 12.
    for make, steps in ((int8, 1), (int4, 0)):
        product, held = make(weight)
        scale = held[1].double() if steps else held[1].double()[..., 0]
        expected = math.sqrt((scale.square().mean() / 12).item() / weight.square().mean().item())
        assert apart(product(x), exact) == pytest.approx(expected, rel=0.1)


def test_torchao_has_a_row_of_each_type_or_a_reason(weight: Tensor, x: Tensor) -> None:
    ways = {weights: make for weights, way, make in WAYS if way == "torchao"}
    assert set(ways) == {"fp8", "int8", "int4"}
    if find_spec("torchao") is None:
        for make in ways.values():
            with pytest.raises(Unsupported, match="torchao is not installed"):
                make(weight)
        return
    for name in ("fp8", "int8"):
        product, held = ways[name](weight)
        # An fp32 scale for each output; int8 has room for its zeros.
        assert 48 * (256 + 4) <= sum(part.nbytes for part in held) <= 48 * (256 + 4 + 4)
        assert apart(product(x), x.double() @ weight.double().t()) < 0.04


# --- speculative ------------------------------------------------------------------------------


def decoded(target: LlamaModel, draft: LlamaModel, prompts: list[list[int]], ahead: int) -> Decoder:
    decoder = Decoder(target, draft, prompts, tokens=9, ahead=ahead)
    decoder.run(lambda: False)
    return decoder


@pytest.mark.parametrize("later", [0.0, 0.5])
def test_a_draft_changes_how_the_text_is_written_not_the_text(later: float) -> None:
    prompts = [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]
    with torch.inference_mode():
        target, draft = models(MODELS["llama-tiny"], 1, later, 64, torch.float32, CPU, 0)
        plain = Generator(target, torch.tensor(prompts), 9)
        plain.prefill()
        for _ in range(8):
            plain.decode_step()
        text = plain.text.tolist()
        for ahead in (0, 1, 3):
            decoder = decoded(target, draft, prompts, ahead)
            assert decoder.texts == text
            if not later:
                # Of a draft that is always right every proposal is kept, and one token added.
                assert decoder.passes == math.ceil(8 / (ahead + 1))
                assert decoder.accepted == decoder.proposed == decoder.passes * ahead * 2
        assert decoder.drafts == decoder.passes * 3


def test_the_tokens_of_a_pass_are_the_mean_over_where_it_is_refused() -> None:
    for chance, ahead in ((0.0, 3), (0.3, 1), (0.8, 4), (1.0, 5)):
        # Refused at the k-th proposal, it has written k of them and the target's own.
        outcomes = [(chance**k * (1 - chance), k + 1) for k in range(ahead)]
        outcomes.append((chance**ahead, ahead + 1))
        assert sum(share for share, _ in outcomes) == pytest.approx(1)
        mean = sum(share * tokens for share, tokens in outcomes)
        assert expected_tokens_per_pass(chance, ahead) == pytest.approx(mean)


# --- finetune ---------------------------------------------------------------------------------


def trainee() -> Trainee:
    model = Trainee(SHAPES["llama-tiny"], 16, naive=True)
    model.initialise(0)
    return model


def test_rows_hold_each_document_once_and_no_more_than_fits() -> None:
    lengths = [len(words) for words in draw(40, 16, 1024, seed=0)]
    rows = packed(lengths, 16)
    assert sorted(number for row in rows for number in row) == list(range(40))
    used = [sum(lengths[number] for number in row) for row in rows]
    assert max(used) <= 16
    assert len(rows) <= math.ceil(11 / 9 * math.ceil(sum(lengths) / 16)) + 1


@torch.no_grad()
def test_padded_and_packed_rows_have_the_loss_of_the_documents_one_by_one() -> None:
    documents = draw(7, 16, 1024, seed=1)
    model = trainee()
    alone = []
    for words in documents:
        own = Trainee(SHAPES["llama-tiny"], len(words), naive=True)
        own.load_state_dict(model.state_dict())
        logits = own(torch.tensor([words]))[0, :-1]
        alone.append(F.cross_entropy(logits, torch.tensor(words[1:]), reduction="sum"))
    expected = sum(alone) / sum(len(words) - 1 for words in documents)
    for rows in ([[number] for number in range(7)], packed([len(w) for w in documents], 16)):
        tokens, targets, model.mask = batch(documents, rows, 16)
        loss = F.cross_entropy(
            model(tokens).flatten(0, 1), targets.flatten(), ignore_index=NO_TARGET
        )
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)  # type: ignore[union-attr]


def test_lora_adds_what_its_formula_says_and_changes_nothing_at_first() -> None:
    model = trainee()
    tokens = torch.arange(32).view(2, 16)
    before = model(tokens)
    frozen = {name: weight.clone() for name, weight in model.named_parameters()}
    add_to(model, rank=3)
    assert torch.equal(model(tokens), before)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    count = sum(weight.numel() for weight in trained)
    assert count == added_parameters(SHAPES["llama-tiny"], 3)
    optimizer = torch.optim.AdamW(trained, lr=0.1)
    model(tokens).square().mean().backward()
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    optimizer.step()
    moments = [part for state in optimizer.state.values() for part in state.values() if part.dim()]
    held = sum(part.nbytes for part in (*model.parameters(), *gradients, *moments))
    assert held == state_bytes(SHAPES["llama-tiny"].parameters + count, count)
    assert not torch.equal(model(tokens), before)
    left = {name.replace(".whole", ""): weight for name, weight in model.named_parameters()}
    assert all(torch.equal(left[name], weight) for name, weight in frozen.items())
