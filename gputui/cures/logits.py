"""Logits of positions that nothing is read of."""

from __future__ import annotations

import functools
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from . import ANY, ROUNDING, CannotApply, Cure, instances, replaced
from .later import Value, class_of_later, entries_of_index, in_modes_of_now
from .writes import writes_of, writes_to_first

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo

LEAST_WORDS = 4096
"""Rows of a linear layer that is a vocabulary's head."""
LEAST_POSITIONS = 8
IGNORED = -100
"""The target that cross_entropy ignores unless ignore_index names another."""
WRITTEN = "logits are written to, and read elsewhere after that"
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
        self._later = class_of_later(torch, self._go_on)
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
            return self._made(hidden, (product,), like, has_graph and is_of_loss)

        self.linear = called

    def _made(
        self, hidden: Any, steps: tuple[Callable[[Any], Any], ...], like: Any, has_graph: bool,
        same: _Same | None = None,
    ) -> Any:  # fmt: skip
        """Logits of hidden states by these steps, of a type and a width like those; of the memory
        of these, where torch would make a view."""
        writes = writes_of(hidden)
        same = same or _Same()

        def compute(rows: Any) -> Any:
            if same.is_written():
                self._cure.end(WRITTEN)
            if writes_of(hidden) != writes:
                raise RuntimeError("gputui: hidden states were written to before they were used")
            for step in steps:
                rows = step(rows)
            return rows

        shape = (*hidden.shape[:-1], like.shape[-1])
        value = Value(self._torch, lambda: compute(hidden))
        made = self._later(shape, like.dtype, hidden.device, value, has_graph)
        made.hidden, made.steps, made.like, made.compute = hidden, steps, like, compute
        made.has_graph, made.same = has_graph, same
        same.laters.add(made)
        return made

    def _go_on(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Of what is done with each position, later; of what is taken of some, these."""
        later: Any = args[0] if args else None
        others = args[1:]
        name = getattr(function, "__name__", "")
        is_written = type(later) is self._later and writes_to_first(name)
        if is_written and len(later.same.laters) + len(later.same.taken) > 1:
            self._cure.end(WRITTEN)
        if type(later) is not self._later or later.value.tensor is not None:
            return NotImplemented
        if later.has_graph and not self._torch.is_grad_enabled():
            return NotImplemented
        if name == "__getitem__" and len(others) == 1:
            return self._taken(later, others[0])
        if name == "select" and len(others) == 2 and not kwargs and others[0] in (1, -2):
            return self._taken(later, (slice(None), others[1]))
        if name in ("view", "reshape") and not kwargs:
            shape = others[0] if len(others) == 1 else others
            if tuple(shape) != (-1, later.shape[-1]):
                return NotImplemented
            rows = later.hidden.reshape(-1, later.hidden.shape[-1])
            return self._made(rows, later.steps, later.like, later.has_graph, later.same)
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
        return self._made(later.hidden, (*later.steps, step), like, later.has_graph, same)

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

    def _taken(self, later: Any, index: Any) -> Any:
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
        taken = later.hidden[tuple(rows)]
        if 2 * taken.numel() <= later.hidden.numel():
            self._cure.used += 1
        if is_sliced and is_all_words:
            return self._made(taken, later.steps, later.like, later.has_graph, later.same)
        made = later.compute(taken)
        made = made if is_all_words else made[(Ellipsis, words)]
        if all(isinstance(each, (int, slice)) for each in entries):
            later.same.take(made)
        return made


class _Same:
    """Tensors that would be views of one memory. Each is computed by itself: what is written to one
    is not in the others."""

    def __init__(self) -> None:
        self.laters: Any = weakref.WeakSet()
        self.taken: list[tuple[Any, Any]] = []
        """Those that were computed of it, and how often they were written to then; the values of
        what does not count that."""

    def take(self, made: Any) -> None:
        self.taken.append((made, made.clone() if made.is_inference() else made._version))

    def is_written(self) -> bool:
        """Whether what was computed is another now."""
        return any(
            not made.equal(state) if made.is_inference() else made._version != state
            for made, state in self.taken
        )


_OF_THE_SAME = ("float", "half", "bfloat16", "double", "to", "type", "contiguous", "detach")
_SOFT = ("softmax", "log_softmax")
_OF_EACH = (
    "float", "half", "bfloat16", "double", "to", "type", "mul", "__mul__", "__rmul__", "div",
    "__truediv__", "true_divide", "tanh", "contiguous", "detach", "clone",
)  # fmt: skip
"""What is done with each number by itself."""
