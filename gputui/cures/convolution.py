"""Convolutions: their layout, and the algorithms of cuDNN."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from . import ANY, ROUNDING, CannotApply, Cure
from .changing import before_first_calls, combined, instances

if TYPE_CHECKING:
    from . import Undo


class ChannelsLast(Cure):
    """Images and convolutions with their channels last, as tensor cores take them."""

    name = "channels_last"
    title = "convolutions and their input have channels last"
    answers = ("layout", "slow_kernels", "busy.matmul_simt")
    result = ROUNDING
    change = "model = model.to(memory_format=torch.channels_last), the same for its input"
    in_one_run = False
    advice = "channels_last"

    def apply(self, torch: Any) -> Undo:
        last = torch.channels_last
        hooks: list[Any] = []

        def is_image(value: Any) -> bool:
            is_tensor = isinstance(value, torch.Tensor)
            return is_tensor and value.dim() == 4 and value.is_floating_point()

        def converted(value: Any) -> Any:
            return value.contiguous(memory_format=last) if is_image(value) else value

        def before(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return tuple(map(converted, args)), {name: converted(kwargs[name]) for name in kwargs}

        def change(module: Any) -> None:
            if any(isinstance(part, torch.nn.Conv2d) for part in module.modules()):
                module.to(memory_format=last)
                hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))

        def remove() -> None:
            for hook in hooks:
                hook.remove()

        return combined(before_first_calls(torch, change), remove)

    def useless(self, torch: Any) -> str | None:
        return "there are no convolutions" if instances(torch.nn.Conv2d) == [] else None


class CudnnBenchmark(Cure):
    """cuDNN tries its algorithms for each new shape, and keeps the fastest."""

    name = "cudnn_benchmark"
    title = "cuDNN chooses algorithms by trying them"
    answers = (ANY, "slow_kernels", "busy.matmul_simt")
    result = ROUNDING
    change = "torch.backends.cudnn.benchmark = True, where shapes stay the same"
    forecast = None

    def apply(self, torch: Any) -> Undo:
        cudnn = torch.backends.cudnn
        if cudnn.benchmark:
            raise CannotApply("torch.backends.cudnn.benchmark is on")
        if instances(torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d) == []:
            raise CannotApply("there are no convolutions")
        cudnn.benchmark = True
        return functools.partial(setattr, cudnn, "benchmark", False)


class CudnnBenchmarkOff(Cure):
    """cuDNN takes the algorithm that it expects to be fast, where sizes vary."""

    name = "cudnn_benchmark_off"
    title = "cuDNN does not try its algorithms for each new size"
    answers = ("idle.host", "idle.cuda", "idle.alloc")
    result = ROUNDING
    change = "torch.backends.cudnn.benchmark = False, where sizes vary"
    advice = r"cudnn\.benchmark = False|cuDNN chooses"

    def apply(self, torch: Any) -> Undo:
        cudnn = torch.backends.cudnn
        if not cudnn.benchmark:
            raise CannotApply("torch.backends.cudnn.benchmark is off")
        cudnn.benchmark = False
        return functools.partial(setattr, cudnn, "benchmark", True)
