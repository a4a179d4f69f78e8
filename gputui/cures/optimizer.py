"""Optimizers and what goes with their step, for all parameters at once."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from . import ANY, EXACT, ROUNDING, CannotApply, Cure
from .changing import Redirected, combined, instances, replaced

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo

OPTIMIZERS = ("Adam", "AdamW", "SGD")
"""Those of torch with a fused kernel on GPUs."""


class FusedOptimizer(Cure):
    """Optimizers that update all parameters in one kernel."""

    name = "fused_optimizer"
    title = "the optimizer updates all parameters in one kernel"
    answers = (ANY, "idle.launch", "idle.host", "busy.elementwise_chain", "unfused_optimizer")
    result = ROUNDING
    change = "torch.optim.AdamW(..., fused=True)"
    advice = "fused=True"

    _made: list[Any] | None = None

    def apply(self, torch: Any) -> Undo:
        if self._made is None:
            self._made = instances(torch.optim.Optimizer) or []
        kinds = [getattr(torch.optim, name) for name in OPTIMIZERS]
        groups = [
            (optimizer, group)
            for optimizer in self._made
            if type(optimizer) in kinds
            for group in optimizer.param_groups
            if "fused" in group and not group["fused"] and _may_be_fused(group)
        ]
        if not groups:
            raise CannotApply(f"no optimizer of {', '.join(OPTIMIZERS)} that is not fused")
        before = [(group, group["fused"], group["foreach"]) for _, group in groups]
        for optimizer, group in groups:
            group.update(fused=True, foreach=False)
            _count_steps(torch, optimizer, group, on_device=True)

        def undo() -> None:
            for group, fused, foreach in before:
                group.update(fused=fused, foreach=foreach)
            for optimizer, group in groups:
                _count_steps(torch, optimizer, group, on_device=bool(group.get("capturable")))

        return undo


def _may_be_fused(group: dict[str, Any]) -> bool:
    """Whether a fused kernel takes all of a group's parameters; torch looks at the first only."""
    return not group.get("differentiable") and all(
        each.is_floating_point() and not (each.grad is not None and each.grad.is_sparse)
        for each in group["params"]
    )


def _count_steps(torch: Any, optimizer: Any, group: dict[str, Any], on_device: bool) -> None:
    """Has the numbers of steps where a fused kernel reads them, or where others do."""
    for parameter in group["params"]:
        state = optimizer.state.get(parameter, {})
        if isinstance(state.get("step"), torch.Tensor):
            place = parameter.device if on_device else "cpu"
            state["step"] = state["step"].to(place, torch.float32)


class UnownedGradientsOff(Cure):
    """No gradients of parameters that no optimizer updates: of a backbone that is not trained but
    was not frozen, whose part of the backward pass is then left out."""

    name = "unowned_gradients_off"
    title = "what no optimizer updates gets no gradients"
    answers = (ANY,)
    result = EXACT
    change = "backbone.requires_grad_(False), or torch.no_grad() around it, for what is not trained"

    _unowned: tuple[Any, ...] = ()
    _values: list[float] | None = None

    def apply(self, torch: Any) -> Undo:
        unowned = self._unowned = self._unowned or _unowned(torch)
        values = [float(each.detach().flatten()[0]) for each in unowned]
        if self._values not in (None, values):
            raise CannotApply("something else than torch's optimizers updates the parameters")
        self._values = values
        for each in unowned:
            each.requires_grad_(False)
            each.grad = None

        def undo() -> None:
            for each in unowned:
                each.requires_grad_(True)

        return undo


def _unowned(torch: Any) -> tuple[Any, ...]:
    """Parameters that have gradients and are no optimizer's. Raises CannotApply."""
    optimizers = instances(torch.optim.Optimizer)
    if not optimizers:
        raise CannotApply("there is no optimizer")
    if instances(torch.nn.parallel.DistributedDataParallel) or "deepspeed" in sys.modules:
        raise CannotApply("what distributes the training waits for all gradients")
    owned = [each for o in optimizers for group in o.param_groups for each in group["params"]]
    numbers = {id(each) for each in owned}
    unowned = tuple(
        each
        for each in instances(torch.nn.Parameter) or ()
        if each.grad is not None and id(each) not in numbers
    )
    # Optimizers that update copies in FP32 own as much as the model has.
    if sum(each.numel() for each in owned) >= sum(each.numel() for each in unowned):
        raise CannotApply("optimizers update all, or most, of what has gradients")
    return unowned


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


class ForeachClip(Redirected):
    """Norms of all gradients at once where they are clipped."""

    name = "foreach_clip"
    title = "clip_grad_norm_(foreach=False) takes all norms at once"
    answers = (ANY, "idle.launch")
    result = ROUNDING
    change = "torch.nn.utils.clip_grad_norm_(parameters, limit), without foreach=False"
    advice = "clip_grad_norm_"

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        utils = torch.nn.utils
        return (utils, "clip_grad_norm_"), (utils.clip_grad, "clip_grad_norm_")

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        if kwargs.get("foreach") is not False:
            return None
        return functools.partial(function, *args, **{**kwargs, "foreach": None})
