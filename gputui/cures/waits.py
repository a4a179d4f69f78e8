"""Values that the CPU reads back from the GPU, together."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from . import (
    EXACT,
    Cure,
    replaced,
)

if TYPE_CHECKING:
    from . import Undo


class ItemsTogether(Cure):
    """Values of one tensor that are read one by one (.item(), float(), in a loop over it) are
    copied from the GPU at once, and again after it was written to. What writes to it without torch
    is not seen."""

    name = "items_together"
    title = "values of a tensor that are read one by one are copied at once"
    answers = ("idle.sync", "busy.copy_pageable")
    result = EXACT
    change = "values = tensor.tolist()  # once, before the loop over them"
    advice = r"\.item\(\)"

    def apply(self, torch: Any) -> Undo:
        copied: list[tuple[Any, int, list[Any]]] = []  # tensors, how often written to, their values

        def together(convert: Any, kind: Any) -> Any:
            @functools.wraps(convert)
            def converted(value: Any) -> Any:
                base = value._base
                if base is None or value.numel() != 1 or value.dtype is not base.dtype:
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
                return made if kind is None else kind(made)

            return converted

        # Only while it is on: Dynamo would break graphs at what stands in for them.
        converts = [(name, getattr(torch.Tensor, name), kind) for name, kind in _CONVERTED]
        return replaced(
            *((torch.Tensor, name, together(convert, kind)) for name, convert, kind in converts)
        )

    def is_copied(self, base: Any) -> bool:
        """Whether values of a tensor are read from a copy of all."""
        if not self.is_far(base) or base.is_inference() or base.is_complex():
            return False
        return bool(1 < base.numel() <= MOST_TOGETHER and base.is_contiguous())

    def is_far(self, base: Any) -> bool:
        """Whether reading it waits for a GPU."""
        return bool(base.is_cuda)


_CONVERTED = (
    ("item", None), ("__float__", float), ("__int__", int), ("__bool__", bool),
)  # fmt: skip
BESIDE = 4
"""Tensors that are gone through side by side, as by zip()."""
MOST_TOGETHER = 1 << 14
"""Values of a tensor, which are copied in about the time of 20 alone."""
