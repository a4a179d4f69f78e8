"""Deterministic algorithms off, which add up in order what others add up at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import ANY, ROUNDING, CannotApply, Cure

if TYPE_CHECKING:
    from collections.abc import Callable


def _apply(torch: Any) -> Callable[[], None]:
    cudnn = torch.backends.cudnn
    was_on = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    of_cudnn = cudnn.deterministic
    if not was_on and not of_cudnn:
        raise CannotApply("deterministic algorithms are not asked for")
    torch.use_deterministic_algorithms(False)
    cudnn.deterministic = False

    def undo() -> None:
        torch.use_deterministic_algorithms(was_on, warn_only=warns)
        cudnn.deterministic = of_cudnn

    return undo


CURE = Cure(
    name="deterministic_off",
    title="algorithms need not give the same bits each time",
    answers=(ANY, "serial_scatter"),
    result=ROUNDING,
    change="torch.use_deterministic_algorithms(False), torch.backends.cudnn.deterministic = False",
    apply=_apply,
    library="torch",
    advice="use_deterministic_algorithms",
)
