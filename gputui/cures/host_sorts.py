"""NumPy's sorts of what a GPU has computed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from . import ANY, ROUNDING, Redirected

if TYPE_CHECKING:
    from collections.abc import Callable

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
