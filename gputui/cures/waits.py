"""Values that the CPU reads back from the GPU, together."""

from __future__ import annotations

import functools
import operator
import sys
from typing import TYPE_CHECKING, Any

from . import EXACT, Cure, combined, replaced

if TYPE_CHECKING:
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
        replay = torch.cuda.CUDAGraph.replay
        elements, undos = _Elements(torch, self), []
        if not self._compiles():  # what is compiled would be compiled again
            undos.append(elements.read_together())
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

        @functools.wraps(replay)
        def replayed(graph: Any) -> Any:
            # It writes to tensors that do not count it.
            copied.clear()
            elements.forget()
            return replay(graph)

        return combined(
            *undos,
            replaced(
                *(
                    (torch.Tensor, name, together(convert, kind))
                    for name, convert, kind in converts
                ),
                (torch.cuda.CUDAGraph, "replay", replayed),
            ),
        )

    def _compiles(self) -> bool:
        """Whether torch.compile has compiled something: its module alone is there of itself."""
        utils = sys.modules.get("torch._dynamo.utils")
        return utils is not None and bool(utils.counters["frames"]["total"])

    def is_copied(self, base: Any) -> bool:
        """Whether values of a tensor are read from a copy of all."""
        if not self.is_far(base) or base.is_inference() or base.is_complex():
            return False
        return bool(1 < base.numel() <= MOST_TOGETHER and base.is_contiguous())

    def is_far(self, base: Any) -> bool:
        """Whether reading it waits for a GPU."""
        return bool(base.is_cuda)


class _Elements:
    """Single values of tensors without gradients: all are copied at once, and again after the
    program has called anything else of torch. Those of inference mode do not count how often they
    are written to."""

    def __init__(self, torch: Any, cure: ItemsTogether) -> None:
        self._torch, self._cure = torch, cure
        self._index = torch.Tensor.__getitem__
        self._copies: dict[int, tuple[Any, list[Any]]] = {}

    def forget(self) -> None:
        """Something may have been written."""
        self._copies.clear()

    def read_together(self) -> Undo:
        """Has what is taken by numbers be read so."""
        torch, index, forget = self._torch, self._index, self.forget
        iterate, mode = torch.Tensor.__iter__, torch.overrides.TorchFunctionMode

        class Seen(mode):  # type: ignore[misc,valid-type]
            """Of calls of torch while it is entered."""

            def __torch_function__(
                self, function: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                forget()
                return function(*args, **(kwargs or {}))

        @functools.wraps(index)
        def taken(base: Any, place: Any) -> Any:
            if type(place) is int and 0 <= place < self._length_of_read(base):
                return _Element(self, base, place)
            return index(base, place)

        @functools.wraps(iterate)
        def iterated(base: Any) -> Any:
            length = self._length_of_read(base)
            elements = (_Element(self, base, place) for place in range(length))
            return elements if length else iterate(base)

        seen = Seen()
        undo = replaced((torch.Tensor, "__getitem__", taken), (torch.Tensor, "__iter__", iterated))
        seen.__enter__()
        return combined(functools.partial(seen.__exit__, None, None, None), undo)

    def _length_of_read(self, base: Any) -> int:
        """Of a tensor that is read so; 0 of others."""
        copy = self._copies.get(id(base))
        if copy is not None:
            return len(copy[1])
        if type(base) is not self._torch.Tensor:
            return 0
        with self._torch._C.DisableTorchFunction():
            is_read = (
                not base.requires_grad and base.dim() == 1 and len(base) <= MOST_TOGETHER
                and self._cure.is_far(base) and not base.is_complex()
                and not self._torch.compiler.is_compiling()
            )  # fmt: skip
            return len(base) if is_read else 0

    def value(self, base: Any, place: int) -> Any:
        """What is there now."""
        copy = self._copies.get(id(base))
        if copy is None:
            if len(self._copies) >= BESIDE:
                self._copies.clear()
            with self._torch._C.DisableTorchFunction():
                copy = self._copies[id(base)] = base, base.tolist()
        return copy[1][place]

    def tensor(self, base: Any, place: int) -> Any:
        """The element as torch has it. What is indexed while `Seen` is entered comes here again."""
        with self._torch._C.DisableTorchFunction():
            return self._index(base, place)


class _Element:
    """Stands for one element of a tensor, or for what a comparison with it gave."""

    __slots__ = ("_base", "_elements", "_place")

    def __init__(self, elements: _Elements, base: Any, place: int) -> None:
        self._elements, self._base, self._place = elements, base, place

    __class__ = property(lambda self: type(self._base))
    __hash__ = object.__hash__

    def item(self) -> Any:
        return self._elements.value(self._base, self._place)

    def tolist(self) -> Any:
        return self.item()

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    @classmethod
    def __torch_function__(
        cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        words = {name: _as_tensor(value) for name, value in (kwargs or {}).items()}
        return function(*map(_as_tensor, args), **words)

    def __getattr__(self, name: str) -> Any:
        return getattr(_as_tensor(self), name)

    def as_tensor(self) -> Any:
        return self._elements.tensor(self._base, self._place)


class _Comparison(_Element):
    """What a comparison of two whole numbers gave: most are asked at once whether they are so."""

    __slots__ = ("_is_so",)

    def __init__(self, element: _Element, is_so: bool) -> None:
        super().__init__(element._elements, element._base, element._place)
        self._is_so = is_so

    def item(self) -> bool:
        return self._is_so

    def as_tensor(self) -> Any:
        return self._elements.tensor(self._base, self._place).new_tensor(self._is_so).bool()


def _as_tensor(value: Any) -> Any:
    if issubclass(type(value), _Element):
        return value.as_tensor()
    if type(value) in (list, tuple):
        return type(value)(map(_as_tensor, value))
    return value


def _of_tensor(name: str) -> Any:
    def called(self: _Element, *args: Any) -> Any:
        return getattr(_as_tensor(self), name)(*map(_as_tensor, args))

    return called


_WHOLE = (int, bool)


def _compared(name: str) -> Any:
    plain, compare = _of_tensor(name), getattr(operator, name)

    def called(self: _Element, other: Any) -> Any:
        value = other.item() if type(other) is _Element else other
        if type(value) in _WHOLE and type(own := self.item()) in _WHOLE:
            return _Comparison(self, compare(own, value))
        return plain(self, other)

    return called


for _name in (
    "abs", "add", "and", "array", "floordiv", "format", "getitem", "invert", "iter", "len", "mod",
    "mul", "neg", "or", "pow", "radd", "repr", "rfloordiv", "rmod", "rmul", "rpow", "rsub",
    "rtruediv", "setitem", "str", "sub", "truediv", "xor",
):  # fmt: skip
    setattr(_Element, f"__{_name}__", _of_tensor(f"__{_name}__"))
for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(_Element, _name, _compared(_name))

_CONVERTED = (
    ("item", None), ("__float__", float), ("__int__", int), ("__bool__", bool),
)  # fmt: skip
BESIDE = 4
"""Tensors that are gone through side by side, as by zip()."""
MOST_TOGETHER = 1 << 14
"""Values of a tensor, which are copied in about the time of 20 alone."""
