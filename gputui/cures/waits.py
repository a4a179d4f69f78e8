"""What the CPU reads back from the GPU: single values together, and of whole tensors only the parts
or sums that are used."""

from __future__ import annotations

import functools
import operator
import sys
import weakref
from typing import TYPE_CHECKING, Any

from . import EXACT, PLAIN, ROUNDING, Cure, combined, replaced
from .copies import LEAST_BYTES, free_bytes_of_gpu
from .later import Number, Value, class_of_later, let_numbers_be_taken, writes_to_first

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo


class ItemsTogether(Cure):
    """Values of one tensor that are read one by one (.item(), float(), in a loop over it) are
    copied from the GPU at once, and again after it was written to. What writes to it without torch
    is not seen: copies are compared with what is there now and then, and at the end of blocks."""

    name = "items_together"
    title = "values of a tensor that are read one by one are copied at once"
    answers = ("idle.sync", "busy.copy_pageable")
    result = EXACT
    change = "values = tensor.tolist()  # once, before the loop over them"
    advice = r"\.tolist\(\)|\.item\(\)"

    _returned = 0
    """Values that were not read by themselves."""
    _copies: Callable[[], list[tuple[Any, list[Any]]]] = staticmethod(list)

    def apply(self, torch: Any) -> Undo:
        replay = torch.cuda.CUDAGraph.replay
        elements, undos = _Elements(torch, self), []
        if not has_compiled():  # what is compiled would be compiled again
            undos.append(elements.read_together())
        # Tensors, how often they were written to, and their values.
        copied: list[tuple[Any, int, list[Any]]] = []
        self._copies = lambda: [
            *((base, values) for base, version, values in copied if base._version == version),
            *elements.copies(),
        ]

        def together(convert: Any, kind: Any) -> Any:
            @functools.wraps(convert)
            def converted(value: Any) -> Any:
                base = value._base
                if base is None or value.numel() != 1 or value.dtype is not base.dtype:
                    return convert(value)
                if self.ended:
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
                made = made if kind is None else kind(made)
                return self.checked(made, functools.partial(convert, value))

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

    def checked(self, value: Any, read: Callable[[], Any]) -> Any:
        """A value of a copy; now and then what is there now, which has to be the same."""
        self._returned += 1
        if self._returned < LEAST_CHECKED or self._returned & (self._returned - 1):
            return value
        now = read()
        if repr(now) != repr(value):  # one NaN is another
            self.end(STALE)
        return now

    def look(self) -> None:
        """Whether copies have the values that are there."""
        for base, values in self._copies():
            if repr(base.detach().flatten().tolist()) != repr(values):
                self.end(STALE)

    def is_copied(self, base: Any) -> bool:
        """Whether values of a tensor are read from a copy of all."""
        if not self.is_far(base) or base.is_inference() or base.is_complex():
            return False
        return bool(1 < base.numel() <= MOST_TOGETHER and base.is_contiguous())

    def is_far(self, base: Any) -> bool:
        """Whether reading it waits for a GPU."""
        return bool(base.is_cuda)


class _Read:
    """A tensor whose elements are read one by one."""

    def __init__(self, base: Any, shape: tuple[int, ...], is_small: bool, is_float: bool) -> None:
        self.base, self.shape, self.is_small, self.is_float = base, shape, is_small, is_float
        self.values: list[Any] | None = None
        """All of a small one, in the order of its dimensions;"""
        self.gather: _Gather | None = None
        """of another those that were asked for."""

    def place(self, coordinates: tuple[int, ...]) -> int:
        place = 0
        for size, coordinate in zip(self.shape, coordinates):  # noqa: B905
            place = place * size + coordinate
        return place


class _Gather:
    """Elements of a large tensor of floats, which are taken at once when one is used, or before the
    program calls anything else of torch."""

    def __init__(self, elements: _Elements, base: Any) -> None:
        self._elements, self._base = elements, base
        self._coordinates: list[tuple[int, ...]] = []
        self._made: Any = None
        self._values: list[float] | None = None

    def add(self, coordinates: tuple[int, ...]) -> int:
        """Its place among those that are taken."""
        self._coordinates.append(coordinates)
        return len(self._coordinates) - 1

    @property
    def is_open(self) -> bool:
        return self._base is not None

    def close(self) -> None:
        """Take them as they are now; nothing waits for it."""
        if self._base is not None:
            self._made = self._elements.gathered(self._base, self._coordinates)
            self._base = None

    def value(self, place: int) -> float:
        """Of the element that was asked for at this place."""
        if self._values is None:
            self.close()
            self._values = self._elements.list_of(self._made)
            self._made = None
        return self._values[place]


class _Elements:
    """Single values of tensors without gradients: of a small one all are copied at once, of a large
    one those that were asked for, and again after the program has called anything else of torch.
    Tensors of inference mode do not count how often they are written to."""

    def __init__(self, torch: Any, cure: ItemsTogether) -> None:
        self._torch, self._cure = torch, cure
        self._index = torch.Tensor.__getitem__
        self._read: dict[int, _Read] = {}
        self._kind, self._comparison = _kinds(torch)
        self._constants: dict[Any, Any] = {}
        """What is so, and what is not, by device."""

    def forget(self) -> None:
        """Something may be written now."""
        for read in self._read.values():
            if read.gather is not None:
                read.gather.close()
        self._read.clear()

    def copies(self) -> list[tuple[Any, list[Any]]]:
        """Tensors that were copied as a whole, and their values."""
        return [(each.base, each.values) for each in self._read.values() if each.values is not None]

    def read_together(self) -> Undo:
        """Has what is taken by numbers be read so."""
        torch, index, forget = self._torch, self._index, self.forget
        iterate, mode = torch.Tensor.__iter__, torch.overrides.TorchFunctionMode
        let_numbers_be_taken(torch)

        class Seen(mode):  # type: ignore[misc,valid-type]
            """Of calls of torch while it is entered."""

            def __torch_function__(
                _mode, function: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                # Not by a function in its place, which would make a sequence of each tensor, for C:
                # torch.tensor of a list of those without dimensions would fail.
                element = self._element(*args) if function is index else None
                if element is not None:
                    return element
                forget()
                words = kwargs or {}
                for each in (*args[:1], words.get("out")):
                    if type(each) is comparison and (
                        "out" in words or writes_to_first(getattr(function, "__name__", ""))
                    ):
                        each.take_memory()
                return function(*args, **words)

        comparison = self._comparison

        @functools.wraps(iterate)
        def iterated(base: Any) -> Any:
            read = self._read_of(base)
            if read is None or len(read.shape) != 1:
                return iterate(base)
            return (self._made(base, (place,)) for place in range(read.shape[0]))

        undo = replaced((torch.Tensor, "__iter__", iterated))
        return combined(forget, entered_below(torch, Seen()), undo)

    def _made(self, base: Any, place: tuple[int, ...]) -> Any:
        with self._torch._C.DisableTorchFunction():
            element = self._index(base, place).as_subclass(self._kind)
        element.elements, element.whole, element.place = self, base, place
        return element

    def comparison(self, element: Any, is_so: bool) -> Any:
        """What a comparison with an element gave."""
        with self._torch._C.DisableTorchFunction(), self._torch.inference_mode(False):
            key = element.device, is_so
            if key not in self._constants:
                self._constants[key] = self._torch.tensor(is_so, device=element.device)
            made = self._constants[key].as_subclass(self._comparison)
        made.is_so = is_so
        return made

    def _element(self, base: Any, index: Any) -> Any:
        """An element that is taken by whole numbers; None where that is something else."""
        entries = index if type(index) is tuple else (index,)
        if not all(type(each) is int or type(each) is self._kind for each in entries):
            return None
        read = self._read_of(base)
        if read is None or len(read.shape) != len(entries):
            return None
        coordinates = []
        for entry, size in zip(entries, read.shape):  # noqa: B905
            number = entry if type(entry) is int else entry.item()
            number = number + size if type(number) is int and number < 0 else number
            if type(number) is not int or not 0 <= number < size:
                return None
            coordinates.append(number)
        return self._made(base, tuple(coordinates))

    def _read_of(self, base: Any) -> _Read | None:
        """A tensor that is read so; None of others."""
        torch, read = self._torch, self._read.get(id(base))
        if read is not None or type(base) is not torch.Tensor:
            return read
        with torch._C.DisableTorchFunction():
            count = base.numel()
            if (
                base.requires_grad or not base.dim() or count < 2 or base.is_complex()
                or not self._cure.is_far(base) or base.layout is not torch.strided
                or torch.compiler.is_compiling() or self._cure.ended
            ):  # fmt: skip
                return None
            read = _Read(base, tuple(base.shape), count <= MOST_TOGETHER, base.is_floating_point())
        if len(self._read) >= BESIDE:
            self.forget()
        self._read[id(base)] = read
        return read

    def value(self, base: Any, coordinates: tuple[int, ...]) -> Any:
        """What is there now; of a large tensor of floats a number that is read later."""
        read = self._read_of(base)
        if read is None or not (read.is_small or read.is_float):
            with self._torch._C.DisableTorchFunction():
                return self._index(base, coordinates).item()
        if not read.is_small:
            if read.gather is None or not read.gather.is_open:
                read.gather = _Gather(self, base)
            return Number(functools.partial(read.gather.value, read.gather.add(coordinates)), 0)
        if read.values is None:
            with self._torch._C.DisableTorchFunction():
                read.values = self.list_of(base.flatten())
        return self._cure.checked(
            read.values[read.place(coordinates)],
            lambda: self.list_of(self.tensor(base, coordinates)),
        )

    def gathered(self, base: Any, coordinates: list[tuple[int, ...]]) -> Any:
        """These elements, where they are."""
        torch = self._torch
        with torch._C.DisableTorchFunction(), torch.no_grad():
            places = torch.as_tensor(coordinates, device=base.device).unbind(1)
            return self._index(base, places)

    def list_of(self, made: Any) -> list[Any]:
        with self._torch._C.DisableTorchFunction():
            values: list[Any] = made.tolist()
        return values

    def tensor(self, base: Any, coordinates: tuple[int, ...]) -> Any:
        """The element as torch has it. What is indexed while `Seen` is entered comes here again."""
        with self._torch._C.DisableTorchFunction():
            return self._index(base, coordinates)


def has_compiled() -> bool:
    """Whether torch.compile has compiled something: its module alone is there of itself."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["frames"]["total"])


def entered_below(torch: Any, mode: Any) -> Undo:
    """Enters a mode below those that the program is in; returns what leaves it. A program leaves
    its own at any time between both, which takes away the last one: a device that it had left
    would have stayed. That of set_default_device has to be the first."""
    overrides = torch.overrides
    default = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)

    def leave() -> list[Any]:
        count = torch._C._len_torch_function_stack()
        return [overrides._pop_mode() for _ in range(count)][::-1]

    def enter(modes: list[Any]) -> None:
        for each in modes:
            overrides._push_mode(each)

    modes = leave()
    first = int(bool(modes) and modes[0] is default)
    enter([*modes[:first], mode, *modes[first:]])
    return lambda: enter([each for each in leave() if each is not mode])


@functools.lru_cache(maxsize=1)
def _kinds(torch: Any) -> tuple[Any, Any]:
    """Classes of tensors: of an element, and of what a comparison with one gave."""

    class Element(torch.Tensor):  # type: ignore[misc]
        """An element of a tensor, as torch has it: a part of its memory. Its value is read together
        with others."""

        # What is computed of it is a plain tensor.
        __torch_function__ = torch._C._disabled_torch_function_impl
        elements: _Elements
        whole: Any
        place: tuple[int, ...]

        def item(self) -> Any:
            return self.elements.value(self.whole, self.place)

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

        def __hash__(self) -> int:
            return id(self)

        def __format__(self, spec: str) -> str:
            return format(self.plain(), spec)

        def __repr__(self) -> str:
            return repr(self.plain())

        def __reduce_ex__(self, protocol: Any) -> Any:
            return self.plain().__reduce_ex__(protocol)

        def __deepcopy__(self, memory: Any) -> Any:
            return self.plain().__deepcopy__(memory)

        def plain(self) -> Any:
            """It as a tensor of no class of its own."""
            with torch._C.DisableTorchFunction():
                return self.as_subclass(torch.Tensor)

    class Comparison(Element):
        """What a comparison of two whole numbers gave: most are asked at once whether they are
        so. Its memory is that of all that are alike, until it is written to."""

        is_so: bool | None

        def item(self) -> Any:
            return self.plain().item() if self.is_so is None else self.is_so

        def take_memory(self) -> None:
            """Have memory of its own."""
            self.is_so = None
            with torch._C.DisableTorchFunction(), torch.inference_mode(False):
                self.set_(self.clone())

    def compared(name: str) -> Any:
        plain, compare = getattr(torch.Tensor, name), getattr(operator, name)

        def called(self: Any, other: Any) -> Any:
            value = other.item() if type(other) is Element else other
            if (
                type(self) is Element
                and type(value) in _WHOLE
                and type(own := self.item()) in _WHOLE
            ):
                return self.elements.comparison(self, compare(own, value))
            return plain(self, other)

        return called

    for name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
        setattr(Element, name, compared(name))
    return Element, Comparison


_WHOLE = (int, bool)
_CONVERTED = (
    ("item", None), ("__float__", float), ("__int__", int), ("__bool__", bool),
)  # fmt: skip
BESIDE = 4
"""Tensors that are gone through side by side, as by zip()."""
MOST_TOGETHER = 1 << 14
"""Values of a tensor, which are copied in about the time of 20 alone."""
LEAST_CHECKED = 1024
"""Values after which each power of two is read by itself, too."""
STALE = "values that are read one by one are written to by what is not torch"


# What is copied as a whole, and of which the program takes a part, or a sum, on the CPU.

_ON_GPU = (
    "__getitem__", "select", "narrow", "squeeze", "unsqueeze", "argmax", "argmin", "max",
    "min", "amax", "amin", "mean", "sum", "any", "all", "topk", "norm", "float", "half",
    "bfloat16", "double", "long", "int", "softmax", "log_softmax", "sigmoid", "normalize",
    "view", "reshape", "flatten", "transpose", "permute", "detach", "exp", "log", "mul",
    "__mul__", "__rmul__", "div", "__truediv__", "add", "__add__", "__radd__", "sub",
    "__sub__", "eq", "__eq__", "ne", "__ne__", "gt", "__gt__", "ge", "__ge__", "lt", "__lt__",
    "le", "__le__", "gather", "take_along_dim", "index_select", "masked_fill", "where", "clamp",
    "cumsum", "sort", "argsort", "std", "var", "prod", "logsumexp", "cross_entropy", "nll_loss",
    "minimum", "maximum", "abs", "neg", "__neg__", "pow", "__pow__", "sqrt", "rsqrt", "square",
    "log1p", "log2", "round", "floor", "isnan", "isfinite", "logical_and", "logical_or",
    "logical_not", "__and__", "__or__", "__invert__", "bincount", "unique", "clone", "contiguous",
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
        self._kind = class_of_later(torch, cure, self._on_gpu)
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
        held_bytes = sum(each.bytes for each in self._held if each.held)
        if held_bytes + source.numel() * source.element_size() > self._room:
            return None
        return self._made(source.detach().clone())  # the program may write to it

    def _made(self, source: Any, family: Any = None) -> Any:
        held = [source]

        def copied() -> Any:
            return self.copy(held.pop())  # the GPU's memory is free after it

        with self._torch.no_grad():
            value = Value(self._torch, self._cure, copied)
            made = self._kind(source.shape, source.dtype, "cpu", value)
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
        own = [str(source.device)]
        if not source.is_cuda or source.device.index == self._torch.cuda.current_device():
            own.append(source.device.type)
        if len(places) != 1 or str(places[0]) not in own or not self._cure.is_far(source):
            return NotImplemented
        self._cure.used += 1
        with self._torch.no_grad():
            return source.clone()

    def _counted(self, made: Any, later: Any) -> Any:
        source = later.held[0]
        sizes = [each.numel() * each.element_size() for each in (made, source)]
        self._cure.used += 2 * sizes[0] <= sizes[1]
        places = [each.untyped_storage().data_ptr() for each in (made, source)]
        # What is written to a part is in the others; what is computed of one is of itself.
        return self._made(made, later.family if places[0] == places[1] else None)

    def _there(self, value: Any, later: Any) -> Any:
        """An argument for a tensor on the GPU; NotImplemented of one that is not for it."""
        torch = self._torch
        if type(value) is self._kind and value.held:
            is_there = value.held[0].device == later.held[0].device
            return value.held[0] if is_there else NotImplemented
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
