"""Programs with one known fault each, and the same programs cured of it.

They are written as users write them, without NVTX: what is wrong has to be found from outside.
Each variant makes a step; the run calls it until its time is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from . import device, healthy, host
from .models import Step


@dataclass(frozen=True)
class Variant:
    """A fault: what it is, the leaf of the time tree that should lead, how to make it, and in how
    many processes."""

    title: str
    cause: str
    make: Callable[[bool, torch.device], Step]
    ranks: int = 1


VARIANTS: dict[str, Variant] = {
    "launch": Variant("launch-bound", "idle.launch", host.launch),
    "input": Variant("input-bound, decoded in the main process", "idle.input", host.input_),
    "workers": Variant("input-bound, too few workers", "idle.input", host.workers),
    "sync": Variant("a sync in every layer", "idle.sync", host.sync),
    "pageable": Variant("copies from pageable memory", "busy.copy_pageable", device.pageable),
    "overlap": Variant("copies that are not overlapped", "busy.copy_pinned", device.overlap),
    "tensor_cores": Variant("no tensor cores", "busy.matmul_simt", device.tensor_cores),
    "odd_shapes": Variant("odd shapes", "busy.matmul_unaligned", device.odd_shapes),
    "unfused": Variant("an unfused chain", "busy.elementwise_chain", device.unfused),
    "attention": Variant("attention by hand", "busy.attention_unfused", device.attention),
    "allocator": Variant("allocator thrash", "idle.alloc", host.allocator),
    "optimizer": Variant("a slow optimizer", "idle.launch", host.optimizer),
    "recompiling": Variant("recompiling", "idle.compile", host.recompiling),
    "leak": Variant("a leak", "memory_grows", device.leak),
    "starved": Variant("a starved thread", "idle.scheduler", host.starved),
    "shared_gpu": Variant("a shared GPU", "busy.shared", device.shared_gpu),
    "straggler": Variant("a rank that is late", "idle.rank", host.straggler, ranks=2),
    "logits": Variant("logits to the CPU", "busy.copy_pageable", device.logits),
    "no_cache": Variant("no KV cache", "idle.host", host.no_cache),
    "healthy_training": Variant("healthy: training", "", healthy.healthy_training),
    "healthy_decode": Variant("healthy: decoding by graphs", "", healthy.healthy_decode),
    "healthy_copy": Variant("healthy: copies", "", healthy.healthy_copy),
    "healthy_server": Variant("healthy: an idle server", "", healthy.healthy_server),
}
"""Every variant by name."""
