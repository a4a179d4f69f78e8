"""The networks that are trained, against their arithmetic and against each other."""

from __future__ import annotations

from itertools import chain, repeat

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.workloads.products import CountProducts, meta
from workloads.errors import CannotRun
from workloads.formulas import score_matrix_bytes, training_state_bytes
from workloads.train.memory import Footprint, activation_bytes
from workloads.train.model import Decoder, LayerRanges
from workloads.train.shapes import SHAPES, step_flops
from workloads.train.step import Trainer
from workloads.train.timeline import MemoryTimeline

GIB = 2**30
BATCH, LENGTH = 2, 16


def decoder(size: str, *, naive: bool = True, every: int = 0, device: str = "meta") -> Decoder:
    with torch.device(device):
        return Decoder(SHAPES[size], LENGTH, naive=naive, checkpoint_every=every)


def on_cpu(size: str, *, naive: bool = True, every: int = 0) -> Decoder:
    model = decoder(size, naive=naive, every=every, device="cpu")
    model.initialise(0)
    return model


def gradients(model: Decoder) -> list[torch.Tensor]:
    tokens = torch.arange(BATCH * LENGTH).view(BATCH, LENGTH)
    model(tokens).float().square().mean().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("size", SHAPES)
def test_every_shape_has_as_many_parameters_as_its_formula_says(size: str) -> None:
    parameters = sum(parameter.numel() for parameter in decoder(size).parameters())
    assert parameters == SHAPES[size].parameters


def test_gpt2_in_fp32_is_the_497_903_616_bytes_that_the_seed_copies_to_its_gpu() -> None:
    assert training_state_bytes(SHAPES["gpt2"].parameters)["model"] == 497_903_616


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("llama-3.2-1b", 1_235_814_400), ("llama-3.2-3b", 3_212_749_824),
        ("llama-3.1-8b", 8_030_261_248),
    ],
)  # fmt: skip
def test_the_llamas_are_as_large_as_the_released_ones(size: str, parameters: int) -> None:
    assert SHAPES[size].parameters == parameters


@pytest.mark.parametrize(
    ("size", "per_layer"), [("cs336-tiny", 9), ("gpt2-tiny", 6), ("llama-tiny", 9)]
)
def test_matrix_products_are_so_many_a_layer_and_one_and_thrice_that_with_backward(
    size: str, per_layer: int
) -> None:
    shape = SHAPES[size]
    forward = per_layer * shape.layers + 1
    model = decoder(size)
    with CountProducts() as products:
        loss = model(meta(BATCH, LENGTH)).mean()
    assert products.count == forward == shape.products(backward=False)
    with products:
        loss.backward()
    assert products.count == 3 * forward == shape.products(backward=True)


def test_thirty_steps_of_medium_are_the_19_530_products_of_the_seed() -> None:
    assert 30 * SHAPES["cs336-medium"].products(backward=True) == 19_530


@pytest.mark.parametrize("size", ["cs336-tiny", "gpt2-tiny", "llama-tiny", "cs336-small", "gpt2"])
@pytest.mark.parametrize("naive", [True, False])
def test_operations_are_those_that_torch_counts(size: str, naive: bool) -> None:
    model = decoder(size, naive=naive)
    with FlopCounterMode(display=False) as counter:
        loss = model(meta(BATCH, LENGTH)).mean()
    forward = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    flops = {
        backward: step_flops(
            SHAPES[size], BATCH, LENGTH, backward=backward, naive=True, recomputes=False
        )
        for backward in (False, True)
    }
    assert flops[False].model == flops[False].hardware == forward
    assert flops[True].model == flops[True].hardware == forward + counter.get_total_flops()


def test_checkpoints_are_a_second_forward_pass_without_the_head() -> None:
    shape = SHAPES["cs336-tiny"]
    with FlopCounterMode(display=False) as counter:
        decoder("cs336-tiny", every=1)(meta(BATCH, LENGTH)).mean().backward()
    flops = step_flops(shape, BATCH, LENGTH, backward=True, naive=True, recomputes=True)
    # torch stops the second pass of a layer once it has what backward needs: its last product
    # is not done again.
    last = 2 * shape.inner * shape.width * BATCH * LENGTH * shape.layers
    assert flops.hardware - last <= counter.get_total_flops() <= flops.hardware


def test_a_fused_kernel_does_half_of_the_scores_and_computes_them_again() -> None:
    shape = SHAPES["cs336-small"]
    both = [
        step_flops(shape, 4, 1024, backward=True, naive=naive, recomputes=False)
        for naive in (True, False)
    ]
    naive, fused = both
    assert naive.model == fused.model == naive.hardware
    attention = 12 * 4 * 4 * 12 * 1024**2 * 64
    assert naive.hardware - fused.hardware == 3 * attention - 3.5 * attention / 2


@pytest.mark.parametrize("size", ["cs336-tiny", "gpt2-tiny", "llama-tiny"])
def test_naive_and_fused_attention_and_checkpoints_give_the_same_gradients(size: str) -> None:
    expected = gradients(on_cpu(size))
    for other in (on_cpu(size, naive=False), on_cpu(size, every=1), on_cpu(size, every=2)):
        for one, another in zip(expected, gradients(other), strict=True):
            torch.testing.assert_close(one, another, rtol=1e-3, atol=1e-6)


def test_no_token_sees_the_ones_after_it() -> None:
    model = on_cpu("cs336-tiny")
    tokens = torch.arange(LENGTH)[None]
    changed = tokens.clone()
    changed[0, -1] = 500
    with torch.no_grad():
        torch.testing.assert_close(model(tokens)[:, :-1], model(changed)[:, :-1])


def test_layers_count_their_ranges_only_when_told() -> None:
    ranges = LayerRanges()
    shape = SHAPES["cs336-tiny"]
    model = Decoder(shape, LENGTH, naive=True, ranges=ranges)
    model(torch.zeros(1, LENGTH, dtype=torch.int64))
    counts = {known.name: known.count for known in ranges.used()}
    assert counts == {
        "MHA(total)": 2, "QKV projections": 2, "RoPE(Q)": 2, "RoPE(K)": 2,
        "attn_logits (QK^T) + mask": 2, "softmax": 2, "attn*V (context)": 2, "output proj": 2,
        "embedding": 1, "norm": 5, "FFN": 2, "lm_head": 1,
    }  # fmt: skip
    ranges.count(False)
    model(torch.zeros(1, LENGTH, dtype=torch.int64))
    assert {known.name: known.count for known in ranges.used()} == counts


def test_the_state_of_10b_is_191_gib_and_is_refused_with_the_sum() -> None:
    footprint = Footprint.estimate(
        SHAPES["cs336-10B"], 4, 512, mode="full", naive=False, checkpoint=0, element_bytes=2
    )
    state = footprint.model_bytes + footprint.gradient_bytes + footprint.optimizer_bytes
    assert round(state / GIB, 1) == 191.2
    with pytest.raises(CannotRun) as refusal:
        footprint.refuse_unless_fits(139 * GIB, "cuda:0")
    assert str(refusal.value).startswith(
        "needs at least 191.2 GiB = model 47.8 + optimizer 95.6 + the larger of gradients 47.8 "
    )
    assert "cuda:0 has 139.0 GiB free" in str(refusal.value)
    ways = "it fits on 2 such GPUs with tensor parallelism, on 2 with ZeRO-3"
    assert str(refusal.value).endswith(ways)


def test_checkpoints_need_less_and_a_forward_pass_no_state() -> None:
    def of(mode: str, checkpoint: int) -> Footprint:
        return Footprint.estimate(
            SHAPES["cs336-xl"],
            4,
            2048,
            mode=mode,
            naive=True,
            checkpoint=checkpoint,
            element_bytes=4,
        )

    assert of("full", 1).activation_bytes < of("full", 0).activation_bytes / 10
    assert of("fwd", 0).optimizer_bytes == of("fwd", 0).gradient_bytes == 0


@pytest.mark.parametrize("size", ["cs336-tiny", "llama-tiny", "gpt2-tiny"])
@pytest.mark.parametrize("naive", [True, False])
def test_expected_activations_are_what_autograd_keeps(size: str, naive: bool) -> None:
    shape = SHAPES[size]
    model = on_cpu(size, naive=naive)
    tokens = torch.zeros(2, LENGTH, dtype=torch.int64)
    targets = torch.zeros(2 * LENGTH, dtype=torch.int64)
    held = [*model.parameters(), *model.buffers(), tokens, targets]
    own = {tensor.untyped_storage().data_ptr() for tensor in held}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets)
    assert loss.requires_grad
    measured = sum(storage.nbytes() for storage in kept.values())
    expected = activation_bytes(shape, 2, LENGTH, naive=naive, checkpoint=0, autocast=False)
    # The fused kernel of the CPU keeps a copy of its result that the GPU's does not.
    assert measured == pytest.approx(expected, rel=1e-4 if naive else 0.05)


def test_the_optimizers_state_is_that_of_its_moments() -> None:
    weights = training_state_bytes(SHAPES["cs336-tiny"].parameters)["model"]
    for name, moments in (("sgd", 0), ("momentum", 1), ("foreach", 2)):
        trainer = Trainer(
            SHAPES["cs336-tiny"], 2, 16, mode="full", naive=True, checkpoint=0, compiled=False,
            optimizer=name, lr=1e-3, autocast=None, device=torch.device("cpu"), seed=0,
        )  # fmt: skip
        trainer.first_step()
        assert trainer.memory["gradients"] == weights
        assert trainer.memory["optimizer"] == pytest.approx(moments * weights, abs=1000)
        expected = training_state_bytes(SHAPES["cs336-tiny"].parameters, name)["optimizer"]
        assert expected == moments * weights


@pytest.mark.parametrize(
    ("length", "mebibytes"), [(1024, 32), (4096, 512), (8192, 2048), (16384, 8192)]
)
def test_score_matrices_are_those_of_the_seeds_attention_table(length: int, mebibytes: int) -> None:
    assert score_matrix_bytes(8, 1, length, 4) == mebibytes * 2**20


@pytest.mark.parametrize("size", ["cs336-tiny", "gpt2-tiny"])
@pytest.mark.parametrize("checkpoint", [0, 1])
def test_autocast_keeps_a_copy_of_every_matrix_for_the_backward_pass(
    size: str, checkpoint: int
) -> None:
    shape = SHAPES[size]
    trainer = Trainer(
        shape, 2, 16, mode="full", naive=True, checkpoint=checkpoint, compiled=False,
        optimizer="foreach", lr=1e-3, autocast=torch.bfloat16, device=torch.device("cpu"), seed=0,
    )  # fmt: skip
    trainer.first_step()
    # Every product with a weight needs it again in bf16; recomputed layers make theirs anew.
    kept = shape.vocabulary * shape.width if checkpoint else shape.matrix_parameters
    assert trainer.memory["weight copies (autocast)"] == 2 * kept


def test_one_mask_serves_all_layers_and_the_fused_attention_has_none() -> None:
    for naive, masks in ((True, [(LENGTH, LENGTH)]), (False, [])):
        model = decoder("cs336-tiny", naive=naive)
        found = [tuple(buffer.shape) for name, buffer in model.named_buffers() if "mask" in name]
        assert found == masks


@pytest.mark.parametrize("mode", ["full", "fwd"])
def test_accumulated_passes_give_the_update_of_one_large_batch(mode: str) -> None:
    def trained(batch: int, accumulate: int) -> tuple[Trainer, list[float]]:
        trainer = Trainer(
            SHAPES["cs336-tiny"], batch, 16, mode=mode, naive=False, checkpoint=0, compiled=False,
            optimizer="foreach", lr=1e-2, autocast=None, device=torch.device("cpu"), seed=0,
            accumulate=accumulate,
        )  # fmt: skip
        losses = []
        for _ in range(3):
            trainer.step()
            losses.append(trainer.loss)
        return trainer, losses

    whole, expected = trained(8, 1)
    parts, found = trained(2, 4)
    assert found == pytest.approx(expected, rel=1e-3)
    assert parts.phases["FORWARD"].count == 4 * whole.phases["FORWARD"].count == 12
    updates = whole.phases["OPTIMIZER"].count
    assert parts.phases["OPTIMIZER"].count == updates == (3 if mode == "full" else 0)


def test_memory_during_a_step_is_that_of_the_tensors_there_are() -> None:
    model = on_cpu("llama-tiny")
    weights = training_state_bytes(SHAPES["llama-tiny"].parameters)
    optimizer = torch.optim.AdamW(model.parameters())
    allocated = chain([weights["model"] + 1000], repeat(10 * weights["model"]))
    timeline = MemoryTimeline(model, model.blocks, optimizer, lambda: next(allocated), lambda: 300)
    with timeline:
        gradients(model)
        optimizer.step()
    looks = [
        tuple(row[f"{part}_bytes"] for part in ("model", "gradients", "optimizer"))
        for row in timeline.rows
    ]
    # At the start, after each of two blocks forward and backward, at the end.
    assert len(looks) == 6
    assert looks[:3] == [(weights["model"], 0, 0)] * 3
    assert looks[3][1] <= looks[4][1] < weights["gradients"]
    scalars = 4 * len(list(model.parameters()))  # AdamW's count of steps
    state = weights["optimizer"] + scalars
    assert looks[-1] == (weights["model"], weights["gradients"], state)
    last = timeline.rows[-1]
    assert (last["workspaces_bytes"], last["weight_copies_bytes"]) == (700, 300)
    assert last["activations_bytes"] == 10 * weights["model"] - sum(looks[-1]) - 1000
    assert [row["time_ms"] for row in timeline.rows] == sorted(
        row["time_ms"] for row in timeline.rows
    )
