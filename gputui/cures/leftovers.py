"""What was left on after debugging: waits, checks and records of each step."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from . import ANY, EXACT, CannotApply, Cure
from .changing import Idled, Redirected, idle, instances, replaced

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo


class SynchronizeIdle(Idled):
    """No torch.cuda.synchronize(), which has the CPU wait for all that the GPU has to do."""

    name = "synchronize_idle"
    title = "torch.cuda.synchronize() does nothing"
    answers = (ANY, "idle.sync", "idle.launch")
    result = EXACT
    change = "no torch.cuda.synchronize() in the loop"
    advice = r"synchronize\(\)"

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        return (torch.cuda, "synchronize"), (torch._C, "_cuda_synchronize")


class AnomalyOff(Cure):
    """Autograd's anomaly mode off, which compares each gradient with NaN and reads the result."""

    name = "anomaly_off"
    title = "autograd's anomaly mode is off"
    answers = (ANY, "idle.sync", "idle.launch", "idle.host")
    result = EXACT
    change = "torch.autograd.set_detect_anomaly(False)"
    advice = "set_detect_anomaly"

    _was_entered = False
    """Whether the program enters it, as it may do in each step, and leaves it."""

    def prepare(self, torch: Any) -> None:
        real = torch.set_anomaly_enabled

        def set_anomaly_enabled(enabled: bool, check_nan: bool = True) -> None:
            self._was_entered = self._was_entered or enabled
            real(enabled, check_nan)

        torch.set_anomaly_enabled = set_anomaly_enabled

    def apply(self, torch: Any) -> Undo:
        wanted = [torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()]
        real = torch.set_anomaly_enabled
        if not wanted[0] and not self._was_entered:
            raise CannotApply("the program is not in anomaly mode")

        def off(mode: bool, check_nan: bool = True) -> None:
            wanted[:] = [mode, check_nan]

        undo_calls = replaced(
            (torch, "set_anomaly_enabled", off),
            (torch.autograd.anomaly_mode.torch, "set_anomaly_enabled", off),
        )
        real(False)

        def undo() -> None:
            undo_calls()
            real(*wanted)

        return undo


class GradientsOff(Cure):
    """No graph for gradients in a program that asks for none."""

    name = "gradients_off"
    title = "no graph for gradients is kept"
    answers = (ANY,)
    result = EXACT
    change = "with torch.inference_mode(): around the loop"

    def apply(self, torch: Any) -> Undo:
        if not torch.is_grad_enabled():
            raise CannotApply("gradients are off")
        if instances(torch.optim.Optimizer) != [] or any(
            each.grad is not None for each in instances(torch.nn.Parameter) or ()
        ):
            raise CannotApply("the program trains")
        if not any(each.requires_grad for each in instances(torch.nn.Parameter) or ()):
            raise CannotApply("no parameter has gradients")
        torch.set_grad_enabled(False)
        return functools.partial(torch.set_grad_enabled, True)


class ProfilerOff(Cure):
    """torch.profiler off, where it was left in the loop."""

    name = "profiler_off"
    title = "torch.profiler records nothing"
    answers = ("idle.host", "idle.launch", "idle.cuda")
    result = EXACT
    change = "no torch.profiler around the loop, or of a few steps only (schedule)"
    library = "torch.profiler"
    in_one_run = False
    forecast = None

    def apply(self, profiler: Any) -> Undo:
        def entered(self: Any) -> Any:
            return self

        others = ("__exit__", "start", "step", "stop")
        return replaced(
            (profiler.profile, "__enter__", entered),
            *((profiler.profile, name, idle) for name in others),
        )

    def useless(self, profiler: Any) -> str | None:
        return "torch.profiler is not in use" if instances(profiler.profile) == [] else None


class DistributionChecksOff(Redirected):
    """torch.distributions without the checks of each argument and sample, which read their result
    from the GPU."""

    name = "distribution_checks_off"
    title = "torch.distributions does not validate arguments"
    answers = (ANY, "idle.launch", "idle.sync")
    result = EXACT
    change = "torch.distributions.Distribution.set_default_validate_args(False)"
    forecast = None

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        return ((torch.distributions.Distribution, "__init__"),)

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        if len(args) > 3 or kwargs.get("validate_args") is not None:
            return None
        return functools.partial(function, *args, **{**kwargs, "validate_args": False})


_BLOCKING = "CUDA_LAUNCH_BLOCKING"


class LaunchBlockingOff(Cure):
    """No CUDA_LAUNCH_BLOCKING, by which each launch waits for its kernel. The driver reads it once,
    at CUDA's first use; until then the program may set it."""

    name = "launch_blocking_off"
    title = "launches do not wait for their kernels"
    answers = ("idle.launch", "idle.sync")
    result = EXACT
    change = "unset CUDA_LAUNCH_BLOCKING"
    in_one_run = False
    advice = "CUDA_LAUNCH_BLOCKING"

    def apply(self, torch: Any) -> Undo:
        if torch.cuda.is_initialized():
            raise CannotApply("CUDA has read it before this")
        before = os.environ.pop(_BLOCKING, None)
        initialize = torch.cuda._lazy_init

        @functools.wraps(initialize)
        def without(*args: Any, **kwargs: Any) -> Any:
            os.environ.pop(_BLOCKING, None)
            return initialize(*args, **kwargs)

        restore = replaced((torch.cuda, "_lazy_init", without))

        def undo() -> None:
            restore()
            if before is not None:
                os.environ[_BLOCKING] = before

        return undo

    def useless(self, _torch: Any) -> str | None:
        return None if os.environ.get(_BLOCKING, "0") != "0" else f"{_BLOCKING} is not set"
