"""Tensors that are computed once something asks for what is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .writes import writes_of

if TYPE_CHECKING:
    from collections.abc import Callable

_PLAIN = ("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_cuda")
_SIZES = ("size", "dim", "numel", "__len__", "is_floating_point")


def in_modes_of_now(torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is called as it would be now: with gradients or without, in autocast or
    not."""
    has_gradients, in_autocast = torch.is_grad_enabled(), torch.is_autocast_enabled("cuda")

    def called(*args: Any) -> Any:
        dtype = torch.get_autocast_dtype("cuda")
        autocast = torch.autocast("cuda", dtype, enabled=in_autocast)
        with torch.set_grad_enabled(has_gradients), autocast:
            return function(*args)

    return called


class Value:
    """What `make` gives, called once it is asked for, in the modes of now."""

    def __init__(self, torch: Any, make: Callable[[], Any]) -> None:
        self._make = in_modes_of_now(torch, make)
        self.has_gradients = torch.is_grad_enabled()
        self.tensor: Any = None
        """What it gave; None before that."""
        self._writes: Any = None

    def now(self) -> Any:
        """The tensor. Raises RuntimeError where that was written to since it was made."""
        if self.tensor is None:
            self.tensor = self._make()
            del self._make
            self._writes = writes_of(self.tensor)
        return self.tensor

    def as_made(self) -> Any:
        """The tensor, for what was computed of it before it was known. Raises RuntimeError where it
        was written to since."""
        made = self.now()
        if writes_of(made) != self._writes:
            raise RuntimeError("gputui: a tensor was written to before it was used")
        return made


def class_of_later(
    torch: Any, instead: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
) -> Any:
    """A class of tensors: `Later(shape, dtype, device, value)` computes its `Value` when something
    asks for it. Before that each operation on one is given to `instead(function, args, kwargs)`,
    which returns NotImplemented where values are needed. Where gradients would end in it, because a
    function of autograd's own took it for a tensor with values, the backward pass raises."""
    disabled = torch._C.DisableTorchFunctionSubclass
    getters = {getattr(torch.Tensor, name).__get__ for name in _PLAIN}
    getters |= {getattr(torch.Tensor, name) for name in _SIZES}

    class Later(torch.Tensor):  # type: ignore[misc]
        value: Value

        @staticmethod
        def __new__(
            cls: Any, shape: Any, dtype: Any, device: Any, value: Value, has_graph: bool = False
        ) -> Any:
            made = torch.Tensor._make_wrapper_subclass(
                cls, shape, dtype=dtype, device=device, requires_grad=has_graph
            )
            made.value = value
            if has_graph:
                with disabled():
                    made.register_hook(_raises)
            return made

        def __init__(self, *_args: Any) -> None:
            """What a tensor of it is made of is set by __new__: torch passes the same words on."""

        @classmethod
        def __torch_function__(
            cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            with disabled():
                if function in getters:
                    return function(*args, **kwargs)
                made = instead(function, args, kwargs)
            if made is not NotImplemented:
                return made
            return function(*_computed(cls, args), **_computed(cls, kwargs))

        @classmethod
        def __torch_dispatch__(
            cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return function(*_computed(cls, args), **_computed(cls, kwargs or {}))

    return Later


def _raises(_gradient: Any) -> None:
    raise RuntimeError("gputui: gradients would end in a tensor that is computed later")


def _computed(kind: Any, value: Any) -> Any:
    """With the values of what was to be computed later."""
    if type(value) is kind:
        return value.value.now()
    if type(value) in (tuple, list):
        return type(value)(_computed(kind, each) for each in value)
    if type(value) is dict:
        return {key: _computed(kind, each) for key, each in value.items()}
    return value


def entries_of_index(index: Any, count: int) -> list[Any] | None:
    """An index of each dimension; None where it has others, such as a new one."""
    entries = list(index) if isinstance(index, tuple) else [index]
    if any(each is None or isinstance(each, (bool, list)) for each in entries):
        return None
    sizes = [each.dim() if str(getattr(each, "dtype", "")) == "torch.bool" else 1
             for each in entries]  # fmt: skip
    places = [place for place, each in enumerate(entries) if each is Ellipsis]
    missing = count - sum(sizes) + len(places)
    if len(places) > 1 or missing < 0:
        return None
    place = places[0] if places else len(entries)
    entries[place : place + len(places)] = [slice(None)] * missing
    last = entries[-1]
    if str(getattr(last, "dtype", "")) == "torch.bool" and last.dim() > 1:
        return None
    return entries
