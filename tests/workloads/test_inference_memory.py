"""Arithmetic of the shapes, against figures published elsewhere."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from workloads.errors import CannotRun
from workloads.inference.memory import Footprint, decode_step_bytes, kv_cache_bytes, parameter_count
from workloads.inference.network import make_network
from workloads.inference.parts import KVCache
from workloads.inference.shapes import SHAPES

SMALL = SHAPES["gpt2"]


def test_gpt2_with_a_padded_vocabulary_is_497_903_616_bytes_in_fp32() -> None:
    assert SMALL.padded_vocabulary == 50304
    assert parameter_count(SMALL) == 124_475_904
    assert Footprint.estimate(SMALL, 1, 128, 128, 4).weight_bytes == 497_903_616


@pytest.mark.parametrize(
    ("size", "millions"),
    [("gpt2", 124), ("gpt2-medium", 355), ("gpt2-large", 774), ("gpt2-xl", 1558)],
)
def test_the_sizes_are_those_of_gpt2(size: str, millions: int) -> None:
    shape = SHAPES[size]
    unpadded = parameter_count(shape) - (shape.padded_vocabulary - 50257) * shape.width
    assert round(unpadded / 1e6) == millions
    if size != "gpt2-tiny":
        assert shape.head_width == 64


def test_the_kv_cache_of_a_whole_context_is_36_mib_in_bf16_and_72_in_fp32() -> None:
    assert kv_cache_bytes(SMALL, 1, 1024, 2) == 36 * 2**20
    assert kv_cache_bytes(SMALL, 1, 1024, 4) == 72 * 2**20
    assert Footprint.estimate(SMALL, 8, 1000, 24, 2).kv_cache_bytes == 8 * 36 * 2**20


def test_a_decode_step_reads_the_weights_once_and_the_cache_of_every_sequence() -> None:
    weights = 2 * (124_475_904 - 1023 * 768)
    assert decode_step_bytes(SMALL, 1, 0, 2) == weights
    assert decode_step_bytes(SMALL, 4, 512, 2) == weights + 4 * 18 * 2**20


def test_what_fits_is_let_through_and_what_does_not_is_refused_with_the_sum() -> None:
    footprint = Footprint(
        weight_bytes=3 * 2**30, kv_cache_bytes=2**30 // 2, activation_bytes=2**30 // 4
    )
    footprint.refuse_unless_fits(footprint.total_bytes, "cuda:0")
    with pytest.raises(CannotRun) as refusal:
        footprint.refuse_unless_fits(2**30, "cuda:0")
    assert str(refusal.value).startswith(
        "needs 3.8 GiB = weights 3.0 + KV cache 0.5 + activations 0.2; cuda:0 has 1.0 GiB free"
    )


def test_a_refusal_says_how_many_gpus_would_do() -> None:
    footprint = Footprint(
        weight_bytes=3 * 2**30, kv_cache_bytes=2**29, activation_bytes=2**28, kv_heads=8
    )
    with pytest.raises(CannotRun) as refusal:
        footprint.refuse_unless_fits(2**30, "cuda:0")
    # 3.75 GiB over four; 3.5 GiB over eight with 0.25 on each: over four it is 1.125.
    ways = "it fits on 4 such GPUs with tensor parallelism, on 8 with a pipeline"
    assert str(refusal.value).endswith(ways)
    with pytest.raises(CannotRun, match=r"prompt or tokens; it fits on one GPU of 80 GB$"):
        footprint.refuse_unless_fits(2**30, "cpu")


class Held(TorchDispatchMode):
    """The most bytes of tensors that were alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        given = {
            one.untyped_storage().data_ptr()
            for one in tree_leaves((args, kwargs))
            if isinstance(one, torch.Tensor)
        }
        for one in tree_leaves(found):
            if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in given:
                self._hold(one.untyped_storage())
        return found

    def _hold(self, storage: torch.UntypedStorage) -> None:
        place, size = storage.data_ptr(), storage.nbytes()
        if place in self._known:
            return
        self._known.add(place)
        self.now += size
        self.most = max(self.most, self.now)

        def gone() -> None:
            self._known.discard(place)
            self.now -= size

        weakref.finalize(storage, gone)


@pytest.mark.parametrize("attention", ["math", "naive"])
@pytest.mark.parametrize("size", ["gpt2-tiny", "llama-tiny"])
def test_a_prompt_pass_holds_what_the_footprint_says(size: str, attention: str) -> None:
    shape, batch, prompt, cpu = SHAPES[size], 2, 256, torch.device("cpu")
    naive = attention == "naive"
    model = make_network(
        shape,
        torch.float32,
        cpu,
        seed=0,
        positions=prompt + 1,
        attention="naive" if naive else "auto",
        compiled=False,
    )
    cache = KVCache(shape, batch, prompt + 1, torch.float32, cpu)
    with torch.no_grad(), Held() as held:
        model.forward(torch.zeros(batch, prompt, dtype=torch.int64), cache)
    said = Footprint.estimate(shape, batch, prompt, 1, 4, naive=naive).activation_bytes
    assert 0.9 < said / held.most <= 1.05
