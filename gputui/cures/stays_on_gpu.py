"""What is copied to the GPU again and again, and may stay there: rows that are gathered from a
large tensor on the host, tensors that do not change, and what NumPy sorts."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any

from . import ANY, EXACT, ROUNDING, CannotApply, Cure, Redirected, combined, replaced
from .copies import LEAST_KEPT_BYTES, free_bytes_of_gpu
from .later import (
    MOST_COMPARED_BYTES,
    Value,
    as_given,
    class_of_later,
    differ,
    is_written,
    rows_all_over,
    writes_of,
)
from .waits import entered_below, has_compiled

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo


LEAST_TABLE_BYTES, LEAST_ROWS_BYTES = 1 << 22, 1 << 18
"""Of a tensor that is indexed, and of what is taken of it, from which it is worth a copy of all."""
LEAST_INDEX = 256
"""Numbers that are copied from the GPU only to index with."""
MOST_TABLES, MOST_WRITES = 8, 3
"""Tensors whose copies are kept, and times that one may be written to until it is not."""


class RowsOnGpu(Cure):
    """What is taken of a tensor on the host by an index, table[ids].to(device), is taken of a copy
    of it that stays on the GPU; where the index comes from the GPU, too, it stays there. What is
    used in any other way than to be copied, or to index with, is computed as it was. What numpy, or
    another process, writes to a table is not counted: rows all over it are compared at the end, and
    where one is another, the cure is not applied again."""

    name = "rows_on_gpu"
    title = "rows of a tensor on the host are gathered from a copy on the GPU"
    answers = ("busy.copy_pageable", "busy.copy_pinned", "idle.host", "idle.sync")
    result = EXACT
    change = "table = table.to(device) once, before the loop; table[ids] there"
    advice = "what is indexed at that line"

    used: int = 0
    """How often rows were copied to the GPU."""
    unused = "no rows of a large tensor on the host are copied to the GPU"
    _rows: _Rows | None = None

    def apply(self, torch: Any) -> Undo:
        tensor = torch.Tensor
        index_rows, cpu = tensor.__getitem__, tensor.cpu
        rows = self._rows = _Rows(torch, self, index_rows)

        class Seen(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
            """Sees indexing. A function in its place would make a sequence of each tensor, for C:
            torch.tensor of a list of those without dimensions would fail."""

            def __torch_function__(
                self, function: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                if function is index_rows and type(args[1]) is tensor:
                    later = rows.rows_later(*args)
                    if later is not None:
                        return later
                return function(*args, **(kwargs or {}))

        @functools.wraps(cpu)
        def copied(source: Any, *args: Any, **kwargs: Any) -> Any:
            later = None if args or kwargs else rows.index_of(source, sys._getframe(1))
            return cpu(source, *args, **kwargs) if later is None else later

        if has_compiled():  # what is compiled would be compiled again
            raise CannotApply("the program compiles what it calls")
        forget = functools.partial(setattr, self, "_rows", None)
        return combined(forget, entered_below(torch, Seen()), replaced((tensor, "cpu", copied)))

    def look(self) -> None:
        """Whether rows of a copy are not those of its table."""
        if self._rows is not None and self._rows.differ():
            self.end("the table is written to, and not by torch")

    def is_far(self, place: Any) -> bool:
        """Whether what goes to a place, or lies there, is on a GPU."""
        return str(getattr(place, "device", place)).startswith("cuda") or type(place) is int


class _Rows:
    """What was taken of tensors and not computed yet."""

    def __init__(self, torch: Any, cure: RowsOnGpu, index_rows: Any) -> None:
        self._torch, self._cure, self._index_rows = torch, cure, index_rows
        self._later = class_of_later(torch, cure, self._go_far)
        self._moves = (torch.Tensor.to, torch.Tensor.cuda)
        self._tables: dict[int, list[Any]] = {}
        """Tensors, how often they were written to when they were copied, their copies, and how
        often that was."""
        self._device: Any = None
        """Where rows were copied to last."""
        self._indexes: dict[Any, Any] = {}
        """By line what was copied from the GPU there last; None where that is no index alone."""

    def rows_later(self, table: Any, index: Any) -> Any:
        """Rows that are computed later; None where they are computed now."""
        torch = self._torch
        if (
            type(table) is not torch.Tensor or self._cure.is_far(table) or table.requires_grad
            or self._cure.ended
            or table.numel() * table.element_size() < LEAST_TABLE_BYTES or table.is_inference()
            or index.dtype not in (torch.int64, torch.int32) or index.requires_grad
            or torch.compiler.is_compiling()
        ):  # fmt: skip
            return None
        row_bytes = table.element_size() * (table.numel() // max(1, table.shape[0]))
        if index.numel() * row_bytes < LEAST_ROWS_BYTES or not self._may_stay(table):
            return None
        is_later = type(index) is self._later
        if not is_later:
            index = index.clone()  # the program may write to it
        # The program may write to the table, too: its copy is as it was then.
        copy, given = None if self._device is None else self._copy(table), as_given(table)

        def now() -> Any:
            if copy is not None and is_written(given):
                return far_rows().cpu()
            value.check()
            return self._index_rows(table, index.value.now() if is_later else index)

        def far_rows() -> Any:
            rows = self._copy(table) if copy is None else copy
            place = index.far(rows.device) if is_later else index.to(rows.device)
            return self._index_rows(rows, place)

        def far(device: Any) -> Any:
            self._cure.used += 1
            self._device = device
            if copy is None:
                value.check()
            return far_rows().to(device)

        value = Value(torch, self._cure, now, None if copy is not None else given)
        return self._made(index.shape + table.shape[1:], table.dtype, value, far)

    def _made(self, shape: Any, dtype: Any, value: Value, far: Any) -> Any:
        made = self._later(shape, dtype, "cpu", value)
        made.far, made.is_index = far, False
        return made

    def index_of(self, source: Any, frame: Any) -> Any:
        """An index that is copied from the GPU when anything else is asked of it; None where it is
        copied now."""
        torch = self._torch
        if (
            type(source) is not torch.Tensor or not self._cure.is_far(source)
            or source.dtype is not torch.int64 or source.numel() < LEAST_INDEX
            or torch.compiler.is_compiling()
        ):  # fmt: skip
            return None
        line = frame.f_code, frame.f_lasti
        before = self._indexes.get(line, ())
        if before is None or (before != () and not before.is_index):
            self._indexes[line] = None
            return None
        kept = source.detach().clone()  # the program may write to it
        value = Value(torch, self._cure, lambda: kept.to("cpu"))
        later = self._made(source.shape, source.dtype, value, kept.to)
        self._indexes[line] = later
        return later

    def _go_far(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Rows, or an index, where they are copied to; NotImplemented where values are needed."""
        kind = self._later
        first: Any = args[0] if args else None
        if type(first) is kind and first.value.tensor is None and function in self._moves:
            words = kwargs if function is not self._torch.Tensor.cuda else {"device": "cuda"}
            device = self._place(args[1:], words)
            if device is not None:
                return function(first.far(device), *args[1:], **kwargs)
        is_taken = getattr(function, "__name__", "") == "__getitem__"
        if is_taken and len(args) == 2 and type(args[1]) is kind:
            args[1].is_index = True
            later = self.rows_later(first, args[1]) if type(first) is self._torch.Tensor else None
            return NotImplemented if later is None else later
        return NotImplemented

    def _place(self, args: Any, kwargs: Any) -> Any:
        """The GPU that a call of .to() or .cuda() names; None where it names none."""
        for place in (kwargs.get("device"), *args):
            if place is not None and not isinstance(place, (bool, self._torch.dtype)):
                return place if self._cure.is_far(place) else None
        return None

    def differ(self) -> bool:
        """Whether rows of a copy are not those of its table, which nobody counts as written to."""
        return any(
            table._version == writes and differ(rows_all_over(table), rows_all_over(copy))
            for table, writes, copy, _ in self._tables.values()
        )

    def _may_stay(self, table: Any) -> bool:
        kept = self._tables.get(id(table))
        if kept is None:
            return len(self._tables) < MOST_TABLES and self._has_room(table)
        return bool(kept[3] <= MOST_WRITES)

    def _has_room(self, table: Any) -> bool:
        return bool(2 * table.numel() * table.element_size() < free_bytes_of_gpu(self._torch))

    def _copy(self, table: Any) -> Any:
        """Of all of it as it is now, where rows were copied to."""
        kept = self._tables.get(id(table))
        if kept is None or kept[1] != table._version:
            count = kept[3] + 1 if kept is not None else 1
            kept = self._tables[id(table)] = [
                table,
                table._version,
                table.to(self._device, copy=True),
                count,
            ]
        return kept[2]


# Tensors that are copied again and again, unchanged.


class CopiesKept(Cure):
    """A tensor, or the same slice of one, that is copied to the GPU again (.to(), .cuda()) and was
    not written to since is what was copied last. While it is off each is compared with what is
    kept, on the GPU, and rows all over it at the end of each block, because numpy, another process,
    and tensors of inference mode do not count what they write: where one was written to, the cure
    ends."""

    name = "copies_kept"
    title = "tensors that are copied to the GPU again stay there"
    answers = ("busy.copy_pageable", "busy.copy_pinned", "slow_link")
    result = EXACT
    change = "x = x.to(device) once, before the loop"
    advice = "keep on the GPU what"

    _is_on = _is_prepared = False
    _differs: Any = None

    def apply(self, torch: Any) -> Undo:
        if not self._is_prepared:
            self._is_prepared = True
            self._seen: dict[Any, tuple[Any, Any]] = {}
            self._kept: dict[Any, _Copy] = {}
            tensor = torch.Tensor
            replaced(*((tensor, name, self._moving(torch, name)) for name in ("to", "cuda")))
        self._is_on = True
        self._compared: set[Any] = set()
        return functools.partial(setattr, self, "_is_on", False)

    def _moving(self, torch: Any, name: str) -> Any:
        move = getattr(torch.Tensor, name)

        @functools.wraps(move)
        def moved(source: Any, *args: Any, **kwargs: Any) -> Any:
            is_plain = type(source) in (torch.Tensor, torch.nn.Parameter)
            if (
                not is_plain or source.is_cuda or (source.requires_grad and torch.is_grad_enabled())
                or source.numel() * source.element_size() < LEAST_KEPT_BYTES or self.ended
            ):  # fmt: skip
                return move(source, *args, **kwargs)
            owner = _owner_of(source)
            place = source.data_ptr(), source.shape, source.stride(), source.dtype
            key = id(owner), place, name, args, tuple(sorted(kwargs.items()))
            try:
                before, at_all = self._seen.get(key), writes_of(source)
            except TypeError:  # of words that are no key
                return move(source, *args, **kwargs)
            kept = self._kept.get(key)
            is_kept = kept is not None and kept.owner is owner and kept.is_as_it_was()
            if kept is not None and kept.is_shared_and_written():
                self.end(WRITTEN)
            elif kept is not None and is_kept and self._is_on:
                kept.times += 1
                return kept.made
            new = move(source, *args, **kwargs)
            if kept is not None and is_kept and key not in self._compared:
                self._compared.add(key)
                self._compare(torch, kept.made, new)
            elif self._is_on and before is not None and before[0]() is owner:
                if before[1] == at_all and self.is_far(new) and self._has_room(torch, new):
                    if len(self._kept) >= MOST_KEPT:
                        del self._kept[next(iter(self._kept))]
                    self._kept[key] = _Copy(
                        owner, source, new, lambda rows: move(rows, *args, **kwargs)
                    )
            if len(self._seen) >= MOST_SEEN:
                self._seen.clear()
            self._seen[key] = weakref.ref(owner), at_all
            return new

        return moved

    def look(self) -> None:
        """Whether what is kept is what would be copied: of some of it, each time of others."""
        left_bytes, is_other = MOST_COMPARED_BYTES, False
        for key in list(self._kept):
            kept = self._kept.pop(key)
            self._kept[key] = kept  # the last to be looked at again
            is_other = is_other or kept.is_shared_and_written() or kept.differs()
            left_bytes -= kept.made.nbytes
            if left_bytes < 0:
                break
        if is_other or (self._differs is not None and bool(self._differs)):
            self.end(WRITTEN)

    def _compare(self, torch: Any, kept: Any, new: Any) -> None:
        """Whether both have the same bits is known once the block is over: nothing waits."""
        bits = [each.detach().contiguous().view(torch.uint8) for each in (kept, new)]
        differs = (bits[0] != bits[1]).any()
        self._differs = differs if self._differs is None else self._differs | differs

    def is_far(self, made: Any) -> bool:
        """Whether it is on a GPU."""
        return bool(made.is_cuda)

    def _has_room(self, torch: Any, made: Any) -> bool:
        """Whether as much again, which is compared with it, and as much for that are free."""
        free_bytes = free_bytes_of_gpu(torch, made.device if made.is_cuda else None)
        return bool(4 * made.numel() * made.element_size() < free_bytes)


def _owner_of(source: Any) -> Any:
    """What lives as long as the memory that a tensor shows: slices are made anew for each copy. A
    view counts what is written to its base, by whichever view; `x.data`, which has a count of its
    own and no base, is a tensor of its own. In inference mode views have no base, and nothing is
    counted: their storage is what is left."""
    if source.is_inference():
        return source.untyped_storage()
    return source if source._base is None else source._base


class _Copy:
    """A tensor, and what it was copied to."""

    def __init__(self, owner: Any, source: Any, made: Any, move: Any) -> None:
        self.owner, self.source, self.made, self._move = owner, source, made, move
        self._writes = writes_of(source), writes_of(made)
        self.times = 1
        """Times that the program was given the copy."""

    def is_as_it_was(self) -> bool:
        """Whether neither was written to, as far as that is counted."""
        return (writes_of(self.source), writes_of(self.made)) == self._writes

    def is_shared_and_written(self) -> bool:
        """Whether the program has written to what it was given in another place, too."""
        return self.times > 1 and writes_of(self.made) != self._writes[1]

    def differs(self) -> bool:
        """Whether rows would be copied to something else by now."""
        rows = rows_all_over(self.source)
        return self.is_as_it_was() and differ(self._move(rows), rows_all_over(self.made))


WRITTEN = "what is copied again was written to between"
MOST_SEEN, MOST_KEPT = 10_000, 1024
"""Copies of different tensors that are remembered, and that are kept."""


LEAST_VALUES = 1 << 16
"""Of an array that is sorted, from which the way to the GPU and back is worth it."""


class SortsOnGpu(Redirected):
    """Large arrays of NumPy that a program sorts, or of which it asks the order, are sorted on the
    GPU that it uses. Values that are equal may come in another order, as they may in NumPy."""

    name = "sorts_on_gpu"
    title = "large arrays of NumPy are sorted on the GPU"
    answers = (ANY, "idle.host")
    result = ROUNDING
    is_certain = True
    change = "scores.topk(k) on the GPU, before they are copied, in place of numpy.argsort"
    library = "numpy"
    forecast = None

    def places(self, numpy: Any) -> tuple[tuple[Any, str], ...]:
        self._numpy = numpy
        return (numpy, "argsort"), (numpy, "argpartition"), (numpy, "sort")

    def device(self) -> str:
        """Where it sorts; empty where the program uses no GPU of torch."""
        torch = sys.modules.get("torch")
        is_used = torch is not None and torch.cuda.is_initialized()
        return "cuda" if is_used else ""

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        """Plain arrays of numbers, along one axis."""
        array: Any = args[0] if args else None
        name = function.__name__
        names = ("a", "kth", "axis", "kind") if name == "argpartition" else ("a", "axis", "kind")
        words: dict[str, Any] = {**dict(zip(names, args)), **kwargs}  # noqa: B905
        axis, kind = words.get("axis", -1), words.get("kind")
        if (
            type(array) is not self._numpy.ndarray or array.size < LEAST_VALUES
            or array.dtype.name not in ("float32", "float64", "int32", "int64")
            or type(axis) is not int or not set(words) <= {*names, "stable"} or not self.device()
        ):  # fmt: skip
            return None
        is_stable = kind in ("stable", "mergesort") or bool(words.get("stable"))

        def sorted_there() -> Any:
            torch: Any = sys.modules["torch"]
            try:
                with torch.inference_mode(False), torch.no_grad():
                    there = torch.as_tensor(array, device=self.device())
                    values, order = there.sort(dim=axis, stable=is_stable)
                    return (values if name == "sort" else order).cpu().numpy()
            except Exception:  # there is no room, or it is no array that torch takes
                return function(*args, **kwargs)

        return sorted_there
