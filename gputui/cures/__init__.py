"""Cures that are tried on an unmodified program, by families, a module each, and ablations, which
take a cause away, and the results with it, to measure what it costs.

Read by gputui, which offers them, and by the start-up hook (inject/hook/sitecustomize.py), which
applies those that GPUTUI_CURES names within the program, or has a trial switch them on and off
(inject/hook/trial.py). So this package runs in the program's own interpreter (Python 3.8 and
later), imports nothing of gputui, and gets the library that it changes as an argument.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Undo = Callable[[], None]
    """What `apply` gives: called once, it puts back all that the cure changed."""

VARIABLE = "GPUTUI_CURES"
"""Names of the cures to apply, with commas between."""

EXACT, ROUNDING, DIFFERENT, BOUND = "exact", "rounding", "different", "bound"
"""What a cure leaves of the results: the same bits, the same but for rounding, others; or that it
is an ablation, whose results are wrong: what is measured is what the named thing costs. A cure
that also leaves out the work behind it gains more: 1.12 was measured of a program without its
waits for norms that it logs, 1.50 of one that does not compute them in each step."""

LEAST_ON_S = 0.05
"""How long a cure is on at least before it says that it found nothing to change: shorter, no step
of the program may have come to it."""

LOST_S = 60.0
"""How long is waited at most for the end of a run in which a value is lost."""

COMPILING_S = 40.0
"""What compiling a model took of 20 to 60 s in trials."""

ANY = "any"
"""Stands for every finding, and for none: for faults that no diagnosis sees."""


PLAIN = (int, float, str, bytes, bool, type(None))
"""Values that are the same where they are equal."""

NOT_FROM_OUTSIDE = {
    "larger batch": "a step is another one then, and the memory it needs is not known before",
    "jax.jit of the outer function": "which arguments are static only its author knows",
    "JAX compilation cache": "it shortens the start, not a step: JAX_COMPILATION_CACHE_DIR",
    "reading whole batches": "the format of the data set is the program's",
}
"""Cures that are only advised, and why they cannot be tried from outside."""


class Cure:
    """What is changed in a program from outside, and what that answers. A class of a family's
    module with these attributes; an object of it is one use in one process."""

    name: ClassVar[str] = ""
    """As a person chooses it. A class without a name is a base of others."""
    title: ClassVar[str]
    """What it does, as a clause."""
    answers: ClassVar[tuple[str, ...]]
    """Keys of the findings (`Finding.cause`) that it is for, or ANY."""
    result: ClassVar[str]
    """What it leaves of the results: EXACT, ROUNDING, DIFFERENT or BOUND."""
    change: ClassVar[str]
    """What the user writes into the source for it, as code or as a clause."""
    library: ClassVar[str | None] = "torch"
    """The library whose import it waits for; None where it is applied when the program starts."""
    in_one_run: ClassVar[bool] = True
    """Whether it may be switched on and off while the program runs: False where something is kept
    that was made under it (compiled code, a captured graph, an allocator's blocks, workers)."""
    tells_at_once: ClassVar[bool] = False
    """Whether it may be switched on and off between two steps only to hear whether it changes
    anything, which spares a run in which nothing would be switched."""
    fills_queues: ClassVar[bool] = False
    """Whether a loader gets ahead while it is on, so that steps after that wait less without it
    too: it is measured by runs of its own, although it may be switched."""
    longer_s: ClassVar[float] = 0.0
    """By about how much a run of its own begins later: where less time is left, there is none."""
    settles_s: ClassVar[float] = 0.0
    """How long it is on before its steps are what they stay."""
    argument: ClassVar[str] = ""
    """What follows its name after an @, where it needs that: skip@train.py:report."""
    of_inference: ClassVar[bool] = False
    """Whether it is for what is not trained alone."""
    alternative: ClassVar[str] = ""
    """Of cures with the same word here one is on at a time."""
    advice: ClassVar[str] = ""
    """A pattern of the words of a finding's advice that mean this cure: where the advice has them,
    it comes before others, and where it has not, nothing is forecast of it. Empty for one of
    whatever advice."""
    forecast: ClassVar[str | None] = ""
    """Which of a finding's gains is its (`Gain.cure`), where the finding has several; None where it
    is only one of many things that the finding may be about: nothing is promised of it."""

    def __init__(self, target: str = "") -> None:
        """`target` is what follows the @."""
        self.target = target

    def prepare(self, library: Any) -> None:
        """What is done to the library once it is imported, before the program's own lines take
        functions of it by name, for a cure that is switched later, or asked whether it is of use.
        It changes nothing by itself."""

    def apply(self, library: Any) -> Undo:
        """Switches it on, given the library or None; returns what switches it off again. Raises
        `CannotApply` with the reason where this program, library or card does not allow it or has
        no use for it."""
        raise NotImplementedError

    ended: str = ""
    """Why it has ended by itself: what it found to be wrong in this program, or that it changes
    nothing there. From then on it leaves calls as they are, and is not applied again."""
    used: int | None = None
    """How often it has changed what the program does; None where it does not count that, or has
    come to nothing yet that it is about."""
    unused: ClassVar[str] = ""
    """Why it ends where it was on for LEAST_ON_S and `used` is 0."""

    def end(self, why: str) -> None:
        """Say that it is wrong in this program, wherever that is found out: the first reason
        stays."""
        if not self.ended:
            self.ended = why
            self.tell({"applied": False, "ended": True, "why": why})

    def lose(self, why: str) -> None:
        """Say that a value is asked for that cannot be computed any more as the program has it: its
        run is ended. It waits for that, so that the program never sees another value."""
        self.end(why)
        self.tell({"applied": False, "ended": True, "lost": True, "why": why})
        time.sleep(LOST_S)

    def look(self) -> None:
        """Asked at the end of each block of steps, and before it is switched off: looks at what it
        has given so far, which it could not know at once, and calls `end` where that was wrong. The
        GPU has been waited for."""

    def say(self, note: str) -> None:
        """Say what it has done so far, where it is not switched off before the program ends."""
        self.tell({"applied": True, "note": note})

    def tell(self, _row: dict[str, Any]) -> None:
        """Where what it says goes (`Application`)."""

    both_ways = 0
    """Calls that were made with it and without, and gave the same but for rounding."""

    def note(self) -> str:
        """What it has done, once it is off. Empty where there is nothing to say."""
        return f"{self.both_ways} calls made both ways give the same" if self.both_ways > 1 else ""

    _calls_seen = 0

    def seen_from(self, frame: Any) -> None:
        """Takes the frame of a call that it is about, and says its line: of the first, and of later
        ones, which are in the loop."""
        self._calls_seen += 1
        if self._calls_seen in SAID_OF:
            place = program_line(frame)
            if place:
                self.tell({"place": place})

    alters_outputs: ClassVar[bool] = False
    """Whether modules give something else with it where the program does not look, such as zeros
    for padding: its results are compared by losses and prints alone."""

    redraws: ClassVar[bool] = False
    """Whether the program draws other random numbers with it, as items that are changed at random
    by each loader's worker: losses differ then until they have fallen."""

    is_certain: ClassVar[bool] = False
    """Whether `useless`, or `apply`, knows: where they have no reason against it the program has
    what the cure is about, and it is tried before others."""

    def useless(self, _library: Any) -> str | None:
        """Asked once the program is in its loop: why the cure would change nothing there, None
        where it may. A cure that needs runs of its own then gets none."""
        return None


SAID_OF = (1, 4, 32)
"""Of which of the calls that a cure sees the line is said."""

DEPTH = 100
_NOT_THE_PROGRAMS = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen", "<string>")
_OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


def program_line(frame: Any) -> str:
    """FILE:LINE of the first frame of the program's own code among one and those that called it;
    empty where there is none."""
    for _ in range(DEPTH):
        if frame is None:
            break
        name = frame.f_code.co_filename.replace("\\", "/")
        if not name.startswith(_OWN) and not any(each in name for each in _NOT_THE_PROGRAMS):
            return f"{os.path.basename(name)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


class CannotApply(Exception):
    """A cure is not possible here, or changes nothing; its text says why."""


@functools.lru_cache(maxsize=1)
def cures() -> dict[str, type[Cure]]:
    """Every cure by its name: the classes of all modules of the package."""
    kinds: dict[str, type[Cure]] = {}
    for module in pkgutil.iter_modules(__path__):
        for value in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            if isinstance(value, type) and issubclass(value, Cure) and value.name:
                kinds[value.name] = value
    return {name: kinds[name] for name in sorted(kinds)}


def answering(cause: str) -> list[type[Cure]]:
    """The cures of a finding by its key, those that change results least first."""
    order = (EXACT, ROUNDING, DIFFERENT, BOUND)
    matching = [cure for cure in cures().values() if cause in cure.answers]
    return sorted(matching, key=lambda cure: order.index(cure.result))


# Ways to change a library from outside, and back.


_INHERITED = object()


def replaced(*places: tuple[Any, str, Any]) -> Undo:
    """Sets attributes (owner, name, value) where the owner has them; returns what restores them."""
    places = tuple(place for place in places if hasattr(place[0], place[1]))
    kept = [(owner, name, vars(owner).get(name, _INHERITED)) for owner, name, _ in places]
    for owner, name, value in places:
        setattr(owner, name, value)

    def undo() -> None:
        for owner, name, value in reversed(kept):
            if value is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, value)

    return undo


def idle(*_args: Any, **_kwargs: Any) -> None:
    """Does nothing, whatever it is given."""


def combined(*undos: Undo) -> Undo:
    """One function that undoes several changes, the last one first."""

    def undo() -> None:
        for each in reversed(undos):
            each()

    return undo


class Redirected(Cure):
    """Calls of the program that go another way while the cure is on. `prepare` puts in the place of
    what they call what counts those that it is about, and passes all on."""

    least_calls = 1
    """Of those that it is about, before anything is switched: else it has nothing to do."""
    none_such: ClassVar[str] = "there is no such call in the loop"
    """Why it has nothing to do."""

    def __init__(self, target: str = "") -> None:
        super().__init__(target)
        self._calls = 0
        self._is_prepared = self._is_on = False
        self._is_watching = True
        """Until it is switched: then the program's calls are its own again while it is off."""

    def places(self, library: Any) -> tuple[tuple[Any, str], ...]:
        """Where the function is, as (owner, attribute): also what it calls itself, because a
        program may have it under a name of its own."""
        raise NotImplementedError

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        """What is called instead of a call; None for one that it is not about."""
        raise NotImplementedError

    def prepare(self, library: Any) -> None:
        """Stand in for the function at its places."""
        if not self._is_prepared:
            self._is_prepared = True
            for owner, attribute in self.places(library):
                if hasattr(owner, attribute):
                    replaced((owner, attribute, self._standing_in(getattr(owner, attribute))))

    def _standing_in(self, function: Any) -> Any:
        # A method of JAX's that is written in C++ has a __qualname__ that is no word.
        has_names = isinstance(getattr(function, "__qualname__", None), str)
        names = functools.WRAPPER_ASSIGNMENTS if has_names else ("__name__", "__doc__")

        @functools.wraps(function, assigned=names)
        def called(*args: Any, **kwargs: Any) -> Any:
            if not (self._is_on or self._is_watching):
                return function(*args, **kwargs)
            try:
                other = self.instead(function, args, kwargs)
            except Exception:  # of a call that is none of those it is about
                other = None
            if other is None:
                return function(*args, **kwargs)
            self.seen_from(sys._getframe(1))
            if self._is_on and not self.ended:
                return other()
            self._calls += 1
            return function(*args, **kwargs)

        return called

    def apply(self, library: Any) -> Undo:
        """Send the calls the other way. Raises CannotApply where there were none before it is
        switched."""
        self.prepare(library)
        self._is_watching = False
        if self.in_one_run and self._calls < self.least_calls:
            raise CannotApply(self.none_such)
        self._is_on = True
        return functools.partial(setattr, self, "_is_on", False)

    def useless(self, _library: Any) -> str | None:
        """Where it needs runs of its own: by the calls that it has seen so far."""
        return None if self.in_one_run or self._calls else self.none_such


class Idled(Redirected):
    """A call in the loop that is made idle."""

    least_calls = 3  # one or two are around the loop
    value: Any = None
    """What it returns while idle."""

    def instead(self, _function: Any, _args: Any, _kwargs: Any) -> Callable[[], Any] | None:
        """A call that does nothing and gives `value`; None for calls of torch's compiler."""
        return None if _is_of_compiler(sys._getframe(2)) else lambda: self.value


def _is_of_compiler(frame: Any) -> bool:
    """Whether a call comes from what times kernels to choose among them, not from the program."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("torch.cuda"):
        frame = frame.f_back
    module = "" if frame is None else frame.f_globals.get("__name__", "")
    return module.startswith(("torch._inductor", "torch._dynamo", "triton"))


# After steps of optimizers.

_after_steps: list[Callable[[Any], Any]] = []
_are_steps_followed: list[bool] = []


def _follow_steps() -> None:
    """Has what `after_optimizer_steps` is given called from now on: registered once, when torch is
    imported. Cures are switched in a step of an optimizer, and a hook that is added or removed
    there ends the program ("OrderedDict mutated during iteration")."""
    optimizers = sys.modules.get("torch.optim.optimizer")  # torch.optim deletes its attribute
    register = getattr(optimizers, "register_optimizer_step_post_hook", None)
    if register is None or _are_steps_followed:
        return
    _are_steps_followed.append(True)

    def stepped(optimizer: Any, *_words: Any) -> None:
        for each in tuple(_after_steps):
            each(optimizer)

    register(stepped)


def after_optimizer_steps(function: Callable[[Any], Any]) -> Undo:
    """Calls a function after each step of an optimizer, which it is given; what this returns ends
    that."""
    _follow_steps()
    _after_steps.append(function)
    return functools.partial(_after_steps.remove, function)


# What a program has made.


_FROZEN_AT_START = gc.get_freeze_count()
"""Python 3.12 begins with some hundred objects that it does not show."""


_moments: list[dict[int, tuple[Any, list[Any]]]] = []
"""All that the garbage collector tracks, by its class's id, within `one_moment`."""


def instances(*kinds: Any) -> list[Any] | None:
    """The objects of these classes, of all that the garbage collector tracks (some 60 ms for
    300,000); None where it does not show all (gc.freeze)."""
    if gc.get_freeze_count() > _FROZEN_AT_START:
        return None
    classes = _moments[-1] if _moments else _objects_by_class()
    # By its class alone: isinstance would ask objects that pretend to be of another.
    return [each for kind, made in classes.values() if issubclass(kind, kinds) for each in made]


def _objects_by_class() -> dict[int, tuple[Any, list[Any]]]:
    classes: dict[int, tuple[Any, list[Any]]] = {}
    for each in gc.get_objects():
        number = id(kind := type(each))  # a metaclass may hash and compare as it likes
        if number not in classes:
            classes[number] = kind, []
        classes[number][1].append(each)
    return classes


@contextlib.contextmanager
def one_moment() -> Iterator[None]:
    """Within it nothing of the program runs, so that what it has made is looked through once: once
    for each cure that asks took 2 to 5 s of a run."""
    _moments.append(_objects_by_class())
    try:
        yield
    finally:
        _moments.pop()


# Modules that no other module calls, for cures that change a whole model.

CALLS = 256
"""Calls of outermost modules after which no new one is expected. The wrapper stays: torch.compile
would compile again what it was in."""


def before_first_calls(torch: Any, change: Callable[[Any], None]) -> Undo:
    """Calls `change(module)` before the first call of each outermost module that has parameters,
    for the first CALLS of such calls; returns what takes that back."""
    kind = torch.nn.Module
    call = kind.__call__
    is_compiling = torch.compiler.is_compiling
    inside = threading.local()
    seen: dict[int, Any] = {}
    left = [CALLS]
    main = threading.main_thread().ident

    @functools.wraps(call)
    def changed(module: Any, *args: Any, **kwargs: Any) -> Any:
        # What autograd's threads call is computed again, and inside another one.
        if is_compiling() or getattr(inside, "any", False) or threading.get_ident() != main:
            return call(module, *args, **kwargs)
        inside.any = True
        try:
            left[0] -= 1
            if left[0] >= 0 and id(module) not in seen:
                seen[id(module)] = module  # kept, so that no other gets its number
                if next(module.parameters(), None) is not None:
                    change(module)
            return call(module, *args, **kwargs)
        finally:
            inside.any = False

    return replaced((kind, "__call__", changed))


# Within the program.


def _out_of_memory(torch: Any) -> int:
    """How often torch has raised that a GPU's memory is out."""
    try:
        if not torch.cuda.is_initialized():
            return 0
        every = map(torch.cuda.memory_stats_as_nested_dict, range(torch.cuda.device_count()))
        return sum(each.get("num_ooms", 0) for each in every)
    except Exception:  # of another allocator, or without torch
        return 0


def _use_a_device_once(torch: Any) -> None:
    """`with torch.device(...)` asks by a set of torch's functions, made at its first use, which of
    them make tensors. Made of what a cure has put in their place it knew none: weights of models
    that are made so stayed on the CPU, and the program failed."""
    try:
        with torch.device("cpu"):
            torch.empty(0)
    except Exception:  # before torch 2.0 it is no context
        return


class Application:
    """The cures of one process: which are on, and which could not be applied and why.

    Written to the run's private folder as `cures-PID`, a line of JSON for each cure when it is
    first applied: {"cure": name, "applied": true} or {"cure": name, "applied": false, "why":
    reason}; with "note" when it was switched off, where it says what it did; with "ended": true and
    the reason as soon as it has ended by itself, which holds for all that it did before, and with
    "lost": true where it cannot give the program a value that it asks for; and
    {"cure": name, "place": FILE:LINE} of a call that it is about. `names` are applied as soon as
    their library is there, `switched` when `switch` says so; `asked` are those that `ask` is
    given. Each may have an argument: name@argument.
    """

    def __init__(
        self,
        names: Iterable[str],
        folder: str | None,
        switched: Iterable[str] = (),
        asked: Iterable[str] = (),
    ) -> None:
        self._cures: dict[str, Cure] = {}
        self._folder = folder
        self._said: set[str] = set()
        self._modules: dict[str | None, Any] = {None: None}
        self._waiting = self._existing(names)
        self._switched = self._existing(switched)
        self._asked = self._existing(each for each in asked if each not in self._cures)
        self.undo: dict[str, Undo] = {}
        """What switches each off that is on."""
        self._since_s: dict[str, float] = {}
        """When each was switched on last."""
        self._ooms: int | None = None
        """How often a GPU's memory had run out by the last look,"""
        self._has_ooms = False
        """and whether it does so without any cure."""

    def _existing(self, names: Iterable[str]) -> list[str]:
        existing = []
        for name in names:
            kind, _, target = name.partition("@")
            if kind in cures():
                if name not in self._cures:
                    cure = self._cures[name] = cures()[kind](target)
                    cure.tell = functools.partial(self._write, name)  # type: ignore[method-assign]
                existing.append(name)
            else:
                self._report(name, "there is no such cure")
        return existing

    one_moment = staticmethod(one_moment)

    @property
    def libraries(self) -> list[str]:
        """Those whose import cures wait for."""
        awaited = [
            self._cures[name].library for name in (*self._waiting, *self._switched, *self._asked)
        ]
        return [library for library in awaited if library is not None]

    def imported(self, library: str | None, module: Any = None) -> None:
        """Applies the cures of a library that was imported just now, or with None those that need
        none. Never raises: a cure that fails leaves the program as it is."""
        self._modules[library] = module
        if library == "torch":
            _follow_steps()
            _use_a_device_once(module)
        due = [name for name in self._waiting if self._cures[name].library == library]
        self._waiting = [name for name in self._waiting if name not in due]
        for name in due:
            self._apply(name)
        for name in (*self._switched, *self._asked):
            cure = self._cures[name]
            if cure.library == library:
                try:
                    cure.prepare(module)
                except Exception as error:
                    self._report(name, f"{type(error).__name__}: {error}")

    def ask(self, names: Iterable[str]) -> None:
        """Reports those of these cures that would change nothing, as not applied."""
        for name in self._existing(names):
            cure = self._cures[name]
            why: str | None = None
            module = sys.modules.get(cure.library) if cure.library is not None else None
            if cure.library is not None and module is None:
                why = f"the program does not import {cure.library}"
            else:
                try:
                    why = cure.useless(module)
                    if cure.tells_at_once:
                        cure.apply(module)()
                except CannotApply as reason:
                    why = str(reason)
                except Exception:  # what cannot be told is tried
                    why = None
            if why is not None:
                self._report(name, why)

    def switch(self, name: str, on: bool) -> bool:
        """Switches a cure on or off; whether it now is as wanted. Never raises."""
        if name not in self._cures:
            return False
        if on:
            return name in self.undo or self._apply(name)
        if name not in self.undo:
            return True
        self._look(name)
        undo = self.undo.pop(name)
        try:
            undo()
        except Exception as error:
            self._said.discard(name)
            self._report(name, f"it could not be switched off: {type(error).__name__}: {error}")
            return False
        note = self._cures[name].note()
        if note:
            self._cures[name].say(note)
        return True

    def look(self) -> None:
        """Has each cure that is on look at what it has done, and switches those off that end. Never
        raises."""
        before, self._ooms = self._ooms, _out_of_memory(self._modules.get("torch"))
        on = [name for name in self.undo if self._cures[name].result != BOUND]
        if before is not None and self._ooms > before:
            self._has_ooms = self._has_ooms or not on
            for name in on if not self._has_ooms else ():
                # The program may catch it, and go on with less to do in a step.
                self._cures[name].end("a GPU's memory runs out with it")
        for name in list(self.undo):
            self._look(name)
        # What one has put in the place of a function may be what those after it found there: they
        # go first. The trial has those on again that it wants.
        on = list(self.undo)
        first = next((n for n, name in enumerate(on) if self._cures[name].ended), len(on))
        for name in reversed(on[first:]):
            if self._cures[name].ended or name in self._switched:
                self.switch(name, False)

    def _look(self, name: str) -> None:
        cure = self._cures[name]
        try:
            if not cure.ended:
                cure.look()
        except Exception as error:  # what it gave cannot be told to be right
            cure.end(f"it failed to look at what it did: {type(error).__name__}: {error}")
        if cure.used == 0 and time.monotonic() - self._since_s[name] > LEAST_ON_S:
            cure.end(cure.unused)

    def _apply(self, name: str) -> bool:
        cure = self._cures[name]
        if cure.library not in self._modules:
            self._report(name, f"the program does not import {cure.library}")
            return False
        if cure.ended:
            return False  # it has said so
        try:
            self.undo[name] = cure.apply(self._modules[cure.library])
            self._since_s[name] = time.monotonic()
        except Exception as error:
            self._said.discard(name)  # it may have been applied before
            is_told = isinstance(error, CannotApply)
            self._report(name, str(error) if is_told else f"{type(error).__name__}: {error}")
            return False
        self._report(name, None)
        return True

    def _report(self, name: str, why_not: str | None) -> None:
        if name in self._said:
            return
        self._said.add(name)
        row: dict[str, Any] = {"applied": why_not is None}
        if why_not is not None:
            row["why"] = why_not
        self._write(name, row)

    def _write(self, name: str, row: dict[str, Any]) -> None:
        if self._folder is None:
            return
        texts = {key: row[key][:500] for key in ("why", "note", "place") if key in row}
        path = os.path.join(self._folder, f"cures-{os.getpid()}")
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "a") as file:
                file.write(json.dumps({"cure": name, **row, **texts}) + "\n")
        except OSError:
            pass
