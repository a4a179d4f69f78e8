"""cuDNN tries its algorithms for each new shape, and keeps the fastest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import ROUNDING, CannotApply, Cure
from ._objects import instances

if TYPE_CHECKING:
    from collections.abc import Callable


def _apply(torch: Any) -> Callable[[], None]:
    cudnn = torch.backends.cudnn
    if cudnn.benchmark:
        raise CannotApply("torch.backends.cudnn.benchmark is on")
    if instances(torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d) == []:
        raise CannotApply("there are no convolutions")
    cudnn.benchmark = True

    def undo() -> None:
        cudnn.benchmark = False

    return undo


CURE = Cure(
    name="cudnn_benchmark",
    title="cuDNN chooses algorithms by trying them",
    answers=("slow_kernels", "busy.matmul_simt"),
    result=ROUNDING,
    change="torch.backends.cudnn.benchmark = True, where shapes stay the same",
    apply=_apply,
    library="torch",
    forecast=None,
)
