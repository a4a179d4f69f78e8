"""The format that kernels compute in: TF32, bf16, float32 in place of float64."""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any, ClassVar

from . import (
    ANY,
    DIFFERENT,
    EXACT,
    ROUNDING,
    CannotApply,
    Cure,
    Redirected,
    after_optimizer_steps,
    before_first_calls,
    combined,
    instances,
    replaced,
)
from .copies import LEAST_BYTES, free_bytes_of_gpu
from .later import counting_fused_steps, writes_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo

FIRST_WITH_TF32 = (8, 0)
"""Compute capability from which tensor cores take TF32: Ampere (CUDA C++ Programming Guide)."""


class Tf32(Cure):
    """TF32 for FP32 matrix products in PyTorch."""

    name = "tf32"
    title = "FP32 matrix products run as TF32 on tensor cores"
    answers = ("busy.matmul_simt",)
    result = ROUNDING
    change = 'torch.set_float32_matmul_precision("high")'
    forecast = "TF32"
    advice = "set_float32_matmul_precision"

    def apply(self, torch: Any) -> Undo:
        # Asking for the capability initializes CUDA, after which a program may not fork its
        # workers.
        if torch.cuda.is_initialized() and torch.cuda.get_device_capability() < FIRST_WITH_TF32:
            raise CannotApply("this GPU has no TF32")
        precision, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
        of_cudnn = cudnn.allow_tf32
        if precision != "highest" and of_cudnn:
            raise CannotApply(f"the precision of matrix products is {precision} already")
        torch.set_float32_matmul_precision("high" if precision == "highest" else precision)
        cudnn.allow_tf32 = True

        def undo() -> None:
            cudnn.allow_tf32 = of_cudnn
            torch.set_float32_matmul_precision(precision)

        return undo


class _Entered(threading.local):
    """The inference modes that a thread is in."""

    def __init__(self) -> None:
        self.began_on: list[bool] = []
        """Whether the cure was on when each began, the innermost last."""


class Bf16Autocast(Cure):
    """bf16 autocast of all that runs, as `with torch.autocast("cuda", torch.bfloat16)` around
    it."""

    name = "bf16_autocast"
    title = "forward passes run in bf16 autocast"
    answers = (
        "busy.matmul_simt", "outside_autocast", "attention_fp32", "busy.attention_unfused"
    )  # fmt: skip
    result = DIFFERENT
    change = 'with torch.autocast("cuda", torch.bfloat16): around the forward pass and the loss'
    alternative = "bf16"
    forecast = "bf16"
    advice = "autocast"

    _is_on = _was_on = False
    _thread = 0
    """The one that it was switched in: autocast is a thread's own."""

    def prepare(self, torch: Any) -> None:
        # At its end an inference mode puts back what was on when it began, autocast too: what was
        # switched in one, as at a module's call, would not stay.
        mode = torch.inference_mode
        enter, leave = mode.__enter__, mode.__exit__
        inside = _Entered()

        @functools.wraps(enter)
        def entered(context: Any) -> Any:
            inside.began_on.append(self._is_on)
            return enter(context)

        @functools.wraps(leave)
        def left(context: Any, *error: Any) -> Any:
            made = leave(context, *error)
            was_switched = inside.began_on and inside.began_on.pop() != self._is_on
            if was_switched and threading.get_ident() == self._thread:
                device = "cuda" if torch.cuda.is_available() else "cpu"
                torch.set_autocast_enabled(device, self._is_on or self._was_on)
            return made

        replaced((mode, "__enter__", entered), (mode, "__exit__", left))

    def apply(self, torch: Any) -> Undo:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        was_on, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        self._is_on, self._was_on, self._thread = True, was_on, threading.get_ident()
        torch.set_autocast_enabled(device, True)
        torch.set_autocast_dtype(device, torch.bfloat16)
        # Cast weights are kept until autocast ends, which a step of the optimizer makes stale.
        forget = after_optimizer_steps(lambda _optimizer: torch.clear_autocast_cache())

        def undo() -> None:
            self._is_on = False
            forget()
            torch.set_autocast_enabled(device, was_on)
            torch.set_autocast_dtype(device, dtype)
            torch.clear_autocast_cache()

        return undo


class CastsKept(Redirected):
    """Weights in FP32 that autocast casts for each call, because nothing trains them, stay cast: a
    decoder's, which are read once for each token, a frozen model's. With gradients autocast keeps
    those that are trained itself, as long as it lasts."""

    name = "casts_kept"
    title = "weights that autocast casts for each call stay cast, where they are not trained"
    answers = (ANY, "copies", "busy.elementwise_chain", "idle.launch")
    result = EXACT
    is_certain = True
    change = "model.to(torch.bfloat16) once, in place of autocast around each call of it"
    forecast = None

    def __init__(self, target: str = "") -> None:
        super().__init__(target)
        self._kept: dict[int, tuple[Any, Any, Any]] = {}
        """By a weight's id itself, how often it was written to, and its cast."""

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        self._torch, functional = torch, torch.nn.functional
        names = "linear", "conv1d", "conv2d"
        return (torch, "addmm"), *((functional, name) for name in names)

    def apply(self, torch: Any) -> Undo:
        self._room = free_bytes_of_gpu(torch) // 4
        return combined(self._kept.clear, counting_fused_steps(), super().apply(torch))

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        torch, kind = self._torch, self._torch.nn.Parameter
        weights = [each for each in (*args, *kwargs.values()) if type(each) is kind]
        if (
            not weights or torch.compiler.is_compiling()
            or not torch.is_autocast_enabled(weights[0].device.type)
        ):  # fmt: skip
            return None
        if torch.is_grad_enabled():
            weights = [each for each in weights if not each.requires_grad]
        if not any(id(each) in self._kept or self.is_worth(each) for each in weights):
            return None
        if not self._is_on:
            return lambda: None
        casts = {id(each): self._cast(each) for each in weights}
        words = {name: casts.get(id(value), value) for name, value in kwargs.items()}
        return functools.partial(function, *(casts.get(id(v), v) for v in args), **words)

    def is_worth(self, weight: Any) -> bool:
        """Whether it is on a GPU, in FP32, and large."""
        return bool(weight.is_cuda) and self._is_fp32(weight) and weight.nbytes >= LEAST_BYTES

    def _is_fp32(self, weight: Any) -> bool:
        return weight.dtype is self._torch.float32 and not weight.is_inference()

    def _cast(self, weight: Any) -> Any:
        """As autocast casts it; itself where it does not, or there is no room."""
        kept, writes, cast = self._kept.get(id(weight), (None, None, None))
        dtype = self._torch.get_autocast_dtype(weight.device.type)
        now = writes_of(weight)
        if kept is weight and writes == now and cast.dtype is dtype:
            return cast
        if not self._is_fp32(weight):
            return weight
        if cast is None:
            self._room -= weight.nbytes // 2
        if self._room < 0:
            return weight
        with self._torch.no_grad():
            cast = weight.detach().to(dtype)
        self._kept[id(weight)] = weight, now, cast
        return cast

    def look(self) -> None:
        """Whether weights were written to by what does not count it."""
        others = [
            (weight.detach().to(cast.dtype) != cast).any()
            for weight, writes, cast in self._kept.values() if writes == writes_of(weight)
        ]  # fmt: skip
        if any(map(bool, others)):
            self.end("weights are written to by what does not count it")


class Bf16Weights(Cure):
    """Models that are called without gradients in bf16, weights and all, as `model.to(bf16)`: in
    autocast normalizations and what follows them stay in FP32 (a vision transformer on an H200: 6.8
    times as fast as in FP32 by autocast, 8.3 by its weights). What a model is given, and gives, is
    as before. Buffers that are not saved with a model stay FP32: tables of a rotary embedding."""

    name = "bf16_weights"
    title = "models that are not trained are in bf16, weights and all"
    answers = ("busy.matmul_simt", "attention_fp32", "busy.attention_unfused")
    result = DIFFERENT
    change = "model.to(torch.bfloat16), or from_pretrained(..., dtype=torch.bfloat16)"
    in_one_run = False
    of_inference = True
    forecast = "bf16"
    advice = "autocast"
    alternative = "bf16"

    def apply(self, torch: Any) -> Undo:
        undos: list[Any] = []

        def given(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            args = tuple(_in_type(torch, each, torch.bfloat16) for each in args)
            return args, {name: _in_type(torch, kwargs[name], torch.bfloat16) for name in kwargs}

        def gave(_module: Any, _args: Any, made: Any) -> Any:
            return _in_float32(torch, made)

        def change(module: Any) -> None:
            if module.training or torch.is_grad_enabled():
                return
            owned = [*module.parameters(), *_saved_buffers(module)]
            owned = [each for each in owned if each.dtype is torch.float32]
            if not owned or any(each.is_inference() for each in owned):
                return
            for each in owned:
                each.data = each.data.to(torch.bfloat16)
            undos.append(functools.partial(_put_back, torch, owned))
            undos.append(module.register_forward_pre_hook(given, with_kwargs=True).remove)
            undos.append(module.register_forward_hook(gave).remove)

        return combined(before_first_calls(torch, change), lambda: combined(*undos)())

    def useless(self, torch: Any) -> str | None:
        return "the program trains" if instances(torch.optim.Optimizer) else None


def _put_back(torch: Any, owned: list[Any]) -> None:
    """The type; what bf16 has left out is gone."""
    for each in owned:
        each.data = each.data.to(torch.float32)


def _saved_buffers(module: Any) -> list[Any]:
    return [
        buffer
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None and name not in part._non_persistent_buffers_set
    ]


def _in_type(torch: Any, value: Any, dtype: Any) -> Any:
    is_float32 = isinstance(value, torch.Tensor) and value.dtype is torch.float32
    return value.to(dtype) if is_float32 else value


class FrozenAutocast(Cure):
    """Autocast around modules that are not trained, such as a teacher or an encoder, in a program
    that trains another one under it."""

    name = "frozen_autocast"
    title = "modules that are not trained run in the autocast that those beside them have"
    answers = (ANY, "outside_autocast", "attention_fp32", "busy.matmul_simt")
    result = ROUNDING
    is_certain = True
    change = "with torch.autocast(...) around what is not trained, too"
    advice = "autocast"

    _given: tuple[str, Any] | None = None
    """The device and the type of the program's own autocast."""
    _frozen: list[Any] | None = None

    def prepare(self, torch: Any) -> None:
        enter = torch.autocast.__enter__

        @functools.wraps(enter)
        def entered(context: Any) -> Any:
            if context._enabled:
                self._given = context.device, context.fast_dtype
            return enter(context)

        replaced((torch.autocast, "__enter__", entered))

    def apply(self, torch: Any) -> Undo:
        if self._given is None:
            raise CannotApply("the program uses no autocast")
        if self._frozen is None:
            self._frozen = _untrained(torch)
        if not self._frozen:
            raise CannotApply("there is no module in FP32 that is not trained")
        return _in_autocast(torch, self._frozen, *self._given)


def _in_autocast(torch: Any, modules: list[Any], device: str, dtype: Any) -> Undo:
    """Has modules run in autocast where they do not; what they give is in FP32."""
    contexts: list[Any] = []

    def enters(*_given: Any) -> None:
        is_in = torch.is_autocast_enabled(device)
        contexts.append(None if is_in else torch.autocast(device, dtype))
        if not is_in:
            contexts[-1].__enter__()

    def leaves(_module: Any, _args: Any, made: Any) -> Any:
        context = contexts.pop()
        if context is None:
            return made
        context.__exit__(None, None, None)
        return _in_float32(torch, made)

    hooks = []
    for module in modules:
        hooks.append(module.register_forward_pre_hook(enters))
        hooks.append(module.register_forward_hook(leaves, always_call=True))
    return combined(*(hook.remove for hook in hooks))


class AccelerateAutocast(Cure):
    """accelerate's autocast also around the parts of a model that the program calls by themselves,
    or by another method than `forward`: `prepare` wraps that alone, and what goes past it computes
    in FP32 in spite of mixed_precision."""

    name = "accelerate_autocast"
    title = "parts of a model that accelerate prepared run in its autocast, however they are called"
    answers = (ANY, "outside_autocast", "attention_fp32", "busy.matmul_simt")
    result = ROUNDING
    change = "with accelerator.autocast(): around the forward pass and the loss"
    library = "accelerate"
    advice = "autocast"

    _modules: list[Any] | None = None

    def apply(self, accelerate: Any) -> Undo:
        torch = sys.modules["torch"]
        if self._modules is None:
            prepared = [
                model
                for each in instances(accelerate.Accelerator) or []
                if str(each.mixed_precision) == "bf16"
                for model in each._models
            ]
            own = [getattr(model, "_orig_mod", model) for model in prepared]
            self._modules = [module for model in own for module in model.children()]
        if not self._modules:
            raise CannotApply("accelerate prepares no model in bf16")
        device = next(each.device.type for module in self._modules for each in module.parameters())
        return _in_autocast(torch, self._modules, device, torch.bfloat16)


def _untrained(torch: Any) -> list[Any]:
    """Modules that no other holds, whose parameters are all in FP32, and none has gradients."""
    modules = instances(torch.nn.Module) or []
    held = {id(child) for module in modules for child in module._modules.values()}

    def is_untrained(module: Any) -> bool:
        own = list(module.parameters())
        return sum(each.numel() for each in own) >= LEAST_UNTRAINED and all(
            each.dtype is torch.float32 and not each.requires_grad for each in own
        )

    return [module for module in modules if id(module) not in held and is_untrained(module)]


LEAST_UNTRAINED = 1 << 20
"""Parameters of a module from which it is no small head or loss."""


def _in_float32(torch: Any, made: Any) -> Any:
    """What a module gave, in the type that it has without autocast."""
    if isinstance(made, torch.Tensor):
        return made.float() if made.is_floating_point() else made
    if type(made) in (tuple, list):
        return type(made)(_in_float32(torch, each) for each in made)
    if isinstance(made, dict):
        for key in list(made):
            made[key] = _in_float32(torch, made[key])
    return made


class _JaxOptions(Cure):
    """Options of jax.config that are what they are unless a program says otherwise."""

    library = "jax"
    in_one_run = False
    is_certain = True
    options: ClassVar[dict[str, Any]] = {}
    """What they are, by name."""

    def _supported(self, jax: Any) -> dict[str, Any]:
        """Those that this version of JAX has."""
        return {name: self.options[name] for name in self.options if hasattr(jax.config, name)}

    def apply(self, jax: Any) -> Undo:
        options = self._supported(jax)
        for name, value in options.items():
            jax.config.update(name, value)
        kind = type(jax.config)
        update = kind.update

        @functools.wraps(update)
        def without(self: Any, name: str, value: Any) -> Any:
            return None if name in options else update(self, name, value)

        return replaced((kind, "update", without))

    def useless(self, jax: Any) -> str | None:
        if any(getattr(jax.config, name) != value for name, value in self._supported(jax).items()):
            return None
        return f"{', '.join(self.options)}: as they are by default"


class JaxX64Off(_JaxOptions):
    """FP32 in JAX although the program asks for FP64, which NumPy's arrays are then."""

    name = "jax_x64_off"
    title = "JAX computes in FP32, as it does unless jax_enable_x64 is on"
    answers = ("busy.matmul_simt", "float64", "fp64", "slow_kernels")
    result = ROUNDING
    change = 'no jax.config.update("jax_enable_x64", True), no JAX_ENABLE_X64'
    forecast = "FP32"
    options: ClassVar[dict[str, Any]] = {"jax_enable_x64": False}


class JaxProducts(_JaxOptions):
    """Products in JAX as precise as it has them by default: TF32 of FP32."""

    name = "jax_products"
    title = "JAX computes products of FP32 in TF32, as it does by default"
    answers = ("busy.matmul_simt", "slow_kernels")
    result = ROUNDING
    change = 'no jax.config.update("jax_default_matmul_precision", ...)'
    options: ClassVar[dict[str, Any]] = {"jax_default_matmul_precision": None}
    advice = "TF32"


class JaxChecksOff(_JaxOptions):
    """JAX without what finds mistakes: checks of each result, no jit, leaks of tracers."""

    name = "jax_checks_off"
    title = "JAX compiles, and checks no results"
    answers = (ANY, "idle.sync", "idle.launch", "idle.host", "slow_setting")
    result = EXACT
    change = "no jax_debug_nans, jax_disable_jit or jax_check_tracer_leaks"
    forecast = None
    options: ClassVar[dict[str, Any]] = {
        "jax_debug_nans": False, "jax_debug_infs": False, "jax_disable_jit": False,
        "jax_check_tracer_leaks": False, "jax_enable_checks": False,
    }  # fmt: skip


class Float32(Cure):
    """FP32 where numbers became FP64: an array of NumPy, a default, a model made double."""

    name = "float32"
    title = "tensors made of FP64 arrays, and models made double, are FP32"
    answers = (ANY, "float64", "fp64")
    result = ROUNDING
    change = "array.astype(numpy.float32), or torch.as_tensor(array, dtype=torch.float32)"
    in_one_run = False
    is_certain = True

    def apply(self, torch: Any) -> Undo:
        def single(function: Any) -> Any:
            @functools.wraps(function)
            def called(*args: Any, **kwargs: Any) -> Any:
                made = function(*args, **kwargs)
                is_wanted = kwargs.get("dtype") is not None
                return made.float() if made.dtype is torch.float64 and not is_wanted else made

            return called

        names = ("from_numpy", "as_tensor", "tensor")
        default, module = torch.set_default_dtype, torch.nn.Module

        @functools.wraps(default)
        def set_default_dtype(dtype: Any) -> None:
            default(torch.float32 if dtype is torch.float64 else dtype)

        return replaced(
            *((torch, name, single(getattr(torch, name))) for name in names),
            (torch, "set_default_dtype", set_default_dtype),
            (module, "double", module.float),
        )

    def useless(self, torch: Any) -> str | None:
        made = instances(torch.Tensor)
        double = (torch.float64, torch.complex128)
        if made is not None and not any(
            each.dtype in double and (isinstance(each, torch.nn.Parameter) or each.numel() > MANY)
            for each in made
        ):
            return "no parameter is FP64, and no large tensor"
        return None


MANY = 1000
"""Numbers of a tensor from which it matters that they are FP64: sums of losses are."""
