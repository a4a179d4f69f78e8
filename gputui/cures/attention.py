"""Attention that a program writes out, softmax(q k^T) v, by fused kernels."""

from __future__ import annotations

import copy
import functools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from . import ROUNDING, Cure, combined, replaced
from .later import UNCOUNTED, Value, as_given, class_of_later, writes_of

if TYPE_CHECKING:
    from . import Undo

LEAST_KEYS = 64
"""Of a query, from which its scores are worth not to be written."""
MOST_WIDE = 256
"""A head, for which there are fused kernels."""
BARRED = -1e4
"""What is added to a score that shall not count, or less."""
MOST_READ = 2
"""Times that the scores of a line are read by something else until they are computed at once."""
CAUSAL_LOOKS = 4
"""Masks of a line of which it is waited for whether they are causal. Whether those after that are
is known once the cure is switched off."""
MOST_BIASES = 4


class AttentionFused(Cure):
    """softmax(q k^T / scale + mask) v, operation by operation in a module of the program's own, or
    in transformers' eager attention, by scaled_dot_product_attention. Scores are computed as the
    program has it where anything else asks for them: where they are returned and not used, not at
    all."""

    name = "attention_fused"
    title = "softmax(q k^T) v goes by scaled_dot_product_attention"
    answers = ("busy.attention_unfused", "attention_fp32")
    result = ROUNDING
    change = "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=...)"
    advice = "scaled_dot_product_attention"

    used: int = 0
    """How often attention went the other way."""
    unused = "no attention is written out"
    _is_on = _is_prepared = False
    _differs: Any = None

    def prepare(self, torch: Any) -> None:
        """Programs take these functions by name."""
        if not self._is_prepared:
            self._is_prepared = True
            self._torch = torch
            self._later = class_of_later(torch, self, self._go_on)
            self._read: dict[Any, int] = {}
            self._looks: dict[Any, list[bool]] = {}
            self._biases: dict[Any, tuple[Any, Any]] = {}
            names = ("matmul", "bmm", "einsum")
            replaced(*((torch, name, self._scoring(getattr(torch, name))) for name in names))

    def apply(self, torch: Any) -> Undo:
        self.prepare(torch)
        tensor = torch.Tensor
        names = ("__matmul__", "matmul", "bmm")
        undo = replaced(*((tensor, name, self._scoring(getattr(tensor, name))) for name in names))
        self._is_on = True

        def off() -> None:
            self._is_on = False
            self._biases.clear()

        return combined(off, undo)

    def look(self) -> None:
        """Whether masks that were not waited for were causal."""
        if self._differs is not None and bool(self._differs):
            self.end("masks of attention are causal at first and not later")

    def is_worth(self, queries: Any, keys: Any) -> bool:
        """Whether their scores are more than they are, on a GPU."""
        length, width, count = queries.shape[-2], queries.shape[-1], keys.shape[-2]
        return bool(
            queries.is_cuda and width <= MOST_WIDE and count >= LEAST_KEYS and length > 1
            and 2 * length * count >= width * (length + count)
        )  # fmt: skip

    def _scoring(self, product: Any) -> Any:
        torch = self._torch

        @functools.wraps(product)
        def called(*args: Any, **kwargs: Any) -> Any:
            # A compiler sees nothing else of it.
            if torch.compiler.is_compiling() or not self._is_on or self.ended or kwargs:
                return product(*args, **kwargs)
            frame = sys._getframe(1)
            made = self._scores(product, args, (frame.f_code, frame.f_lasti))
            return product(*args) if made is None else made

        return called

    def _scores(self, product: Any, args: Any, line: Any) -> Any:
        """Scores that are computed later; None where the product is none, or they are read."""
        torch = self._torch
        if len(args) < 2 or type(args[-1]) is not torch.Tensor:
            return None
        first, last = args[-2:]
        if type(first) is not torch.Tensor or not 3 <= first.dim() == last.dim() <= 4:
            return None
        if self._read.get(line, 0) > MOST_READ or first.dtype is not last.dtype:
            return None
        if len(args) == 3:
            orders = _orders(args[0])
            if orders is None or len(orders.first) != first.dim() or not _in_order(orders.result):
                return None
            queries, keys = first.permute(orders.first), last.permute(orders.last)
        else:
            queries, keys = first, last.transpose(-1, -2)
        if (
            queries.shape[:-2] != keys.shape[:-2] or queries.shape[-1] != keys.shape[-1]
            or not first.is_floating_point() or not self.is_worth(queries, keys)
            or torch._C._functorch.peek_interpreter_stack() is not None
        ):  # fmt: skip
            return None
        in_autocast = torch.is_autocast_enabled("cuda")
        dtype = torch.get_autocast_dtype("cuda") if in_autocast else first.dtype
        scores = _Scores(queries, keys, line)
        shape = (*queries.shape[:-1], keys.shape[-2])
        return self._made(scores, shape, dtype, first.device, lambda: product(*args))

    def _made(self, scores: _Scores, shape: Any, dtype: Any, device: Any, make: Any) -> Any:
        torch = self._torch

        def read() -> Any:
            self._read[scores.line] = self._read.get(scores.line, 0) + 1
            return make()

        has_graph = torch.is_grad_enabled() and scores.has_graph
        value = Value(torch, self, read, scores.held)
        made = self._later(shape, dtype, device, value, has_graph)
        made.scores = scores
        return made

    def _go_on(self, function: Any, args: Any, kwargs: Any) -> Any:
        """What comes of scores by an operation of attention; NotImplemented by any other."""
        torch, kind = self._torch, self._later
        name = getattr(function, "__name__", "")
        step = _STEPS.get(name)
        if step is None:
            return NotImplemented
        if step is _cast and len(args) == 2 and type(args[1]) is kind:
            args, function = (args[0], args[1].dtype), torch.Tensor.to
        places = [place for place, each in enumerate(args) if type(each) is kind]
        if len(places) != 1 or any(type(each) is kind for each in kwargs.values()):
            return NotImplemented
        if name not in _COMMUTING and places[0] != _PLACES.get(name, 0):
            return NotImplemented  # b - scores is not scores - b
        later = args[places[0]]
        scores, others = later.scores, [each for each in args if each is not later]
        if later.value.tensor is not None or torch.is_grad_enabled() != later.value.has_gradients:
            return NotImplemented
        made = step(torch, scores, later, others, kwargs)
        if made is NotImplemented or made is later:
            return made
        if isinstance(made, _Product):
            return self._attention(made, scores, later)
        value = later.value

        def make() -> Any:
            given = [value.as_made() if place == places[0] else args[place]
                     for place in range(len(args))]  # fmt: skip
            return function(*given, **kwargs)

        new = self._made(made, later.shape, made.dtype or later.dtype, later.device, make)
        if name in _IN_PLACE:
            later.scores, later.value = made, new.value
            return later
        return new

    def _attention(self, product: _Product, scores: _Scores, later: Any) -> Any:
        """softmax(q k^T) v at once; NotImplemented where it is not of that form."""
        torch = self._torch
        values = product.values
        in_autocast = torch.is_autocast_enabled("cuda")
        dtype = torch.get_autocast_dtype("cuda") if in_autocast else values.dtype
        if values.shape[:-1] != scores.keys.shape[:-1] or not values.is_floating_point():
            return NotImplemented
        if not in_autocast and later.dtype is not values.dtype:
            return NotImplemented
        later.value.check()
        queries, keys, values = (
            each if each.stride(-1) == 1 else each.contiguous()
            for each in (scores.queries.to(dtype), scores.keys.to(dtype), values)
        )
        is_causal, bias = scores.bias is not None and self._is_causal(scores), None
        if scores.bias is not None and not is_causal:
            bias = self._bias(scores, dtype)
        if queries.dim() == 3:
            queries, keys, values = (each.unsqueeze(1) for each in (queries, keys, values))
            bias = bias.unsqueeze(1) if bias is not None and bias.dim() == 3 else bias
        made = torch.nn.functional.scaled_dot_product_attention(
            queries, keys, values, bias, scores.dropout, is_causal, scale=scores.scale
        )
        self.used += 1
        if scores.queries.dim() == 3:
            made = made.squeeze(1)
        return made.permute(product.order).contiguous() if product.order else made.contiguous()

    def _bias(self, scores: _Scores, dtype: Any) -> Any:
        """What is added to scores, in their type: what bars one there is no NaN."""
        torch, bias = self._torch, scores.bias
        if bias.dtype is dtype:
            return bias
        is_kept = not bias.requires_grad and not bias.is_inference() and scores.is_given
        key = id(bias), bias._version if is_kept else 0, dtype
        if is_kept and key in self._biases:
            return self._biases[key][1]
        made = bias.clamp(min=torch.finfo(dtype).min).to(dtype)
        if is_kept:
            if len(self._biases) >= MOST_BIASES:
                del self._biases[next(iter(self._biases))]
            self._biases[key] = bias, made
        return made

    def _is_causal(self, scores: _Scores) -> bool:
        """Whether what is added lets through what is not later, and nothing else."""
        torch, bias = self._torch, scores.bias
        if bias.requires_grad or not scores.is_one or bias.shape[-2:] != (
            scores.queries.shape[-2], scores.queries.shape[-2]
        ):  # fmt: skip
            return False
        looks = self._looks.setdefault(scores.line, [])
        if not all(looks):
            return False
        if bias.is_cuda and torch.cuda.is_current_stream_capturing():
            return False
        key = id(scores.mask), writes_of(scores.mask)
        if key[1] is not UNCOUNTED and key in self._biases:
            return bool(self._biases[key][1])
        let = bias == 0
        causal = torch.ones(bias.shape[-2:], dtype=torch.bool, device=bias.device).tril()
        is_other = ((let != causal) | ~(let | (bias <= BARRED))).any()
        if len(looks) < CAUSAL_LOOKS:
            looks.append(not bool(is_other))
        else:
            self._differs = is_other if self._differs is None else self._differs | is_other
        if key[1] is not UNCOUNTED:
            if len(self._biases) >= MOST_BIASES:
                del self._biases[next(iter(self._biases))]
            self._biases[key] = scores.mask, looks[-1]
        return looks[-1]


class _Scores:
    """q k^T, by what it is multiplied, what is added, and what becomes of it."""

    def __init__(self, queries: Any, keys: Any, line: Any) -> None:
        self.queries, self.keys, self.line = queries, keys, line
        self.scale = 1.0
        self.bias: Any = None
        self.mask: Any = None
        """What `bias` was made of, by the program or here."""
        self.is_one = self.is_given = True
        """Whether one thing alone is added, and that is the program's own tensor."""
        self.is_soft = False
        self.dropout = 0.0
        self.dtype: Any = None
        """The type that it was turned into last."""
        self.has_graph = bool(queries.requires_grad or keys.requires_grad)
        self.held = as_given(queries, keys)
        """Of what they are computed."""

    def but(self, **changes: Any) -> _Scores:
        """A copy with these attributes changed."""
        made = copy.copy(self)
        made.dtype = None
        for name, value in changes.items():
            setattr(made, name, value)
        return made

    def plus(self, bias: Any, mask: Any) -> _Scores:
        """With something added: a bias, made of a mask."""
        is_first = self.bias is None
        made = self.but(
            bias=bias if is_first else self.bias + bias, mask=mask, is_one=is_first,
            is_given=is_first and bias is mask, has_graph=self.has_graph or bias.requires_grad,
        )  # fmt: skip
        if is_first and bias is mask:
            made.held = [*self.held, *as_given(mask)]
        return made


class _Product:
    """A product of weights with values; in which order it has batch, query, width."""

    def __init__(self, values: Any, order: Any) -> None:
        self.values, self.order = values, order


_NUMBERS: dict[int, tuple[Any, Any, float]] = {}
"""Scales that are tensors, and what they are: it is waited for once."""
MOST_NUMBERS = 64


def _number(value: Any) -> float:
    """Of a scale. Raises TypeError where it is none, or another tensor each time."""
    if isinstance(value, (int, float)):
        return float(value)
    if value.numel() != 1 or value.requires_grad:
        raise TypeError
    held, writes, number = _NUMBERS.get(id(value), (None, None, 0.0))
    if held is not value or writes != writes_of(value) or value.is_inference():
        if value.is_cuda and (value.is_inference() or len(_NUMBERS) >= MOST_NUMBERS):
            raise TypeError
        number = float(value)
        if value.is_cuda:
            _NUMBERS[id(value)] = value, writes_of(value), number
    return number


def _multiplied(_torch: Any, scores: _Scores, _later: Any, others: Any, kwargs: Any) -> Any:
    if scores.is_soft or scores.bias is not None or kwargs:
        return NotImplemented
    return scores.but(scale=scores.scale * _number(others[0]))


def _divided(_torch: Any, scores: _Scores, later: Any, others: Any, kwargs: Any) -> Any:
    return _multiplied(_torch, scores, later, [1.0 / _number(others[0])], kwargs)


def _added(torch: Any, scores: _Scores, later: Any, others: Any, kwargs: Any) -> Any:
    (bias,) = others
    if (
        scores.is_soft or kwargs or type(bias) is not torch.Tensor or bias.dim() < 2
        or not bias.is_floating_point()
        or torch.broadcast_shapes(bias.shape, later.shape) != later.shape
    ):  # fmt: skip
        return NotImplemented
    return scores.plus(bias, bias)


def _subtracted(torch: Any, scores: _Scores, later: Any, others: Any, kwargs: Any) -> Any:
    made = _added(torch, scores, later, others, kwargs)
    return made if made is NotImplemented else scores.plus(-others[0], others[0])


def _masked(torch: Any, scores: _Scores, later: Any, others: Any, kwargs: Any) -> Any:
    """masked_fill(mask, value)."""
    given = [*others, *kwargs.values()]
    mask, barred = given
    return _barred(torch, scores, later, mask, _number(barred), mask)


def _chosen(torch: Any, scores: _Scores, later: Any, others: Any, kwargs: Any) -> Any:
    """where(mask, scores, value)."""
    mask, barred = others
    if kwargs or type(mask) is not torch.Tensor:
        return NotImplemented
    return _barred(torch, scores, later, mask.logical_not(), _number(barred), mask)


def _barred(torch: Any, scores: _Scores, later: Any, barred: Any, value: float, mask: Any) -> Any:
    if (
        scores.is_soft or value > BARRED or barred.dtype is not torch.bool or barred.dim() < 2
        or torch.broadcast_shapes(barred.shape, later.shape) != later.shape
    ):  # fmt: skip
        return NotImplemented
    least = torch.finfo(later.dtype).min
    bias = torch.zeros(barred.shape, dtype=later.dtype, device=barred.device)
    bias.masked_fill_(barred, value if value == float("-inf") else max(value, least))
    return scores.plus(bias, mask)


def _made_soft(torch: Any, scores: _Scores, later: Any, others: Any, kwargs: Any) -> Any:
    given = [*others, *kwargs.values()]
    dim = kwargs.get("dim", others[0] if others else None)
    if scores.is_soft or dim not in (-1, later.dim() - 1):
        return NotImplemented
    dtype = next((each for each in given if isinstance(each, torch.dtype)), None)
    if dtype is None and torch.is_autocast_enabled("cuda"):
        dtype = torch.float32
    return scores.but(is_soft=True, dtype=dtype)


def _cast(torch: Any, scores: _Scores, later: Any, others: Any, kwargs: Any) -> Any:
    """to(dtype), type(dtype), type_as(tensor), to(tensor)."""
    given = [*others, *kwargs.values()]
    kind: Any = given[0] if len(given) == 1 else None
    if isinstance(kind, torch.Tensor) and kind.device == later.device:
        kind = kind.dtype
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        return NotImplemented
    return later if kind is later.dtype else scores.but(dtype=kind)


def _cast_as(name: str) -> Any:
    def cast(torch: Any, scores: _Scores, later: Any, others: Any, kwargs: Any) -> Any:
        if others or kwargs:
            return NotImplemented
        return _cast(torch, scores, later, [getattr(torch, name)], {})

    return cast


def _dropped(_torch: Any, scores: _Scores, later: Any, others: Any, kwargs: Any) -> Any:
    """dropout(weights, p, training), of torch and of torch.nn.functional."""
    names = ("p", "training", "inplace")
    words = {**{names[place]: each for place, each in enumerate(others)}, **kwargs}
    if not scores.is_soft or scores.dropout:
        return NotImplemented
    if not words.get("training", words.get("train", True)) or not words.get("p", 0.5):
        return later
    return scores.but(dropout=float(words.get("p", 0.5)))


def _as_it_is(_torch: Any, _scores: _Scores, later: Any, others: Any, kwargs: Any) -> Any:
    return NotImplemented if others or kwargs else later


def _weighted(torch: Any, scores: _Scores, later: Any, others: Any, kwargs: Any) -> Any:
    """weights @ values, or einsum of both."""
    if not scores.is_soft or kwargs or type(others[-1]) is not torch.Tensor:
        return NotImplemented
    if len(others) == 1:
        return _Product(others[0], None)
    orders = _orders(others[0])
    if orders is None or others[1].dim() != later.dim() or not _in_order(orders.first):
        return NotImplemented
    return _Product(others[1].permute(orders.last_summed_first), orders.result)


def _in_order(order: list[int]) -> bool:
    return order == sorted(order)


class _Orders(NamedTuple):
    """By which a product's operands are batches of matrices: dimensions in the order of batch, own
    and summed of the first; batch, own and summed of the last, and batch, summed and own; and those
    of batch, own of the first and own of the last in the order of the result."""

    first: list[int]
    last: list[int]
    last_summed_first: list[int]
    result: list[int]


@functools.lru_cache(maxsize=64)
def _orders(equation: Any) -> _Orders | None:
    """Of einsum's equation; None where it is none of two operands of such dimensions."""
    if not isinstance(equation, str) or "." in equation or "->" not in equation:
        return None
    given, _, made = equation.replace(" ", "").partition("->")
    first, _, last = given.partition(",")
    if any(len({*each}) < len(each) for each in (first, last, made)) or len(first) != len(last):
        return None
    batch = [each for each in made if each in first and each in last]
    summed = [each for each in first if each in last and each not in made]
    rows = [each for each in first if each not in last]
    columns = [each for each in last if each not in first]
    if not len(summed) == len(rows) == len(columns) == 1 or {*batch, *rows, *columns} != {*made}:
        return None
    return _Orders(
        [first.index(each) for each in (*batch, *rows, *summed)],
        [last.index(each) for each in (*batch, *columns, *summed)],
        [last.index(each) for each in (*batch, *summed, *columns)],
        [[*batch, *rows, *columns].index(each) for each in made],
    )


_STEPS = {
    **dict.fromkeys(("mul", "__mul__", "__rmul__", "multiply", "mul_", "__imul__"), _multiplied),
    **dict.fromkeys(
        ("div", "__truediv__", "true_divide", "divide", "div_", "__itruediv__"), _divided
    ),
    **dict.fromkeys(("add", "__add__", "__radd__", "add_", "__iadd__"), _added),
    **dict.fromkeys(("sub", "__sub__", "subtract", "sub_", "__isub__"), _subtracted),
    **dict.fromkeys(("masked_fill", "masked_fill_"), _masked),
    **dict.fromkeys(("matmul", "__matmul__", "bmm", "einsum"), _weighted),
    **dict.fromkeys(("to", "type", "type_as"), _cast),
    **{name: _cast_as(name) for name in ("float", "half", "bfloat16")},
    "where": _chosen, "softmax": _made_soft, "dropout": _dropped, "contiguous": _as_it_is,
}  # fmt: skip
"""What is done with scores, by the names of torch's functions and methods."""

_COMMUTING = ("mul", "__mul__", "__rmul__", "multiply", "add", "__add__", "__radd__")
_PLACES = {"where": 1, "einsum": 1}
"""Where scores stand among what other functions are given, if not first."""
_IN_PLACE = ("mul_", "__imul__", "div_", "__itruediv__", "add_", "__iadd__", "sub_", "__isub__",
             "masked_fill_")  # fmt: skip
