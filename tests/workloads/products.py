"""Counts matrix products as PyTorch dispatches them, on any device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear"}


class CountProducts(TorchDispatchMode):
    """Inside `with`, `count` grows by one for every matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        arguments: tuple[Any, ...] = (),
        keywords: Mapping[str, Any] | None = None,
    ) -> Any:
        self.count += function._schema.name in PRODUCTS
        return function(*arguments, **(keywords or {}))


def meta(*shape: int) -> torch.Tensor:
    """Token numbers without a value."""
    return torch.zeros(shape, dtype=torch.int64, device="meta")
