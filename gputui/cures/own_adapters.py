"""Low-rank adapters beside the linear layers of a program's own, where nothing is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import ANY, ROUNDING, CannotApply, Cure, combined, instances, replaced
from .copies import free_bytes_of_gpu
from .decoding import is_alike, with_forward
from .later import writes_of_weights
from .waits import has_compiled

if TYPE_CHECKING:
    from . import Undo

MOST_RANK, LEAST_RATIO = 512, 2
"""Of an adapter, and by how much smaller it is at least than what it is added to."""
TRIED_ROWS = 8


class OwnAdaptersMerged(Cure):
    """A module of the program's own that adds low-rank products to a linear layer (LoRA written by
    hand) computes one product, by the weight that both are together. That it does nothing else is
    seen by what it gives for zeros, for each input alone, and for random rows, twice as large
    too."""

    name = "own_adapters_merged"
    title = "low-rank adapters of the program's own are merged into the weights beside them"
    answers = (ANY, "idle.launch", "idle.host")
    result = ROUNDING
    is_certain = True
    change = "weight += scale * B @ A once, before inference"
    forecast = None

    _layers: list[_Layer] | None = None

    def apply(self, torch: Any) -> Undo:
        if has_compiled():
            raise CannotApply("the program compiles what it calls")
        if self._layers is None:
            if instances(torch.optim.Optimizer) != []:
                raise CannotApply("the program trains")
            modules = instances(torch.nn.Module) or []
            self._layers = [
                _Layer(torch, each, base) for each in modules
                if (base := _weight_beside_adapters(torch, each)) is not None
            ]  # fmt: skip
        room, merged = free_bytes_of_gpu(torch) // 2, []
        for layer in self._layers:
            room -= layer.base.nbytes
            if room > 0 and layer.merge():
                merged.append(layer)
        if not merged:
            raise CannotApply("no module of its own adds low-rank products to a linear layer")
        self._merged = merged
        undos = [replaced(with_forward(each.module, each.forward)) for each in merged]
        return combined(*(each.forget for each in merged), *undos)

    def look(self) -> None:
        """Whether weights are what they were."""
        if any(each.writes != writes_of_weights(each.module) for each in self._merged):
            self.end("weights that are merged are written to")


def _weight_beside_adapters(torch: Any, module: Any) -> Any:
    """The large weight of a module that has small ones of low rank beside it; None of others."""
    linear = torch.nn.Linear
    if type(module).__module__.startswith(("torch.", "peft.", "transformers.")) or module.training:
        return None
    own = [each for each in module.children() if isinstance(each, linear)]
    inner = [each for each in module.modules() if each is not module]
    weights = [each.weight for each in own] + list(module.parameters(recurse=False))
    matrices = [each for each in weights if each.dim() == 2]
    if len(inner) > TRIED_ROWS or len(matrices) < 3:
        return None
    base = max(matrices, key=lambda each: each.numel())
    rows, columns = base.shape
    small = [
        each for each in matrices
        if each is not base and min(each.shape) <= min(MOST_RANK, min(base.shape) // LEAST_RATIO)
        and (rows in each.shape or columns in each.shape)
    ]  # fmt: skip
    return base if len(small) == len(matrices) - 1 else None


class _Layer:
    """One such module, and the weight that it computes by."""

    def __init__(self, torch: Any, module: Any, base: Any) -> None:
        self._torch, self.module, self.base = torch, module, base
        self._forward = module.forward
        self._weight = self._bias = None
        self.writes: Any = None

    def merge(self) -> bool:
        """Find the weight; whether the module is nothing but a product with it."""
        torch, base = self._torch, self.base
        self.writes = writes_of_weights(self.module)
        count = base.shape[1]
        words = {"dtype": base.dtype, "device": base.device}
        try:
            with torch.no_grad(), torch.random.fork_rng():
                bias = self._forward(torch.zeros(1, count, **words))
                rows = torch.randn(TRIED_ROWS, count, **words)
                right, twice = self._forward(rows), self._forward(rows * 2.0)
                whole = (self._forward(torch.eye(count, **words)) - bias).t().contiguous()
        except Exception:  # it is given something else
            return False
        if whole.shape != base.shape or whole.dtype is not base.dtype:
            return False
        self._weight, self._bias = whole, bias[0] if bool(bias.any()) else None
        made = torch.nn.functional.linear(rows, whole, self._bias)
        is_linear = is_alike(made, right) and is_alike((twice - bias).float(), (right - bias) * 2.0)
        if not is_linear:
            self.forget()
        return is_linear

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module gives, by one product."""
        torch = self._torch
        x: Any = args[0] if args else None
        if (
            self._weight is None or len(args) != 1 or kwargs or type(x) is not torch.Tensor
            or x.dtype is not self._weight.dtype or (torch.is_grad_enabled() and x.requires_grad)
            or self.module.training or x.shape[-1] != self._weight.shape[1]
        ):  # fmt: skip
            return self._forward(*args, **kwargs)
        return torch.nn.functional.linear(x, self._weight, self._bias)

    def forget(self) -> None:
        """Free the weight."""
        self._weight = self._bias = None
