"""What is computed and not read: logits of positions, all but the first of what is sorted."""

from __future__ import annotations

import functools
import sys
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from . import ANY, ROUNDING, CannotApply, Cure, Redirected, instances, replaced
from .later import (
    UNCOUNTED,
    Given,
    Value,
    as_given,
    class_of_later,
    counting_fused_steps,
    entries_of_index,
    in_modes_of_now,
    writes_of,
    writes_to_first,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo

LEAST_WORDS = 4096
"""Rows of a linear layer that is a vocabulary's head."""
LEAST_POSITIONS = 8
IGNORED = -100
"""The target that cross_entropy ignores unless ignore_index names another."""
LOGITS_WRITTEN = "logits are written to, and read elsewhere after that"
LAST_TARGETS, LEAST_IGNORED = 4, 0.3
"""Targets that are looked at, and the part of them from which it is worth to leave them out."""


class LogitsAsked(Cure):
    """Logits are computed when something is asked of them: where that is the last position, or
    some, only these; where it is a loss that ignores positions, without them. What a program does
    with each of them on the way (a type, a temperature, a softmax) is done then, too."""

    name = "logits_asked"
    title = "a head over a vocabulary computes the positions that are read of it"
    answers = (ANY, "busy.elementwise_chain", "slow_kernels")
    result = ROUNDING
    is_certain = True
    change = "model(..., logits_to_keep=1), or the head of the positions that are used alone"
    forecast = None

    used: int = 0
    """How often some were asked for, of many."""
    unused = "all logits are read, or gradients asked of them"
    _has_head: bool | None = None
    _counting: Undo | None = None
    ignores_some = False
    """Whether a loss ignores positions."""

    def prepare(self, torch: Any) -> None:
        functional = torch.nn.functional
        real = functional.cross_entropy
        self._targets: deque[tuple[Any, int]] = deque(maxlen=LAST_TARGETS)

        @functools.wraps(real)
        def noted(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling() and self._has_head is None:
                target = kwargs.get("target", args[1] if len(args) > 1 else None)
                if isinstance(target, torch.Tensor):
                    self._targets.append((target, kwargs.get("ignore_index", IGNORED)))
            return real(*args, **kwargs)

        replaced((functional, "cross_entropy", noted))

    def apply(self, torch: Any) -> Undo:
        if self._has_head is None:
            layers = instances(torch.nn.Linear)
            self._has_head = layers is None or any(_is_head(each.weight) for each in layers)
            if self._has_head:
                self.ignores_some = self._share_ignored() >= LEAST_IGNORED
            self._targets.clear()
        if not self._has_head:
            raise CannotApply("no linear layer has a vocabulary's rows")
        if not self.ignores_some and instances(torch.optim.Optimizer):
            raise CannotApply("the program trains, and its loss ignores no positions")
        # Some logits are read long after it was switched off: what counts writes stays.
        self._counting = self._counting or counting_fused_steps()
        return replaced((torch.nn.functional, "linear", _Heads(torch, self).linear))

    def _share_ignored(self) -> float:
        """Of the positions that losses were computed of last."""
        targets = [each for each in self._targets if each[0].dtype.is_floating_point is False]
        counts = [int((target == ignored).sum()) for target, ignored in targets]
        return float(sum(counts) / max(1, sum(target.numel() for target, _ in targets)))

    def is_worth(self, hidden: Any, weight: Any) -> bool:
        """Whether it is a head of many positions, on a GPU."""
        return bool(hidden.is_cuda and _is_head(weight) and hidden.shape[1] >= LEAST_POSITIONS)


def _is_head(weight: Any) -> bool:
    return len(weight.shape) == 2 and weight.shape[0] >= LEAST_WORDS


class _Heads:
    """Linear layers whose logits are computed when they are asked for."""

    def __init__(self, torch: Any, cure: LogitsAsked) -> None:
        self._torch, self._cure = torch, cure
        self._later = class_of_later(torch, cure, self._go_on)
        linear = torch.nn.functional.linear

        @functools.wraps(linear)
        def called(input: Any, weight: Any, bias: Any = None) -> Any:
            hidden = input
            is_of_loss = torch.is_grad_enabled()
            if (
                type(hidden) is not torch.Tensor or hidden.dim() != 3 or cure.ended
                or (is_of_loss and not cure.ignores_some) or torch.compiler.is_compiling()
                or not cure.is_worth(hidden, weight)
            ):  # fmt: skip
                return linear(hidden, weight, bias)
            product = in_modes_of_now(torch, lambda rows: linear(rows, weight, bias))
            has_graph = hidden.requires_grad or weight.requires_grad
            with torch.no_grad():
                like = linear(hidden[:0], weight, bias)
            given = as_given(weight, *([] if bias is None else [bias]))
            # The program may write to its hidden states: a copy costs nothing beside a head.
            return self._made(hidden.clone(), (product,), like, has_graph and is_of_loss, given)

        self.linear = called

    def _made(
        self, hidden: Any, steps: tuple[Callable[[Any], Any], ...], like: Any, has_graph: bool,
        given: Given, same: _Same | None = None,
    ) -> Any:  # fmt: skip
        """Logits of hidden states by these steps, of a type and a width like those, and by what the
        head was given; of the memory of these, where torch would make a view."""
        same = same or _Same()

        def compute(rows: Any) -> Any:
            if same.is_written():
                self._cure.end(LOGITS_WRITTEN)
            value.check()
            for step in steps:
                rows = step(rows)
            return rows

        shape = (*hidden.shape[:-1], like.shape[-1])
        value = Value(self._torch, self._cure, lambda: compute(hidden), given)
        made = self._later(shape, like.dtype, hidden.device, value, has_graph)
        made.hidden, made.steps, made.like, made.compute = hidden, steps, like, compute
        made.has_graph, made.given, made.same = has_graph, given, same
        same.laters.add(made)
        return made

    def _go_on(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Of what is done with each position, later; of what is taken of some, these."""
        later: Any = args[0] if args else None
        others = args[1:]
        name = getattr(function, "__name__", "")
        is_written = type(later) is self._later and writes_to_first(name)
        if is_written and len(later.same.laters) + len(later.same.computed) > 1:
            self._cure.end(LOGITS_WRITTEN)
        if type(later) is not self._later or later.value.tensor is not None:
            return NotImplemented
        if later.has_graph and not self._torch.is_grad_enabled():
            return NotImplemented
        if name == "__getitem__" and len(others) == 1:
            return self._indexed(later, others[0])
        if name == "select" and len(others) == 2 and not kwargs and others[0] in (1, -2):
            return self._indexed(later, (slice(None), others[1]))
        if name in ("view", "reshape") and not kwargs:
            shape = others[0] if len(others) == 1 else others
            if tuple(shape) != (-1, later.shape[-1]):
                return NotImplemented
            rows = later.hidden.reshape(-1, later.hidden.shape[-1])
            return self._made(
                rows, later.steps, later.like, later.has_graph, later.given, later.same
            )
        if name == "cross_entropy":
            return self._loss(function, later, *others, **kwargs)
        if name in _SOFT:
            names = ("dim", "_stacklevel" if len(others) > 2 else "dtype", "dtype")
            words = {**{names[place]: each for place, each in enumerate(others)}, **kwargs}
            if words.get("dim") not in (-1, later.dim() - 1):
                return NotImplemented
            real, dtype = getattr(self._torch, name), words.get("dtype")
            step = in_modes_of_now(self._torch, lambda rows: real(rows, -1, dtype=dtype))
        elif name in _OF_EACH and all(map(self._is_plain, (*others, *kwargs.values()))):
            step = in_modes_of_now(self._torch, lambda rows: function(rows, *others, **kwargs))
        else:
            return NotImplemented
        with self._torch.no_grad():
            like = step(later.like)
        if not hasattr(like, "dtype"):  # the name of its type
            return NotImplemented
        same = later.same if name in _OF_THE_SAME and like.dtype is later.like.dtype else None
        steps = *later.steps, step
        return self._made(later.hidden, steps, like, later.has_graph, later.given, same)

    def _loss(
        self, function: Any, later: Any, target: Any, weight: Any = None, *args: Any,
        ignore_index: int = IGNORED, reduction: str = "mean", **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Of the positions that count."""
        if weight is not None or args or reduction not in ("mean", "sum") or later.dim() != 2:
            return NotImplemented
        if target.dim() != 1 or target.is_floating_point():
            return NotImplemented
        counting = (target != ignore_index).nonzero()[:, 0]
        if 2 * len(counting) <= len(target):
            self._cure.used += 1
        logits = later.compute(later.hidden.index_select(0, counting))
        kwargs.update(ignore_index=ignore_index, reduction=reduction)
        return function(logits, target[counting], **kwargs)

    def _is_plain(self, value: Any) -> bool:
        return isinstance(value, (int, float, self._torch.dtype))

    def _indexed(self, later: Any, index: Any) -> Any:
        """later[index]; NotImplemented where that is nearly all, or of words alone."""
        entries = entries_of_index(index, later.dim())
        if entries is None:
            return NotImplemented
        *rows, words = entries
        whole, is_sliced = slice(None), all(isinstance(each, slice) for each in rows)
        is_all_words = isinstance(words, slice) and words == whole
        if all(isinstance(each, slice) and each == whole for each in rows):
            return NotImplemented
        if not is_sliced and not is_all_words and any(hasattr(each, "dim") for each in rows):
            return NotImplemented
        hidden = later.hidden[tuple(rows)]
        if 2 * hidden.numel() <= later.hidden.numel():
            self._cure.used += 1
        if is_sliced and is_all_words:
            return self._made(
                hidden, later.steps, later.like, later.has_graph, later.given, later.same
            )
        made = later.compute(hidden)
        made = made if is_all_words else made[(Ellipsis, words)]
        if all(isinstance(each, (int, slice)) for each in entries):
            later.same.add(made)
        return made


class _Same:
    """Tensors that would be views of one memory. Each is computed by itself: what is written to one
    is not in the others."""

    def __init__(self) -> None:
        self.laters: Any = weakref.WeakSet()
        self.computed: list[tuple[Any, Any]] = []
        """Those that were computed of it, and how often they were written to then; the values of
        what does not count that."""

    def add(self, made: Any) -> None:
        self.computed.append((made, made.clone() if made.is_inference() else made._version))

    def is_written(self) -> bool:
        """Whether what was computed is another now."""
        return any(
            not made.equal(state) if made.is_inference() else made._version != state
            for made, state in self.computed
        )


_OF_THE_SAME = ("float", "half", "bfloat16", "double", "to", "type", "contiguous", "detach")
_SOFT = ("softmax", "log_softmax")
_OF_EACH = (
    "float", "half", "bfloat16", "double", "to", "type", "mul", "__mul__", "__rmul__", "div",
    "__truediv__", "true_divide", "tanh", "contiguous", "detach", "clone",
)  # fmt: skip
"""What is done with each number by itself."""


# Tensors that are sorted as a whole, and of which the first are read.

LEAST_LENGTH, LEAST_NUMBERS = 256, 1 << 16
"""Of what is sorted, and of all that is sorted at a time, from which it is worth it."""
LOOKED = 2
"""Sorts of a line that are made as they are, to see what is read of them."""
STALE = "what is sorted may be written to before all of it is read"
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

    def __init__(self, target: str = "") -> None:
        super().__init__(target)
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
            self._kind = class_of_later(torch, self, self._first)
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
                value = Value(torch, self, functools.partial(sort.whole_of, place))
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
            if writes != self._writes:
                self._cure.lose(STALE)
            if UNCOUNTED in writes:
                self._cure.end(STALE)
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
