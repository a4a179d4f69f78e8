"""A linear layer in each type of weights, by each way there is to multiply with them.

Raises Unsupported where the device or the library has no such product.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..rows import Unsupported
from .formats import GROUP

Layer = tuple[Callable[[Tensor], Tensor], tuple[Tensor, ...]]
"""The product with an input [tokens, inputs] in bf16, and the tensors that hold the weights."""

_FP8 = torch.float8_e4m3fn
_FP8_MAX = float(torch.finfo(_FP8).max)
_INT8_MAX = 127
_INT4_STEPS = 15
# torch's kernels take a group's zero for the value of this code.
_INT4_MIDDLE = 8
# Of the packed layout of torch's int4 kernel on GPUs, along the inputs.
_TILES = 8


def bf16(weight: Tensor) -> Layer:
    short = weight.bfloat16()
    return (lambda x: F.linear(x, short)), (short,)


def fp8(weight: Tensor) -> Layer:
    scale = weight.abs().amax(dim=1, keepdim=True) / _FP8_MAX
    short = (weight / scale).to(_FP8)

    def product(x: Tensor) -> Tensor:
        of_token = x.abs().amax(dim=1, keepdim=True).float() / _FP8_MAX
        return torch._scaled_mm(
            (x / of_token).to(_FP8), short.t(), scale_a=of_token, scale_b=scale.t(),
            out_dtype=torch.bfloat16,
        )  # fmt: skip

    return product, (short, scale)


def int8(weight: Tensor) -> Layer:
    codes, scale = _int8_codes(weight)
    return (lambda x: torch._weight_int8pack_mm(x, codes, scale)), (codes, scale)


def int8_converted(weight: Tensor) -> Layer:
    codes, scale = _int8_codes(weight)

    def product(x: Tensor) -> Tensor:
        return F.linear(x, codes.to(x.dtype) * scale[:, None])

    return product, (codes, scale)


def _int8_codes(weight: Tensor) -> tuple[Tensor, Tensor]:
    scale = (weight.abs().amax(dim=1) / _INT8_MAX).bfloat16()
    codes = (weight / scale.float()[:, None]).round().clamp(-_INT8_MAX, _INT8_MAX)
    return codes.to(torch.int8), scale


def int4(weight: Tensor) -> Layer:
    groups = weight.view(len(weight), -1, GROUP)
    least, most = groups.amin(dim=2), groups.amax(dim=2)
    scale = ((most - least) / _INT4_STEPS).bfloat16()
    zero = (least + _INT4_MIDDLE * scale.float()).bfloat16()
    codes = (groups - zero.float()[..., None]) / scale.float()[..., None] + _INT4_MIDDLE
    codes = codes.round().clamp(0, _INT4_STEPS).to(torch.int32).view_as(weight)
    scales = torch.stack([scale, zero], dim=-1).transpose(0, 1).contiguous()
    if weight.device.type == "cpu":
        packed = torch._convert_weight_to_int4pack_for_cpu(codes, 1)
        multiply = torch._weight_int4pack_mm_for_cpu
    else:
        pairs = (codes[:, ::2] << 4 | codes[:, 1::2]).to(torch.uint8)
        packed = torch._convert_weight_to_int4pack(pairs, _TILES)
        multiply = torch._weight_int4pack_mm
    return (lambda x: multiply(x, packed, GROUP, scales)), (packed, scales)


def by_torchao(configuration: str) -> Callable[[Tensor], Layer]:
    """A layer that torchao converts, as this class of its configurations says."""

    def make(weight: Tensor) -> Layer:
        if find_spec("torchao") is None:
            raise Unsupported("torchao is not installed: pip install torchao")
        outputs, inputs = weight.shape
        linear = nn.Linear(inputs, outputs, bias=False, device=weight.device, dtype=torch.bfloat16)
        linear.weight = nn.Parameter(weight.bfloat16(), requires_grad=False)
        try:
            torchao = import_module("torchao.quantization")
            torchao.quantize_(linear, getattr(torchao, configuration)())
        except Exception as error:
            raise Unsupported(f"torchao: {first_line(error)}") from None
        return linear, _tensors_inside(linear.weight)

    return make


def _tensors_inside(weight: Tensor) -> tuple[Tensor, ...]:
    """The tensors that a tensor of torchao's is made of."""
    flatten = getattr(weight, "__tensor_flatten__", None)
    return tuple(getattr(weight, name) for name in flatten()[0]) if flatten else (weight,)


def first_line(error: Exception) -> str:
    """What an error of a library says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


WAYS: tuple[tuple[str, str, Callable[[Tensor], Layer]], ...] = (
    ("bf16", "torch", bf16),
    ("fp8", "torch", fp8),
    ("int8", "torch", int8),
    ("int8", "converted", int8_converted),
    ("int4", "torch", int4),
    ("fp8", "torchao", by_torchao("Float8WeightOnlyConfig")),
    ("int8", "torchao", by_torchao("Int8WeightOnlyConfig")),
    ("int4", "torchao", by_torchao("Int4WeightOnlyConfig")),
)
"""Type of the weights, way, and how such a layer is made of fp32 weights [outputs, inputs]."""
