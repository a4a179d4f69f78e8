"""torch.compile of the program's model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import ROUNDING, Cure
from ._compiling import compiled, compiled_already

if TYPE_CHECKING:
    from collections.abc import Callable


def _apply(torch: Any) -> Callable[[], None]:
    return compiled(torch)


CURE = Cure(
    name="compile",
    title="the model is compiled",
    answers=("idle.launch", "busy.elementwise_chain", "busy.attention_unfused", "copies"),
    result=ROUNDING,
    change="model = torch.compile(model), or model.compile(...) in place",
    apply=_apply,
    library="torch",
    in_one_run=False,
    useless=compiled_already,
    advice="torch.compile",
)
