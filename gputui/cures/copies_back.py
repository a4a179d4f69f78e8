"""What is copied from the GPU as a whole, and of which the program takes a part, or a sum, on the
CPU."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from . import PLAIN, ROUNDING, Cure, replaced
from .copies import LEAST_BYTES, free_bytes_of_gpu
from .later import Value, class_of_later
from .writes import writes_to_first

if TYPE_CHECKING:
    from . import Undo

_ON_GPU = (
    "__getitem__", "select", "narrow", "squeeze", "unsqueeze", "argmax", "argmin", "max",
    "min", "amax", "amin", "mean", "sum", "any", "all", "topk", "norm", "float", "half",
    "bfloat16", "double", "long", "int", "softmax", "log_softmax", "sigmoid", "normalize",
    "view", "reshape", "flatten", "transpose", "permute", "detach", "exp", "log", "mul",
    "__mul__", "__rmul__", "div", "__truediv__", "add", "__add__", "__radd__", "sub",
    "__sub__", "eq", "__eq__", "ne", "__ne__", "gt", "__gt__", "ge", "__ge__", "lt", "__lt__",
    "le", "__le__",
)  # fmt: skip
"""What is done before the copy: parts, sums, choices, and what is computed of each number."""


class ReducedFirst(Cure):
    """Tensors that are copied from the GPU (.cpu(), .to("cpu")) are copied when their values are
    asked for: where the program takes a part of one, a maximum or a mean, that is done on the GPU,
    and its result copied alone; where it puts one back, it has stayed there."""

    name = "reduced_first"
    title = "parts and sums of what is copied from the GPU are taken there, before the copy"
    answers = ("busy.copy_pageable", "busy.copy_pinned", "idle.sync")
    result = ROUNDING
    change = "hidden[:, 0].cpu(), logits.argmax(-1).cpu(): what is needed, not all of it"
    advice = "copy back"

    used: int = 0
    """How often far less was copied than the program had asked for at first."""
    unused = "of no tensor that is copied from the GPU a part is used alone"

    def apply(self, torch: Any) -> Undo:
        tensors = _Tensors(torch, self)
        cpu, to = torch.Tensor.cpu, torch.Tensor.to

        @functools.wraps(cpu)
        def to_cpu(source: Any, *args: Any, **kwargs: Any) -> Any:
            later = None if args or kwargs else tensors.later(source)
            return cpu(source, *args, **kwargs) if later is None else later

        @functools.wraps(to)
        def to_place(source: Any, *args: Any, **kwargs: Any) -> Any:
            place = args[0] if args else kwargs.get("device")
            is_cpu = len(args) + len(kwargs) == 1 and str(place) == "cpu"
            later = tensors.later(source) if is_cpu else None
            return to(source, *args, **kwargs) if later is None else later

        tensors.copy = cpu
        return replaced((torch.Tensor, "cpu", to_cpu), (torch.Tensor, "to", to_place))

    def is_far(self, source: Any) -> bool:
        """Whether it is on a GPU, and worth it."""
        return bool(source.is_cuda) and source.numel() * source.element_size() >= LEAST_BYTES


class _Tensors:
    """Those that are to be copied."""

    copy: Any

    def __init__(self, torch: Any, cure: ReducedFirst) -> None:
        self._torch, self._cure = torch, cure
        self._kind = class_of_later(torch, self._on_gpu)
        self._held: Any = weakref.WeakSet()
        self._room = free_bytes_of_gpu(torch) // 4

    def later(self, source: Any) -> Any:
        """A tensor on the CPU that is copied later; None where it is copied now."""
        torch = self._torch
        if (
            type(source) is not torch.Tensor or not self._cure.is_far(source) or self._cure.ended
            or source.layout is not torch.strided or torch.compiler.is_compiling()
            or (source.requires_grad and torch.is_grad_enabled())
        ):  # fmt: skip
            return None
        if sum(each.bytes for each in self._held if each.held) > self._room:
            return None
        return self._made(source.detach().clone())  # the program may write to it

    def _made(self, source: Any, family: Any = None) -> Any:
        held = [source]

        def copied() -> Any:
            return self.copy(held.pop())  # the GPU's memory is free after it

        with self._torch.no_grad():
            made = self._kind(source.shape, source.dtype, "cpu", Value(self._torch, copied))
        made.held, made.bytes = held, source.untyped_storage().nbytes()
        made.family = weakref.WeakSet() if family is None else family
        made.family.add(made)
        self._held.add(made)
        return made

    def _on_gpu(self, function: Any, args: Any, kwargs: Any) -> Any:
        """What is done with one, where it is; NotImplemented where its values are needed."""
        later: Any = args[0] if args else None
        name = getattr(function, "__name__", "")
        if type(later) is self._kind and writes_to_first(name) and len(later.family) > 1:
            self._cure.end("what is copied from the GPU is written to by way of one of its parts")
        if type(later) is not self._kind or not later.held:
            return NotImplemented
        if name in ("cuda", "to"):
            return self._back(later, args[1:], kwargs)
        if name not in _ON_GPU or "out" in kwargs:
            return NotImplemented
        others = [self._there(each, later) for each in args[1:]]
        words = {name: self._there(value, later) for name, value in kwargs.items()}
        given = (*others, *words.values())
        if any(each is NotImplemented for each in given):
            return NotImplemented
        with self._torch.no_grad():
            made = function(later.held[0], *others, **words)
        if isinstance(made, self._torch.Tensor):
            return self._counted(made, later)
        if isinstance(made, tuple) and all(isinstance(each, self._torch.Tensor) for each in made):
            return type(made)([self._counted(each, later) for each in made])
        return NotImplemented

    def _back(self, later: Any, args: Any, kwargs: Any) -> Any:
        """What is put back to the GPU that it comes from, without a way to the CPU."""
        source = later.held[0]
        words = {name: kwargs[name] for name in kwargs if name != "non_blocking"}
        places = [*args, *words.values()] or ["cuda"]
        own = (str(source.device), source.device.type)
        if len(places) != 1 or str(places[0]) not in own or not self._cure.is_far(source):
            return NotImplemented
        self._cure.used += 1
        with self._torch.no_grad():
            return source.clone()

    def _counted(self, made: Any, later: Any) -> Any:
        source = later.held[0]
        sizes = [each.numel() * each.element_size() for each in (made, source)]
        self._cure.used += 2 * sizes[0] <= sizes[1]
        return self._made(made, later.family)

    def _there(self, value: Any, later: Any) -> Any:
        """An argument for a tensor on the GPU; NotImplemented of one that is not for it."""
        torch = self._torch
        if isinstance(value, torch.Tensor):
            may_go = (
                type(value) is torch.Tensor and not value.is_cuda and value.dim() > 0
                and not (value.requires_grad and torch.is_grad_enabled())
            )  # fmt: skip
            return value.to(later.held[0].device) if may_go else NotImplemented
        if isinstance(value, (tuple, list)):
            made = [self._there(each, later) for each in value]
            return (
                NotImplemented
                if any(each is NotImplemented for each in made)
                else type(value)(made)
            )
        plain = (*PLAIN, slice, type(Ellipsis), torch.dtype)
        return value if isinstance(value, plain) else NotImplemented
