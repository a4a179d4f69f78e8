"""What a program computes while something is tried on it (trial.py): what it calls `backward` of,
or where it calls none, what its modules give.

Python 3.8 and later; nothing of gputui is imported, because the program may use another
interpreter.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping
from itertools import islice
from typing import Any, Callable  # noqa: UP035

from .step_sites import StepSite

MOST_LOSSES = 20_000
MOST_OUTPUTS, HELD_OUTPUTS = 256, 64
"""Outputs that are kept of the warm-up, and after it."""
MOST_PROJECTED = 4096
"""Elements of one that are looked at, some more where they are no multiple."""


class ProgramResults:
    """Those of one process, which `say` writes."""

    def __init__(self, say: Callable[[dict[str, Any]], None]) -> None:
        self._say = say
        self._torch: Any = None
        self._losses: list[Any] = []
        self.losses_said = 0
        self._outputs: list[tuple[Any, Any, int]] = []
        self._has_begun = self._is_over = False
        self._more_outputs = 0
        """How many more of them are kept now that it has begun."""

    def follow(self, torch: Any) -> None:
        """Notes what `backward` is called of."""
        self._torch = torch
        backward = torch.autograd.backward  # Tensor.backward calls it by this name
        losses = self._losses

        @functools.wraps(backward)
        def noted(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):  # whatever it is, it is the program's
                if tensors.numel() == 1 and not self._is_over and len(losses) < MOST_LOSSES:
                    losses.append(tensors.detach())
            return backward(tensors, *args, **kwargs)

        torch.autograd.backward = noted

    def begin(self, more_outputs: int) -> None:
        """What counts as a step is chosen: so many more outputs are kept, of a program that has
        called no `backward`."""
        self._has_begun, self._more_outputs = True, 0 if self.losses_said else more_outputs

    def end(self) -> None:
        """Nothing is kept from now on."""
        self._has_begun = self._is_over = True
        self._more_outputs = 0
        self._losses.clear()

    def returned(self, site: StepSite | None, module: Any, given: Any, made: Any) -> None:
        """What a module was given and gave: whether that is on a GPU, and in a program that has
        called no backward so far, its norm."""
        if self._torch is None or (self._has_begun and not self._more_outputs):
            return
        own = None if self._has_begun else site
        if own is not None and not own.uses_gpu and not own.count & (own.count - 1):
            with contextlib.suppress(Exception):
                own.uses_gpu = any(each.is_cuda for each in module.parameters()) or _is_on_gpu(
                    (given, made)
                )
        if self.losses_said or self._losses:
            return
        with contextlib.suppress(Exception):  # whatever it is, it is the program's
            cuda = self._torch.cuda
            is_recorded = cuda.is_initialized() and cuda.is_current_stream_capturing()
            if len(self._outputs) < MOST_OUTPUTS and not is_recorded:
                self._more_outputs = max(0, self._more_outputs - 1)
                first = _first_tensor(made)
                norm, projected = self._norm(_first_tensor(given)), self._projected(first)
                self._outputs.append((norm, projected, first.numel()))

    def _projected(self, values: Any) -> Any:
        """A weighted sum of elements from all over a tensor, and twice their norm: alone this is
        the same whatever a last layer has normalized, and the sum may be next to 0."""
        torch = self._torch
        # What a cure gives in a tensor's place is made when it is read.
        if type(values) not in (torch.Tensor, torch.nn.Parameter):
            raise TypeError
        flat = values.detach().flatten()
        some = flat[:: max(1, flat.numel() // MOST_PROJECTED)].double()
        weights = torch.arange(some.numel(), device=some.device, dtype=torch.float64).cos()
        return (some * weights).sum() + 2.0 * some.norm()

    def _norm(self, values: Any) -> Any:
        """The norm of what a module was given, in FP64, still on its device."""
        torch = self._torch
        values = values.detach()
        if not values.is_floating_point():
            values = values.double()
        return torch.linalg.vector_norm(values, dtype=torch.float64)

    def say_losses(self) -> None:
        """What `backward` was called of since the last block, read while the GPU is waited for."""
        if not self._losses:
            return
        losses, count = self._losses[:], len(self._losses)
        self._losses.clear()
        try:
            # One copy for all of them: each takes some 10 µs.
            read = self._torch.stack([loss.reshape(()) for loss in losses]).tolist()
        except Exception:  # of several types, or devices
            read = [float(loss) for loss in losses]
        values = [float(f"{value:.9g}") for value in read]
        self._say({"losses": [self.losses_said, *map(_finite, values)]})
        self.losses_said += count

    def say_outputs(self, is_held: bool) -> None:
        """What modules gave since the last time, with what is held or without."""
        if self._outputs and not self.losses_said:
            norms = [norm for given, made, _ in self._outputs for norm in (given, made)]
            read = self._torch.stack([norm.to(norms[0].device) for norm in norms]).tolist()
            values = [float(f"{value:.9g}") for value in read]
            rows = [
                [*values[2 * n : 2 * n + 2], size]
                for n, (_, _, size) in enumerate(self._outputs)
                if math.isfinite(values[2 * n]) and math.isfinite(values[2 * n + 1])
            ]
            self._say({"outputs": rows, "is_held": is_held})
        self._outputs.clear()


def _first_tensor(values: Any) -> Any:
    """The first thing in tuples, lists and dictionaries; what gives its own one by one is left."""
    while isinstance(values, (tuple, list, dict)):
        values = next(iter(values.values() if isinstance(values, dict) else values))
    return values


def _is_on_gpu(values: Any, deep: int = 4) -> bool:
    """Whether any of the first tensors in lists, dictionaries and the like is on a GPU."""
    if hasattr(values, "is_cuda"):
        return bool(values.is_cuda)
    if isinstance(values, Mapping):
        values = values.values()
    elif not isinstance(values, (tuple, list)):
        return False
    return deep > 0 and any(_is_on_gpu(each, deep - 1) for each in islice(values, MOST_VALUES))


MOST_VALUES = 16


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
