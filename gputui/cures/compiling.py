"""torch.compile of the program's model, and of what the program compiles itself."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from . import EXACT, ROUNDING, CannotApply, Cure
from .changing import before_first_calls, idle, instances, replaced

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

    def useless(self, torch: Any) -> str | None:
        if instances(torch.nn.Module) == []:
            return "there is no module to compile"
        return "the program compiles its model" if _is_compiled(torch) else None


def _is_compiled(torch: Any) -> bool:
    """Whether the program compiles a model itself."""
    compiles = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)
    if compiles is not None and instances(compiles):
        return True
    modules = instances(torch.nn.Module)
    return any(getattr(module, "_compiled_call_impl", None) for module in modules or ())


class Compile(_Compiled):
    """torch.compile of the outermost module, in its default mode."""

    name = "compile"
    title = "the model is compiled"
    answers: ClassVar[tuple[str, ...]] = (
        "idle.launch", "busy.elementwise_chain", "busy.attention_unfused", "copies"
    )  # fmt: skip
    change = "model = torch.compile(model), or model.compile(...) in place"
    advice = r"torch\.compile"


class CompileReduceOverhead(Compile):
    """torch.compile whose kernels are replayed as CUDA graphs (mode="reduce-overhead")."""

    name = "compile_reduce_overhead"
    title = "the model is compiled and replayed as CUDA graphs"
    answers = ("idle.launch",)
    change = 'model = torch.compile(model, mode="reduce-overhead"), or model.compile(...) in place'
    advice = "reduce-overhead"
    options: ClassVar[dict[str, Any]] = {"mode": "reduce-overhead"}


class CompileDynamic(Cure):
    """What the program compiles for each size alone is compiled for all."""

    name = "compile_dynamic"
    title = "what is compiled is compiled once for all sizes"
    answers = ("idle.compile",)
    result = ROUNDING
    change = "torch.compile(..., dynamic=True)"
    in_one_run = False
    advice = "dynamic"

    def apply(self, torch: Any) -> Undo:
        if not hasattr(torch, "compile"):
            raise CannotApply("this torch has no torch.compile")
        for_module = getattr(torch.nn.Module, "compile", None)
        return replaced(
            (torch, "compile", _dynamic(torch.compile)),
            (torch.nn.Module, "compile", _dynamic(for_module)),
        )

    def useless(self, _torch: Any) -> str | None:
        is_used = "torch._dynamo.convert_frame" in sys.modules
        return None if is_used else "the program compiles nothing with torch.compile"


def _dynamic(function: Any) -> Any:
    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        return function(*args, **{**options, "dynamic": True})

    return called


class CompileOff(Cure):
    """What the program compiles runs as it is written: where each shape, or each step, is compiled
    for anew, that costs more than it gains."""

    name = "compile_off"
    title = "torch.compile compiles nothing"
    answers = ("idle.compile",)
    result = ROUNDING
    change = "no torch.compile, or only of what keeps its shapes"
    in_one_run = False
    forecast = None

    def apply(self, torch: Any) -> Undo:
        def compile(model: Any = None, **_options: Any) -> Any:
            return (lambda model: model) if model is None else model

        in_place = getattr(torch.nn.Module, "compile", None)
        return replaced(
            (torch, "compile", compile),
            (torch.nn.Module, "compile", functools.wraps(in_place)(idle) if in_place else None),
        )

    def useless(self, torch: Any) -> str | None:
        return CompileDynamic().useless(torch)


class JaxFloatsTraced(Cure):
    """Python floats that jax.jit was told are static, such as a learning rate, passed as what they
    are: each of their values is compiled for else."""

    name = "jax_floats_traced"
    title = "floats are no static arguments of jax.jit"
    answers = ("idle.compile",)
    result = EXACT
    change = "no floats in static_argnums or static_argnames of jax.jit"
    library = "jax"
    in_one_run = False

    def apply(self, jax: Any) -> Undo:
        real = jax.jit

        @functools.wraps(real)
        def jit(function: Any = None, **options: Any) -> Any:
            if function is None:
                return functools.partial(jit, **options)
            names = _static_names(function, options)
            return _traced(real, function, names, options) if names else real(function, **options)

        return replaced((jax, "jit", jit))


def _static_names(function: Any, options: dict[str, Any]) -> frozenset[str]:
    """The names of a function's static arguments; none where they cannot be told."""
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return frozenset()
    numbers, words = options.get("static_argnums"), options.get("static_argnames")
    numbers = () if numbers is None else (numbers,) if isinstance(numbers, int) else numbers
    words = () if words is None else (words,) if isinstance(words, str) else words
    return frozenset((*words, *(parameters[number] for number in numbers)))


def _traced(real: Any, function: Any, names: frozenset[str], options: dict[str, Any]) -> Any:
    """jit of a function whose static arguments are those of `names` that are no floats."""
    others = {name: options[name] for name in options if not name.startswith("static_arg")}
    signature, jitted = inspect.signature(function), {}

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        static = frozenset(name for name in names if not isinstance(given.get(name), float))
        if static not in jitted:
            jitted[static] = real(function, static_argnames=sorted(static) or None, **others)
        return jitted[static](*args, **kwargs)

    called.lower = real(function, **options).lower  # type: ignore[attr-defined]
    return called
