"""Ablation: nothing is saved: torch.save, and safetensors where it is imported."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from . import BOUND, Cure
from ._replacing import combined, idle, replaced

if TYPE_CHECKING:
    from collections.abc import Callable


def saving_idle(torch: Any) -> Callable[[], None]:
    """Makes what writes models idle; returns what restores it."""
    places = [(torch, "save", idle), (torch.serialization, "save", idle)]
    for name in ("safetensors.torch", "safetensors.numpy"):
        if name in sys.modules:
            places.append((sys.modules[name], "save_file", idle))
    undos = [replaced(*places)]
    transformers = sys.modules.get("transformers.modeling_utils")
    if transformers is not None:
        undos.append(replaced((transformers.PreTrainedModel, "save_pretrained", idle)))
    return combined(*undos)


CURE = Cure(
    name="no_saves",
    title="nothing is saved",
    answers=("idle.host", "idle.wait", "busy.copy_pageable"),
    result=BOUND,
    change="save less often, or from another thread (torch.distributed.checkpoint.async_save)",
    apply=saving_idle,
    library="torch",
    advice="sav",
)
