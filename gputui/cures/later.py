"""Tensors that are computed, and numbers that are read, once something asks for what they hold; and
how often tensors were written to, by which what was kept of them is stale."""

from __future__ import annotations

import dis
import functools
import json
import operator
import sys
import threading
from typing import TYPE_CHECKING, Any, List, Tuple  # noqa: UP035

from . import EXACT, Cure, after_optimizer_steps, replaced

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo


# How often tensors were written to: what was kept of one that was written to since is stale.

UNCOUNTED = "not counted"

_fused_steps: dict[int, int] = {}
"""By a parameter's id, how often a fused optimizer wrote to it, which torch does not count (seen of
torch 2.13's AdamW). Another tensor with the id of one that is gone only seems newer."""


def writes_of(value: Any) -> Any:
    """How often a tensor was written to; UNCOUNTED where it was made in inference mode; None of
    what is no tensor."""
    if not hasattr(value, "data_ptr"):
        return None
    if value.is_inference():
        return UNCOUNTED
    return value._version + _fused_steps.get(id(value), 0)


MOST_COMPARED_BYTES = 1 << 25
"""Of a tensor at most: of a larger one every second row, or every third, and so on."""


def rows_all_over(value: Any) -> Any:
    """Rows from all over a tensor, which are compared where nobody counts what is written to it."""
    every = max(1, value.numel() * value.element_size() // MOST_COMPARED_BYTES)
    return value.detach()[::every] if value.dim() else value.detach()


def differ(first: Any, second: Any) -> bool:
    """Whether tensors of one shape and type have other bits. They are compared on the host."""
    uint8 = sys.modules["torch"].uint8
    bits = [each.cpu().contiguous().view(-1).view(uint8) for each in (first, second)]
    return not bits[0].equal(bits[1])


def writes_of_weights(model: Any) -> tuple[Any, ...]:
    """Of each of a model's weights: what is kept of one that was trained since is stale."""
    return tuple(map(writes_of, model.parameters()))


def counting_fused_steps() -> Undo:
    """Counts what fused optimizers write from now on; returns what ends that."""

    def stepped(optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for each in group["params"] if group.get("fused") else ():
                _fused_steps[id(each)] = _fused_steps.get(id(each), 0) + 1

    return after_optimizer_steps(stepped)


def writes_to_first(name: str) -> bool:
    """Whether a function writes to its first argument."""
    is_in_place = name.endswith("_") and not name.startswith("_")
    return is_in_place or name in _IN_PLACE


_IN_PLACE = (
    "__setitem__",
    "__iadd__",
    "__isub__",
    "__imul__",
    "__idiv__",
    "__itruediv__",
    "__ipow__",
)


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


Given = List[Tuple[Any, Any]]  # noqa: UP006
"""Tensors that something is computed of later, and how often each was written to by then."""


def as_given(*values: Any) -> Given:
    """These tensors, as they are now."""
    return [(each, writes_of(each)) for each in values]


def is_written(given: Given) -> bool:
    """Whether any of them was written to since."""
    return any(writes_of(each) != writes for each, writes in given)


class Value:
    """What `make` gives, called once it is asked for, in the modes of now. Where what it is made of
    was written to meanwhile, the value is lost (`Cure.lose`)."""

    def __init__(
        self, torch: Any, cure: Cure, make: Callable[[], Any], given: Given | None = None
    ) -> None:
        self._cure = cure
        self._make = in_modes_of_now(torch, make)
        self._given = given or []
        self.has_gradients = torch.is_grad_enabled()
        self.tensor: Any = None
        """What it gave; None before that."""
        self._writes: Any = None

    def check(self) -> None:
        """Says that the value is lost where it is."""
        if is_written(self._given):
            self._cure.lose(WRITTEN)

    def now(self) -> Any:
        """The tensor."""
        if self.tensor is None:
            self.check()
            self.tensor = self._make()
            self._given = []
            del self._make
            self._writes = writes_of(self.tensor)
        return self.tensor

    def as_made(self) -> Any:
        """The tensor, for what was computed of it before it was known."""
        made = self.now()
        if writes_of(made) != self._writes:
            self._cure.lose(WRITTEN)
        return made


WRITTEN = "what is computed later is written to before that"


def class_of_later(
    torch: Any, cure: Cure, instead: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
) -> Any:
    """A class of tensors: `Later(shape, dtype, device, value)` computes its `Value` when something
    asks for it. Before that each operation on one is given to `instead(function, args, kwargs)`,
    which returns NotImplemented where values are needed. Functions of autograd's own are given
    values. Where gradients would end in it nevertheless, because C took it for a tensor, the cure
    says that they are lost."""
    _give_functions_values(torch)
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
                    made.register_hook(
                        lambda _: cure.lose("gradients end in what is computed later")
                    )
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
                try:
                    made = instead(function, args, kwargs)
                except Exception:  # as it is, it may go well, or the program's own fault is raised
                    made = NotImplemented
            if made is not NotImplemented:
                return made
            return function(*_computed(cls, args), **_computed(cls, kwargs))

        @classmethod
        def __torch_dispatch__(
            cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return function(*_computed(cls, args), **_computed(cls, kwargs or {}))

    _KINDS.append(Later)
    return Later


_KINDS: list[Any] = []
"""The classes of tensors that are computed later."""


@functools.lru_cache(maxsize=1)
def _give_functions_values(torch: Any) -> None:
    """Has functions of autograd's own (torch.autograd.Function), which call no __torch_function__,
    take values, for good: some tensors are used long after their cure was switched off."""
    apply = vars(torch.autograd.Function)["apply"]  # of C, from torch 2.14 on

    @functools.wraps(torch.autograd.Function.apply)
    def called(kind: Any, *args: Any, **kwargs: Any) -> Any:
        given = [each.value.now() if type(each) in _KINDS else each for each in args]
        return apply.__get__(None, kind)(*given, **kwargs)

    torch.autograd.Function.apply = classmethod(called)


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


# Numbers that are read back from the GPU when something is done with them but arithmetic.

MOST_TOGETHER = 4096
"""Values that are held on the GPU until they are read, all in one copy."""
MOST_DEEP = 64
"""Sums of sums of values until they are computed."""


class ItemsLater(Cure):
    """What `.item()` gives of floats is read when it is printed, compared or turned into anything
    else, and all that was asked for before with it, in one copy: losses that are added up, norms
    that are put in a list. Meanwhile it is an object that stands for a float; code in C that wants
    a float and no other object, such as orjson's, fails with it."""

    name = "items_later"
    title = "values of .item() are read when they are used, together"
    answers = ("idle.sync", "busy.copy_pageable")
    result = EXACT
    change = "total += loss.detach()  # on the GPU, and .item() where it is printed"
    advice = r"\.item\(\)"

    used: int = 0
    """Values that were read with another, or waited beside another."""
    unused = "each value of .item() is used before the next is asked for"

    def apply(self, torch: Any) -> Undo:
        real = torch.Tensor.item
        let_numbers_be_taken(torch)
        main = threading.main_thread().ident
        batches: dict[Any, _Batch] = {}

        @functools.wraps(real)
        def item(value: Any) -> Any:
            if (
                value.numel() != 1 or not self.is_far(value) or not value.is_floating_point()
                or torch.compiler.is_compiling() or threading.get_ident() != main
            ):  # fmt: skip
                return real(value)
            device = value.device
            stream = torch._C._cuda_getCurrentRawStream(device.index) if value.is_cuda else 0
            key = value.dtype, device, stream
            batch = batches.get(key)
            place = None if batch is None else batch.add(value)
            self.used += place is not None
            if batch is None or place is None:
                batch = batches[key] = _Batch(torch)
                place = batch.add(value) or 0
            return Number(functools.partial(batch.value, place), 0)

        return replaced((torch.Tensor, "item", item))

    def is_far(self, value: Any) -> bool:
        """Whether reading it waits for a GPU."""
        return bool(value.is_cuda) and not value.is_sparse


class ChecksLater(Cure):
    """What a line asks that looks for numbers that are none (isnan, isinf, isfinite) is taken for
    what it was eight times, and read all together later: after MOST_ASKED of them, and at the end
    of each block. Where one was another, the cure ends."""

    name = "checks_later"
    title = "what looks for NaN and infinity is read later, together"
    answers = ("idle.sync",)
    result = EXACT
    change = "torch.isfinite(...) every N steps, or of the loss alone, not in each layer or step"
    forecast = None

    used: int = 0
    """Answers that were not waited for."""
    unused = "nothing looks for NaN or infinity"

    def __init__(self, target: str = "") -> None:
        super().__init__(target)
        self._lines: dict[Any, list[Any]] = {}
        """By line, whether it looks for such numbers, its last answer, and how often it was the
        same."""
        self._differs: list[Any] = []

    def apply(self, torch: Any) -> Undo:
        main = threading.main_thread().ident

        def asking(real: Any) -> Any:
            @functools.wraps(real)
            def asked(value: Any) -> Any:
                if (
                    value.dtype is not torch.bool or value.numel() != 1 or self.ended
                    or not self.is_far(value) or threading.get_ident() != main
                    or torch.compiler.is_compiling()
                ):  # fmt: skip
                    return real(value)
                frame = sys._getframe(1)
                place = frame.f_code, frame.f_lineno
                if place not in self._lines:
                    self._lines[place] = [looks_for_no_number(*place), None, 0]
                line = self._lines[place]
                if not line[0] or line[2] < LEAST_SAME:
                    answer = real(value)
                    line[1:] = answer, line[2] + 1 if answer == line[1] else 1
                    return answer
                self.used += 1
                self._differs.append((value, line[1]))
                if len(self._differs) >= MOST_ASKED:
                    self.look()
                return real(value) if self.ended else line[1]

            return asked

        tensor = torch.Tensor
        return replaced(
            *((tensor, name, asking(getattr(tensor, name))) for name in ("__bool__", "item"))
        )

    def is_far(self, value: Any) -> bool:
        """Whether reading it waits for a GPU."""
        return bool(value.is_cuda)

    def look(self) -> None:
        """Whether all answers were those that were given."""
        asked, self._differs = self._differs, []
        by_device: dict[Any, list[Any]] = {}
        for value, answer in asked:
            by_device.setdefault(value.device, []).append(value.detach().reshape(()) != answer)
        torch = sys.modules.get("torch")
        if torch is not None and any(
            any(torch.stack(values).tolist()) for values in by_device.values()
        ):
            self.end("what looks for NaN and infinity comes to find some")


LEAST_SAME, MOST_ASKED = 8, 256
"""Answers of a line that are alike, from which the next is taken for the same, and how many are
held until they are read."""
_NO_NUMBER = frozenset({"isnan", "isinf", "isfinite"})


def looks_for_no_number(code: Any, number: int) -> bool:
    """Whether a line of some code names what looks for NaN or infinity."""
    names, is_here = set(), False
    for each in dis.get_instructions(code):
        line = getattr(each, "positions", None)
        place = line.lineno if line is not None and line.lineno else each.starts_line
        if place is not None and type(place) is not bool:
            is_here = place == number
        if is_here and isinstance(each.argval, str):
            names.add(each.argval)
    return bool(_NO_NUMBER & names)


class _Batch:
    """Values on the GPU that are read in one copy."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.tensors: list[Any] = []
        self._values: list[float] | None = None
        self._lock = threading.Lock()  # a thread of the program's may log what another asked for

    def add(self, value: Any) -> int | None:
        """Hold a value as it is now; its place, None where all were read, or are too many."""
        with self._lock, self._torch.no_grad():
            if self._values is not None or len(self.tensors) >= MOST_TOGETHER:
                return None
            self.tensors.append(value.detach().reshape(()).clone())
            return len(self.tensors) - 1

    def value(self, place: int) -> float:
        """The one that is held there."""
        with self._lock:
            if self._values is None:
                with self._torch.no_grad():
                    self._values = self._torch.stack(self.tensors).tolist()
                self.tensors.clear()
            return self._values[place]


def _lazily(function: Callable[[Any, Any], Any], reflected: bool = False) -> Any:
    def combined(self: Number, other: Any) -> Any:
        if type(other) not in _NUMBERS:
            mine = float(self)
            return function(other, mine) if reflected else function(mine, other)
        first, last = (other, self) if reflected else (self, other)
        depth = 1 + max(each.depth for each in (self, other) if type(each) is Number)
        made = Number(lambda: function(_now(first), _now(last)), depth)
        return made if depth < MOST_DEEP else float(made)

    return combined


_squared = _lazily(operator.pow)


def _now(value: Any) -> Any:
    return float(value) if type(value) is Number else value


def with_floats(data: Any) -> Any:
    """With floats in place of numbers that stand for one, in lists and dictionaries too."""
    if type(data) in (list, tuple):
        return type(data)(map(with_floats, data))
    if type(data) is dict:
        return {key: with_floats(value) for key, value in data.items()}
    return _now(data)


@functools.lru_cache(maxsize=1)
def let_numbers_be_taken(torch: Any) -> None:
    """Has torch.tensor, torch.as_tensor, torch.save and json take numbers that stand for a
    float, for good: some are used long after the cure was switched off."""

    def taking(function: Any) -> Any:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if not Number.were_made:  # most programs call them in each layer, with large lists
                return function(*args, **kwargs)
            return function(*map(with_floats, args), **with_floats(kwargs))

        return called

    encode = json.JSONEncoder.iterencode

    @functools.wraps(encode)
    def encoded(encoder: Any, o: Any, *args: Any, **kwargs: Any) -> Any:
        return encode(encoder, with_floats(o), *args, **kwargs)

    replaced(
        (torch, "tensor", taking(torch.tensor)), (torch, "as_tensor", taking(torch.as_tensor)),
        # Of torch.save, by whatever name it is called: torch.load takes no other class.
        (torch.serialization, "_save", taking(torch.serialization._save)),
        (json.JSONEncoder, "iterencode", encoded),
    )  # fmt: skip


class Number:
    """Stands for a float that is known once it is asked for. What calls its class with a number
    gets a float, as of float itself."""

    __class__ = property(lambda _self: float)
    were_made = False

    def __new__(cls, read: Any, _depth: int = 0) -> Any:
        return super().__new__(cls) if callable(read) else float(read)

    def __init__(self, read: Callable[[], Any], depth: int) -> None:
        self._read: Callable[[], Any] | None = read
        self._value = 0.0
        self.depth = depth
        Number.were_made = True

    def __float__(self) -> float:
        if self._read is not None:
            self._value = self._read()
            self._read, self.depth = None, 0
        return self._value

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return sys.modules["numpy"].array(float(self), dtype)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return float, (float(self),)

    __add__, __radd__ = _lazily(operator.add), _lazily(operator.add, reflected=True)
    __sub__, __rsub__ = _lazily(operator.sub), _lazily(operator.sub, reflected=True)
    __mul__, __rmul__ = _lazily(operator.mul), _lazily(operator.mul, reflected=True)
    __truediv__ = _lazily(operator.truediv)
    __rtruediv__ = _lazily(operator.truediv, reflected=True)

    def __pow__(self, other: Any, *modulus: Any) -> Any:
        # Norms are squared to be added up; a root may be of a negative number, and no float then.
        is_square = type(other) in (int, float) and other == 2 and not modulus
        return _squared(self, 2) if is_square else pow(float(self), _now(other), *modulus)

    @classmethod
    def __torch_function__(
        cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        words = {name: with_floats(value) for name, value in (kwargs or {}).items()}
        return function(*map(with_floats, args), **words)

    def __getattr__(self, name: str) -> Any:
        return getattr(float(self), name)


_NUMBERS = (int, float, bool, Number)


def _of_float(name: str) -> Any:
    method = getattr(float, name)

    @functools.wraps(method)
    def called(self: Number, *args: Any) -> Any:
        return method(float(self), *map(_now, args))

    return called


for _name in (
    "__abs__", "__bool__", "__ceil__", "__divmod__", "__eq__", "__floor__", "__floordiv__",
    "__format__", "__ge__", "__gt__", "__hash__", "__int__", "__le__", "__lt__", "__mod__",
    "__ne__", "__neg__", "__pos__", "__rdivmod__", "__repr__", "__rfloordiv__",
    "__rmod__", "__round__", "__rpow__", "__str__", "__trunc__",
):  # fmt: skip
    if hasattr(float, _name):
        setattr(Number, _name, _of_float(_name))
