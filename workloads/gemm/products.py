"""Matrix products in every precision a device may have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..devices import set_precision
from ..rows import Unsupported

# Ada: the first compute capability with fp8 tensor cores (CUDA C++ Programming Guide).
_FP8_CAPABILITY = (8, 9)

_FP8 = torch.float8_e4m3fn


def factors(size: int, device: torch.device, seed: int) -> tuple[Tensor, Tensor]:
    """Two square matrices of random numbers: zeros draw less power, and a card at its power limit
    is then faster."""
    generator = torch.Generator(device).manual_seed(seed)
    left, right = (torch.randn(size, size, device=device, generator=generator) for _ in range(2))
    return left, right


def precisions(asked: str, device: torch.device) -> tuple[str, ...]:
    """The precisions to measure; for "all", those the device supports."""
    if asked != "all":
        return (asked,)
    if device.type == "cpu":
        return ("fp32", "bf16", "int8")
    has_fp8 = torch.cuda.get_device_capability(device) >= _FP8_CAPABILITY
    return ("fp32", "tf32", "bf16", "fp16", *(("fp8",) if has_fp8 else ()), "int8")


def element_bytes(precision: str) -> tuple[int, int]:
    """Bytes of one element of the factors, and of the result (int32 of int8 products)."""
    factors = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}[precision]
    return factors, 4 if precision == "int8" else max(factors, 2)


@dataclass(frozen=True)
class Product:
    """A product with its factors already converted."""

    multiply: Callable[[], Tensor]
    effective: str
    """What it actually computes in."""
    scale: float = 1.0
    """What the result has to be multiplied with: of both factors' integers."""


def product(precision: str, left: Tensor, right: Tensor) -> Product:
    """The product of fp32 matrices `left` [m, k] and `right` [k, n] in `precision`.

    fp8 is e4m3 with one scale of 1 per matrix, its result bf16; int8 has one scale per matrix, its
    largest magnitude over 127, and sums in int32. Raises CannotRun, and Unsupported for what the
    device or the library has no product of.
    """
    device = left.device
    if precision == "int8":
        if max(left.shape) % 8:
            raise Unsupported("int8 products need sizes that are multiples of 8")
        (a_codes, a_scale), (b_codes, b_scale) = _codes(left), _codes(right)
        b_codes = b_codes.t().contiguous().t()
        return Product(
            lambda: torch._int_mm(a_codes, b_codes), "int8 (int32 out)", a_scale * b_scale
        )
    if precision != "fp8":
        chosen = set_precision(precision, device)
        a, b = left.to(chosen.dtype), right.to(chosen.dtype)
        out = torch.empty(a.shape[0], b.shape[1], dtype=chosen.dtype, device=device)
        return Product(lambda: torch.mm(a, b, out=out), chosen.effective)
    if device.type == "cpu" or torch.cuda.get_device_capability(device) < _FP8_CAPABILITY:
        raise Unsupported("fp8 products need a GPU of compute capability 8.9 or later")
    if max(left.shape) % 16:
        raise Unsupported("fp8 products need sizes that are multiples of 16")
    a8, b8 = left.to(_FP8), right.t().contiguous().to(_FP8).t()
    unit_scale = torch.ones((), device=device)

    def scaled() -> Tensor:
        return torch._scaled_mm(
            a8, b8, scale_a=unit_scale, scale_b=unit_scale, out_dtype=torch.bfloat16
        )

    return Product(scaled, "fp8 (e4m3, bf16 out)")


def _codes(matrix: Tensor) -> tuple[Tensor, float]:
    scale = matrix.abs().max().item() / 127
    return (matrix / scale).round().to(torch.int8), scale
