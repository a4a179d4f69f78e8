"""The cure that comes first for recorded faults, each of which has one."""

from __future__ import annotations

import pytest

from gputui.cures import BOUND
from gputui.trial.planning import Candidate, diagnosis_of, plan
from tests.conftest import DATA
from tests.sessions_for_tests import loaded_once

RIGHT = {
    "alloc_each": "empty_cache_idle",
    "allocator": "empty_cache_idle",
    "anomaly_left_on": "anomaly_off",
    "anomaly_slow_cpu": "anomaly_off",
    "attention": "attention_fused",
    "checkpointing": "checkpointing_off",
    "collected_each": "gc_collect_idle",
    "copied_by_line": "pinned_copies",
    "generate_without_cache": "texts_kept",
    "handmade_norms": "compile",
    "hf_generate": "cudnn_attention_off",
    "input": "loader_workers",
    "launch": "compile",
    "lightning_train": "loader_workers",
    "lstm_loop": "compile",
    "numpy_aug": "loader_workers",
    "odd_shapes": "padded_products",
    "offload_adam": "pinned_copies",
    "offload_layers": "pinned_copies",
    "optimizer": "fused_optimizer",
    "padded_reranker": "padding_trimmed",
    "pageable": "pinned_copies",
    "pageable_images": "pinned_copies",
    "recompiling": "compile_dynamic",
    "repeated_heads": "compile",
    "starved": "cores_freed",
    "tensor_cores": "tf32",
    "two-launches": "compile",
    "two-pageable": "pinned_copies",
    "two-products": "tf32",
    "unfused": "compile",
    "varied_docs": "cudnn_attention_off",
    "workers": "loader_workers",
}
"""Of the faults that a cure from outside exists for, the cure that their authors wrote."""

ABLATIONS = {
    "gil_thread": "hold_threads",
    "logits": "last_values",
    "overlap": "keep_copies",
    "save_each_ten": "no_saves",
    "sync": "last_values",
    "sync_each": "last_values",
    "two_locked_threads": "hold_threads",
}
"""Of those that have none, what takes the cause away."""


def planned(fault: str) -> list[Candidate]:
    loaded = loaded_once(str(DATA / "faults" / f"{fault}.gputui.gz"))
    diagnosis = diagnosis_of(loaded.session, loaded.run, None)
    return plan(diagnosis.findings, diagnosis.functions, library=diagnosis.library)


def test_the_right_cure_comes_first() -> None:
    first = {fault: planned(fault)[0].name for fault in RIGHT}
    wrong = {fault: name for fault, name in first.items() if name != RIGHT[fault]}
    assert len(wrong) <= 0.1 * len(RIGHT), wrong


def test_the_right_ablation_comes_first() -> None:
    first = {
        fault: next(each.name for each in planned(fault) if each.cure.result == BOUND)
        for fault in ABLATIONS
    }
    assert first == ABLATIONS


@pytest.mark.parametrize(
    "fault", ["healthy_training", "healthy_copy", "healthy_photo_embedding_job"]
)
def test_nothing_is_forecast_for_healthy_programs(fault: str) -> None:
    assert [each.name for each in planned(fault) if each.forecast is not None] == []
