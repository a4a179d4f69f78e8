"""Rows of zeros with a one, in place of an index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import ANY, ROUNDING, Redirected
from .later import Value, as_given, class_of_later

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo

LEAST_VALUES = 1 << 16
"""Of one-hot rows from which it is worth to leave them out."""
_CASTS = ("float", "double", "half", "bfloat16", "long", "int", "to", "type")
_SHAPES = ("view", "reshape", "flatten")
_TURNED = ("t", "transpose", "__get__")


class OneHotIndexed(Redirected):
    """What is computed of one-hot rows is computed by their index: rows of a weight for a product
    with them, values that are picked for a sum of products, class numbers for a loss, sums of the
    rows of one class for a product of them transposed. All else has the rows."""

    name = "one_hot_indexed"
    title = "products and sums of one-hot rows are computed by their index"
    answers = (ANY, "one_hot")
    result = ROUNDING
    is_certain = True
    change = (
        "weight[index] for one_hot(index) @ weight, gather for (one_hot * x).sum(-1), class "
        "numbers for cross_entropy, index_add_ for one_hot.T @ x"
    )

    unused = "of one-hot rows nothing is computed that follows from their index"
    _calls_on = 0
    spared = 0
    """How often they were not made."""
    _kind: Any = None

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        self._torch = torch
        return ((torch.nn.functional, "one_hot"),)

    def apply(self, torch: Any) -> Undo:
        self._kind = self._kind or class_of_later(torch, self, self._by_index)
        return super().apply(torch)

    def look(self) -> None:
        if self._calls_on:
            self.used = self.spared

    def is_worth(self, index: Any, classes: int) -> bool:
        """Whether the rows would be on a GPU, and large."""
        return bool(index.is_cuda) and index.numel() * classes >= LEAST_VALUES

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        torch = self._torch
        words = {**dict(zip(("tensor", "num_classes"), args)), **kwargs}  # noqa: B905
        index: Any = words.get("tensor")
        classes = words.get("num_classes", -1)
        if (
            type(index) is not torch.Tensor or type(classes) is not int or classes < 1
            or torch.compiler.is_compiling() or not self.is_worth(index, classes)
        ):  # fmt: skip
            return None

        def later() -> Any:
            self._calls_on += 1
            kept = index.clone()  # the program may write to it
            return self._rows(kept, classes, torch.int64, lambda: function(kept, classes))

        return later

    def _rows(
        self, index: Any, classes: int, dtype: Any, make: Callable[[], Any], is_turned: bool = False
    ) -> Any:
        shape = (classes, *index.shape) if is_turned else (*index.shape, classes)
        made = self._kind(shape, dtype, index.device, Value(self._torch, self, make))
        made.index, made.classes, made.is_turned, made.factor = index, classes, is_turned, None
        return made

    def _by_index(self, function: Any, args: Any, kwargs: Any) -> Any:
        """What an operation gives, by the index; NotImplemented where that takes the rows."""
        name = getattr(function, "__name__", "")
        laters = [each for each in args if type(each) is self._kind]
        if len(laters) != 1 or laters[0].value.tensor is not None:
            return NotImplemented
        rows, place = laters[0], 0 if type(args[0]) is self._kind else 1
        if rows.factor is not None:
            return self._sum_of(name, rows, args[1:], kwargs) if place == 0 else NotImplemented
        if place == 0 and name in (*_CASTS, *_SHAPES, *_TURNED):
            return self._changed(function, rows, args, kwargs)
        if name in ("mul", "__mul__", "__rmul__") and len(args) == 2 and not kwargs:
            return self._multiplied(rows, args[1 - place])
        if name in ("matmul", "__matmul__", "mm") and len(args) == 2 and not place and not kwargs:
            made = self._product(rows, args[1])
        elif name == "linear" and not place and not kwargs and not rows.is_turned:
            made = self._product(rows, args[1].t())
            if made is not NotImplemented and len(args) > 2 and args[2] is not None:
                made = made + args[2].to(made.dtype)
        elif name == "cross_entropy" and place and rows.dim() == 2 and not rows.is_turned:
            words = {key: kwargs[key] for key in kwargs if key in ("reduction", "label_smoothing")}
            if len(args) != 2 or words != kwargs or not rows.is_floating_point():
                return NotImplemented
            made = function(args[0], rows.index, **words)
        else:
            return NotImplemented
        self.spared += made is not NotImplemented
        return made

    def _changed(self, function: Any, rows: Any, args: Any, kwargs: Any) -> Any:
        """Rows of another type or shape, or turned."""
        torch = self._torch
        like = torch.empty((0, *rows.shape[1:]), dtype=rows.dtype, device=rows.device)
        name = function.__name__

        def make() -> Any:
            return function(rows.value.now(), *args[1:], **kwargs)

        if name in _CASTS:
            made = function(like, *args[1:], **kwargs)
            if not isinstance(made, torch.Tensor) or made.device != rows.device:
                return NotImplemented
            return self._rows(rows.index, rows.classes, made.dtype, make, rows.is_turned)
        if name in _TURNED:
            is_turn = (
                name == "t"
                or (name == "transpose" and sorted(each % 2 for each in args[1:]) == [0, 1])
                or function in (torch.Tensor.T.__get__, torch.Tensor.mT.__get__)
            )
            if not is_turn or rows.dim() != 2:
                return NotImplemented
            return self._rows(rows.index, rows.classes, rows.dtype, make, not rows.is_turned)
        meta = torch.empty(rows.shape, device="meta")
        shape = function(meta, *args[1:], **kwargs).shape
        if rows.is_turned or shape[-1] != rows.classes or len(shape) < 2:
            return NotImplemented
        return self._rows(rows.index.reshape(shape[:-1]), rows.classes, rows.dtype, make)

    def _multiplied(self, rows: Any, other: Any) -> Any:
        """One-hot rows times something of their shape, of which a sum may be asked."""
        torch = self._torch
        if not isinstance(other, torch.Tensor) or other.shape != rows.shape or rows.is_turned:
            return NotImplemented
        dtype = torch.result_type(torch.empty(0, dtype=rows.dtype), other)
        has_graph = other.requires_grad and torch.is_grad_enabled()
        value = Value(torch, self, lambda: rows.value.now() * other, as_given(other))
        made = self._kind(rows.shape, dtype, rows.device, value, has_graph)
        made.index, made.classes, made.is_turned, made.factor = (
            rows.index, rows.classes, False, other
        )  # fmt: skip
        return made

    def _sum_of(self, name: str, rows: Any, args: Any, kwargs: Any) -> Any:
        words = {**dict(zip(("dim", "keepdim"), args)), **kwargs}  # noqa: B905
        if name in ("neg", "__neg__"):
            return self._multiplied(rows, -rows.factor)
        dim = words.pop("dim", None)
        dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
        if name != "sum" or not {*words} <= {"keepdim"} or dim not in (None, -1, rows.dim() - 1):
            return NotImplemented
        rows.value.check()
        picked = rows.factor.gather(-1, rows.index[..., None]).to(rows.dtype)
        self.spared += 1
        if dim is None:
            return picked.sum()
        return picked if words.get("keepdim") else picked.squeeze(-1)

    def _product(self, rows: Any, other: Any) -> Any:
        torch = self._torch
        if not isinstance(other, torch.Tensor) or other.dim() != 2:
            return NotImplemented
        if torch.is_autocast_enabled(other.device.type):
            other = other.to(torch.get_autocast_dtype(other.device.type))
        elif other.dtype is not rows.dtype:
            return NotImplemented  # torch has the program's error
        if not rows.is_turned and other.shape[0] == rows.classes:
            return torch.nn.functional.embedding(rows.index, other)
        if rows.is_turned and other.shape[0] == len(rows.index):
            sums = torch.zeros(rows.classes, other.shape[1], dtype=other.dtype, device=other.device)
            return sums.index_add(0, rows.index, other)
        return NotImplemented
