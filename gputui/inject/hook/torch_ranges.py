"""Puts ranges around torch's operations: calls of modules, backward, the optimizer's step, the data
loader's next, and operators on request; and around the turns of transformers' continuous batching.
They go straight to the capture library.

Runs in traced programs: loaded by the start-up hook (sitecustomize), and contained in the capture
library for programs that it is attached to (attached). Python 3.8 and later; nothing of gputui is
imported, because the program may use another interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
import weakref
from typing import Any, Callable  # noqa: UP035

# Operators that allocate without computing, or return a view. The list is the capture library's.
_COMPUTE_NOTHING = {
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "chunk", "detach", "detach_",
    "empty", "empty_like", "empty_strided", "expand", "expand_as", "lift_fresh", "narrow",
    "new_empty", "new_empty_strided", "permute", "resize_", "select", "set_", "slice",
    "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unflatten",
    "unsqueeze", "view", "view_as", "_has_compatible_shallow_copy_type",
}  # fmt: skip

Handle = int


class Ranges:
    """Push and pop of the capture library, about 0.2 µs each."""

    def __init__(self, path: str) -> None:
        # Keep the GIL: releasing it would cost more than the call.
        library = ctypes.PyDLL(path)
        self._define = library.gputui_name
        self._define.restype = ctypes.c_void_p
        self._define.argtypes = [ctypes.c_char_p]
        self.push: Callable[[Handle | None], Any] = library.gputui_push
        library.gputui_push.argtypes = [ctypes.c_void_p]
        library.gputui_push.restype = None
        self.pop: Callable[[], Any] = library.gputui_pop
        library.gputui_pop.argtypes = []
        library.gputui_pop.restype = None
        self._handles: dict[str, Handle] = {}

    def handle(self, name: str) -> Handle | None:
        number = self._handles.get(name)
        if number is None:
            number = self._define(name.encode("utf-8", "replace"))
            if number is not None:
                self._handles[name] = number
        return number

    def around(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """`function` with a range around each call."""
        push, pop, handle = self.push, self.pop, self.handle(name)

        @functools.wraps(function)
        def ranged(*args: Any, **kwargs: Any) -> Any:
            push(handle)
            try:
                return function(*args, **kwargs)
            finally:
                pop()

        return ranged


class Modules:
    """Ranges around module calls, named by the module's path in its model, or its class."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._handles: dict[int, Handle | None] = {}
        self._alive: dict[int, Any] = {}

    def install(self, torch: Any) -> None:
        module_type = torch.nn.Module
        call = module_type.__call__
        handles, push, pop, name = self._handles, self._ranges.push, self._ranges.pop, self._name
        is_compiling = compiling(torch)
        replaces_call = getattr(module_type, "_wrapped_call_impl", None) is call

        @functools.wraps(call)
        def ranged_call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():  # a compiler that traces through here sees only the call
                return call(module, *args, **kwargs)
            key = id(module)
            push(handles[key] if key in handles else name(module))
            try:
                if not replaces_call:  # torch before 2.1
                    return call(module, *args, **kwargs)
                # What `call` does, in its place: a frame more for each level of a deep model would
                # bring the program to its recursion limit.
                compiled = module._compiled_call_impl
                return (module._call_impl if compiled is None else compiled)(*args, **kwargs)
            finally:
                pop()

        module_type.__call__ = ranged_call

    def _name(self, root: Any) -> Handle | None:
        """Name a module called outside the known models, and all its submodules."""
        try:
            for path, module in submodules(root):
                if id(module) not in self._handles:
                    # A module that only has a number is named by its class: Linear[2.0], not 2.0.
                    self._keep(module, _module_name(path, type(module).__name__))
            return self._handles[id(root)]
        except Exception:  # also the program's recursion limit, which it may not reach itself
            return None

    def _keep(self, module: Any, name: str) -> None:
        key = id(module)

        def forget(_reference: Any) -> None:
            self._handles.pop(key, None)
            self._alive.pop(key, None)

        self._alive[key] = weakref.ref(module, forget)
        self._handles[key] = self._ranges.handle(name)


def _module_name(path: tuple[str, ...], kind: str) -> str:
    """The path in the model, `layers.0.mlp`; where it has no word, as in a Sequential, the class:
    `Linear[2.0]`."""
    if any(not part.isdigit() for part in path):
        return ".".join(path)
    return f"{kind}[{'.'.join(path)}]" if path else kind


def submodules(root: Any) -> list[tuple[tuple[str, ...], Any]]:
    """(path, module) of `root` and all in it, as named_modules has them, but without recursion."""
    modules: list[tuple[tuple[str, ...], Any]] = []
    seen: set[int] = set()
    waiting: list[tuple[tuple[str, ...], Any]] = [((), root)]
    while waiting:
        path, module = waiting.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        modules.append((path, module))
        for name, inner in reversed(module._modules.items()):
            # torch.compile puts its wrapper between a model and its name.
            waiting.append((path if name == "_orig_mod" else (*path, name), inner))
    return modules


def compiling(torch: Any) -> Callable[[], bool]:
    compiler = getattr(torch, "compiler", None)
    is_compiling = getattr(compiler, "is_compiling", None)
    return is_compiling if is_compiling is not None else lambda: False


def _wrap(ranges: Ranges, owner: Any, attribute: str, name: str) -> None:
    with contextlib.suppress(Exception):
        setattr(owner, attribute, ranges.around(getattr(owner, attribute), name))


def _wrap_optimizers(ranges: Ranges, torch: Any) -> None:
    """Every optimizer class wraps its step once, through this function of torch's."""
    optimizer = torch.optim.Optimizer
    hook = optimizer.profile_hook_step

    def profile_hook_step(function: Callable[..., Any]) -> Callable[..., Any]:
        wrapped = hook(function)
        handles: dict[type, Handle | None] = {}

        @functools.wraps(wrapped)
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            kind = type(self)
            if kind not in handles:
                handles[kind] = ranges.handle(kind.__name__ + ".step")
            ranges.push(handles[kind])
            try:
                return wrapped(self, *args, **kwargs)
            finally:
                ranges.pop()

        return step

    optimizer.profile_hook_step = staticmethod(profile_hook_step)


def annotate(torch: Any) -> None:
    library = os.environ.get("GPUTUI_CAPTURE_LIBRARY", "")
    if not library:
        return
    ranges = Ranges(library)
    _leave_word()
    with contextlib.suppress(Exception):
        Modules(ranges).install(torch)
    with contextlib.suppress(Exception):
        _wrap_optimizers(ranges, torch)
    _wrap(ranges, torch.autograd, "backward", "backward")
    with contextlib.suppress(Exception):
        loaders = torch.utils.data.dataloader._BaseDataLoaderIter
        _wrap(ranges, loaders, "__next__", "dataloader next")
    wish = os.environ.get("GPUTUI_ANNOTATE")
    if wish in ("autograd", "shapes"):
        _annotate_operators(ranges, torch, with_shapes=wish == "shapes")


class _Replaced:
    """A method that was replaced; `remove` puts it back, unless somebody else replaced it since."""

    def __init__(self, owner: Any, name: str, new: Callable[..., Any]) -> None:
        self._owner, self._name = owner, name
        self._old, self._new = vars(owner)[name], new
        setattr(owner, name, new)

    def remove(self) -> None:
        if vars(self._owner).get(self._name) is self._new:
            setattr(self._owner, self._name, self._old)


def _around_turns(
    ranges: Ranges, owner: Any, method: str, kind_of: Callable[..., str], kinds: dict[str, str]
) -> _Replaced:
    """Open a range around each turn of an engine, named by what is in it: `kinds` gives the names,
    without numbers, as each would be a name of its own; the last is of every other kind."""
    turn, push, pop = vars(owner)[method], ranges.push, ranges.pop
    handles = {kind: ranges.handle(name) for kind, name in kinds.items()}
    other = [*handles.values()][-1]

    @functools.wraps(turn)
    def ranged_turn(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            handle = handles.get(kind_of(self, *args, **kwargs), other)
        except Exception:  # another version
            handle = other
        push(handle)
        try:
            return turn(self, *args, **kwargs)
        finally:
            pop()

    return _Replaced(owner, method, ranged_turn)


def _of_transformers(module: Any, ranges: Ranges) -> list[_Replaced]:
    processor = module.ContinuousBatchProcessor
    kinds = {kind: f"continuous_batching [{kind}]" for kind in _KINDS}
    scheduling = {"prepare_next_batch": "schedule", "update_batch": "update"}
    return [_around_turns(ranges, processor, "_generation_step", _kind_of_batch, kinds)] + [
        _Replaced(
            processor,
            method,
            ranges.around(getattr(processor, method), f"continuous_batching: {name}"),
        )
        for method, name in scheduling.items()
    ]


_KINDS = ("prefill", "decode", "mixed", "empty")


def _kind_of(are_prompts: list[bool]) -> str:
    if not any(are_prompts):
        return "decode" if are_prompts else "empty"
    return "prefill" if all(are_prompts) else "mixed"


def _kind_of_batch(processor: Any, *_args: Any, **_kwargs: Any) -> str:
    batch = processor.inputs_and_outputs
    pairs = getattr(batch, "io_pairs", None)  # one computes while the other is prepared
    if pairs is not None:
        batch = pairs[batch.current_pair].host_io
    return _kind_of([request.query_length > 1 for request in batch.requests_in_batch])


def _of_vllm(module: Any, ranges: Ranges) -> list[_Replaced]:
    """Its own ranges of this name are there under its profiler alone."""
    worker = module.Worker
    kinds = {kind: f"execute [{kind}]" for kind in _KINDS}
    replaced = [_around_turns(ranges, worker, "execute_model", _kind_of_schedule, kinds)]
    if (sample := vars(worker).get("sample_tokens")) is not None:  # older versions have none
        name = "gpu_model_runner: sample"
        replaced.append(_Replaced(worker, "sample_tokens", ranges.around(sample, name)))
    return replaced


def _kind_of_schedule(_worker: Any, scheduled: Any, *_args: Any, **_kwargs: Any) -> str:
    tokens = scheduled.num_scheduled_tokens
    new = {request.req_id for request in scheduled.scheduled_new_reqs}
    # Most turns: looking at each of 256 requests would take 30 us of a step.
    if not new and scheduled.total_num_scheduled_tokens == len(tokens):
        return "decode" if tokens else "empty"
    cached = scheduled.scheduled_cached_reqs
    begins = getattr(cached, "is_context_phase", None)  # older versions have none
    return _kind_of(
        [
            request in new or (begins(request) if begins is not None else count > 1)
            for request, count in tokens.items()
        ]
    )


def _of_sglang(module: Any, ranges: Ranges) -> list[_Replaced]:
    """Under the names that its profiler gives them."""
    modes = ("EXTEND", "DECODE", "MIXED", "TARGET_VERIFY", "DRAFT_EXTEND_V2", "SPLIT_PREFILL",
             "PREBUILT", "IDLE")  # fmt: skip
    kinds = {mode: f"step[{mode}]" for mode in modes}
    scheduler = module.Scheduler
    return [_around_turns(ranges, scheduler, "run_batch", _mode_of_batch, kinds)]


def _mode_of_batch(_scheduler: Any, batch: Any, *_args: Any, **_kwargs: Any) -> str:
    return str(batch.forward_mode.name)


ENGINES: dict[str, Callable[[Any, Ranges], list[_Replaced]]] = {
    "transformers.generation.continuous_batching.continuous_api": _of_transformers,
    "vllm.v1.worker.gpu_worker": _of_vllm,
    "sglang.srt.managers.scheduler": _of_sglang,
}
"""Modules of engines that name their turns to no profiler but their own, and what puts ranges
around them, which model/naming.py reads."""


def _leave_word() -> None:
    """Create an empty file named after the process, before its ring: it marks it as annotated."""
    with contextlib.suppress(OSError):
        folder = os.path.join(os.environ.get("GPUTUI_CAPTURE_DIR", ""), "annotated")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, str(os.getpid())), "wb"):
            pass


def _annotate_operators(ranges: Ranges, torch: Any, with_shapes: bool) -> None:
    """Annotate operators: in a CUDA build through torch's own NVTX profiler, which follows
    autograd's threads; otherwise through a dispatch mode.
    """
    if torch.version.cuda is not None:
        with contextlib.suppress(Exception):
            _enable_nvtx_profiler(torch, with_shapes)
            return
    from importlib import import_module

    base = import_module("torch.utils._python_dispatch").TorchDispatchMode

    class Operators(base):  # type: ignore[misc, valid-type]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            space, _, name = str(function.overloadpacket).partition(".")
            # Views, empty memory and the profiler's own operators were half of all ranges.
            if name in _COMPUTE_NOTHING or space == "profiler":
                return function(*args, **(kwargs or {}))
            shapes = f" {_shapes(torch, args)}" if with_shapes else ""
            ranges.push(ranges.handle(f"{space}::{name}{shapes}"))
            try:
                return function(*args, **(kwargs or {}))
            finally:
                ranges.pop()

    Operators().__enter__()


def _shapes(torch: Any, inputs: Any) -> list[list[int]]:
    """As torch's profiler writes them: of each input its sizes, none of what is no tensor."""
    return [list(each.shape) if isinstance(each, torch.Tensor) else [] for each in inputs]


def _enable_nvtx_profiler(torch: Any, with_shapes: bool) -> None:
    """What torch.autograd.profiler.emit_nvtx does, permanently; raises if torch cannot.

    The library strips the numbers from the names. PyTorch allows one profiler per thread, so this
    one yields when the program starts its own.
    """
    autograd, owner = torch.autograd, threading.get_ident()
    autograd._enable_profiler(
        autograd.ProfilerConfig(
            autograd.ProfilerState.NVTX,
            with_shapes, False, False, False, False,
            torch._C._profiler._ExperimentalConfig(),
        ),
        set(),
    )  # fmt: skip
    start = autograd.profiler._run_on_profiler_start

    def make_way() -> None:
        if threading.get_ident() == owner:
            autograd.profiler._run_on_profiler_start = start
            autograd._disable_profiler()
        start()

    autograd.profiler._run_on_profiler_start = make_way
