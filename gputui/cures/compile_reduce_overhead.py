"""torch.compile of the program's model, with mode="reduce-overhead"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import ROUNDING, Cure
from ._compiling import compiled, compiled_already

if TYPE_CHECKING:
    from collections.abc import Callable


def _apply(torch: Any) -> Callable[[], None]:
    return compiled(torch, mode="reduce-overhead")


CURE = Cure(
    name="compile_reduce_overhead",
    title="the model is compiled and replayed as CUDA graphs",
    answers=("idle.launch",),
    result=ROUNDING,
    change='model = torch.compile(model, mode="reduce-overhead"), or model.compile(...) in place',
    apply=_apply,
    library="torch",
    in_one_run=False,
    useless=compiled_already,
    advice="reduce-overhead",
)
