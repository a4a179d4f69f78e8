"""A thread for each core for torch's operators on the CPU."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from . import EXACT, CannotApply, Cure

if TYPE_CHECKING:
    from collections.abc import Callable


def _apply(torch: Any) -> Callable[[], None]:
    before, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    if before >= cores:
        raise CannotApply(f"torch uses {before} threads on {cores} cores")
    torch.set_num_threads(cores)

    def undo() -> None:
        torch.set_num_threads(before)

    return undo


CURE = Cure(
    name="all_threads",
    title="operators on the CPU use all cores",
    answers=("idle.host",),
    result=EXACT,
    change="torch.set_num_threads(cores), or a larger OMP_NUM_THREADS",
    apply=_apply,
    library="torch",
    forecast=None,
)
