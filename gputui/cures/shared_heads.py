"""Keys and values that a program repeats for each head that shares them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from . import ANY, ROUNDING, Redirected
from .copies import LEAST_BYTES
from .later import Value, as_given, class_of_later

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo


class HeadsShared(Redirected):
    """Keys and values that are repeated for the heads of a query (repeat_interleave, expand and
    reshape) reach scaled_dot_product_attention as they are, with enable_gqa=True, where it is given
    no mask. Anything else that is asked of them has the repeated ones."""

    name = "heads_shared"
    title = "attention takes keys and values that heads share as they are, not repeated"
    answers = (ANY, "copies")
    result = ROUNDING
    is_certain = True
    change = "F.scaled_dot_product_attention(q, k, v, enable_gqa=True), without repeating k and v"
    advice = "enable_gqa"
    forecast = None

    unused = "no attention without a mask takes keys and values that are repeated"
    _calls_on = 0
    spared = 0
    """How often attention took what was not repeated."""
    _kind: Any = None

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        self._torch, tensor = torch, torch.Tensor
        return (
            (torch, "repeat_interleave"), (tensor, "repeat_interleave"), (tensor, "reshape")
        )  # fmt: skip

    def apply(self, torch: Any) -> Undo:
        self._kind = self._kind or class_of_later(torch, self, self._attend)
        return super().apply(torch)

    def look(self) -> None:
        """How often it was of use, once there was something to repeat."""
        if self._calls_on:
            self.used = self.spared

    def is_worth(self, source: Any) -> bool:
        """Whether what is repeated is on a GPU, and large."""
        return bool(source.is_cuda) and source.numel() * source.element_size() >= LEAST_BYTES

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        source: Any = args[0] if args else None
        if getattr(source, "ndim", 0) not in (4, 5) or type(source) is not self._torch.Tensor:
            return None
        is_repeat = function.__name__ == "repeat_interleave"
        if is_repeat != (source.ndim == 4):
            return None
        shared, dim = self._repeated(args, kwargs) if is_repeat else self._spread(source)
        if shared is None or not self.is_worth(shared) or self._torch.compiler.is_compiling():
            return None
        if not is_repeat:
            whole = self._torch.empty(source.shape, device="meta")
            shape = getattr(whole, function.__name__)(*args[1:], **kwargs).shape
            heads = source.shape[1] * source.shape[2]
            if tuple(shape) != (len(source), heads, *source.shape[3:]):
                return None

        def later() -> Any:
            self._calls_on += 1
            make = functools.partial(function, *args, **kwargs)
            times = args[1] if is_repeat else source.shape[2]
            return self._made(shared, times, dim, make)

        return later

    def _repeated(self, args: Any, kwargs: Any) -> tuple[Any, int]:
        dim = kwargs.get("dim", args[2] if len(args) == 3 else None)
        is_of_heads = type(dim) is int and dim % 4 in (1, 2) and set(kwargs) <= {"dim"}
        if len(args) < 2 or type(args[1]) is not int or args[1] < 2 or not is_of_heads:
            return None, 0
        return args[0], dim % 4

    def _spread(self, source: Any) -> tuple[Any, int]:
        """Of keys that were expanded for each head."""
        is_spread = source.shape[2] > 1 and source.stride(2) == 0
        return (source[:, :, 0] if is_spread else None), 1

    def _made(self, shared: Any, times: int, dim: int, make: Callable[[], Any]) -> Any:
        torch = self._torch
        shape = [*shared.shape]
        shape[dim] *= times
        has_graph = shared.requires_grad and torch.is_grad_enabled()
        value = Value(torch, self, make, as_given(shared))
        made = self._kind(shape, shared.dtype, shared.device, value, has_graph)
        made.shared, made.times, made.head_dim = shared, times, dim
        return made

    def _attend(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Attention of what is shared; NotImplemented of what needs it repeated."""
        name = getattr(function, "__name__", "")
        first: Any = args[0] if args else None
        if type(first) is self._kind:
            return self._moved(name, first, args, kwargs)
        if name != "scaled_dot_product_attention":
            return NotImplemented
        words: dict[str, Any] = {**dict(zip(_OF_ATTENTION, args)), **kwargs}  # noqa: B905
        key: Any = words.get("key")
        value: Any = words.get("value")
        if (
            type(key) is not self._kind or type(value) is not self._kind
            or key.value.tensor is not None or value.value.tensor is not None
            or key.head_dim != 1 or value.head_dim != 1 or key.times != value.times
            or words.get("attn_mask") is not None or words.get("enable_gqa")
            or words["query"].shape[1] != key.shape[1]
        ):  # fmt: skip
            return NotImplemented
        key.value.check()
        value.value.check()
        self.spared += 1
        words.update(key=key.shared, value=value.shared, enable_gqa=True)
        return function(**words)

    def _moved(self, name: str, rows: Any, args: Any, kwargs: Any) -> Any:
        """What is repeated, with positions and heads in each other's place, or as it is."""
        if name == "contiguous" and len(args) == 1 and not kwargs:
            return rows
        is_turn = name == "transpose" and not kwargs and sorted(n % 4 for n in args[1:]) == [1, 2]
        if not is_turn or rows.value.tensor is not None:
            return NotImplemented
        shared, value = rows.shared.transpose(1, 2), rows.value
        return self._made(
            shared, rows.times, 3 - rows.head_dim, lambda: value.now().transpose(1, 2)
        )


_OF_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
