"""torch.compile of the modules that no other module calls."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from . import CannotApply
from ._modules import before_first_calls
from ._objects import instances

if TYPE_CHECKING:
    from collections.abc import Callable


def compiled(torch: Any, **options: Any) -> Callable[[], None]:
    """Has each outermost module compiled before its first call, in place: its parameters stay the
    optimizer's."""
    if not hasattr(torch.nn.Module, "compile"):
        raise CannotApply("modules have .compile() from torch 2.2 on")

    def change(module: Any, _arguments: tuple[Any, ...]) -> None:
        if module._compiled_call_impl is None and "torch._dynamo" not in type(module).__module__:
            module.compile(**options)

    undo: Callable[[], None] = before_first_calls(torch, change)
    return undo


def compiled_already(torch: Any) -> str | None:
    """Why compiling is nothing new to a program; None where it is."""
    compiles = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)
    if compiles is not None and instances(compiles):
        return "the program compiles its model"
    modules = instances(torch.nn.Module)
    if any(getattr(module, "_compiled_call_impl", None) for module in modules or ()):
        return "the program compiles its model"
    return None
