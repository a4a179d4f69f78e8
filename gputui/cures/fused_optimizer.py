"""Optimizers that update all parameters in one kernel."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from . import ROUNDING, CannotApply, Cure
from ._objects import instances
from ._replacing import combined

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIMIZERS = ("Adam", "AdamW", "SGD", "Adagrad")


def _apply(torch: Any) -> Callable[[], None]:
    undos = [
        _changed(torch, getattr(torch.optim, name))
        for name in OPTIMIZERS
        if "fused" in inspect.signature(getattr(torch.optim, name).__init__).parameters
    ]
    if not undos:
        raise CannotApply("this torch has no fused optimizers")
    return combined(*undos)


def _are_floats(torch: Any, parameters: Any) -> bool:
    """Whether a fused kernel takes all of them; torch itself looks at the first step only."""
    if isinstance(parameters, torch.Tensor):
        return bool(parameters.is_floating_point())
    if isinstance(parameters, dict):
        return _are_floats(torch, parameters.get("params", ()))
    if isinstance(parameters, (list, tuple)):
        return all(isinstance(each, str) or _are_floats(torch, each) for each in parameters)
    return False


def _listed(torch: Any, parameters: Any) -> list[Any]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _changed(torch: Any, kind: Any) -> Callable[[], None]:
    init = kind.__init__

    @functools.wraps(init)
    def changed(self: Any, params: Any, *args: Any, **kwargs: Any) -> None:
        # An iterator could be read once only.
        groups = [
            {**group, "params": _listed(torch, group.get("params", ()))}
            if isinstance(group, dict)
            else group
            for group in _listed(torch, params)
        ]
        if not kwargs.get("differentiable") and _are_floats(torch, groups):
            kwargs = {**kwargs, "foreach": None, "fused": True}
        init(self, groups, *args, **kwargs)

    kind.__init__ = changed

    def undo() -> None:
        if kind.__init__ is changed:
            kind.__init__ = init

    return undo


def _useless(torch: Any) -> str | None:
    kinds = [getattr(torch.optim, name) for name in OPTIMIZERS]
    made = instances(*kinds)
    if made is not None and not any(not each.defaults.get("fused") for each in made):
        return f"no optimizer of {', '.join(OPTIMIZERS)} that is not fused"
    return None


CURE = Cure(
    name="fused_optimizer",
    title="the optimizer updates all parameters in one kernel",
    answers=("idle.launch", "busy.elementwise_chain", "unfused_optimizer"),
    result=ROUNDING,
    change="torch.optim.AdamW(..., fused=True)",
    apply=_apply,
    library="torch",
    in_one_run=False,
    useless=_useless,
    advice="fused=True",
)
