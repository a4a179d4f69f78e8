"""torch.compile of the program's model, with dynamic=True."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import ROUNDING, Cure
from ._compiling import compiled

if TYPE_CHECKING:
    from collections.abc import Callable


def _apply(torch: Any) -> Callable[[], None]:
    return compiled(torch, dynamic=True)


CURE = Cure(
    name="compile_dynamic",
    title="the model is compiled once for all sizes",
    answers=("idle.compile",),
    result=ROUNDING,
    change="model = torch.compile(model, dynamic=True), or model.compile(...) in place",
    apply=_apply,
    library="torch",
    in_one_run=False,
    advice="dynamic",
)
