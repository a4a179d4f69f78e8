"""Images and convolutions with their channels last, as tensor cores take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import ROUNDING, Cure
from ._modules import before_first_calls
from ._objects import instances
from ._replacing import combined

if TYPE_CHECKING:
    from collections.abc import Callable


def _apply(torch: Any) -> Callable[[], None]:
    last = torch.channels_last
    hooks: list[Any] = []

    def is_image(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.dim() == 4 and value.is_floating_point()

    def converted(value: Any) -> Any:
        return value.contiguous(memory_format=last) if is_image(value) else value

    def before(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return tuple(map(converted, args)), {name: converted(kwargs[name]) for name in kwargs}

    def change(module: Any, _arguments: tuple[Any, ...]) -> None:
        if any(isinstance(part, torch.nn.Conv2d) for part in module.modules()):
            module.to(memory_format=last)
            hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))

    def remove() -> None:
        for hook in hooks:
            hook.remove()

    return combined(before_first_calls(torch, change), remove)


def _useless(torch: Any) -> str | None:
    return "there are no convolutions" if instances(torch.nn.Conv2d) == [] else None


CURE = Cure(
    name="channels_last",
    title="convolutions and their input have channels last",
    answers=("layout", "slow_kernels", "busy.matmul_simt"),
    result=ROUNDING,
    change="model = model.to(memory_format=torch.channels_last), the same for its input",
    apply=_apply,
    library="torch",
    in_one_run=False,
    useless=_useless,
    advice="channels_last",
)
