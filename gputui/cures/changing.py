"""Ways to change a library from outside, and back: what several cures need."""

from __future__ import annotations

import functools
import gc
import sys
import threading
from typing import TYPE_CHECKING, Any

from . import CannotApply, Cure

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo


def replaced(*places: tuple[Any, str, Any]) -> Undo:
    """Sets attributes (owner, name, value) where the owner has them; returns what restores them."""
    kept = [
        (owner, name, vars(owner).get(name)) for owner, name, _ in places if hasattr(owner, name)
    ]
    for owner, name, value in places:
        if hasattr(owner, name):
            setattr(owner, name, value)

    def undo() -> None:
        for owner, name, value in reversed(kept):
            if value is None:
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

    def __init__(self, given: str = "") -> None:
        super().__init__(given)
        self._calls = 0
        self._is_prepared = self._is_on = False

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
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            other = self.instead(function, args, kwargs)
            if other is not None and self._is_on:
                return other()
            self._calls += other is not None
            return function(*args, **kwargs)

        return called

    def apply(self, library: Any) -> Undo:
        """Send the calls the other way. Raises CannotApply where there were none before it is
        switched."""
        self.prepare(library)
        if self.in_one_run and self._calls < self.least_calls:
            raise CannotApply("there is no such call in the loop")
        self._is_on = True
        return functools.partial(setattr, self, "_is_on", False)


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


# What a program has made.


_FROZEN_AT_START = gc.get_freeze_count()
"""Python 3.12 begins with some hundred objects that it does not show."""


def instances(*kinds: Any) -> list[Any] | None:
    """The objects of these classes, of all that the garbage collector tracks (some 50 ms); None
    where it does not show all (gc.freeze)."""
    if gc.get_freeze_count() > _FROZEN_AT_START:
        return None
    return [each for each in gc.get_objects() if isinstance(type(each), type) and _is(each, kinds)]


def _is(value: Any, kinds: tuple[Any, ...]) -> bool:
    # By its class alone: isinstance would ask objects that pretend to be of another.
    return any(issubclass(type(value), kind) for kind in kinds)


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
