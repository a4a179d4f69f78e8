"""Optimizers and what goes with their step, for all parameters at once."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from . import ROUNDING, CannotApply, Cure
from .changing import combined, instances, replaced

if TYPE_CHECKING:
    from . import Undo

OPTIMIZERS = ("Adam", "AdamW", "SGD", "Adagrad")


class FusedOptimizer(Cure):
    """Optimizers that update all parameters in one kernel."""

    name = "fused_optimizer"
    title = "the optimizer updates all parameters in one kernel"
    answers = ("idle.launch", "busy.elementwise_chain", "unfused_optimizer")
    result = ROUNDING
    change = "torch.optim.AdamW(..., fused=True)"
    in_one_run = False
    advice = "fused=True"

    def apply(self, torch: Any) -> Undo:
        undos = [
            _fused(torch, getattr(torch.optim, name))
            for name in OPTIMIZERS
            if "fused" in inspect.signature(getattr(torch.optim, name).__init__).parameters
        ]
        if not undos:
            raise CannotApply("this torch has no fused optimizers")
        return combined(*undos)

    def useless(self, torch: Any) -> str | None:
        made = instances(*(getattr(torch.optim, name) for name in OPTIMIZERS))
        if made is not None and all(each.defaults.get("fused") for each in made):
            return f"no optimizer of {', '.join(OPTIMIZERS)} that is not fused"
        return None


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


def _fused(torch: Any, kind: Any) -> Undo:
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

    return replaced((kind, "__init__", changed))


class CompileOptimizer(Cure):
    """The step of each class of optimizers compiled: also of one that the program wrote itself,
    whose loop over parameters becomes a few kernels."""

    name = "compile_optimizer"
    title = "the optimizer's step is compiled"
    answers = ("idle.launch", "idle.host", "busy.optimizer", "unfused_optimizer")
    result = ROUNDING
    change = "step = torch.compile(optimizer.step), and step() instead of optimizer.step()"
    in_one_run = False
    advice = r"torch\._foreach"

    def apply(self, torch: Any) -> Undo:
        if not hasattr(torch, "compile"):
            raise CannotApply("this torch has no torch.compile")
        base = torch.optim.Optimizer
        init = base.__init__
        undos: dict[Any, Undo] = {}

        @functools.wraps(init)
        def changed(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            kind = type(self)
            if kind not in undos and not self.defaults.get("fused"):
                # Inside what calls the hooks of a step, by which steps are counted.
                plain = getattr(kind.step, "__wrapped__", kind.step)
                step = base.profile_hook_step(torch.compile(plain))
                step.hooked = True
                undos[kind] = replaced((kind, "step", step))

        restore = replaced((base, "__init__", changed))
        return lambda: combined(restore, *undos.values())()

    def useless(self, torch: Any) -> str | None:
        made = instances(torch.optim.Optimizer)
        if made is not None and all(each.defaults.get("fused") for each in made):
            return "its optimizer is fused" if made else "there is no optimizer"
        return None


class ForeachClip(Cure):
    """Norms of all gradients at once where they are clipped."""

    name = "foreach_clip"
    title = "clip_grad_norm_(foreach=False) takes all norms at once"
    answers = ("idle.launch",)
    result = ROUNDING
    change = "torch.nn.utils.clip_grad_norm_(parameters, limit), without foreach=False"
    advice = "clip_grad_norm_"

    _is_on = _was_called = _is_prepared = False

    def prepare(self, torch: Any) -> None:
        if self._is_prepared:
            return
        self._is_prepared = True
        utils = torch.nn.utils
        clip = utils.clip_grad_norm_

        @functools.wraps(clip)
        def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("foreach") is False:
                self._was_called = True
                if self._is_on:
                    kwargs["foreach"] = None
            return clip(*args, **kwargs)

        replaced(
            (utils, "clip_grad_norm_", clip_grad_norm_),
            (utils.clip_grad, "clip_grad_norm_", clip_grad_norm_),
        )

    def apply(self, torch: Any) -> Undo:
        self.prepare(torch)
        if not self._was_called:
            raise CannotApply("clip_grad_norm_(foreach=False) was not called until now")
        self._is_on = True
        return functools.partial(setattr, self, "_is_on", False)
