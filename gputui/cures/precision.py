"""What numbers are computed with: TF32, bf16, and a result that need not have the same bits."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from . import ANY, DIFFERENT, ROUNDING, CannotApply, Cure
from .changing import instances, replaced

if TYPE_CHECKING:
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


class Bf16Autocast(Cure):
    """bf16 autocast of all that runs, as `with torch.autocast("cuda", torch.bfloat16)` around
    it."""

    name = "bf16_autocast"
    title = "forward passes run in bf16 autocast"
    answers = ("busy.matmul_simt", "attention_fp32", "busy.attention_unfused")
    result = DIFFERENT
    change = 'with torch.autocast("cuda", torch.bfloat16): around the forward pass and the loss'
    forecast = "bf16"
    advice = "autocast"

    def apply(self, torch: Any) -> Undo:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        was_on, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        torch.set_autocast_enabled(device, True)
        torch.set_autocast_dtype(device, torch.bfloat16)
        # Cast weights are kept until autocast ends, which a step of the optimizer makes stale.
        optimizers = sys.modules["torch.optim.optimizer"]  # torch.optim deletes its attribute

        def stepped(*_arguments: Any) -> None:
            torch.clear_autocast_cache()

        hook = optimizers.register_optimizer_step_post_hook(stepped)

        def undo() -> None:
            hook.remove()
            torch.set_autocast_enabled(device, was_on)
            torch.set_autocast_dtype(device, dtype)
            torch.clear_autocast_cache()

        return undo


class JaxX64Off(Cure):
    """FP32 in JAX although the program asks for FP64, which NumPy's arrays are then."""

    name = "jax_x64_off"
    title = "JAX computes in FP32, as it does unless jax_enable_x64 is on"
    answers = ("busy.matmul_simt", "fp64", "slow_kernels")
    result = ROUNDING
    change = 'no jax.config.update("jax_enable_x64", True), no JAX_ENABLE_X64'
    library = "jax"
    in_one_run = False
    forecast = "FP32"

    def apply(self, jax: Any) -> Undo:
        jax.config.update(_X64, False)
        kind = type(jax.config)
        update = kind.update

        @functools.wraps(update)
        def without(self: Any, name: str, value: Any) -> Any:
            return None if name == _X64 else update(self, name, value)

        return replaced((kind, "update", without))

    def useless(self, jax: Any) -> str | None:
        return None if jax.config.jax_enable_x64 else f"{_X64} is off"


_X64 = "jax_enable_x64"


class Float32(Cure):
    """FP32 where numbers became FP64: an array of NumPy, a default, a model made double."""

    name = "float32"
    title = "tensors made of FP64 arrays, and models made double, are FP32"
    answers = (ANY, "fp64")
    result = ROUNDING
    change = "array.astype(numpy.float32), or torch.as_tensor(array, dtype=torch.float32)"
    in_one_run = False
    forecast = None

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
        made = instances(torch.nn.Parameter)
        if made is not None and not any(each.dtype is torch.float64 for each in made):
            return "no parameter is FP64"
        return None


MULTIPLE = 64
"""Dimensions of such numbers are aligned for tensor cores in every type (NVIDIA, "Matrix
Multiplication Background", 2.2)."""

LEAST_PADDED = 1 << 20
"""Elements of a weight that is padded at least."""


class PaddedProducts(Cure):
    """Weights of linear layers padded with zeros for their products, which gives the same numbers:
    what a vocabulary of 50,257 rows costs beside one of 50,304."""

    name = "padded_products"
    title = f"linear layers compute with dimensions padded to a multiple of {MULTIPLE}"
    answers = ("busy.matmul_unaligned",)
    result = ROUNDING
    change = "a vocabulary, or width, of math.ceil(n / 64) * 64, of which n are used"

    def apply(self, torch: Any) -> Undo:
        linear, functional = torch.nn.Linear.forward, torch.nn.functional

        @functools.wraps(linear)
        def padded(self: Any, x: Any) -> Any:
            rows, columns = self.weight.shape
            more_rows, more_columns = -rows % MULTIPLE, -columns % MULTIPLE
            if rows * columns < LEAST_PADDED or not (rows % 8 or columns % 8):
                return linear(self, x)
            weight = functional.pad(self.weight, (0, more_columns, 0, more_rows))
            bias = None if self.bias is None else functional.pad(self.bias, (0, more_rows))
            if more_columns:
                x = functional.pad(x, (0, more_columns))
            return functional.linear(x, weight, bias)[..., :rows]

        return replaced((torch.nn.Linear, "forward", padded))


class DeterministicOff(Cure):
    """Deterministic algorithms off, which add up in order what others add up at once."""

    name = "deterministic_off"
    title = "algorithms need not give the same bits each time"
    answers = (ANY, "serial_scatter")
    result = ROUNDING
    change = "torch.use_deterministic_algorithms(False), torch.backends.cudnn.deterministic = False"
    advice = "use_deterministic_algorithms"

    def apply(self, torch: Any) -> Undo:
        cudnn = torch.backends.cudnn
        was_on = torch.are_deterministic_algorithms_enabled()
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        of_cudnn = cudnn.deterministic
        if not was_on and not of_cudnn:
            raise CannotApply("deterministic algorithms are not asked for")
        torch.use_deterministic_algorithms(False)
        cudnn.deterministic = False

        def undo() -> None:
            torch.use_deterministic_algorithms(was_on, warn_only=warns)
            cudnn.deterministic = of_cudnn

        return undo
