"""Large tensors that a program makes of numbers alone, again and again: masks above all."""

from __future__ import annotations

import functools
import math
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

from . import ANY, EXACT, PLAIN, Redirected
from .copies import free_bytes_of_gpu
from .later import Value, class_of_later, writes_of, writes_to_first

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo

LEAST_VALUES = 1 << 16
"""Of a tensor from which it is worth to keep it."""
MOST_CONSTANTS, MOST_KNOWN = 32, 1024
"""Constants that are kept, and of how many the shapes are known."""
_MADE = ("ones", "zeros", "full", "eye")
_VIEWS = ("unsqueeze", "view", "reshape", "expand", "contiguous", "transpose", "t", "__getitem__")
_FOLLOWS = (
    *_VIEWS, "tril", "triu", "bool", "float", "half", "bfloat16", "long", "int", "type", "eq",
    "__eq__", "ne", "__ne__", "gt", "__gt__", "lt", "__lt__", "ge", "__ge__", "le", "__le__",
    "logical_not", "bitwise_not", "__invert__", "masked_fill", "mul", "__mul__", "__rmul__", "neg",
    "__neg__", "sub", "__sub__", "__rsub__", "rsub", "add", "__add__", "__radd__", "div",
    "__truediv__", "log", "repeat",
)  # fmt: skip
"""What gives a constant of a constant and of plain values."""


class ConstantsKept(Redirected):
    """Large tensors of ones, zeros or a number, and what follows from them and from plain values
    (a triangle, a type, a comparison, a copy to the GPU), are computed once something else is done
    with them, and kept: the next that is made in the same way is the same. What the program writes
    to is its own."""

    name = "constants_kept"
    title = "large tensors that are made of numbers alone, such as masks, are made once"
    answers = (ANY, "idle.host", "busy.copy_pageable", "idle.sync")
    result = EXACT
    is_certain = True
    change = "a mask is made once and kept (register_buffer), not in each call or layer"
    forecast = None
    least_calls = 3

    unused = "no large tensor is made of the same numbers again"
    _calls_on = 0
    spared = 0
    """How often one was not made again."""
    _kind: Any = None

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        self._torch = torch
        return tuple((torch, name) for name in _MADE)

    def apply(self, torch: Any) -> Undo:
        self._kind = self._kind or class_of_later(torch, self, self._go_on)
        self._kept: dict[Any, tuple[Any, Any]] = {}
        self._likes: dict[Any, Any] = {}
        self._follows: dict[Any, tuple[Any, Any]] = {}
        self._room = min(free_bytes_of_gpu(torch) // 8, MOST_BYTES)
        return super().apply(torch)

    def look(self) -> None:
        """How often it was of use, and whether what was kept is as it was."""
        if self._calls_on:
            self.used = self.spared
        if any(writes_of(made) != writes for made, writes in self._kept.values()):
            self.end("a constant that is kept is written to")

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        torch = self._torch
        if (
            not _are_plain(torch, (*args, *kwargs.values())) or kwargs.get("requires_grad")
            or "out" in kwargs or "names" in kwargs or torch.compiler.is_compiling()
            or not self._is_large(function, args, kwargs)
            or threading.get_ident() != threading.main_thread().ident
        ):  # fmt: skip
            return None
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return None

        def later() -> Any:
            self._calls_on += 1
            words = {**kwargs, "device": self._device(kwargs.get("device"))}
            dtype = torch.get_default_dtype()
            key = (function.__name__, _key(args), _key(tuple(words.items())), dtype)
            if len(self._likes) > MOST_KNOWN:
                self._likes.clear()
            if key not in self._likes:
                self._likes[key] = function(*args, **{**kwargs, "device": "meta"})
            return self._made(
                key, self._likes[key], words["device"], lambda: function(*args, **words)
            )

        return later

    def _is_large(self, function: Any, args: Any, kwargs: Any) -> bool:
        sizes: Any = kwargs.get("size", args[0] if args and _is_size(args[0]) else args)
        if function.__name__ == "eye":
            sizes = (args or (0,))[:1] * 2
        numbers = [each for each in sizes if type(each) is int] if _is_size(sizes) else []
        return bool(numbers) and math.prod(numbers) >= LEAST_VALUES

    def _device(self, device: Any) -> Any:
        """Where it is made, with its number."""
        torch = self._torch
        if device is None:
            device = torch.get_default_device() if hasattr(torch, "get_default_device") else "cpu"
        device = torch.device(device)
        is_current = device.type == "cuda" and device.index is None
        return torch.device("cuda", torch.cuda.current_device()) if is_current else device

    def _made(self, key: Any, like: Any, device: Any, build: Callable[[], Any]) -> Any:
        """One that is made once it is asked for, or was."""
        torch = self._torch

        def now() -> Any:
            made, writes = self._kept.get(key, (None, None))
            if made is not None and writes_of(made) == writes:
                self.spared += 1
                return made
            made = build_now()
            if made.nbytes <= self._room and len(self._kept) < MOST_CONSTANTS:
                self._room -= made.nbytes
                self._kept[key] = made, writes_of(made)
            return made

        def build_now() -> Any:
            with torch.inference_mode(False), torch.no_grad():
                return build()

        later = self._kind(like.shape, like.dtype, device, Value(torch, self, now))
        later.key, later.like, later.build = key, like, build_now
        later.whole, later.parts, later.is_own = None, [], False
        return later

    def _go_on(self, function: Any, args: Any, kwargs: Any) -> Any:
        """What follows from constants, later; NotImplemented where one is used."""
        kind, name = self._kind, getattr(function, "__name__", "")
        first: Any = args[0] if args else None
        given = (*args, *kwargs.values())
        if _may_write(name, kwargs):
            for each in given:
                for one in each if isinstance(each, (tuple, list)) else (each,):
                    if type(one) is kind:
                        _give(one)
            return NotImplemented
        laters = [each for each in given if type(each) is kind]
        if (
            type(first) is not kind or name not in (*_FOLLOWS, "to", "cuda")
            or any(each.value.tensor is not None for each in laters)
            or any(hasattr(each, "data_ptr") for each in given if type(each) is not kind)
        ):  # fmt: skip
            return NotImplemented
        parts = tuple(each.key if type(each) is kind else _key(each) for each in args)
        words = tuple((k, v.key if type(v) is kind else _key(v)) for k, v in kwargs.items())
        key = name, parts, words
        if len(self._follows) > MOST_KNOWN:
            self._follows.clear()
        if key not in self._follows:
            self._follows[key] = self._like_of(name, function, args, kwargs)
        like, device = self._follows[key]
        if like is None:
            return NotImplemented

        def build() -> Any:
            return function(
                *(each.build() if type(each) is kind else each for each in args),
                **{k: v.build() if type(v) is kind else v for k, v in kwargs.items()},
            )

        made = self._made((*key, str(device)), like, device, build)
        if name in (*_VIEWS, *_SAME) and device == first.device:
            made.whole = first
            derive = functools.partial(_called, function, args[1:], kwargs)
            first.parts.append((weakref.ref(made), derive))
        return made

    def _like_of(self, name: str, function: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """A tensor without memory of what follows from constants, and its device; None where that
        does not."""
        torch, kind, first = self._torch, self._kind, args[0]
        given = (*args, *kwargs.values())
        laters = [each for each in given if type(each) is kind]
        others = [each for each in given if type(each) is not kind]
        device = first.device
        if name in ("to", "cuda"):
            place, words = self._moved(name, args[1:], kwargs)
            return (None, None) if words is None else (first.like.to(**words), place or device)
        if not _are_plain(torch, others) or any(each.device != device for each in laters):
            return None, None
        like = function(
            *(each.like if type(each) is kind else each for each in args),
            **{k: v.like if type(v) is kind else v for k, v in kwargs.items()},
        )
        return (like, device) if isinstance(like, torch.Tensor) else (None, None)

    def _moved(self, name: str, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any] | None]:
        """Where it goes, and of which type it is there; None for what says anything else."""
        torch, place, dtype = self._torch, None, None
        if name == "cuda":
            return (self._device("cuda"), {}) if not args and not kwargs else (None, None)
        if not {*kwargs} <= {"device", "dtype", "non_blocking"}:
            return None, None
        for each in (*args, kwargs.get("device"), kwargs.get("dtype")):
            if isinstance(each, torch.dtype):
                dtype = each
            elif isinstance(each, (str, int, torch.device)) and type(each) is not bool:
                place = self._device(f"cuda:{each}" if isinstance(each, int) else each)
            elif each is not None:
                return None, None
        return place, {"dtype": dtype} if dtype is not None else {"copy": False}


_SAME = ("to", "type", "float", "half", "bfloat16", "long", "int", "bool")
"""What gives the same tensor where it is of that type already."""


_MEMORY = (
    "data_ptr", "numpy", "__array__", "__dlpack__", "storage", "untyped_storage", "_typed_storage",
    "share_memory_", "__get__", "__reduce_ex__", "__deepcopy__", "set_",
)  # fmt: skip
"""What gives its memory away, to which anything may be written."""


def _may_write(name: str, kwargs: Any) -> bool:
    is_of_lists = name.startswith(("_foreach", "_fused", "_amp"))
    return writes_to_first(name) or name in _MEMORY or is_of_lists or "out" in kwargs


def _called(function: Any, args: Any, kwargs: Any, whole: Any) -> Any:
    return function(whole, *args, **kwargs)


def _give(later: Any) -> None:
    """Make a tensor the program's own, which writes to it, with all that shares its memory."""
    if later.value.tensor is not None:
        if not later.is_own:
            later.value.tensor, later.is_own = later.value.tensor.clone(), True
        return
    while later.whole is not None and later.whole.value.tensor is None:
        later = later.whole
    later.is_own = True
    if later.whole is None:
        later.value.tensor = later.build()
    else:
        later.value.tensor = next(
            derive(later.whole.value.tensor) for part, derive in later.whole.parts
            if part() is later
        )  # fmt: skip
    wholes = [later]
    for whole in wholes:
        for reference, derive in whole.parts:
            part = reference()
            if part is not None and part.value.tensor is None:
                part.value.tensor, part.is_own = derive(whole.value.tensor), True
                wholes.append(part)


MOST_BYTES = 1 << 30
"""Of all that is kept."""


def _is_size(value: Any) -> bool:
    torch: Any = sys.modules["torch"]
    return type(value) in (tuple, list, torch.Size)


def _are_plain(torch: Any, values: Any) -> bool:
    kinds = (*PLAIN, torch.dtype, torch.device, torch.layout, slice, type(Ellipsis))
    return all(
        isinstance(each, kinds)
        or (type(each) in (tuple, list, torch.Size) and _are_plain(torch, each))
        for each in values
    )


def _key(value: Any) -> Any:
    """A plain value as a key: True is no 1, and a slice has its ends."""
    if isinstance(value, (tuple, list)):
        return tuple(map(_key, value))
    return type(value).__name__, str(value)
