"""What the names of kernels say of the steps that they are in."""

from __future__ import annotations

import re
from enum import IntFlag


class Cue(IntFlag):
    """What a launch says of the level that it belongs to."""

    OPTIMIZER = 1
    HEAD = 2
    """A loss, or the choice of a token."""


_OPTIMIZER = re.compile(
    r"multi_tensor_apply|fused_?adam|fused_?sgd|fusedoptimizer|(?<![a-z])lamb(?![a-z])", re.I
)
_HEAD = re.compile(
    r"nll_loss|cross_entropy|argmax|multinomial|topk_topp|sampl|softmax_warp.*log|mse_loss|bce",
    re.I,
)
_PRODUCT = re.compile(
    r"gemm|nvjet|xmma|cutlass|gemv|splitk|cijk|wgmma|s(884|1688|16816)", re.IGNORECASE
)
_DETAILS = re.compile(r"[<(].*|\d+")


def cue_of(name: str) -> Cue:
    """The cue of a kernel's name."""
    return (Cue.OPTIMIZER if _OPTIMIZER.search(name) else Cue(0)) | (
        Cue.HEAD if _HEAD.search(name) else Cue(0)
    )


def family(name: str) -> str:
    """A coarser name: cuBLAS picks other kernels for other shapes, which is no other program."""
    return "gemm" if _PRODUCT.search(name) else _DETAILS.sub("", name)
