"""Functions of the program that make the same tensors of the same values again."""

from __future__ import annotations

import dis
import functools
import types
from typing import TYPE_CHECKING, Any

from . import EXACT, PLAIN, CannotApply, Cure, combined, replaced
from .ablations import functions_at
from .copies import free_bytes_of_gpu
from .data import bytes_of
from .later import Value, class_of_later, writes_of, writes_of_weights
from .results_kept import called_once, has_same_bits, is_tensor, writes_in
from .waits import has_compiled

if TYPE_CHECKING:
    from . import Undo


class FunctionKept(Cure):
    """A function of the program that makes tensors of plain values, and of the shapes of tensors,
    such as a mask, a table of angles or a filter bank, returns what it made for the same. The first
    calls are made twice, and some later ones: where a function gives anything else, gives the same
    tensor, draws random numbers, reads a tensor that it is given, or changes an object, it is left
    alone."""

    name = "function_kept"
    title = "a function that makes the same tensors of the same values returns those it made"
    answers = (
        "idle.host", "idle.launch", "idle.sync", "busy.elementwise_chain", "busy.copy_pageable",
        "copies",
    )  # fmt: skip
    result = EXACT
    change = "what a function makes of the same values is made once, and kept (functools.cache)"
    argument = "FILE:FUNCTION"
    forecast = None

    unused = "it is not given the same values again, or makes something else of them"
    _calls = _again = 0
    _is_left = False
    """Whether it makes no tensors, or others of the same values."""
    _later: Any = None

    def apply(self, torch: Any) -> Undo:
        if has_compiled():  # what is compiled would be compiled again
            raise CannotApply("the program compiles what it calls")
        owners, _, name = functions_at(self.target)
        functions = {id(vars(owner)[name]): vars(owner)[name] for owner in owners}
        if not functions or any(
            type(each) is not types.FunctionType for each in functions.values()
        ):
            raise CannotApply(f"{name} is no plain function")
        if any(
            each.opname in _STORES for function in functions.values()
            for each in dis.get_instructions(function)
        ):  # fmt: skip
            raise CannotApply(f"{name} changes what it is given")
        names = {each for function in functions.values() for each in function.__code__.co_names}
        self._torch, self._makes_tensors = torch, bool(_MAKING & names)
        self._later = self._later or class_of_later(torch, self, lambda *_: NotImplemented)
        self._kept: dict[Any, _Made] = {}
        self._room = free_bytes_of_gpu(torch) // 8
        keeping = {key: self._keeping(function) for key, function in functions.items()}
        places = [(owner, name, keeping[id(vars(owner)[name])]) for owner in owners]
        return combined(self._kept.clear, replaced(*places))

    def _keeping(self, function: Any) -> Any:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            key = None if self.ended or self._is_left else self._key(function, args, kwargs)
            if key is None:
                return function(*args, **kwargs)
            kept = self._kept.get(key)
            if kept is None:
                return self._make(key, function, args, kwargs)
            if kept.state != writes_in(kept.made):
                self._leave(FUNCTION_WRITTEN if kept.times else "")
                return function(*args, **kwargs)
            self._again += 1
            if self._again <= CONFIRMED or not self._again & (self._again - 1):
                made, is_of_values = self._call(function, args, kwargs)
                is_alike = is_of_values and key == self._key(function, args, kwargs)
                if not is_alike or not _is_another_of(kept.made, made):
                    self._leave(FUNCTION_CHANGES if self._again > CONFIRMED else "")
                return made
            kept.times += 1
            return kept.made

        return called

    def _make(self, key: Any, function: Any, args: Any, kwargs: Any) -> Any:
        made, is_of_values = self._call(function, args, kwargs)
        tensors = _tensors_in(made)
        if (
            not is_of_values or not tensors or any(each.requires_grad for each in tensors)
            or key != self._key(function, args, kwargs)
        ):  # fmt: skip
            self._leave("")
        elif bytes_of(made) < self._room:
            if len(self._kept) >= MOST_MADE:
                self._kept.pop(next(iter(self._kept)))
            if any(each.is_inference() for each in tensors):
                # They do not count how often they are written to.
                with self._torch.inference_mode(False), self._torch.no_grad():
                    made = _copied(made)
            self._kept[key] = _Made(made, (args, kwargs))
        return made

    def _call(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, bool]:
        """What it gives, and whether that follows from plain values and shapes, as far as that is
        seen."""
        stands: dict[int, Any] = {}

        def shape_of(value: Any) -> Any:
            if not is_tensor(value):
                return value
            held = Value(self._torch, self, lambda: value)
            stands[id(value)] = self._later(value.shape, value.dtype, value.device, held)
            return stands[id(value)]

        given = [shape_of(each) for each in args]
        words = {name: shape_of(value) for name, value in kwargs.items()}
        made, has_drawn = called_once(self._torch, lambda: function(*given, **words))
        is_read = any(each.value.tensor is not None for each in stands.values())
        tensors = _tensors_in(made)
        if stands and (tensors is None or any(type(each) is self._later for each in tensors)):
            return function(*args, **kwargs), False  # it gives what it was given
        is_plain = tensors is not None and all(type(each) is self._torch.Tensor for each in tensors)
        return made, is_plain and not has_drawn and not is_read

    def _leave(self, why: str) -> None:
        self._is_left = True
        if why:
            self.end(why)

    def look(self) -> None:
        """How often it was spared, once there were some calls."""
        if self._calls >= CONFIRMED:
            self.used = 0 if self._is_left else max(0, self._again - CONFIRMED)
        if any(each.times and each.state != writes_in(each.made) for each in self._kept.values()):
            self._leave(FUNCTION_WRITTEN)

    def _key(self, function: Any, args: Any, kwargs: Any) -> Any:
        """What tells a call from others; None for one that is made as it is."""
        torch = self._torch
        given = [self._as_value(each) for each in (*args, *kwargs.values())]
        if any(each is None for each in given) or torch.compiler.is_compiling():
            return None
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return None
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        default = torch.get_default_dtype(), torch.is_autocast_enabled("cuda")
        return (function, *given, *kwargs, *modes, *default)

    def _as_value(self, value: Any) -> Any:
        """What tells an argument from others: of a tensor its shape, of an object itself and what
        it holds of plain values and tensors; None of one that cannot be told."""
        torch = self._torch
        if isinstance(value, (*PLAIN, torch.dtype, torch.device)):
            return type(value), value
        if type(value) in (tuple, list, torch.Size):
            inner = tuple(map(self._as_value, value)) if len(value) <= MOST_HELD else (None,)
            return None if any(each is None for each in inner) else (type(value), inner)
        if is_tensor(value):
            is_plain = self._makes_tensors and type(value) in (torch.Tensor, torch.nn.Parameter)
            return (value.shape, value.dtype, value.device) if is_plain else None
        held = getattr(value, "__dict__", None)
        if held is None or isinstance(value, (type, types.ModuleType)):
            return None
        weights: Any = ()
        if isinstance(value, torch.nn.Module):
            if sum(1 for _ in value.modules()) > MOST_HELD:
                return None
            weights = *writes_of_weights(value), *map(_tensor_now, value.buffers())
        return id(value), weights, tuple(map(_held_now, held.values()))


class _Made:
    """What a function made, and what it was given, which lives as long."""

    def __init__(self, made: Any, given: Any) -> None:
        self.made, self.given, self.state, self.times = made, given, writes_in(made), 0


def _held_now(value: Any) -> Any:
    """What an object holds, as far as that tells whether it has changed."""
    if isinstance(value, PLAIN):
        return value
    if is_tensor(value):
        return _tensor_now(value)
    return id(value), len(value) if isinstance(value, (list, dict, set, tuple)) else 0


def _tensor_now(value: Any) -> Any:
    return id(value), writes_of(value)


def _tensors_in(made: Any) -> list[Any] | None:
    """The tensors of a result; None of one that holds anything else."""
    if is_tensor(made):
        return [made]
    if type(made) not in (tuple, list):
        return None
    held = [_tensors_in(each) for each in made]
    return None if any(each is None for each in held) else [v for each in held for v in each or ()]


def _copied(made: Any) -> Any:
    return made.clone() if is_tensor(made) else type(made)(map(_copied, made))


def _is_another_of(kept: Any, made: Any) -> bool:
    """Whether tensors are equal, and have memory of their own."""
    tensors = [each for each in _tensors_in(kept) or () if each.numel()]
    places = {each.untyped_storage().data_ptr() for each in tensors}
    own = {each.untyped_storage().data_ptr() for each in _tensors_in(made) or ()}
    return not places & own and has_same_bits(made, kept)


FUNCTION_WRITTEN = "what the function made is written to"
FUNCTION_CHANGES = "the function makes something else of the same values later"
CONFIRMED = 8
"""Calls that are made twice before a function is taken to make the same of the same."""
MOST_MADE, MOST_HELD = 64, 64
"""Results of a function that are kept, and values of a sequence, or modules, that are looked at."""
_MAKING = frozenset(
    {"arange", "ones", "full", "zeros", "eye", "linspace", "tensor", "as_tensor", "from_numpy"}
)
"""What a function calls that makes tensors of the shape of one that it is given."""
_STORES = frozenset({"STORE_ATTR", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_GLOBAL"})
