"""Copies between host and GPU: pinned memory, arrays and modules that stay on the GPU."""

from __future__ import annotations

import functools
import gc
import os
import re
import sys
import threading
import zlib
from typing import TYPE_CHECKING, Any

from . import ANY, EXACT, ROUNDING, CannotApply, Cure, Redirected, combined, instances, replaced
from .module_calls import ModuleCalls

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo


LEAST_BYTES = 1 << 16
"""Smaller copies go through the driver's own pinned buffer: nothing to gain (CUDA API reference,
"API synchronization behavior")."""

MOST_REGISTERED_BYTES = 16 << 30
"""Of the program's memory that is locked where it lies, and no more than a quarter of what is
free."""


class PinnedCopies(Cure):
    """Copies to the GPU come from pinned memory, and the CPU waits for none but the copy.

    Memory that copies were made from before is locked where it lies, and copied on a stream of its
    own, which the CPU waits for, because the program may write there next: meanwhile the GPU
    computes. What is new each time goes through torch's pinned memory first, without waiting.
    """

    name = "pinned_copies"
    title = "copies to the GPU come from pinned memory, without waiting for what it computes"
    answers = ("busy.copy_pageable",)
    result = EXACT
    change = (
        "DataLoader(..., pin_memory=True), or x.pin_memory() once; x.to(device, non_blocking=True)"
    )
    in_one_run = False
    advice = "pin_memory"

    def apply(self, torch: Any) -> Undo:
        tensor = torch.Tensor
        to, cuda, copy = tensor.to, tensor.cuda, tensor.copy_
        self._torch = torch
        self._seen: set[tuple[int, int]] = set()
        self._registered: dict[int, Any] = {}
        self._room = min(MOST_REGISTERED_BYTES, free_bytes() // 4)
        self._stream: Any = None

        def goes_to_gpu(place: Any) -> bool:
            if isinstance(place, torch.Tensor):
                return bool(place.is_cuda)
            if isinstance(place, int) and not isinstance(place, bool):
                return True
            return str(place).startswith("cuda")

        @functools.wraps(to)
        def to_pinned(self_: Any, *args: Any, **kwargs: Any) -> Any:
            place = kwargs.get("device", args[0] if args else None)
            waits = not any(isinstance(word, bool) for word in args)
            if place is not None and waits and goes_to_gpu(place):
                return self._copied(to, self_, args, kwargs)
            return to(self_, *args, **kwargs)

        @functools.wraps(cuda)
        def cuda_pinned(self_: Any, *args: Any, **kwargs: Any) -> Any:
            if len(args) < 2:
                return self._copied(cuda, self_, args, kwargs)
            return cuda(self_, *args, **kwargs)

        @functools.wraps(copy)
        def copy_pinned(self_: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
            # Where it goes may be in use: in its order, and without waiting only from a copy.
            comes_from_cpu = self_.is_cuda and isinstance(source, torch.Tensor) and not args
            if comes_from_cpu and self._is_large(source) and not source.is_pinned():
                source, kwargs = source.pin_memory(), {**kwargs, "non_blocking": True}
            return copy(self_, source, *args, **kwargs)

        restore = replaced(
            (tensor, "to", to_pinned), (tensor, "cuda", cuda_pinned), (tensor, "copy_", copy_pinned)
        )
        return combined(self._unlock, restore)

    def _is_large(self, source: Any) -> bool:
        return (
            source.device.type == "cpu"
            and source.layout is self._torch.strided
            and source.numel() * source.element_size() >= LEAST_BYTES
            and not source.requires_grad
        )

    def _copied(self, move: Any, source: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if not self._is_large(source) or kwargs.get("non_blocking"):
            return move(source, *args, **kwargs)
        kwargs = {**kwargs, "non_blocking": True}
        if not source.is_pinned() and not self._lock(source):
            return move(source.pin_memory(), *args, **kwargs)
        cuda = self._torch.cuda
        self._stream = self._stream or cuda.Stream()
        with cuda.stream(self._stream):
            made = move(source, *args, **kwargs)
        self._stream.synchronize()
        made.record_stream(cuda.current_stream())
        return made

    def _lock(self, source: Any) -> bool:
        """Locks the memory of a tensor that is seen a second time; whether it is locked."""
        storage = source.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        if (place, size) not in self._seen:
            self._seen.add((place, size))
            return False
        if size > self._room:
            return False
        runtime = self._torch.cuda.cudart()
        if int(runtime.cudaHostRegister(place, size, 0)) != 0:
            return False
        self._room -= size
        self._registered[place] = source  # kept: locked memory must not be freed
        return True

    def _unlock(self) -> None:
        if self._registered:
            self._torch.cuda.synchronize()
        for place in self._registered:
            self._torch.cuda.cudart().cudaHostUnregister(place)
        self._registered.clear()


class PinnedResults(Cure):
    """What is copied from the GPU (.cpu(), .to("cpu")) goes to pinned memory that torch keeps for
    the next time: neither through the driver's buffer nor into pages that are new each time."""

    name = "pinned_results"
    title = "copies from the GPU go to pinned memory"
    answers = ("busy.copy_pageable",)
    result = EXACT
    change = "out = torch.empty_like(x, device='cpu', pin_memory=True)  # once; out.copy_(x)"
    advice = "copy back"

    def apply(self, torch: Any) -> Undo:
        if not torch.cuda.is_available():
            raise CannotApply("the program does not use a GPU")
        cpu, to = torch.Tensor.cpu, torch.Tensor.to
        used: dict[int, int] = {}
        room = min(MOST_REGISTERED_BYTES, free_bytes() // 4)

        def pinned(source: Any) -> Any:
            """The copy; None where it is made as it was."""
            if type(source) is not torch.Tensor or not self.is_far(source):
                return None
            size = source.numel() * source.element_size()
            is_plain = source.layout is torch.strided and not source.is_conj()
            has_graph = source.requires_grad and torch.is_grad_enabled()
            # Memory that the program holds is another each time.
            if size < LEAST_BYTES or not is_plain or has_graph or sum(used.values()) > room:
                return None
            made = self.empty(torch, source)
            used[made.data_ptr()] = size
            return made.copy_(source)

        @functools.wraps(cpu)
        def cpu_pinned(source: Any, *args: Any, **kwargs: Any) -> Any:
            made = pinned(source) if not args and not kwargs else None
            return cpu(source, *args, **kwargs) if made is None else made

        @functools.wraps(to)
        def to_pinned(source: Any, *args: Any, **kwargs: Any) -> Any:
            place = args[0] if args else kwargs.get("device")
            is_cpu = len(args) + len(kwargs) == 1 and str(place) == "cpu"
            made = pinned(source) if is_cpu else None
            return to(source, *args, **kwargs) if made is None else made

        return replaced((torch.Tensor, "cpu", cpu_pinned), (torch.Tensor, "to", to_pinned))

    def is_far(self, source: Any) -> bool:
        """Whether it is on a GPU."""
        return bool(source.is_cuda)

    def empty(self, torch: Any, source: Any) -> Any:
        """Pinned memory on the host for a copy of `source`."""
        return torch.empty_like(source, device="cpu", pin_memory=True)


def free_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def free_bytes_of_gpu(torch: Any, device: Any = None) -> int:
    """What is free on a GPU, the current one by default; on the host where torch has not begun to
    use any."""
    if not torch.cuda.is_initialized():
        return free_bytes()
    return int(torch.cuda.mem_get_info(device)[0])


LEAST_KEPT_BYTES = 1 << 20
"""NumPy's arrays from which a copy to the GPU is worth sparing."""


class JaxArraysKept(Cure):
    """NumPy's arrays that a function of jax.jit is given again and again are copied to the GPU
    once. Numbers all over each are compared at each call, and all of them at the end of blocks:
    where an array was written to, it is copied again, and the cure ends."""

    name = "jax_arrays_kept"
    title = "NumPy arrays that a jitted function is given again stay on the GPU"
    answers = (ANY, "given_to_each_call", "busy.copy_pageable", "busy.copy_pinned", "idle.wait")
    result = EXACT
    is_certain = True
    change = "table = jax.device_put(table) once, before the loop"
    library = "jax"
    advice = "device_put"

    _is_on = False

    def prepare(self, jax: Any) -> None:
        real = jax.jit
        self._seen: dict[int, Any] = {}
        self._kept: dict[int, _KeptArray] = {}
        self._again = 0

        @functools.wraps(real)
        def jit(function: Any = None, **options: Any) -> Any:
            if function is None:
                return functools.partial(jit, **options)
            made = real(function, **options)
            # What a call takes over is gone after it.
            takes_over = any(name.startswith("donate") for name in options)
            return made if takes_over else self._given_kept(jax, made)

        replaced((jax, "jit", jit))

    def _given_kept(self, jax: Any, made: Any) -> Any:
        @functools.wraps(made)
        def called(*args: Any, **kwargs: Any) -> Any:
            if any(map(_may_stay, (*args, *kwargs.values()))):
                args = tuple(self._on_gpu(jax, value) for value in args)
                kwargs = {key: self._on_gpu(jax, kwargs[key]) for key in kwargs}
            return made(*args, **kwargs)

        for name in ("lower", "trace", "eval_shape", "clear_cache"):
            if hasattr(made, name):
                setattr(called, name, getattr(made, name))
        return called

    def _on_gpu(self, jax: Any, value: Any) -> Any:
        place = id(value)
        if not _may_stay(value):
            return value
        if self._seen.get(place) is not value:
            if len(self._seen) < MOST_ARRAYS:
                self._seen[place] = value
            return value
        self._again += 1
        if not self._is_on or self.ended:
            return value
        kept = self._kept.get(place)
        if kept is None:
            kept = self._kept[place] = _KeptArray(value, jax.device_put(value))
        elif kept.is_written_all_over():
            self.end(WRITTEN_ARRAYS)
            return value
        return kept.made

    def apply(self, _jax: Any) -> Undo:
        if self._again < LEAST_AGAIN:
            raise CannotApply("no jitted function is given the same NumPy array again")
        self._is_on = True

        def undo() -> None:
            self._is_on = False
            self._kept.clear()

        return undo

    def look(self) -> None:
        """Whether arrays are as they were copied: some, each time others."""
        left_bytes = MOST_SUMMED_BYTES
        for place in list(self._kept):
            kept = self._kept.pop(place)
            self._kept[place] = kept  # the last to be looked at again
            if kept.is_written():
                self.end(WRITTEN_ARRAYS)
            left_bytes -= kept.array.nbytes
            if left_bytes < 0:
                break


class _KeptArray:
    """An array of NumPy's, what is on the GPU of it, and what it was then."""

    def __init__(self, array: Any, made: Any) -> None:
        self.array, self.made = array, made
        self._some, self._sum = self._numbers(), self._crc()

    def _numbers(self) -> bytes:
        array = self.array.ravel("K")
        return bytes(array[:: max(1, array.size // SAMPLED)].tobytes())

    def _crc(self) -> int:
        return zlib.crc32(self.array.ravel("K").view("u1"))

    def is_written_all_over(self) -> bool:
        """Whether any of some numbers is another."""
        return self._numbers() != self._some

    def is_written(self) -> bool:
        """Whether any number is another."""
        return self._crc() != self._sum


def _may_stay(value: Any) -> bool:
    """Whether it is a large array of NumPy, and no view, which may be written to by another
    name."""
    kind = sys.modules["numpy"].ndarray
    return type(value) is kind and value.base is None and value.nbytes >= LEAST_KEPT_BYTES


WRITTEN_ARRAYS = "arrays that functions are given again are written to between"
SAMPLED = 256
"""Numbers that are compared at each call,"""
MOST_SUMMED_BYTES = 1 << 28
"""and what is summed up at the end of a block."""
MOST_ARRAYS = 64
LEAST_AGAIN = 3
"""Times that arrays were given again before anything is switched."""


class ModulesOnGpu(Cure):
    """Modules without trained parameters that the loop calls on the CPU, such as a spectrogram's or
    another transform's, on the GPU: their input goes there before them instead of their result
    behind them."""

    name = "modules_on_gpu"
    title = "transforms that are modules run on the GPU"
    answers = ("idle.host", "idle.input")
    result = ROUNDING
    change = "transform.to(device), and transform(x.to(device, non_blocking=True))"
    advice = "compute it on the GPU"

    def prepare(self, torch: Any) -> None:
        own = os.getpid(), threading.get_ident()
        inside = [False]
        self._moved: list[Any] = []

        def is_on_cpu(value: Any) -> bool:
            return isinstance(value, torch.Tensor) and value.device.type == "cpu"

        def may_move(module: Any) -> bool:
            values = [*module.parameters(), *module.buffers()]
            return all(is_on_cpu(each) and not each.requires_grad for each in values)

        def called(call: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
            device = self._device
            # Those of a loader's workers stay where they are.
            if inside[0] or own != (os.getpid(), threading.get_ident()):
                return call(module, *args, **kwargs)
            inside[0] = True
            try:
                is_worth = any(is_on_cpu(each) and each.numel() >= LEAST_BYTES for each in args)
                if is_worth and (module in self._moved or may_move(module)):
                    if module not in self._moved:
                        self._moved.append(module.to(device))
                    args = tuple(
                        each.to(device, non_blocking=True) if is_on_cpu(each) else each
                        for each in args
                    )
                return call(module, *args, **kwargs)
            finally:
                inside[0] = False

        # Before steps are marked at the calls of classes of modules, which keep what they called.
        self._calls = ModuleCalls(torch, called)

    def apply(self, torch: Any) -> Undo:
        if not torch.cuda.is_initialized():
            raise CannotApply("the program does not use a GPU")
        self._calls.start()
        self._device = torch.device("cuda", torch.cuda.current_device())

        def back() -> None:
            self._calls.stop()
            while self._moved:
                self._moved.pop().to("cpu")

        # A loader of the main process pins what it gives.
        pin = torch.Tensor.pin_memory

        @functools.wraps(pin)
        def pinned(value: Any, *args: Any) -> Any:
            return value if value.is_cuda else pin(value, *args)

        return combined(back, replaced((torch.Tensor, "pin_memory", pinned)))


class FeaturesOnGpu(Redirected):
    """Spectrograms of transformers' Whisper, which the program has made on the CPU, are made on the
    GPU. Those of a loader's workers stay where they are."""

    name = "features_on_gpu"
    title = "WhisperFeatureExtractor computes on the GPU"
    answers = (ANY, "idle.host", "idle.input")
    result = ROUNDING
    is_certain = True
    change = 'feature_extractor(audio, ..., device="cuda")'
    library = "transformers.models.whisper.feature_extraction_whisper"
    advice = "compute it on the GPU"
    least_calls = 1

    def __init__(self, target: str = "") -> None:
        super().__init__(target)
        self._own = os.getpid()

    def places(self, extraction: Any) -> tuple[tuple[Any, str], ...]:
        return ((extraction.WhisperFeatureExtractor, "__call__"),)

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        is_on_cpu = len(args) == 2 and kwargs.get("device") in (None, "cpu")
        if not is_on_cpu or os.getpid() != self._own or not self.has_gpu():
            return None
        return functools.partial(function, *args, **{**kwargs, "device": "cuda"})

    def has_gpu(self) -> bool:
        """Whether the program uses one."""
        return bool(sys.modules["torch"].cuda.is_initialized())


class ModulesStay(Redirected):
    """Modules that the loop puts on the CPU and back to the GPU (offloading a model that is not
    needed for a while) stay on the GPU. One that is called with tensors on the CPU goes there, and
    the cure ends."""

    name = "modules_stay"
    title = "modules that are put on the CPU and back stay on the GPU"
    answers = (ANY, "busy.copy_pageable", "busy.copy_pinned", "slow_link", "idle.sync")
    result = EXACT
    is_certain = True
    change = "no model.to('cpu') in the loop: it needs more memory"
    advice = "keep on the GPU what"
    least_calls = 3

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        return (torch.nn.Module, "to"), (torch.nn.Module, "cpu")

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        place = args[1] if len(args) == 2 else kwargs.get("device") if len(args) == 1 else None
        if len(args) + len(kwargs) != 2 and (function.__name__ != "cpu" or len(args) != 1):
            return None
        if function.__name__ == "to" and str(place) != "cpu":
            return None
        first = next(args[0].parameters(), None)
        if first is None or not self.is_far(first):
            return None
        return functools.partial(self._stay, args[0], functools.partial(function, *args, **kwargs))

    def _stay(self, module: Any, move: Callable[[], Any]) -> Any:
        if id(module) not in self._hooks:

            def called(itself: Any, args: Any, kwargs: Any) -> None:
                given = [each for each in (*args, *kwargs.values()) if hasattr(each, "device")]
                first = next(itself.parameters(), None)
                if given and first is not None and self.is_far(first) and not any(
                    map(self.is_far, given)
                ):  # fmt: skip
                    self.end("modules that are put on the CPU compute there")
                    move()

            self._hooks[id(module)] = module.register_forward_pre_hook(called, with_kwargs=True)
        return module

    def apply(self, torch: Any) -> Undo:
        self._hooks: dict[int, Any] = {}
        """What looks at what modules are given that stay."""

        def forget() -> None:
            for each in self._hooks.values():
                each.remove()

        return combined(forget, super().apply(torch))

    def is_far(self, parameter: Any) -> bool:
        """Whether it is on a GPU."""
        return bool(parameter.is_cuda)


class ActivationsStay(Redirected):
    """What a backward pass needs stays on the GPU, where the program puts it on the CPU meanwhile
    (torch.autograd.graph.save_on_cpu)."""

    name = "activations_stay"
    title = "what backward passes need is not put on the CPU meanwhile"
    answers = (ANY, "busy.copy_pinned", "busy.copy_pageable")
    result = EXACT
    is_certain = True
    change = "no torch.autograd.graph.save_on_cpu, or for fewer layers: it needs more memory"
    forecast = None

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        self._hooks = torch.autograd.graph.saved_tensors_hooks
        return ((torch.autograd.graph.save_on_cpu, "__init__"),)

    def instead(self, _function: Any, args: Any, _kwargs: Any) -> Callable[[], Any] | None:
        return functools.partial(self._hooks.__init__, args[0], _itself, _itself)


def _itself(value: Any) -> Any:
    return value


# As timm, torch and most programs call them: ModelEmaV3, AveragedModel.
_AVERAGE = re.compile(r"ema|averag", re.I)


class AveragesOnGpu(Cure):
    """A moving average of the weights, held on the CPU, on the GPU beside them."""

    name = "averages_on_gpu"
    title = "averages of the weights (EMA) lie on the GPU"
    answers = (ANY, "idle.sync", "idle.host", "idle.launch", "busy.copy_pageable")
    result = ROUNDING
    is_certain = True
    forecast = None
    change = "ModelEmaV3(model, device=None): the average on the GPU"

    _averages: list[Any] | None = None
    _weights: list[Any] | None = None
    """Of those that are no module."""

    def apply(self, torch: Any) -> Undo:
        if self._averages is None:
            modules = instances(torch.nn.Module) or []
            self._averages = [
                each
                for each in modules
                if _AVERAGE.search(type(each).__name__)
                and isinstance(getattr(each, "module", None), torch.nn.Module)
                and {value.device.type for value in each.module.parameters()} == {"cpu"}
            ]
        if self._weights is None:
            self._weights = _averaged(torch)
        is_far = self._averages or self._weights
        if not is_far or not torch.cuda.is_initialized():
            raise CannotApply("no average of weights lies on the CPU")
        device, undos = torch.device("cuda", torch.cuda.current_device()), []
        for weight in self._weights:
            weight.data = weight.data.to(device)
            undos.append(functools.partial(_to_cpu, weight))
        for each in self._averages:
            each.module.to(device)
            undos.append(functools.partial(each.module.to, "cpu"))
            # timm's: where it copies weights to, and all of them at once where that is nowhere.
            for name, value in (("device", None), ("foreach", True)):
                if name in vars(each):
                    undos.append(functools.partial(setattr, each, name, vars(each)[name]))
                    setattr(each, name, value)
        return combined(*undos)


def _to_cpu(weight: Any) -> None:
    weight.data = weight.data.cpu()


LEAST_AVERAGED = 8


def _averaged(torch: Any) -> list[Any]:
    """Tensors on the CPU that objects which are called averages hold in a list or by name."""
    names: dict[Any, bool] = {}
    weights: dict[int, Any] = {}
    for each in gc.get_objects():
        kind = type(each)
        if kind not in names:
            names[kind] = bool(_AVERAGE.search(kind.__name__)) and not issubclass(
                kind, torch.nn.Module
            )
        for held in getattr(each, "__dict__", {}).values() if names[kind] else ():
            values = list(held.values()) if type(held) is dict else held
            if type(values) is list and len(values) >= LEAST_AVERAGED and all(
                type(value) is torch.Tensor and value.device.type == "cpu"
                and value.is_floating_point() and not value.requires_grad
                for value in values
            ):  # fmt: skip
                weights.update((id(value), value) for value in values)
    return list(weights.values())
