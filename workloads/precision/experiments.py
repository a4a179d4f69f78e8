"""Small experiments with number formats, the same on every device."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..declaration import Row

_TERMS = 1000
_TERM = 0.01


def accumulation_rows() -> Iterator[Row]:
    """The four sums of CS336's problem mixed_precision_accumulation, on the host.

    A sum of one type converts its addends to it: fp32 + fp16 is what a mixed-precision optimizer
    does, and what the last way writes out.
    """
    ways = (
        ("fp32", "fp32", torch.float32, torch.float32),
        ("fp16", "fp16", torch.float16, torch.float16),
        ("fp16", "fp32", torch.float16, torch.float32),
        ("bf16", "bf16", torch.bfloat16, torch.bfloat16),
        ("bf16", "fp32", torch.bfloat16, torch.float32),
    )
    for addend, accumulator, addend_type, sum_type in ways:
        total = torch.tensor(0, dtype=sum_type)
        term = torch.tensor(_TERM, dtype=addend_type)
        for _ in range(_TERMS):
            total += term
        result = total.item()
        yield {
            "addend": addend,
            "accumulator": accumulator,
            "sum": result,
            "error": result - _TERM * _TERMS,
        }


class _Toy(nn.Module):
    """The handout's network: two layers with a norm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16, bias=False)
        self.norm = nn.LayerNorm(16)
        self.second = nn.Linear(16, 8, bias=False)

    def forward(self, x: Tensor, seen: dict[str, Tensor]) -> Tensor:
        seen["fc1's output"] = self.first(x)
        seen["layer norm's output"] = self.norm(torch.relu(seen["fc1's output"]))
        seen["logits"] = self.second(seen["layer norm's output"])
        return seen["logits"]


# torch.amp's documentation: CUDA's list of operations that autocast to float32 has norms and
# softmax, the CPU's does not.
_FP32_ON_CUDA = ("parameters", "layer norm's output", "softmax", "loss", "gradients")


def autocast_rows(device: torch.device, types: tuple[torch.dtype, ...]) -> Iterator[Row]:
    """The type of each tensor of a small network (CS336, benchmarking_mixed_precision)."""
    for autocast in types:
        with device:
            toy, x = _Toy(), torch.ones(4, 16)
            targets = torch.zeros(4, dtype=torch.int64)
        seen: dict[str, Tensor] = {"parameters": toy.first.weight}
        with torch.autocast(device.type, dtype=autocast):
            logits = toy(x, seen)
            seen["softmax"] = torch.softmax(logits, dim=-1)
            seen["loss"] = nn.functional.cross_entropy(logits, targets)
        torch.autograd.backward(seen["loss"])
        gradient = toy.first.weight.grad
        if gradient is not None:
            seen["gradients"] = gradient
        for name, tensor in seen.items():
            yield {
                "autocast": _short(autocast),
                "tensor": name,
                "type": _short(tensor.dtype),
                "cuda_type": "fp32" if name in _FP32_ON_CUDA else _short(autocast),
            }


def errors(result: Tensor, left: Tensor, right: Tensor) -> tuple[float, float]:
    """Largest absolute and relative error of the first rows of `left` @ `right`, both fp32.

    The reference is computed in fp64 from the fp32 factors, so rounding them to a shorter type is
    part of the error, as it is for a model.
    """
    rows = min(256, left.shape[0])
    exact = left[:rows].double() @ right.double()
    difference = result[:rows].double() - exact
    return difference.abs().max().item(), (difference.norm() / exact.norm()).item()


def _short(dtype: torch.dtype) -> str:
    return {
        torch.float32: "fp32",
        torch.float16: "fp16",
        torch.bfloat16: "bf16",
        torch.float64: "fp64",
    }.get(dtype, str(dtype))
