"""One thread for torch's operators on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import EXACT, CannotApply, Cure

if TYPE_CHECKING:
    from collections.abc import Callable


def _apply(torch: Any) -> Callable[[], None]:
    before = torch.get_num_threads()
    if before == 1:
        raise CannotApply("torch uses one thread")
    torch.set_num_threads(1)

    def undo() -> None:
        torch.set_num_threads(before)

    return undo


CURE = Cure(
    name="one_thread",
    title="operators on the CPU use one thread",
    answers=("idle.scheduler", "idle.host"),
    result=EXACT,
    change="torch.set_num_threads(1), or OMP_NUM_THREADS=1",
    apply=_apply,
    library="torch",
    forecast=None,
)
