"""No attention of cuDNN, which makes a plan for each new length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import ROUNDING, CannotApply, Cure

if TYPE_CHECKING:
    from collections.abc import Callable


def _apply(torch: Any) -> Callable[[], None]:
    cuda = torch.backends.cuda
    if not hasattr(cuda, "cudnn_sdp_enabled") or not cuda.cudnn_sdp_enabled():
        raise CannotApply("torch does not use cuDNN's attention")
    cuda.enable_cudnn_sdp(False)

    def undo() -> None:
        cuda.enable_cudnn_sdp(True)

    return undo


CURE = Cure(
    name="cudnn_attention_off",
    title="attention is not cuDNN's, which plans anew for each length",
    answers=("idle.host", "idle.cuda", "idle.compile"),
    result=ROUNDING,
    change="torch.backends.cuda.enable_cudnn_sdp(False)",
    apply=_apply,
    library="torch",
    advice="enable_cudnn_sdp",
)
