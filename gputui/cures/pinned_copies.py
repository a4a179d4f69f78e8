"""Copies from pageable memory go through pinned memory, and the CPU does not wait for them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from . import EXACT, Cure
from ._replacing import replaced

if TYPE_CHECKING:
    from collections.abc import Callable

LEAST_BYTES = 1 << 16
"""Smaller copies go through the driver's own pinned buffer: nothing to gain (CUDA API reference,
"API synchronization behavior")."""


def _apply(torch: Any) -> Callable[[], None]:
    tensor = torch.Tensor
    to, cuda, copy = tensor.to, tensor.cuda, tensor.copy_

    def staged(source: Any) -> Any:
        """The same in pinned memory, which torch's allocator keeps until its copy is over."""
        if (
            source.device.type == "cpu"
            and source.layout is torch.strided
            and source.numel() * source.element_size() >= LEAST_BYTES
            and not source.requires_grad
            and not source.is_pinned()
        ):
            return source.pin_memory()
        return source

    def goes_to_gpu(place: Any) -> bool:
        if isinstance(place, torch.Tensor):
            return bool(place.is_cuda)
        if isinstance(place, int) and not isinstance(place, bool):
            return True
        return str(place).startswith("cuda")

    @functools.wraps(to)
    def to_staged(self: Any, *args: Any, **kwargs: Any) -> Any:
        place = kwargs.get("device", args[0] if args else None)
        if self.device.type == "cpu" and place is not None and goes_to_gpu(place):
            pinned = staged(self)
            if pinned is not self:
                if not any(isinstance(word, bool) for word in args):
                    kwargs["non_blocking"] = True
                return to(pinned, *args, **kwargs)
        return to(self, *args, **kwargs)

    @functools.wraps(cuda)
    def cuda_staged(self: Any, *args: Any, **kwargs: Any) -> Any:
        pinned = staged(self)
        if pinned is not self and len(args) < 2:
            kwargs["non_blocking"] = True
        return cuda(pinned, *args, **kwargs)

    @functools.wraps(copy)
    def copy_staged(self: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_cuda and isinstance(source, torch.Tensor):
            pinned = staged(source)
            if pinned is not source and not args:
                kwargs["non_blocking"] = True
            return copy(self, pinned, *args, **kwargs)
        return copy(self, source, *args, **kwargs)

    return replaced(
        (tensor, "to", to_staged), (tensor, "cuda", cuda_staged), (tensor, "copy_", copy_staged)
    )


CURE = Cure(
    name="pinned_copies",
    title="copies to the GPU go through pinned memory, without waiting",
    answers=("busy.copy_pageable",),
    result=EXACT,
    change="DataLoader(..., pin_memory=True), and x.to(device, non_blocking=True)",
    apply=_apply,
    library="torch",
    advice="pin_memory",
)
