"""Marks the steps of a program where it says itself what they are: at the end of torch's optimizer
step, at the call of a module that no other calls, at each token of transformers' generation, at the
iterations of tqdm, at the ends of batches in Lightning, Trainer, accelerate and Keras, and at each
turn of the program's own loops.

The program's loops are seen by loop_marks. One mark a step, about 1 µs
(tests/bench/bench_steps.py), straight to the capture library. Runs in traced programs, loaded by
the start-up hook (sitecustomize). Which of several sources is the step is decided by the reader,
which sees what each of them spans. Python 3.8 and later; nothing of gputui is imported, because the
program may use another interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
import weakref
from typing import Any, Callable, Iterable, Iterator  # noqa: UP035

SOURCES = (
    "optimizer", "module", "token", "tqdm", "lightning", "trainer", "accelerate", "keras", "loop",
)  # fmt: skip
"""In the order of their numbers, from 1: the beginning of the model's STEP_SOURCES."""
SAMPLES, TOKENS = 1, 2
"""The numbers of the model's ITEM_UNITS."""
GROWN, LEARNS = 4, 8
"""Added to a unit where the step's input is one longer than that of the step before, as a text is
that is gone through again for each token; and where gradients of a module's call are kept."""

MOST_OPTIMIZERS = 16
"""More are of one step: an optimizer for each parameter that runs in the backward pass."""
MOST_CLASSES = 64
"""Classes of modules whose calls are marked."""
MOST_FRAMES = 1000

EARLY_S, EARLY_LOOKS, LATE_S = 0.02, 1500, 0.25
"""Between two looks for a module that no other calls: 50 a second at first, which takes 0.2 % of a
core, and 4 later and once there is one: what is called from then on is rarely new."""

# The unit of progress bars that count bytes: downloads, no steps.
_LOADING = "B"

Site = int


class Marks:
    """Makes marks, and takes back all that it put into the program."""

    def __init__(
        self,
        define: Callable[[int, bytes, int], Site | None],
        step: Callable[[Site | None, int, int], Any],
    ) -> None:
        self._define = define
        self.step = step
        """Marks a step at a site: how many items it had, and their unit; 0 and 0 if unknown."""
        self._undo: list[Callable[[], Any]] = []
        self.items = 0
        """Of the calls of modules since the last optimizer's step, which learns from them."""
        self.unit = 0
        self._done: set[str] = set()
        self.watch_loops: Callable[[], Any] | None = None
        """Begins to mark the program's own loops (loop_marks); None where that is not wanted."""
        self.keeps_loops = False
        """Whether loops are marked as long as they turn, those that have a site and no others."""
        self.note: Callable[[str, Any, int], Any] | None = None
        """Writes a fact of the program: its name, a frame that it is at, and bytes."""
        self.returned: Callable[[Site | None, Any, Any, Any], Any] | None = None
        """Told of a module that no other calls its site, itself, what it was given, and what it
        gave."""
        self.optimizers: Any = weakref.WeakSet()

    def site(self, source: str, name: str, begins: bool = True) -> Site | None:
        """A place where steps are marked; with `begins` the process is captured for it alone."""
        text = name.encode("utf-8", "replace")
        return self._define(SOURCES.index(source) + 1, text, begins)

    def replace(self, owner: Any, attribute: str, make: Callable[[Any], Any]) -> None:
        """Put what `make` returns of an attribute in its place."""
        own = vars(owner).get(attribute)
        original = getattr(owner, attribute)
        new = make(original)
        setattr(owner, attribute, new)

        def restore() -> None:
            if vars(owner).get(attribute) is not new:
                return  # somebody has replaced it since
            if own is None:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, own)

        self._undo.append(restore)

    def when_undone(self, action: Callable[[], Any]) -> None:
        self._undo.append(action)

    def mark(self, name: str, module: Any) -> None:
        """Mark the steps of an imported module, one of PLACES."""
        if name in self._done:
            return
        self._done.add(name)
        with contextlib.suppress(Exception):
            PLACES[name](self, module)

    def undo(self) -> None:
        """Leave the program as it was."""
        while self._undo:
            with contextlib.suppress(Exception):
                self._undo.pop()()


def from_library(path: str) -> Marks:
    """Marks through the capture library, loaded by its path."""
    library = ctypes.PyDLL(path)  # keeps the GIL: releasing it would cost more than the call
    site, step = library.gputui_step_site, library.gputui_step
    site.restype = ctypes.c_void_p
    site.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int]
    step.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int]
    step.restype = None
    return Marks(site, step)


# --- torch: optimizers, and the modules that no other module calls.


def _mark_torch(marks: Marks, torch: Any) -> None:
    with contextlib.suppress(Exception):
        _mark_optimizers(marks, torch)
    looker = _OutermostModules(marks, torch)
    marks.when_undone(looker.stop)
    looker.start()
    _mark_loops(marks, torch)


def _mark_optimizers(marks: Marks, torch: Any) -> None:
    """The end of each optimizer's step. Gradients of several micro-batches end in one."""
    sites: Any = weakref.WeakKeyDictionary()
    step, is_compiling = marks.step, _compiling(torch)

    def stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if is_compiling():
            return
        try:
            site = sites[optimizer]
        except KeyError:
            name = type(optimizer).__name__
            number = sum(type(other) is type(optimizer) for other in list(sites)) + 1
            site = None
            if len(sites) < MOST_OPTIMIZERS:
                site = marks.site("optimizer", name if number == 1 else f"{name} {number}")
            sites[optimizer] = site
            marks.optimizers.add(optimizer)
            _note_parameters(marks, optimizer, sys._getframe(1))
        items, marks.items = marks.items, 0
        step(site, items, marks.unit if items else 0)

    # torch.optim deletes its attribute of the name.
    optimizers = sys.modules["torch.optim.optimizer"]
    handle = optimizers.register_optimizer_step_post_hook(stepped)
    marks.when_undone(handle.remove)

    def noting(initialize: Any) -> Any:
        @functools.wraps(initialize)
        def initialized(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):
                if marks.note is not None:
                    marks.note("optimizer.made", sys._getframe(1), 0)
            return initialize(optimizer, *args, **kwargs)

        return initialized

    marks.replace(optimizers.Optimizer, "__init__", noting)


def _note_parameters(marks: Marks, optimizer: Any, frame: Any) -> None:
    """Write at which line an optimizer makes its first step, and how many bytes it updates."""
    with contextlib.suppress(Exception):
        if marks.note is not None:
            parameters = (each for group in optimizer.param_groups for each in group["params"])
            size = sum(each.numel() * each.element_size() for each in parameters)
            marks.note("optimizer.step", frame, size)


class _OutermostModules(threading.Thread):
    """Finds the modules that no other module calls, and has calls of their classes marked.

    Torch's hooks for all modules would run at each of the hundreds of calls in a step. So a thread
    looks at what is on the stacks; from then on only calls of the classes that were outermost are
    wrapped, and of these only those that are not inside another one's.
    """

    def __init__(self, marks: Marks, torch: Any) -> None:
        super().__init__(name="gputui steps", daemon=True)
        module = torch.nn.Module
        self._marks = marks
        self._is_compiling = _compiling(torch)
        self._learns = torch.is_grad_enabled
        self._classes: set[type] = set()
        self._inside = threading.local()
        self._over = threading.Event()
        calls = [getattr(module, name, None) for name in ("_call_impl", "_wrapped_call_impl")]
        self._calls = {call.__code__ for call in calls if call is not None}
        self._marked: Any = None
        self._pid = os.getpid()

    def stop(self) -> None:
        self._over.set()

    def run(self) -> None:
        looks = 0
        with contextlib.suppress(Exception):  # the program goes on without
            while os.getpid() == self._pid and len(self._classes) < MOST_CLASSES:
                early = looks < EARLY_LOOKS and not self._classes
                if self._over.wait(EARLY_S if early else LATE_S):
                    return
                looks += 1
                self._look()

    def _look(self) -> None:
        frames = sys._current_frames()
        # Threads that Python did not start are autograd's: what they call is called again.
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0)
            if frame is not None and thread is not self:
                self._see(frame)
        del frames

    def _see(self, frame: Any) -> None:
        outermost = None
        for _ in range(MOST_FRAMES):
            if frame is None:
                break
            code = frame.f_code
            if code in self._calls or code is self._marked:
                outermost = frame
            elif code.co_filename.endswith("checkpoint.py"):
                outermost = None  # a forward pass that is computed again
            frame = frame.f_back
        if outermost is None or outermost.f_code is self._marked:
            return
        module = outermost.f_locals.get("self")
        kind = type(module)
        if module is not None and kind not in self._classes:
            self._classes.add(kind)
            self._marks.replace(kind, "__call__", lambda call: self._wrapper(call, kind))

    def _wrapper(self, call: Callable[..., Any], kind: type) -> Callable[..., Any]:
        marks, inside, is_compiling = self._marks, self._inside, self._is_compiling
        step, learns = marks.step, self._learns
        site = marks.site("module", kind.__name__)
        newest = 0  # the length of the newest text or sequence
        learned = 0

        def marked(module: Any, *args: Any, **kwargs: Any) -> Any:
            # A compiler that traces through here sees only the call.
            nonlocal newest, learned
            if is_compiling() or getattr(inside, "any", False):
                return call(module, *args, **kwargs)
            inside.any = True
            try:
                items, unit, length = _items_of(args, kwargs)
                learning = LEARNS if items and learns() else 0
                if learning:
                    marks.items += items
                    marks.unit = unit
                    learned += 1
                    if learned == LEARNING_CALLS:
                        _note_gradients(marks, module, sys._getframe(1))
                if length and length == newest + 1:
                    items, unit = items * (1 if unit == TOKENS else length), TOKENS | GROWN
                newest = length
                step(site, items, unit | learning)
                made = call(module, *args, **kwargs)
                if marks.returned is not None:
                    marks.returned(site, module, (*args, *kwargs.values()), made)
                return made
            finally:
                inside.any = False

        functools.update_wrapper(marked, call)
        self._marked = marked.__code__
        return marked


LEARNING_CALLS = 16
"""Calls of a module after which its gradients are looked at, once."""


def _note_gradients(marks: Marks, module: Any, frame: Any) -> None:
    """Write how many bytes of a module's parameters an optimizer updates, and how many have a
    gradient that none uses: as of a backbone that is only left out of the optimizer."""
    with contextlib.suppress(Exception):
        used, unused = (
            sum(each.numel() * each.element_size() for each in its)
            for its in unowned_gradients(module.parameters(), list(marks.optimizers))
        )
        if marks.note is not None and used and unused:
            marks.note("gradients.used", frame, used)
            marks.note("gradients.unused", frame, unused)


COPIES = 0.5
"""Parameters that optimizers have and no module, for each that they do not have, from which those
are copies of these, in another type or in one piece: then they are updated all the same."""


def unowned_gradients(parameters: Iterable[Any], optimizers: Iterable[Any]) -> tuple[Any, Any]:
    """Of the parameters of modules those that an optimizer has, and those with a gradient that none
    has; none of the latter where optimizers have copies. Cures (unowned_gradients_off) use it,
    too."""
    owned = {
        id(each): each
        for optimizer in optimizers
        for group in optimizer.param_groups
        for each in group["params"]
    }
    used: list[Any] = []
    unused: list[Any] = []
    for each in parameters:
        if owned.pop(id(each), None) is not None:
            used.append(each)
        elif each.requires_grad and each.grad is not None:
            unused.append(each)
    copies = sum(each.numel() for each in owned.values())
    return used, unused if copies < COPIES * sum(each.numel() for each in unused) else []


def _items_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int, int]:
    """How many items a module is called for: tokens where it is given their numbers by name, as
    language models are, else samples, the first dimension of the first argument; and how long they
    are, its second one, from 2 on. 0 for what is not known.
    """
    try:
        tokens = kwargs.get("input_ids")
        if tokens is not None:
            length = tokens.shape[-1]
            return tokens.numel(), TOKENS, length if length > 1 else 0
        shape = args[0].shape
        return shape[0], SAMPLES, shape[1] if len(shape) > 1 and shape[1] > 1 else 0
    except Exception:
        return 0, 0, 0


def _compiling(torch: Any) -> Callable[[], bool]:
    compiler = getattr(torch, "compiler", None)
    is_compiling = getattr(compiler, "is_compiling", None)
    return is_compiling if is_compiling is not None else lambda: False


# --- Libraries that have a loop, or show one.


def _mark_generation(marks: Marks, utils: Any) -> None:
    """Each token of `generate`: what follows a forward pass there, compiled or not."""
    step, site = marks.step, marks.site("token", "generate")

    def make(update: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(update)
        def updated(self: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                sequences = outputs.logits.shape[0]
            except Exception:
                sequences = 0
            step(site, sequences, TOKENS if sequences else 0)
            return update(self, outputs, *args, **kwargs)

        return updated

    marks.replace(utils.GenerationMixin, "_update_model_kwargs_for_generation", make)


def _after(marks: Marks, owner: Any, method: str, source: str, name: str) -> None:
    """Mark a step after each call of a method."""
    step, site = marks.step, marks.site(source, name)

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def marked(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            step(site, 0, 0)
            return result

        return marked

    if hasattr(owner, method):
        marks.replace(owner, method, make)


def _mark_trainer(marks: Marks, callbacks: Any) -> None:
    """transformers' Trainer tells its callbacks of each step."""
    _after(marks, callbacks.CallbackHandler, "on_step_end", "trainer", "training step")
    _after(marks, callbacks.CallbackHandler, "on_prediction_step", "trainer", "prediction step")


def _mark_lightning(marks: Marks, call: Any) -> None:
    """Lightning's trainer calls all hooks of callbacks through one function, with their names."""
    step = marks.step
    sites = {
        f"on_{part}_batch_end": marks.site("lightning", f"{part} batch")
        for part in ("train", "validation", "test", "predict")
    }

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(trainer: Any, hook: str, *args: Any, **kwargs: Any) -> Any:
            result = function(trainer, hook, *args, **kwargs)
            if hook in sites:
                step(sites[hook], 0, 0)
            return result

        return called

    marks.replace(call, "_call_callback_hooks", make)


def _mark_accelerate(marks: Marks, optimizer: Any) -> None:
    """The steps of accelerate's optimizer that are not put off until the next micro-batch."""
    step, site = marks.step, marks.site("accelerate", "optimizer step")

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def stepped(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = function(self, *args, **kwargs)
            state = getattr(self, "gradient_state", None)
            if getattr(state, "sync_gradients", True):
                step(site, 0, 0)
            return result

        return stepped

    marks.replace(optimizer.AcceleratedOptimizer, "step", make)


def _mark_keras(marks: Marks, callbacks: Any) -> None:
    for part in ("train", "test", "predict"):
        method = f"on_{part}_batch_end"
        _after(marks, callbacks.CallbackList, method, "keras", f"{part} batch")


def _mark_tqdm(marks: Marks, std: Any) -> None:
    """The iterations of progress bars: of a loop over one, and of those that the program moves on.

    A site is the line of the loop: bars of inner loops are made anew in each turn of the outer. A
    bar alone is no reason to capture a process.
    """
    step = marks.step
    sites: dict[tuple[Any, int], Site | None] = {}
    iterating: set[int] = set()

    def site_of(frame: Any) -> Site | None:
        for _ in range(8):  # a bar's own methods, and those of its subclasses
            path = frame.f_code.co_filename.replace("\\", "/")
            if "/tqdm/" not in path or frame.f_back is None:
                break
            frame = frame.f_back
        key = frame.f_code, frame.f_lineno
        site = sites.get(key)
        if "/torch/" in frame.f_code.co_filename:  # its compiler's bars, for what it compiles
            return None
        if site is None and len(sites) < MOST_CLASSES:
            name = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            site = sites[key] = marks.site("tqdm", name, begins=False)
            if site is None:
                del sites[key]  # nothing is captured yet
        return site

    def iterations(bar: Any, original: Callable[..., Any]) -> Iterator[Any]:
        number = id(bar)
        iterating.add(number)
        site = None
        try:
            for item in original(bar):
                yield item
                if site is None:
                    site = site_of(sys._getframe(1))
                step(site, 0, 0)
        finally:
            iterating.discard(number)

    def make_iter(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __iter__(self: Any) -> Iterator[Any]:
            return iterations(self, original)

        return __iter__

    def make_update(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def update(self: Any, n: Any = 1) -> Any:
            if n == 1 and id(self) not in iterating and getattr(self, "unit", "") != _LOADING:
                step(site_of(sys._getframe(1)), 0, 0)
            return original(self, n)

        return update

    marks.replace(std.tqdm, "__iter__", make_iter)
    marks.replace(std.tqdm, "update", make_update)


def _mark_loops(marks: Marks, _library: Any) -> None:
    watch, marks.watch_loops = marks.watch_loops, None
    if watch is not None:
        watch()


PLACES: dict[str, Callable[[Marks, Any], None]] = {
    "torch": _mark_torch,
    "cupy": _mark_loops,
    "jax": _mark_loops,
    "transformers.generation.utils": _mark_generation,
    "transformers.trainer_callback": _mark_trainer,
    "lightning.pytorch.trainer.call": _mark_lightning,
    "pytorch_lightning.trainer.call": _mark_lightning,
    "accelerate.optimizer": _mark_accelerate,
    "keras.src.callbacks.callback_list": _mark_keras,
    "tqdm.std": _mark_tqdm,
}
"""What is done to a module once it is imported."""
