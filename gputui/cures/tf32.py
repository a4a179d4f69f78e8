"""TF32 for FP32 matrix products in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import ROUNDING, CannotApply, Cure

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_WITH_TF32 = (8, 0)
"""Compute capability from which tensor cores take TF32: Ampere (CUDA C++ Programming Guide)."""


def _apply(torch: Any) -> Callable[[], None]:
    # Asking for the capability initializes CUDA, after which a program may not fork its workers.
    if torch.cuda.is_initialized() and torch.cuda.get_device_capability() < FIRST_WITH_TF32:
        raise CannotApply("this GPU has no TF32")
    precision = torch.get_float32_matmul_precision()
    if precision != "highest":
        raise CannotApply(f"the precision of matrix products is {precision} already")
    torch.set_float32_matmul_precision("high")

    def undo() -> None:
        torch.set_float32_matmul_precision(precision)

    return undo


CURE = Cure(
    name="tf32",
    title="FP32 matrix products run as TF32 on tensor cores",
    answers=("busy.matmul_simt",),
    result=ROUNDING,
    change='torch.set_float32_matmul_precision("high")',
    apply=_apply,
    library="torch",
    forecast="TF32",
    advice="set_float32_matmul_precision",
)
