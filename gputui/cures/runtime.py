"""What the process does beside its work: waits, checks and records left on after debugging, the
allocator, garbage collection, and the threads and cores of the CPU."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

from . import ANY, EXACT, CannotApply, Cure, Idled, Redirected, combined, idle, instances, replaced

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


class JaxWaitsIdle(Idled):
    """No block_until_ready(), which has the CPU wait for what JAX was told to compute: the function
    and the arrays' own, whose class is known once there are some."""

    name = "jax_waits_idle"
    title = "block_until_ready() does not wait"
    answers = (ANY, "idle.sync", "idle.launch")
    result = EXACT
    change = "no block_until_ready() in the loop, but around what is timed"
    library = "jax"
    forecast = None

    def places(self, jax: Any) -> tuple[tuple[Any, str], ...]:
        return ((jax, "block_until_ready"),)

    def apply(self, jax: Any) -> Undo:
        self.prepare(jax)
        kinds = {type(array) for array in jax.live_arrays()}
        if not kinds:
            raise CannotApply("JAX has no arrays")
        self._is_on = True
        own = ((kind, "block_until_ready", _stand_still(kind)) for kind in kinds)
        return combined(functools.partial(setattr, self, "_is_on", False), replaced(*own))

    def instead(self, _function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        if _is_waited_for(sys._getframe(2)):
            return None
        return lambda: (*args, *kwargs.values())[0]


def _stand_still(kind: Any) -> Any:
    ready = kind.block_until_ready

    def is_ready(array: Any) -> Any:
        return ready(array) if _is_waited_for(sys._getframe(1)) else array

    return is_ready


def _is_waited_for(caller: Any) -> bool:
    """Whether JAX itself waits, or what ends a block of a trial."""
    is_of_jax = str(caller.f_globals.get("__name__")).startswith("jax.")
    return is_of_jax or bool(caller.f_code.co_name == "_wait_for_gpu")


class CupyWaitsIdle(Idled):
    """No synchronize() of CuPy's streams."""

    name = "cupy_waits_idle"
    title = "synchronize() of CuPy's streams does nothing"
    answers = (ANY, "idle.sync", "idle.launch")
    result = EXACT
    change = "no synchronize() in the loop"
    library = "cupy"
    forecast = None

    def places(self, cupy: Any) -> tuple[tuple[Any, str], ...]:
        return ((cupy.cuda.Stream, "synchronize"),)


class AnomalyOff(Cure):
    """Autograd's anomaly mode off, which compares each gradient with NaN and reads the result."""

    name = "anomaly_off"
    title = "autograd's anomaly mode is off"
    answers = (ANY, "idle.sync", "idle.launch", "idle.host", "slow_setting")
    result = EXACT
    is_certain = True
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
    is_certain = True
    change = "with torch.inference_mode(): around the loop"

    _is_known = _is_on = _is_asked = False
    """Whether it trains, which takes long to look for."""

    def prepare(self, torch: Any) -> None:
        """Programs may ask for gradients without an optimizer, as of what a model is given."""

        def asking(function: Any) -> Any:
            @functools.wraps(function)
            def called(*args: Any, **kwargs: Any) -> Any:
                self._is_asked = True
                if self._is_on:
                    self.lose(ASKED)
                return function(*args, **kwargs)

            return called

        names = ("backward", "grad")
        replaced(*((torch.autograd, name, asking(getattr(torch.autograd, name))) for name in names))

    def apply(self, torch: Any) -> Undo:
        if not torch.is_grad_enabled():
            raise CannotApply("gradients are off")
        if self._is_asked:
            raise CannotApply(ASKED)
        if not self._is_known:
            parameters = instances(torch.nn.Parameter) or ()
            is_trained = any(each.grad is not None for each in parameters)
            if is_trained or instances(torch.optim.Optimizer) != []:
                raise CannotApply("the program trains")
            if not any(each.requires_grad for each in parameters):
                raise CannotApply("no parameter has gradients")
        self._is_known = self._is_on = True
        torch.set_grad_enabled(False)

        def undo() -> None:
            self._is_on = False
            torch.set_grad_enabled(True)

        return undo


ASKED = "the program asks for gradients"


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


class _Unset(Cure):
    """No variable that CUDA, or torch's allocator, reads once at the first use of a GPU; until then
    the program may set it."""

    result = EXACT
    in_one_run = False
    is_certain = True
    variable: ClassVar[str]

    def apply(self, torch: Any) -> Undo:
        if torch.cuda.is_initialized():
            raise CannotApply("CUDA has read it before this")
        before = os.environ.pop(self.variable, None)
        initialize = torch.cuda._lazy_init

        @functools.wraps(initialize)
        def without(*args: Any, **kwargs: Any) -> Any:
            os.environ.pop(self.variable, None)
            return initialize(*args, **kwargs)

        restore = replaced((torch.cuda, "_lazy_init", without))

        def undo() -> None:
            restore()
            if before is not None:
                os.environ[self.variable] = before

        return undo

    def useless(self, _torch: Any) -> str | None:
        is_set = os.environ.get(self.variable, "0") != "0"
        return None if is_set else f"{self.variable} is not set"


class LaunchBlockingOff(_Unset):
    """No CUDA_LAUNCH_BLOCKING, by which each launch waits for its kernel."""

    name = "launch_blocking_off"
    title = "launches do not wait for their kernels"
    answers = ("idle.launch", "idle.sync")
    change = "unset CUDA_LAUNCH_BLOCKING"
    advice = variable = "CUDA_LAUNCH_BLOCKING"


class CachingOn(_Unset):
    """torch's allocator keeps what is freed, where the program told it not to."""

    name = "caching_on"
    title = "torch's allocator keeps its memory"
    answers = (ANY, "idle.alloc", "allocator_thrash")
    change = "unset PYTORCH_NO_CUDA_MEMORY_CACHING"
    advice = variable = "PYTORCH_NO_CUDA_MEMORY_CACHING"


class JaxPoolOn(Cure):
    """JAX allocates from its pool, where the program, or its environment, had it take each array
    from the driver and give it back (XLA_PYTHON_CLIENT_ALLOCATOR=platform)."""

    name = "jax_pool_on"
    title = "JAX's allocator has a pool"
    answers = (ANY, "idle.alloc", "allocator_thrash", "slow_setting")
    result = EXACT
    is_certain = True
    change = "no XLA_PYTHON_CLIENT_ALLOCATOR=platform"
    library = "jax"
    in_one_run = False
    forecast = None

    _variable = "XLA_PYTHON_CLIENT_ALLOCATOR"

    def apply(self, _jax: Any) -> Undo:
        before = os.environ.get(self._variable, "")
        if self.useless(_jax):
            raise CannotApply("JAX has a pool")
        del os.environ[self._variable]  # it is read when the GPU is first used
        return functools.partial(os.environ.__setitem__, self._variable, before)

    def useless(self, _jax: Any) -> str | None:
        is_off = os.environ.get(self._variable, "").lower() == "platform"
        return None if is_off else "JAX has a pool"


class MemoryHistoryOff(Cure):
    """No record of each allocation and where it was made, left on after a search for memory."""

    name = "memory_history_off"
    title = "torch records no history of its memory"
    answers = (ANY, "idle.host", "idle.launch")
    result = EXACT
    is_certain = True
    change = "no torch.cuda.memory._record_memory_history() around the loop"
    forecast = None

    _given: tuple[Any, Any] | None = None
    """What the program switched it on with."""

    def prepare(self, torch: Any) -> None:
        memory = torch.cuda.memory
        real = self._record = memory._record_memory_history

        @functools.wraps(real)
        def record(*args: Any, **kwargs: Any) -> Any:
            enabled = args[0] if args else kwargs.get("enabled", "all")
            self._given = None if enabled is None else (args, kwargs)
            return real(*args, **kwargs)

        replaced((memory, "_record_memory_history", record))

    def apply(self, _torch: Any) -> Undo:
        if self._given is None:
            raise CannotApply("torch records no history of its memory")
        args, kwargs = self._given
        self._record(enabled=None)
        return functools.partial(self._record, *args, **kwargs)


class TracingOff(Cure):
    """No function that Python calls at each call or line: a debugger's, a coverage's or a
    profiler's."""

    name = "tracing_off"
    title = "no function runs at each call (sys.settrace, sys.setprofile)"
    answers = (ANY, "idle.host", "idle.launch")
    result = EXACT
    is_certain = True
    change = "no sys.setprofile, sys.settrace, cProfile or coverage around the loop"
    library = None
    forecast = None

    def apply(self, _library: object) -> Undo:
        traced, profiled, profiler = sys.gettrace(), sys.getprofile(), _c_profiler()
        if traced is profiled is profiler is None:
            raise CannotApply("no function runs at each call")
        sys.settrace(None)
        if profiler is not None:
            profiler.disable()
        elif profiled is not None:
            sys.setprofile(None)

        def undo() -> None:
            sys.settrace(traced)
            if profiler is not None:
                profiler.enable()
            elif profiled is not None:
                sys.setprofile(profiled)

        return undo


def _c_profiler() -> Any:
    """The cProfile object that records calls, in C, without a function of Python; None if there is
    none. From Python 3.12 on it gets them from sys.monitoring, which does not give the object."""
    kind = getattr(sys.modules.get("_lsprof"), "Profiler", None)
    if kind is None:
        return None
    if isinstance(sys.getprofile(), kind):
        return sys.getprofile()
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is None or monitoring.get_tool(monitoring.PROFILER_ID) is None:
        return None
    made = instances(kind) or ()
    return made[0] if len(made) == 1 else None


class EmptyCacheIdle(Idled):
    """No torch.cuda.empty_cache(), which gives the allocator's blocks back to the driver."""

    name = "empty_cache_idle"
    none_such = "it does not call torch.cuda.empty_cache()"
    title = "torch.cuda.empty_cache() does nothing"
    answers = ("idle.alloc", "allocator_thrash")
    result = EXACT
    change = "no torch.cuda.empty_cache() in the loop"
    # What the allocator keeps is a state: switched in one run it gained 2.36, in runs of its own
    # 1.96, in the source 1.8 (H200).
    in_one_run = False
    advice = "empty_cache"

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        cuda = torch.cuda
        return (
            (cuda, "empty_cache"), (cuda.memory, "empty_cache"), (torch._C, "_cuda_emptyCache")
        )  # fmt: skip


class CupyPoolKept(Cure):
    """No free_all_blocks() of CuPy's memory pools, which gives their blocks back to the driver, and
    no set_allocator(None), which has none."""

    name = "cupy_pool_kept"
    title = "CuPy's memory pools keep their blocks"
    answers = ("idle.alloc", "allocator_thrash")
    result = EXACT
    change = "no free_all_blocks() in the loop, no set_allocator(None)"
    library = "cupy"
    in_one_run = False

    def apply(self, cupy: Any) -> Undo:
        def kept(get_pool: Any) -> Any:
            @functools.wraps(get_pool)
            def called() -> Any:
                return _KeptPool(get_pool())

            return called

        def pooled(set_allocator: Any) -> Any:
            @functools.wraps(set_allocator)
            def called(allocator: Any = None) -> Any:
                return None if allocator is None else set_allocator(allocator)

            return called

        names = ("get_default_memory_pool", "get_default_pinned_memory_pool")
        setters = ("set_allocator", "set_pinned_memory_allocator")
        return replaced(
            *((cupy, name, kept(getattr(cupy, name))) for name in names),
            *((cupy.cuda, name, pooled(getattr(cupy.cuda, name))) for name in setters),
        )


class _KeptPool:
    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.free_all_blocks = idle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_OPTION = "expandable_segments"


class ExpandableSegments(Cure):
    """An allocator whose segments grow, where sizes vary."""

    name = "expandable_segments"
    title = "the allocator's segments grow instead of being freed"
    answers = ("idle.alloc", "allocator_thrash")
    result = EXACT
    change = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    library = None
    in_one_run = False
    forecast = None
    advice = "expandable_segments"

    def apply(self, _library: object) -> Undo:
        name = next((name for name in _VARIABLES if os.environ.get(name)), _VARIABLES[1])
        before = os.environ.get(name)
        if before and _OPTION in before:
            raise CannotApply(f"{name} says already what segments are")
        os.environ[name] = f"{before},{_OPTION}:True" if before else f"{_OPTION}:True"

        def undo() -> None:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before

        return undo


_OPTIONS_OF_CHECKPOINT = (
    "use_reentrant", "context_fn", "determinism_check", "debug", "early_stop",
    "preserve_rng_state",
)  # fmt: skip


class CheckpointingOff(Cure):
    """Activations are kept instead of computed again."""

    name = "checkpointing_off"
    title = "activations are kept, none is computed again"
    answers = ("recomputation",)
    result = EXACT
    change = "no gradient checkpointing, or of fewer layers: it needs more memory"
    library = "torch.utils.checkpoint"
    in_one_run = False

    def apply(self, checkpoint: Any) -> Undo:
        def direct(function: Any, *args: Any, **kwargs: Any) -> Any:
            self.seen_from(sys._getframe(1))
            own = {name: kwargs[name] for name in kwargs if name not in _OPTIONS_OF_CHECKPOINT}
            return function(*args, **own)

        return replaced((checkpoint, "checkpoint", direct))


class GcOff(Cure):
    """Python's garbage collector off, which stops the program for each full collection."""

    name = "gc_off"
    title = "Python's garbage collector is off"
    answers = ("garbage_collection",)
    result = EXACT
    change = "gc.freeze() once the model is built, or gc.disable() and gc.collect() every N steps"
    library = None
    forecast = None

    def apply(self, _library: object) -> Undo:
        was_on = gc.isenabled()
        gc.disable()
        return gc.enable if was_on else gc.disable


class GcFreeze(Cure):
    """What exists by now is left out of Python's garbage collections."""

    name = "gc_freeze"
    title = "garbage collections leave out what was made before the loop"
    answers = ("garbage_collection",)
    result = EXACT
    change = "gc.collect(); gc.freeze() once the model is built"
    library = None
    advice = r"gc\.freeze"

    def apply(self, _library: object) -> Undo:
        gc.collect()
        gc.freeze()
        return gc.unfreeze


class GcCollectIdle(Idled):
    """No gc.collect(), which goes through all that the program holds, in the loop."""

    name = "gc_collect_idle"
    title = "gc.collect() does nothing"
    answers = (ANY, "garbage_collection", "idle.host", "idle.alloc")
    result = EXACT
    is_certain = True
    change = "no gc.collect() in the loop"
    library = None
    advice = r"gc\.collect"
    value = 0

    def places(self, _library: object) -> tuple[tuple[Any, str], ...]:
        return ((gc, "collect"),)


class CleanupsIdle(Idled):
    """Neither gc.collect() nor torch.cuda.empty_cache(), where the loop calls both to have more
    memory. Without the first alone the second still gives all blocks back."""

    name = "cleanups_idle"
    title = "gc.collect() and torch.cuda.empty_cache() do nothing"
    # Of blocks that are given back alone nothing is promised of it: that takes runs of their own.
    answers = (ANY, "garbage_collection", "idle.host")
    result = EXACT
    is_certain = True
    change = "no gc.collect(), no torch.cuda.empty_cache() in the loop"
    advice = r"(?<=gc\.)collect"  # after gc_collect_idle, which the same advice is about

    def __init__(self, target: str = "") -> None:
        super().__init__(target)
        self._called = Counter[str]()
        """How often the program called each of the functions, by name."""

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        return (gc, "collect"), *EmptyCacheIdle().places(torch)

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        other = super().instead(function, args, kwargs)
        name = function.__name__
        self._called[name] += other is not None
        return (lambda: 0) if other is not None and name == COLLECT else other

    def apply(self, torch: Any) -> Undo:
        if not self._is_on and self._least_called() < self.least_calls:
            raise CannotApply("the loop does not call both")
        return super().apply(torch)

    def _least_called(self) -> int:
        emptied = [count for name, count in self._called.items() if name != COLLECT]
        return min(self._called[COLLECT], max(emptied, default=0))


COLLECT = gc.collect.__name__


def _with_threads(torch: Any, count: int) -> Undo:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    return functools.partial(torch.set_num_threads, before)


class OneThread(Cure):
    """One thread for torch's operators on the CPU."""

    name = "one_thread"
    title = "operators on the CPU use one thread"
    answers = ("idle.scheduler", "idle.host")
    result = EXACT
    change = "torch.set_num_threads(1), or OMP_NUM_THREADS=1"
    forecast = None

    def apply(self, torch: Any) -> Undo:
        if torch.get_num_threads() == 1:
            raise CannotApply("torch uses one thread")
        return _with_threads(torch, 1)


class AllThreads(Cure):
    """A thread for each core for torch's operators on the CPU."""

    name = "all_threads"
    title = "operators on the CPU use all cores"
    answers = ("idle.host",)
    result = EXACT
    tells_at_once = True
    change = "torch.set_num_threads(cores), or a larger OMP_NUM_THREADS"
    forecast = None

    def apply(self, torch: Any) -> Undo:
        before, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
        if before >= cores:
            raise CannotApply(f"torch uses {before} threads on {cores} cores")
        return _with_threads(torch, cores)


_CORES_AT_START = os.sched_getaffinity(0)


class CoresFreed(Cure):
    """All cores that the program began with, where it has bound itself to fewer."""

    name = "cores_freed"
    title = "the program may use all cores that it began with"
    answers = (ANY, "idle.host", "idle.scheduler", "idle.input")
    result = EXACT
    is_certain = True
    change = "no os.sched_setaffinity, or to more cores"
    library = None
    forecast = None

    def apply(self, _library: object) -> Undo:
        if os.sched_getaffinity(0) >= _CORES_AT_START:
            raise CannotApply("the program may use all cores that it began with")
        return _bound(_CORES_AT_START, [*_threads(), *_children()])


def _threads() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]


def _children() -> list[int]:
    """The processes that this one has started, such as a loader's workers."""
    children: list[int] = []
    for thread in _threads():
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children") as file:
            children += map(int, file.read().split())
    return children


def _bound(cores: set[int], tasks: list[int]) -> Undo:
    """Lets these threads and processes use these cores."""
    before = {}
    for task in tasks:
        with contextlib.suppress(OSError):  # it has ended
            before[task] = os.sched_getaffinity(task)
            os.sched_setaffinity(task, cores)

    def undo() -> None:
        for task, own in before.items():
            with contextlib.suppress(OSError):
                os.sched_setaffinity(task, own)

    return undo


class NumaAffinity(Cure):
    """The program's threads on the cores that are next to its GPU."""

    name = "numa_affinity"
    title = "the program stays on the cores next to its GPU"
    answers = ("idle.launch", "busy.copy_pageable", "busy.copy_pinned", "slow_link")
    result = EXACT
    tells_at_once = True
    change = "numactl --cpunodebind=NODE --membind=NODE, of the GPU's node (nvidia-smi topo -m)"
    forecast = None

    def apply(self, torch: Any) -> Undo:
        return _bound(_near_cores(torch), _threads())


def _near_cores(torch: Any) -> set[int]:
    """The cores of the NUMA node of the current GPU, by sysfs, of those that are allowed."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        raise CannotApply("the program does not use a GPU")
    card = torch.cuda.get_device_properties(torch.cuda.current_device())
    if not hasattr(card, "pci_bus_id"):
        raise CannotApply("this torch does not say where the GPU is")
    place = f"{card.pci_domain_id:04x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}.0"
    try:
        with open(f"/sys/bus/pci/devices/{place}/local_cpulist") as file:
            text = file.read().strip()
    except OSError:
        raise CannotApply("the system does not say which cores are next to the GPU") from None
    near: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        near.update(range(int(first), int(last or first) + 1))
    allowed = os.sched_getaffinity(0)
    if not near & allowed or near >= allowed:
        raise CannotApply("all cores that the program may use are next to its GPU, or none is")
    return near & allowed
