"""Names that number themselves are one phase; names that tell things apart stay."""

from __future__ import annotations

import pytest

from gputui.model.naming import MOST_FREE, MOST_PARTS, sibling_names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # torch.autograd.profiler.emit_nvtx, with and without record_shapes
        ("aten::to, seq = 46013, op_id = 993413", "aten::to"),
        (
            "aten::addmm, seq = 12, sizes = [[30522], [128, 768], [768, 30522], [], []]",
            "aten::addmm",
        ),
        # as a name of 256 characters is cut
        ("aten::cat, seq = 12, sizes = [[30522], [128, 7…", "aten::cat"),
        ("aten::cat, seq = 12, op_i…", "aten::cat"),
        ("AddmmBackward0, stashed seq = 5, op_id = 99", "AddmmBackward0"),
        ("aten::mm, op_id = 7, input_op_ids = [(5,0), (6,0)]", "aten::mm"),
        # PyTorch's profiler, Lightning, Hugging Face, vLLM, tutorials
        ("ProfilerStep#12", "ProfilerStep#"),
        ("train_step 7", "train_step #"),
        ("Step 0 to 10", "Step # to 10"),
        ("iteration_35", "iteration_#"),
        ("Epoch: 3", "Epoch: #"),
        ("microbatch 3", "microbatch #"),
        ("request 9f3ac41d-0a11-4b22-8c33-123456789abc", "request #"),
        ("cudaMalloc 0x7f31a0002000", "cudaMalloc #"),
        ("forward [8, 1024, 768]", "forward [#]"),
        # What tells things apart
        ("h.0", "h.0"),
        ("model.layers.31.self_attn.q_proj", "model.layers.31.self_attn.q_proj"),
        ("down_blocks.2.resnets.1", "down_blocks.2.resnets.1"),
        ("experts[7]", "experts[7]"),
        ("layer 11", "layer 11"),
        ("conv2d", "conv2d"),
        ("fp16", "fp16"),
        ("Optimizer.step#AdamW.step", "Optimizer.step#AdamW.step"),
        ("GPU 0", "GPU 0"),
        ("test 1", "test 1"),
        ("AddmmBackward0", "AddmmBackward0"),
        ("pid 42", "pid 42"),
    ],
)
def test_numbers_of_an_instance_are_folded_alone(name: str, expected: str) -> None:
    assert names(name) == {expected}


def names(*found: str) -> set[str]:
    return set(sibling_names((0, name) for name in found).values())


def test_free_numbers_are_folded_where_they_are_many() -> None:
    few = [f"Compute {number}" for number in range(MOST_FREE)]
    assert names(*few) == set(few)
    assert names(*few, "Compute 260") == {"Compute #"}
    assert names(*few, "Copy 260") == {*few, "Copy 260"}
    assert names(*(f"execute_context_{n}({8 * n})" for n in range(20))) == {"execute_context_#(#)"}


def test_parts_stay_apart_up_to_more_than_there_are_in_a_model() -> None:
    layers = [f"h.{number}" for number in range(126)]
    experts = [f"experts.{number}" for number in range(MOST_PARTS)]
    assert names(*layers, *experts) == {*layers, *experts}
    assert names(*(f"node.{number}" for number in range(MOST_PARTS + 1))) == {"node.#"}


def test_siblings_are_of_one_kind() -> None:
    found = sibling_names((number % 2, f"Compute {number}") for number in range(2 * MOST_FREE))
    assert len(set(found.values())) == 2 * MOST_FREE


def test_hostile_names_take_time_in_proportion() -> None:
    for name in ("[1," * 1300, "1 " * 2000, ", a = (" * 600, "a" * 4096, "0x" * 2000, "- " * 2000):
        assert names(name)


def test_ranges_of_xla_go_by_what_they_are_of() -> None:
    module = "XlaModule:#{}hlo_module=jit_step,program_id={}#"
    assert names(module.format("", 7), module.format("prefix=args[0],", 9)) == {"jit_step"}
    assert names("XlaPass:#name=algsimp,module=jit_copy,program_id=9#") == {"XlaPass algsimp"}
    assert names("Thunk:#hlo_op=copy.1,unique_hlo_op_id=4294967297#") == {"copy.1"}
