"""bf16 autocast of all that runs, as `with torch.autocast("cuda", torch.bfloat16)` around it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from . import DIFFERENT, Cure

if TYPE_CHECKING:
    from collections.abc import Callable


def _apply(torch: Any) -> Callable[[], None]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    was_on, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, torch.bfloat16)
    # Cast weights are kept until autocast ends, which a step of the optimizer makes stale.
    optimizers = sys.modules["torch.optim.optimizer"]  # torch.optim deletes its attribute

    def stepped(*_arguments: Any) -> None:
        torch.clear_autocast_cache()

    hook = optimizers.register_optimizer_step_post_hook(stepped)

    def undo() -> None:
        hook.remove()
        torch.set_autocast_enabled(device, was_on)
        torch.set_autocast_dtype(device, dtype)
        torch.clear_autocast_cache()

    return undo


CURE = Cure(
    name="bf16_autocast",
    title="forward passes run in bf16 autocast",
    answers=("busy.matmul_simt", "attention_fp32", "busy.attention_unfused"),
    result=DIFFERENT,
    change='with torch.autocast("cuda", torch.bfloat16): around the forward pass and the loss',
    apply=_apply,
    library="torch",
    forecast="bf16",
    advice="autocast",
)
