"""torch.compile and jax.jit of what runs op by op, and what the program compiles itself."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import types
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

from . import (
    ANY,
    COMPILING_S,
    EXACT,
    PLAIN,
    ROUNDING,
    CannotApply,
    Cure,
    Redirected,
    before_first_calls,
    combined,
    idle,
    instances,
    replaced,
)
from .ablations import functions_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo


class CompileOptimizer(Cure):
    """The step of each class of optimizers compiled: also of one that the program wrote itself,
    whose loop over parameters becomes a few kernels."""

    name = "compile_optimizer"
    alternative = "compile"
    title = "the optimizer's step is compiled"
    answers = ("idle.launch", "idle.host", "unfused_optimizer")
    result = ROUNDING
    change = "step = torch.compile(optimizer.step), and step() instead of optimizer.step()"
    in_one_run = False
    advice = r"torch\._foreach"

    def apply(self, torch: Any) -> Undo:
        if not hasattr(torch, "compile"):
            raise CannotApply("this torch has no torch.compile")
        base = torch.optim.Optimizer
        init = base.__init__
        undos: dict[Any, Undo] = {}

        @functools.wraps(init)
        def changed(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            kind = type(self)
            if kind not in undos and not self.defaults.get("fused"):
                # Inside what calls the hooks of a step, by which steps are counted.
                plain = getattr(kind.step, "__wrapped__", kind.step)
                step = base.profile_hook_step(torch.compile(plain))
                step.hooked = True
                undos[kind] = replaced((kind, "step", step))

        restore = replaced((base, "__init__", changed))
        return lambda: combined(restore, *undos.values())()

    def useless(self, torch: Any) -> str | None:
        made = instances(torch.optim.Optimizer)
        if made is not None and all(each.defaults.get("fused") for each in made):
            return "its optimizer is fused" if made else "there is no optimizer"
        return None


class _Compiled(Cure):
    """Each outermost module is compiled before its first call, in place: its parameters stay the
    optimizer's."""

    result = ROUNDING
    in_one_run = False
    longer_s = COMPILING_S
    options: ClassVar[dict[str, Any]] = {}

    def apply(self, torch: Any) -> Undo:
        if not hasattr(torch.nn.Module, "compile"):
            raise CannotApply("modules have .compile() from torch 2.2 on")

        def change(module: Any) -> None:
            inner = "torch._dynamo" in type(module).__module__
            if module._compiled_call_impl is None and not inner:
                # What cannot be compiled runs as it is: a program may catch what is raised.
                config: Any = importlib.import_module("torch._dynamo.config")
                config.suppress_errors = True
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
    alternative = "compile"
    title = "the model is compiled"
    answers: ClassVar[tuple[str, ...]] = (
        "idle.launch", "busy.elementwise_chain", "busy.attention_unfused", "copies"
    )  # fmt: skip
    change = "model = torch.compile(model), or model.compile(...) in place"
    advice = r"torch\.compile"


class CompileReduceOverhead(Compile):
    """torch.compile whose kernels are replayed as CUDA graphs (mode="reduce-overhead")."""

    name = "compile_reduce_overhead"
    alternative = "compile"
    title = "the model is compiled and replayed as CUDA graphs"
    answers = ("idle.launch",)
    change = 'model = torch.compile(model, mode="reduce-overhead"), or model.compile(...) in place'
    advice = "reduce-overhead"
    options: ClassVar[dict[str, Any]] = {"mode": "reduce-overhead"}


class CompileFunction(Cure):
    """A function of the program compiled, where a chain of small kernels is launched from it: what
    no module is, such as a simulation's step, or an average of weights. Numbers are drawn as they
    are without."""

    name = "compile_function"
    alternative = "compile"
    title = "a function that launches many small kernels is compiled"
    answers = ("busy.elementwise_chain", "idle.launch")
    result = ROUNDING
    change = "@torch.compile on the function"
    argument = "FILE:FUNCTION"
    advice = r"torch\.compile"
    longer_s = COMPILING_S / 2.0

    _compiled: list[tuple[Any, str, Any]] | None = None

    def apply(self, torch: Any) -> Undo:
        if self._compiled is None:
            if not hasattr(torch, "compile"):
                raise CannotApply("this torch has no torch.compile")
            owners, _, name = functions_at(self.target)
            made = [(owner, vars(owner)[name]) for owner in owners]
            functions = {id(each): each for _, each in made if _may_be_compiled(each)}
            if not functions or len({id(each) for _, each in made}) != len(functions):
                raise CannotApply(f"{name} is no plain function, or is compiled already")
            if any(
                _NOT_COMPILED.intersection(each.__code__.co_names) for each in functions.values()
            ):
                raise CannotApply(f"{name} trains, or reads values from the GPU")
            config: Any = importlib.import_module("torch._dynamo.config")
            config.suppress_errors = True
            options = {"fallback_random": True}
            compiled = {key: torch.compile(functions[key], options=options) for key in functions}
            self._compiled = [(owner, name, compiled[id(each)]) for owner, each in made]
        return replaced(*self._compiled)


def _may_be_compiled(function: Any) -> bool:
    is_plain = type(function) is types.FunctionType
    return is_plain and not hasattr(function, "_torchdynamo_orig_callable")


_NOT_COMPILED = frozenset({"backward", "step", "zero_grad", "item", "tolist", "cpu", "numpy"})
"""What a function does around which a compiler breaks what it makes of it into pieces."""


class FlexCompiled(Redirected):
    """flex_attention compiled, as it has to be: without that it makes all scores, mask and all."""

    name = "flex_compiled"
    title = "flex_attention is compiled to one kernel"
    answers = (ANY, "busy.attention_unfused", "attention_fp32", "busy.elementwise_chain")
    result = ROUNDING
    is_certain = True
    change = "flex_attention = torch.compile(flex_attention)"
    library = "torch.nn.attention.flex_attention"
    forecast = None
    settles_s = COMPILING_S / 4.0

    _compiled: Any = None

    def places(self, flex: Any) -> tuple[tuple[Any, str], ...]:
        """The function, which programs take by name."""
        return ((flex, "flex_attention"),)

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        torch: Any = sys.modules["torch"]
        if torch.compiler.is_compiling():
            return None
        return lambda: self._attend(torch, function, args, kwargs)

    def _attend(self, torch: Any, function: Any, args: Any, kwargs: Any) -> Any:
        self._compiled = self._compiled or torch.compile(function)
        try:
            return self._compiled(*args, **kwargs)
        except Exception as error:  # there is no kernel of it for this
            self.end(f"it is not compiled: {type(error).__name__}")
            return function(*args, **kwargs)


class CompileDynamic(Cure):
    """What the program compiles for each size, or each number that a module counts up, alone is
    compiled for all."""

    name = "compile_dynamic"
    alternative = "compile"
    title = "what is compiled is compiled once for all sizes and numbers"
    answers = (ANY, "idle.compile", "compiler_gave_up")
    result = ROUNDING
    change = "torch.compile(..., dynamic=True), and tensors for what modules count"
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

    def useless(self, torch: Any) -> str | None:
        if not _compiles():
            return COMPILES_NOTHING
        # "2/3": the second function's fourth time.
        made = [str(each.compile_id) for each in torch._dynamo.utils.get_compilation_metrics()]
        again = max((int(each.rpartition("/")[2]) for each in made if "/" in each), default=0)
        if again >= LEAST_AGAIN:
            return None
        return f"compiled again {again} times at most" if again else "nothing is compiled again"


COMPILES_NOTHING = "the program compiles nothing with torch.compile"


def _compiles() -> bool:
    """Whether torch.compile has compiled something: only then it imports what does."""
    return "torch._dynamo.convert_frame" in sys.modules


LEAST_AGAIN = 3
"""Times that a function was compiled again before it is compiled for all sizes: one or two make it
so, where torch sees it."""


def _dynamic(function: Any) -> Any:
    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        config: Any = importlib.import_module("torch._dynamo.config")
        if hasattr(config, "allow_unspec_int_on_nn_module"):
            config.allow_unspec_int_on_nn_module = True
        return function(*args, **{**options, "dynamic": True})

    return called


class CompileOff(Cure):
    """What the program compiles runs as it is written: where each shape, or each step, is compiled
    for anew, that costs more than it gains."""

    name = "compile_off"
    alternative = "compile"
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

    def useless(self, _torch: Any) -> str | None:
        return None if _compiles() else COMPILES_NOTHING


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

    _has_static = False

    def prepare(self, jax: Any) -> None:
        """Note whether arguments are static."""

        def note(_function: Any, options: dict[str, Any]) -> None:
            self._has_static = self._has_static or any("static_arg" in name for name in options)

        _note_jit(jax, note)

    def useless(self, _jax: Any) -> str | None:
        return None if self._has_static else "no argument of jax.jit is static"

    def apply(self, jax: Any) -> Undo:
        real = jax.jit

        @functools.wraps(real)
        def jit(function: Any = None, **options: Any) -> Any:
            if function is None:
                return functools.partial(jit, **options)
            names = _static_names(function, options)
            return _traced(real, function, names, options) if names else real(function, **options)

        return replaced((jax, "jit", jit))


UNROLLED, LEAST_TURNS = 16, 64
"""Turns of a scan that are compiled as one, of how many at least: a scan over a model's layers has
fewer, and each of its turns is long."""


class JaxScansUnrolled(Redirected):
    """Loops of jax.lax.scan whose turns are small kernels that wait for one another: compiled as
    sixteen turns at a time, with fewer launches and more that is fused."""

    name = "jax_scans_unrolled"
    none_such = "there is no long jax.lax.scan"
    title = "jax.lax.scan takes sixteen turns at a time"
    answers = ("idle.dependency", "idle.launch")
    result = ROUNDING
    change = f"jax.lax.scan(..., unroll={UNROLLED}), or associative_scan of a linear recurrence"
    library = "jax"
    in_one_run = False
    longer_s = 10.0
    advice = "unroll"

    def places(self, jax: Any) -> tuple[tuple[Any, str], ...]:
        """The loop."""
        return ((jax.lax, "scan"),)

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        """Long ones of which the program does not say it."""
        words = {**dict(zip(_OF_SCAN, args)), **kwargs}  # noqa: B905
        leaves = sys.modules["jax"].tree_util.tree_leaves(words.get("xs"))
        turns = words.get("length") or (leaves[0].shape[0] if leaves else 0)
        if len(args) > len(_OF_SCAN) or "unroll" in words or turns < LEAST_TURNS:
            return None
        return lambda: function(*args, **{**kwargs, "unroll": UNROLLED})


_OF_SCAN = ("f", "init", "xs", "length", "reverse", "unroll")


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


def _note_jit(jax: Any, note: Callable[[Any, dict[str, Any]], None]) -> None:
    """Has calls of jax.jit noted from now on."""
    real = jax.jit

    @functools.wraps(real)
    def jit(*args: Any, **kwargs: Any) -> Any:
        note(args[0] if args else None, kwargs)
        return real(*args, **kwargs)

    replaced((jax, "jit", jit))


class JaxJitKept(Cure):
    """A function that the program makes anew and gives to jax.jit again, such as a lambda in the
    loop, is compiled once, if all that it computes by is known to stay as it is: numbers, words,
    arrays of JAX, modules, classes, and functions and tuples of these."""

    name = "jax_jit_kept"
    title = "jax.jit compiles a function that is made again only once"
    answers = ("idle.compile",)
    result = EXACT
    change = "jax.jit(...) once, outside the loop, of a function that is given all that it needs"
    library = "jax"
    in_one_run = False

    def __init__(self, target: str = "") -> None:
        super().__init__(target)
        self._given = Counter[Any]()
        """By its code, how often a function was given to jax.jit."""

    def prepare(self, jax: Any) -> None:
        """Count what is given to jax.jit."""

        def note(function: Any, _options: Any) -> None:
            inner = getattr(function, "func", function)  # of a partial
            self._given[getattr(inner, "__code__", None)] += 1

        _note_jit(jax, note)

    def useless(self, _jax: Any) -> str | None:
        is_again = max(self._given.values(), default=0) >= LEAST_AGAIN
        return None if is_again else "no function is given to jax.jit again and again"

    def apply(self, jax: Any) -> Undo:
        real = jax.jit
        kept: dict[Any, Any] = {}

        @functools.wraps(real)
        def jit(function: Any = None, **options: Any) -> Any:
            if function is None:
                return functools.partial(jit, **options)
            try:
                key = _made_of(function, jax.Array), _made_of(tuple(sorted(options.items())), ())
            except _MayChange:
                return real(function, **options)
            if key not in kept and len(kept) < MOST_KEPT:
                kept[key] = real(function, **options)
            return kept[key] if key in kept else real(function, **options)

        return replaced((jax, "jit", jit))


MOST_KEPT = 256
"""Jitted functions that are kept, and what they compute by."""
MOST_DEEP = 4
"""Functions within functions that are looked into."""


class _MayChange(Exception):
    """What a function computes by may be another thing in the next call."""


_STAYS = (types.ModuleType, types.BuiltinFunctionType, type)


class _Itself:
    """Is equal to another of the same object only, which is kept."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value


def _made_of(value: Any, array: Any, depth: int = MOST_DEEP) -> Any:
    """What a function computes by: its code, and what it holds and takes from its module. Raises
    _MayChange."""
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, (*_STAYS, array)) or hasattr(value, "lower"):  # a jitted one
        return _Itself(value)
    if not depth:
        raise _MayChange
    if isinstance(value, tuple):
        return type(value), *(_made_of(each, array, depth - 1) for each in value)
    if not isinstance(value, types.FunctionType):
        raise _MayChange
    codes = [value.__code__]
    names: set[str] = set()
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    try:
        held = [cell.cell_contents for cell in value.__closure__ or ()]
    except ValueError:  # one that is not set yet
        raise _MayChange from None
    held += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    held += [value.__globals__[name] for name in sorted(names) if name in value.__globals__]
    return (value.__code__, *(_made_of(each, array, depth - 1) for each in held))
