"""Ablations: a function at a finding's line, a batch, a copy, a value that is read, other threads,
and saves are taken away, to measure what each costs."""

from __future__ import annotations

import functools
import gc
import inspect
import os
import stat
import sys
import threading
import types
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from . import ANY, BOUND, CannotApply, Cure, combined, idle, instances, replaced

if TYPE_CHECKING:
    from . import Undo


class Skip(Cure):
    """A function of the program returns its last result instead of running."""

    name = "skip"
    title = "a function returns its last result"
    answers = ("idle.host", "idle.wait", "idle.sync", "idle.launch")
    result = BOUND
    change = "make it cheaper, call it less often, or on another thread"
    library = None
    argument = "FILE:FUNCTION"
    unused = "it is given another shape each time: no result of it fits the next"

    def __init__(self, target: str = "") -> None:
        super().__init__(target)
        self._calls = _Calls()

    def apply(self, _library: object) -> Undo:
        owners, nested, name = self._functions()
        calls = self._calls
        return combined(
            *(_skipped(owner, name, calls) for owner in owners),
            *(_skipped_within(function, calls) for function in nested),
        )

    def look(self) -> None:
        """How many calls were left out, once so many ran that some should have been."""
        if self._calls.ran >= LEAST_RAN:
            self.used = self._calls.left_out

    def useless(self, _library: object) -> str | None:
        try:
            self._functions()
        except CannotApply as reason:
            return str(reason)
        return None

    def _functions(self) -> tuple[list[Any], list[Any], str]:
        owners, nested, name = functions_at(self.target)
        functions = nested or [vars(owner)[name] for owner in owners]
        codes = {getattr(function, "__code__", None) for function in functions}
        frame: Any = sys._getframe()
        while frame is not None:
            if frame.f_code in codes:
                raise CannotApply(f"steps end within {name}: without it there would be none")
            frame = frame.f_back
        return owners, nested, name


class _Calls:
    """Of a function that is skipped: how many ran, and how many were left out."""

    ran = left_out = 0


LEAST_RAN = 4
"""Calls that ran while it was skipped, from which it is never skipped where none was left out."""


def functions_at(place: str) -> tuple[list[Any], list[Any], str]:
    """Where the function of a FILE:FUNCTION is an attribute of, and where none is what has its
    code; its name. Raises CannotApply."""
    file, _, name = place.rpartition(":")
    if not file or not name.isidentifier():
        raise CannotApply(f"{place}: give FILE:FUNCTION")
    owners = _owners(os.path.basename(file), name)
    nested = _nested(os.path.basename(file), name) if not owners else []
    if not owners and not nested:
        raise CannotApply(f"there is no function {name} of {os.path.basename(file)}")
    for function in nested or [vars(owner)[name] for owner in owners]:
        code = getattr(function, "__code__", None)
        if code is not None and code.co_flags & _PIECES:
            raise CannotApply(f"{name} gives its results piece by piece")
    return owners, nested, name


_PIECES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _owners(file: str, name: str) -> list[Any]:
    """The modules and classes of a file that have a function of the name, and modules that took it
    from there."""
    owners: list[Any] = []
    functions: list[Any] = []
    modules = [each for each in list(sys.modules.values()) if hasattr(each, "__dict__")]
    for module in modules:
        if os.path.basename(getattr(module, "__file__", None) or "") != file:
            continue
        classes = [value for value in list(vars(module).values()) if isinstance(value, type)]
        for owner in (module, *classes):
            function = vars(owner).get(name)
            if callable(function) and owner not in owners:
                owners.append(owner)
                functions.append(function)
    for module in modules:
        if module not in owners and any(vars(module).get(name) is each for each in functions):
            owners.append(module)
    return owners


_LAST: dict[Any, Any] = {}
"""The last result of each function that was skipped, for each object whose method it is, with and
without gradients, and for each shape of what it is given: what goes on with it expects that."""


def _last(calls: _Calls, name: str, function: Any, call: Any, args: Any, kwargs: Any) -> Any:
    itself = id(args[0]) if args and hasattr(type(args[0]), name) else None
    shapes = (getattr(each, "shape", None) for each in (*args, *kwargs.values()))
    key = function, itself, _keeps_graphs(), *shapes
    if key in _LAST:
        calls.left_out += 1
    else:
        calls.ran += 1
        _LAST[key] = call(*args, **kwargs)
    return _without_graph(_LAST[key])


def _keeps_graphs() -> tuple[bool, bool] | None:
    """Whether what is called now is for a backward pass: what a reference model computed without is
    nothing that a loss can be made of."""
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "is_inference_mode_enabled"):
        return None
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def _without_graph(result: Any) -> Any:
    """A result that gradients may be asked of again: a graph is gone through once."""
    if isinstance(result, (tuple, list)) and type(result) in (tuple, list):
        return type(result)(map(_without_graph, result))
    return result.detach().requires_grad_() if getattr(result, "grad_fn", None) else result


def _skipped(owner: Any, name: str, calls: _Calls) -> Undo:
    function = vars(owner)[name]

    @functools.wraps(function)
    def skipped(*args: Any, **kwargs: Any) -> Any:
        return _last(calls, name, function, function, args, kwargs)

    return replaced((owner, name, skipped))


def _nested(file: str, name: str) -> list[Any]:
    """The functions of a file that have the name and were made within others, wherever they are
    held. Generators and coroutines are left out: their results come piece by piece."""
    return [
        each
        for each in gc.get_objects()
        if type(each) is types.FunctionType
        and each.__code__.co_name == name
        and os.path.basename(each.__code__.co_filename) == file
        and not each.__code__.co_flags & _PIECES
    ]


def _skipped_within(function: Any, calls: _Calls) -> Undo:
    """Where no attribute holds a function, its code is another's that calls `last`."""
    code = function.__code__
    original = types.FunctionType(
        code, function.__globals__, code.co_name, function.__defaults__, function.__closure__
    )
    original.__kwdefaults__ = function.__kwdefaults__

    def last(args: Any, kwargs: Any) -> Any:
        return _last(calls, code.co_name, code, original, args, kwargs)

    place = "gputui"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a string that is called: `last` takes its place
        namespace: dict[str, Any] = {}
        exec(f"def call(*args, **kwargs): return {place!r}(args, kwargs)", namespace)
    calling = namespace["call"].__code__
    constants = tuple(last if value == place else value for value in calling.co_consts)
    # As many variables of the function around it as before: that is checked.
    function.__code__ = calling.replace(
        co_consts=constants, co_freevars=code.co_freevars, co_name=code.co_name
    )
    return functools.partial(setattr, function, "__code__", code)


class NoSaves(Cure):
    """Nothing is saved to files: torch.save, and safetensors, pickles and Orbax where they are
    imported, whatever module has them under whatever name; and no file that there is is opened
    anew for bytes, which would leave it empty."""

    name = "no_saves"
    title = "nothing is saved"
    answers = ("idle.host", "idle.wait", "busy.copy_pageable")
    result = BOUND
    change = "save less often, or from another thread (torch.distributed.checkpoint.async_save)"
    advice = "sav"

    _saves = 0

    def apply(self, _torch: Any) -> Undo:
        self._opened: weakref.WeakSet[Any] = weakref.WeakSet()
        places: list[tuple[Any, str, Any]] = []
        counted: dict[int, Any] = {id(open): self._opening(open)}
        for module, *names in _SAVING:
            owner: Any = sys.modules.get(module)
            for name in names[:-1]:
                owner = getattr(owner, name, None)
            save = getattr(owner, names[-1], None)
            if save is not None:
                counted[id(save)] = self._counted(save)
                if isinstance(owner, type):
                    places.append((owner, names[-1], counted[id(save)]))
        for holder in list(sys.modules.values()):
            for name, value in list(getattr(holder, "__dict__", {}).items()):
                if id(value) in counted:
                    places.append((holder, name, counted[id(value)]))
        return replaced(*places)

    def _opening(self, real: Any) -> Any:
        @functools.wraps(real)
        def opened(file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
            is_path = isinstance(file, (str, os.PathLike)) and {"w", "b"} <= {*mode}
            if not is_path or not os.path.isfile(file):
                return real(file, mode, *args, **kwargs)
            nowhere = real(os.devnull, mode, *args, **kwargs)
            self._opened.add(nowhere)
            return nowhere

        return opened

    def _is_read_again(self, value: Any) -> bool:
        return _is_no_file(value) and value not in self._opened

    def _counted(self, save: Any) -> Any:
        @functools.wraps(save)
        def left_out(*args: Any, **kwargs: Any) -> Any:
            if any(map(self._is_read_again, (*args, *kwargs.values()))):
                return save(*args, **kwargs)
            self._saves += 1
            if not self._saves & (self._saves - 1):  # 1, 2, 4, ...
                self.say(f"at least {self._saves} saves were left out")
            return None

        return left_out

    def note(self) -> str:
        return f"{self._saves} saves were left out" if self._saves else "nothing was saved in it"


def _is_no_file(value: Any) -> bool:
    """Whether it is written to, and in memory or another process: it is read again then."""
    if not hasattr(value, "write"):
        return False
    try:
        return not stat.S_ISREG(os.fstat(value.fileno()).st_mode)
    except (AttributeError, OSError, TypeError, ValueError):
        return True


_SAVING = (
    ("torch", "save"),
    ("torch.distributed.checkpoint", "save"),
    ("safetensors.torch", "save_file"),
    ("safetensors.numpy", "save_file"),
    ("transformers.modeling_utils", "PreTrainedModel", "save_pretrained"),
    ("pickle", "dump"),
    ("joblib", "dump"),
    ("numpy", "save"),
    ("numpy", "savez"),
    ("numpy", "savez_compressed"),
    ("orbax.checkpoint", "CheckpointManager", "save"),
    ("orbax.checkpoint", "PyTreeCheckpointer", "save"),
)
"""How programs save: modules, and names within."""


class _NoTracker(Cure):
    """A tracker hears nothing: a trial is no run that somebody wants to see there."""

    answers = (ANY,)
    result = BOUND
    change = "log less often"
    in_one_run = False


class NoTensorboard(_NoTracker):
    """Nothing is written for TensorBoard."""

    name = "no_tensorboard"
    title = "nothing is written for TensorBoard, in every trial"
    library = "torch.utils.tensorboard.writer"

    def apply(self, writer: Any) -> Undo:
        return replaced((writer, "FileWriter", _FileWriter))


class NoTensorboardX(NoTensorboard):
    """Nothing is written for TensorBoard by tensorboardX."""

    name = "no_tensorboardx"
    title = "nothing is written for TensorBoard by tensorboardX, in every trial"
    library = "tensorboardX.writer"


class NoWandb(_NoTracker):
    """Nothing goes to W&B, also where the program asks for it by init(mode="online"), which counts
    for more than WANDB_MODE."""

    name = "no_wandb"
    title = "W&B is off, in every trial"
    library = "wandb"

    def apply(self, wandb: Any) -> Undo:
        init = wandb.init

        @functools.wraps(init)
        def disabled(*args: Any, **kwargs: Any) -> Any:
            return init(*args, **{**kwargs, "mode": "disabled"})

        return replaced((wandb, "init", disabled))


class NoMlflow(_NoTracker):
    """MLflow tracks where MLFLOW_TRACKING_URI says, whatever server the program names."""

    name = "no_mlflow"
    title = "MLflow tracks into a folder that goes afterwards, in every trial"
    library = "mlflow"

    def apply(self, mlflow: Any) -> Undo:
        client = mlflow.tracking.MlflowClient
        init = client.__init__

        @functools.wraps(init)
        def unnamed(self: Any, *_args: Any, **_kwargs: Any) -> None:
            init(self)

        return replaced(
            (mlflow, "set_tracking_uri", idle),
            (mlflow.tracking, "set_tracking_uri", idle),
            (client, "__init__", unnamed),
        )


class _FileWriter:
    """Stands in for what SummaryWriter writes its events with."""

    def __init__(self, log_dir: Any = "", *_args: Any, **kwargs: Any) -> None:
        self._log_dir = str(kwargs.get("logdir", log_dir))

    def get_logdir(self) -> str:
        return self._log_dir

    def __getattr__(self, _name: str) -> Any:
        return idle


class RepeatBatch(Cure):
    """Ablation: a DataLoader gives its last batch again."""

    name = "repeat_batch"
    title = "the loader gives its last batch again"
    answers = ("idle.input", "idle.wait", "idle.host")
    result = BOUND
    fills_queues = True
    change = "cheaper loading: read whole batches, decode beforehand, more workers"
    library = "torch.utils.data.dataloader"

    def apply(self, loaders: Any) -> Undo:
        iterator = loaders._BaseDataLoaderIter
        following = iterator.__next__

        @functools.wraps(following)
        def again(self: Any) -> Any:
            if not hasattr(self, "_gputui_batch"):
                self._gputui_batch = following(self)
            return self._gputui_batch

        return replaced((iterator, "__next__", again))

    def useless(self, loaders: Any) -> str | None:
        made = instances(loaders.DataLoader, loaders._BaseDataLoaderIter)
        return "there is no DataLoader" if made == [] else None


class KeepCopies(Cure):
    """Ablation: a copy from one device to another gives what was copied last at its line."""

    name = "keep_copies"
    title = "what is copied to the GPU is what was copied there last"
    answers = ("busy.copy_pageable", "busy.copy_pinned", "slow_link")
    result = BOUND
    change = "copy less, smaller types, or ahead of its use on another stream"

    def apply(self, torch: Any) -> Undo:
        copies: dict[Any, Any] = {}

        def kept(move: Any) -> Any:
            @functools.wraps(move)
            def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
                frame = sys._getframe(1)
                key = frame.f_code, frame.f_lasti, self.shape, self.dtype
                if self.device.type == "cpu" and key in copies:
                    return copies[key]
                made = move(self, *args, **kwargs)
                if made.device.type != self.device.type == "cpu" and len(copies) < MOST_LINES:
                    copies[key] = made
                return made

            return moved

        return replaced(
            *((torch.Tensor, name, kept(getattr(torch.Tensor, name))) for name in ("to", "cuda"))
        )


READS = ("item", "cpu", "tolist", "__float__", "__int__", "__bool__")
MOST_LINES = 1000
"""Lines whose values are kept."""


class LastValues(Cure):
    """Ablation: .item(), .cpu(), .to("cpu"), .tolist() and the like of what is on the GPU give the
    last value that was read at the line."""

    name = "last_values"
    title = "values read from the GPU are those read last at the line"
    answers = ("idle.sync", "busy.copy_pageable")
    result = BOUND
    change = "keep values on the GPU, read them every N steps"
    advice = r"\.item\(\)|copy back"

    def apply(self, torch: Any) -> Undo:
        return combined(*(_of_last(torch.Tensor, name) for name in (*READS, "to")))


def _of_last(tensor: Any, name: str) -> Undo:
    read = getattr(tensor, name)
    values: dict[Any, Any] = {}

    @functools.wraps(read)
    def last(self: Any, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        key = frame.f_code, frame.f_lasti, self.shape
        if name == "to" and not self.is_cuda:
            return read(self, *args, **kwargs)
        if key in values:
            return values[key]
        value = read(self, *args, **kwargs)
        if len(values) < MOST_LINES and not (name == "to" and value.is_cuda):
            values[key] = value
        return value

    return replaced((tensor, name, last))


HELD_S = 1.0
"""How long a thread is held: one that the program waits for goes on after that, until the next
time that threads are held. At each of its calls it took a program's batches minutes to come."""

_LOADING = os.path.join("torch", "utils", "data")


def _is_loading(frame: Any) -> bool:
    """Whether a thread is a loader's: its calls of queues are elsewhere."""
    while frame is not None and _LOADING not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None


class HoldThreads(Cure):
    """Ablation: other threads of Python wait at their next call, which leaves the interpreter's
    lock to the one that takes the steps. Those of loaders go on."""

    name = "hold_threads"
    title = "other Python threads wait"
    answers = ("lock_held", "idle.wait")
    result = BOUND
    change = "another process instead of a thread, or a library that lets the lock go"
    library = None

    def apply(self, _library: object) -> Undo:
        profile = getattr(threading, "setprofile_all_threads", None)
        if profile is None:
            raise CannotApply("threads can be held from Python 3.12 on")
        own = threading.get_ident()
        if all(thread.ident == own for thread in threading.enumerate()):
            raise CannotApply("the program has no other Python thread")
        released = threading.Event()
        free = {own}

        def hold(frame: Any, *_event: Any) -> None:
            thread = threading.get_ident()
            if thread not in free and (_is_loading(frame) or not released.wait(HELD_S)):
                free.add(thread)

        profile(hold)
        sys.setprofile(None)

        def undo() -> None:
            profile(None)
            released.set()

        return undo
