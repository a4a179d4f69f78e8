"""torch.compile of the program's model, in its ways."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar

from . import ROUNDING, CannotApply, Cure
from .changing import before_first_calls, instances

if TYPE_CHECKING:
    from . import Undo


class _Compiled(Cure):
    """Each outermost module is compiled before its first call, in place: its parameters stay the
    optimizer's."""

    result = ROUNDING
    in_one_run = False
    options: ClassVar[dict[str, Any]] = {}

    def apply(self, torch: Any) -> Undo:
        if not hasattr(torch.nn.Module, "compile"):
            raise CannotApply("modules have .compile() from torch 2.2 on")

        def change(module: Any) -> None:
            inner = "torch._dynamo" in type(module).__module__
            if module._compiled_call_impl is None and not inner:
                module.compile(**self.options)

        return before_first_calls(torch, change)


def _is_compiled(torch: Any) -> bool:
    """Whether the program compiles a model itself."""
    compiles = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)
    if compiles is not None and instances(compiles):
        return True
    modules = instances(torch.nn.Module)
    return any(getattr(module, "_compiled_call_impl", None) for module in modules or ())


class Compile(_Compiled):
    """torch.compile as it is."""

    name = "compile"
    title = "the model is compiled"
    answers: ClassVar[tuple[str, ...]] = (
        "idle.launch", "busy.elementwise_chain", "busy.attention_unfused", "copies"
    )  # fmt: skip
    change = "model = torch.compile(model), or model.compile(...) in place"
    advice = "torch.compile"

    def useless(self, torch: Any) -> str | None:
        return "the program compiles its model" if _is_compiled(torch) else None


class CompileReduceOverhead(Compile):
    """torch.compile with CUDA graphs."""

    name = "compile_reduce_overhead"
    title = "the model is compiled and replayed as CUDA graphs"
    answers = ("idle.launch",)
    change = 'model = torch.compile(model, mode="reduce-overhead"), or model.compile(...) in place'
    advice = "reduce-overhead"
    options: ClassVar[dict[str, Any]] = {"mode": "reduce-overhead"}


class CompileDynamic(_Compiled):
    """torch.compile for all sizes."""

    name = "compile_dynamic"
    title = "the model is compiled once for all sizes"
    answers = ("idle.compile",)
    change = "model = torch.compile(model, dynamic=True), or model.compile(...) in place"
    advice = "dynamic"
    options: ClassVar[dict[str, Any]] = {"dynamic": True}
