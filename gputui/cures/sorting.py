"""Tensors that are sorted as a whole, and of which the first are read."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from . import ROUNDING, Redirected
from .later import Value, class_of_later, entries_of_index
from .writes import UNCOUNTED, writes_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo

LEAST_LENGTH, LEAST_NUMBERS = 256, 1 << 16
"""Of what is sorted, and of all that is sorted at a time, from which it is worth it."""
LOOKED = 2
"""Sorts of a line that are made as they are, to see what is read of them."""
_WORDS = ("dim", "descending")


class FirstAlone(Redirected):
    """Where only the first of what a line sorts are read (argsort(x)[:, :k]), topk finds these.
    What is read of the first sorts of each line is seen; where more is read of a later one, that is
    sorted then, and the line left alone."""

    name = "first_alone"
    title = "of what is sorted, and read at its beginning alone, only that is found (topk)"
    answers = ("sorting",)
    result = ROUNDING  # those that are equal may come in another order
    change = "values, indices = scores.topk(k), in place of a sort of which k are read"

    unused = "of nothing that is sorted the first are read alone"

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        """What sorts, as a function and as a method."""
        owners = (torch, torch.Tensor)
        return tuple((owner, name) for owner in owners for name in ("sort", "argsort"))

    def __init__(self, given: str = "") -> None:
        super().__init__(given)
        self._lines: dict[Any, _Line] = {}
        self._kind: Any = None
        self.found = 0
        """Sorts of which the first alone were found."""

    def prepare(self, torch: Any) -> None:
        if not self._is_prepared:
            self._torch, self.sort = torch, torch.sort
        super().prepare(torch)

    def apply(self, torch: Any) -> Undo:
        if self._kind is None:
            self._kind = class_of_later(torch, self._first)
        return super().apply(torch)

    def look(self) -> None:
        """Of how many sorts the first were found alone, or will be."""
        lines = [line for line in self._lines.values() if line.most and not line.is_whole]
        self.used = self.found + len(lines)

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        """Sorts that are long, on a GPU, and of whose order nothing more is asked."""
        torch = self._torch
        source: Any = args[0] if args else None
        words = {**dict(zip(_WORDS, args[1:])), **kwargs}  # noqa: B905
        if (
            type(source) is not torch.Tensor or len(args) > 3 or words.pop("stable", False)
            or not set(words) <= set(_WORDS) or not self.is_worth(source)
            or (source.requires_grad and torch.is_grad_enabled()) or torch.compiler.is_compiling()
        ):  # fmt: skip
            return None
        dim, descending = words.get("dim", -1), bool(words.get("descending", False))
        if type(dim) is not int or not -source.dim() <= dim < source.dim():
            return None
        if source.shape[dim] < LEAST_LENGTH or source.is_complex() or source.dtype == torch.bool:
            return None
        if source.is_cuda and torch.cuda.is_current_stream_capturing():
            return None
        frame = sys._getframe(2)
        line = self._lines.setdefault((frame.f_code, frame.f_lineno), _Line())
        if line.is_whole or self.ended:
            return None
        sort = _Sort(self, source, dim % source.dim(), descending, line)
        return lambda: self._sorted(function, sort)

    def is_worth(self, source: Any) -> bool:
        """Whether it is on a GPU, and large."""
        return bool(source.is_cuda) and source.numel() >= LEAST_NUMBERS

    def _sorted(self, function: Any, sort: _Sort) -> Any:
        torch, source = self._torch, sort.source
        if sort.line.calls < LOOKED:
            sort.make()
        elif sort.line.most:
            sort.find(sort.line.most)
            self.found += 1
        else:  # nothing was read of it
            sort.line.is_whole = True
            return function(source, dim=sort.dim, descending=sort.descending)
        sort.line.calls += 1
        made = []
        with torch.no_grad():
            for place, dtype in enumerate((source.dtype, torch.int64)):
                value = Value(torch, functools.partial(sort.whole_of, place))
                later = self._kind(source.shape, dtype, source.device, value)
                later.sort, later.place = sort, place
                made.append(later)
        if function.__name__ == "argsort":
            return made[1]
        return torch.return_types.sort(tuple(made))

    def _first(self, function: Any, args: Any, _kwargs: Any) -> Any:
        """sorted[..., :k] or sorted[..., -k:], also of one; NotImplemented of what needs more."""
        later: Any = args[0] if args else None
        if getattr(function, "__name__", "") != "__getitem__" or type(later) is not self._kind:
            return NotImplemented
        entries = entries_of_index(args[1], later.dim())
        if entries is None or later.value.tensor is not None or len(entries) != later.dim():
            return NotImplemented
        sort, entry = later.sort, entries[later.sort.dim]
        count = _count_from_start(entry)
        if not count or 2 * abs(count) > sort.source.shape[sort.dim]:
            return NotImplemented
        entries[sort.dim] = slice(None) if isinstance(entry, slice) else max(entry, 0)
        return sort.first(count)[later.place][tuple(entries)]


class _Line:
    """What is read of the sorts of one line."""

    def __init__(self) -> None:
        self.calls = self.most = 0
        """Sorts that were looked at, and how many of the first were read, those from the end as a
        negative number."""
        self.is_whole = False
        """Whether more was read."""


class _Sort:
    """One, and what was found of it. It holds what it sorts."""

    def __init__(
        self, cure: FirstAlone, source: Any, dim: int, descending: bool, line: _Line
    ) -> None:
        self.source, self.dim, self.descending, self.line = source, dim, descending, line
        self._cure = cure
        self._whole: Any = None
        self._top: list[Any] = []
        self._count = 0

    def find(self, count: int) -> None:
        """The first, or the last where that is negative, in their order."""
        is_last = count < 0
        largest = self.descending != is_last
        top = self.source.detach().topk(abs(count), dim=self.dim, largest=largest)
        self._top = [each.flip(self.dim) for each in top] if is_last else list(top)
        self._count = count
        self._writes = [writes_of(each) for each in (self.source, *self._top)]

    def make(self) -> None:
        """All of it: values and indices."""
        source = self.source.detach()
        self._whole = self._cure.sort(source, dim=self.dim, descending=self.descending)

    def first(self, count: int) -> Any:
        """Values and indices of so many from the start, or from the end where it is negative."""
        line, size = self.line, abs(count)
        if line.most * count < 0:
            line.is_whole = True  # both ends
        elif abs(line.most) < size:
            line.most = count
        if self._whole is None and (self._count * count < 0 or abs(self._count) < size):
            self.whole_of(0)
        values = self._top if self._whole is None else self._whole
        start = 0 if count > 0 else values[0].shape[self.dim] - size
        return [each.narrow(self.dim, start, size) for each in values]

    def whole_of(self, place: int) -> Any:
        """All values, or all indices."""
        self.line.is_whole = True
        if self._whole is None:
            writes = [writes_of(each) for each in (self.source, *self._top)]
            if writes != self._writes or UNCOUNTED in writes:
                self._cure.end("what is sorted may be written to before all of it is read")
            self.make()
        return self._whole[place]


def _count_from_start(entry: Any) -> int | None:
    """How many of the first an index reads, as a negative number of the last; None of others."""
    if type(entry) is int:
        return entry + 1 if entry >= 0 else entry
    if not isinstance(entry, slice) or entry.step not in (None, 1):
        return None
    if entry.start in (None, 0) and type(entry.stop) is int and entry.stop > 0:
        return entry.stop
    if entry.stop is None and type(entry.start) is int and entry.start < 0:
        return entry.start
    return None
