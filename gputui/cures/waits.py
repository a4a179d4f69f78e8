"""Values that the CPU reads back from the GPU: together, or when they are used."""

from __future__ import annotations

import functools
import json
import math
import operator
import sys
import threading
from typing import TYPE_CHECKING, Any, ClassVar

from . import (
    EXACT,
    Cure,
    combined,
    replaced,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo


class ItemsTogether(Cure):
    """Values of one tensor that are read one by one (.item(), float(), in a loop over it) are
    copied from the GPU at once, and again after it was written to. What writes to it without torch
    is not seen."""

    name = "items_together"
    title = "values of a tensor that are read one by one are copied at once"
    answers = ("idle.sync", "busy.copy_pageable")
    result = EXACT
    change = "values = tensor.tolist()  # once, before the loop over them"
    advice = r"\.item\(\)"

    def apply(self, torch: Any) -> Undo:
        copied: list[tuple[Any, int, list[Any]]] = []  # tensors, how often written to, their values

        def together(convert: Any, kind: Any) -> Any:
            @functools.wraps(convert)
            def converted(value: Any) -> Any:
                base = value._base
                if base is None or value.numel() != 1 or value.dtype is not base.dtype:
                    return convert(value)
                for copy in copied:
                    if copy[0] is base and copy[1] == base._version:
                        values = copy[2]
                        break
                else:
                    if type(base) is not torch.Tensor or not self.is_copied(base):
                        return convert(value)
                    values = base.detach().flatten().tolist()
                    copied.insert(0, (base, base._version, values))
                    del copied[BESIDE:]
                made = values[value.storage_offset() - base.storage_offset()]
                return made if kind is None else kind(made)

            return converted

        # Only while it is on: Dynamo would break graphs at what stands in for them.
        converts = [(name, getattr(torch.Tensor, name), kind) for name, kind in _CONVERTED]
        return replaced(
            *((torch.Tensor, name, together(convert, kind)) for name, convert, kind in converts)
        )

    def is_copied(self, base: Any) -> bool:
        """Whether values of a tensor are read from a copy of all."""
        if not self.is_far(base) or base.is_inference() or base.is_complex():
            return False
        return bool(1 < base.numel() <= MOST_TOGETHER and base.is_contiguous())

    def is_far(self, base: Any) -> bool:
        """Whether reading it waits for a GPU."""
        return bool(base.is_cuda)


_CONVERTED = (
    ("item", None), ("__float__", float), ("__int__", int), ("__bool__", bool),
)  # fmt: skip
BESIDE = 4
"""Tensors that are gone through side by side, as by zip()."""
MOST_TOGETHER = 1 << 14
"""Values of a tensor, which are copied in about the time of 20 alone."""


class ItemsDeferred(Cure):
    """What `.item()` reads is read when the program first looks at it, together with all that it
    asked for until then. Sums and products of such numbers wait too; a number that is printed,
    compared, written or passed on is there at once. Each is what it was when it was asked for: it
    is copied on the GPU. A program that asks for its very type fails with it."""

    name = "items_deferred"
    title = "values are read from the GPU (.item()) when they are used, all at once"
    answers = ("idle.sync", "busy.copy_pageable")
    result = EXACT
    change = "keep what is logged on the GPU, and read it together: torch.stack(values).tolist()"
    advice = r"\.item\(\)"

    _is_readable = False

    def apply(self, torch: Any) -> Undo:
        if not self._is_readable:
            self._have_read(torch)
            self._is_readable = True
        reads, item = _Reads(torch, self.is_far), torch.Tensor.item

        @functools.wraps(item)
        def later(value: Any) -> Any:
            deferred = reads.later(value)
            return item(value) if deferred is None else deferred

        return combined(reads.read, replaced((torch.Tensor, "item", later)))

    def _have_read(self, torch: Any) -> None:
        """What asks for numbers in C takes those that were deferred, also once it is off."""
        default = json.JSONEncoder.default

        @functools.wraps(default)
        def written(encoder: Any, value: Any) -> Any:
            return value.now() if _is_later(value) else default(encoder, value)

        def read(function: Any) -> Any:
            @functools.wraps(function)
            def called(*args: Any, **kwargs: Any) -> Any:
                try:
                    return function(*args, **kwargs)
                except (TypeError, RuntimeError):
                    return function(*_now(args), **_now(kwargs))

            return called

        makes = [(torch, name, read(getattr(torch, name))) for name in ("tensor", "as_tensor")]
        replaced((json.JSONEncoder, "default", written), *makes)

    def is_far(self, value: Any) -> bool:
        """Whether reading it waits for a GPU."""
        return bool(value.is_cuda)


MOST_DEFERRED = 4096
"""Values and sums that wait, before all are read."""
MOST_WASTED = 8
"""Times that a line looked at once at what it asked for, after which that is not deferred there."""


class _Reads:
    """Values that were asked for and are not read yet."""

    def __init__(self, torch: Any, is_far: Callable[[Any], bool]) -> None:
        self._torch, self._is_far = torch, is_far
        self._float, self._int = _numbers(torch)
        self._lock = threading.RLock()
        self._waiting: list[_Later] = []
        """In the order in which they were asked for: what one is made of comes before it."""
        self._copies: list[_Copy] = []
        """Of tensors of which values are asked for one by one."""
        self._wasted: dict[Any, int] = {}

    def later(self, value: Any) -> Any:
        """A number that is read later, or one that is there already; None where it is read now."""
        torch = self._torch
        copy = self._copy_of(value._base)
        if (
            copy is not None and copy.values is not None and value.numel() == 1
            and value.dtype is copy.base.dtype
        ):  # fmt: skip
            return copy.values[value.storage_offset() - copy.place]
        if (
            value.numel() != 1 or not self._is_far(value) or value.is_complex()
            or value.dtype is torch.bool or torch.compiler.is_compiling()
        ):  # fmt: skip
            return None
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return None
        frame = sys._getframe(2)
        line = frame.f_code, frame.f_lasti
        if self._wasted.get(line, 0) >= MOST_WASTED:
            return None
        kind = self._float if value.is_floating_point() else self._int
        with torch.no_grad():
            return self._wait(kind(self, *self._copied(value), line))

    def _copied(self, value: Any) -> tuple[Any, int]:
        base = value._base
        if (
            base is None or type(base) is not self._torch.Tensor or base.is_inference()
            or not base.is_contiguous() or base.numel() > MOST_TOGETHER
            or base.dtype is not value.dtype
        ):  # fmt: skip
            return value.detach().reshape(1).clone(), 0
        # A loop over a tensor asks for each value: one copy is for all.
        copy = self._copy_of(base)
        if copy is None:
            copy = _Copy(base)
            self._copies.insert(0, copy)
            del self._copies[BESIDE:]
        return copy.copy, value.storage_offset() - copy.place

    def _copy_of(self, base: Any) -> _Copy | None:
        for copy in self._copies if base is not None else ():
            if copy.base is base and copy.version == base._version:
                return copy
        return None

    def made(self, operation: Any, *values: Any) -> Any:
        """What is computed of numbers, some of which are read later."""
        is_float = operation is operator.truediv or any(
            type(value) in (float, self._float) for value in values
        )
        return self._wait((self._float if is_float else self._int)(self, operation, values))

    def _wait(self, value: _Later) -> _Later:
        with self._lock:
            self._waiting.append(value)
            if len(self._waiting) >= MOST_DEFERRED:
                self.read()
        return value

    def read(self) -> None:
        """Read every value that waits, from the GPU in one copy for each of its types."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            leaves = [each for each in waiting if each.line is not None]
            for each in leaves:
                self._wasted[each.line] = (
                    self._wasted.get(each.line, 0) + 1 if len(leaves) == 1 else 0
                )
            copies: dict[int, Any] = {id(each.source): each.source for each in leaves}
            values: dict[int, list[Any]] = {}
            for kind in {(copy.device, copy.dtype) for copy in copies.values()}:
                alike = [copy for copy in copies.values() if (copy.device, copy.dtype) == kind]
                together, place = self._torch.cat(alike).tolist(), 0
                for copy in alike:
                    values[id(copy)] = together[place : place + copy.numel()]
                    place += copy.numel()
            for copy in self._copies:
                copy.values = values.get(id(copy.copy), copy.values)
            for each in waiting:
                each.set(values)


class _Copy:
    """Of a tensor as it was when it had been written to so often, on the GPU."""

    def __init__(self, base: Any) -> None:
        self.base, self.version, self.place = base, base._version, base.storage_offset()
        self.copy = base.detach().flatten().clone()
        self.values: list[Any] | None = None
        """What is in it, once it is read."""


class _Later:
    """A number that is read when it is looked at."""

    kind: ClassVar[type]

    def __init__(self, reads: _Reads, source: Any, place: Any, line: Any = None) -> None:
        """Of a tensor and a place in it, asked for at a line, or an operation and what it is of."""
        self.reads, self.source, self.place, self.line = reads, source, place, line
        self._number: Any = None
        self._error: ArithmeticError | None = None

    def set(self, values: dict[int, list[Any]]) -> None:
        """Take it from the values that were read, or compute it."""
        try:
            if self.line is not None:
                self._number = values[id(self.source)][self.place]
            else:
                self._number = self.source(*map(_now, self.place))
        except ArithmeticError as error:  # is the program's once it looks
            self._error = error
        self.source = self.place = None

    def now(self) -> Any:
        """The number, read from the GPU if it is not here yet. Raises what computing it raised."""
        if self.source is not None:
            self.reads.read()
        if self._error is not None:
            raise self._error
        return self._number

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self.kind

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.now(), name)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return sys.modules["numpy"].asarray(self.now(), dtype=dtype)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return self.kind, (self.now(),)

    @classmethod
    def __torch_function__(
        cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*_now(args), **_now(kwargs or {}))

    # What torch asks of a number that is symbolic, which it takes where it takes a float.

    @property
    def node(self) -> Any:
        return self

    def guard_float(self, *_place: Any) -> float:
        return float(self.now())

    def guard_int(self, *_place: Any) -> int:
        return operator.index(self.now())

    def _is_not(self) -> bool:
        return False

    is_symbolic = is_constant = is_nested_int = is_bool = _is_not

    def is_float(self) -> bool:
        return self.kind is float

    def is_int(self) -> bool:
        return self.kind is int

    def maybe_as_int(self) -> int | None:
        return self.now() if self.kind is int else None


@functools.lru_cache(maxsize=1)
def _numbers(torch: Any) -> tuple[Any, Any]:
    """The classes of numbers that are read later. Of any other than torch's own symbolic ones its
    functions in C would want a float."""

    class LaterFloat(_Later, getattr(torch, "SymFloat", object)):  # type: ignore[misc]
        kind = float

    class LaterInt(_Later, getattr(torch, "SymInt", object)):  # type: ignore[misc]
        kind = int

    return LaterFloat, LaterInt


def _is_later(value: Any) -> bool:
    return issubclass(type(value), _Later)


def _now(value: Any) -> Any:
    """With the numbers in it read."""
    if _is_later(value):
        return value.now()
    if type(value) in (tuple, list):
        return type(value)(map(_now, value))
    return {key: _now(value[key]) for key in value} if type(value) is dict else value


def _waits(operation: Any, is_reflected: bool = False) -> Any:
    def method(self: _Later, *other: Any) -> Any:
        values = (*other, self) if is_reflected else (self, *other)
        are_numbers = all(type(value) in (int, float) or _is_later(value) for value in values)
        # Other powers may be complex.
        is_real = operation is not operator.pow or (type(values[1]) is int and self.kind is float)
        if are_numbers and is_real:
            return self.reads.made(operation, *values)
        return operation(*map(_now, values))

    return method


def _looks(operation: Any, is_reflected: bool = False) -> Any:
    def method(self: _Later, *others: Any) -> Any:
        values = (*others, self) if is_reflected else (self, *others)
        return operation(*map(_now, values))

    return method


for _name in ("add", "sub", "mul", "truediv", "pow", "neg", "abs"):
    setattr(_Later, f"__{_name}__", _waits(getattr(operator, _name)))
    setattr(_Later, f"__r{_name}__", _waits(getattr(operator, _name), True))
for _name in ("floordiv", "mod"):
    setattr(_Later, f"__{_name}__", _looks(getattr(operator, _name)))
    setattr(_Later, f"__r{_name}__", _looks(getattr(operator, _name), True))
for _name in ("lt", "le", "eq", "ne", "gt", "ge", "index", "pos", "invert"):
    setattr(_Later, f"__{_name}__", _looks(getattr(operator, _name)))
for _function in (
    float, int, bool, complex, hash, str, repr, format, round, divmod, math.trunc, math.floor,
    math.ceil,
):  # fmt: skip
    setattr(_Later, f"__{_function.__name__}__", _looks(_function))
