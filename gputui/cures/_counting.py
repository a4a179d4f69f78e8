"""Functions of a library that a program calls in its loop, and that a cure makes idle."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from . import CannotApply
from ._replacing import replaced

if TYPE_CHECKING:
    from collections.abc import Callable


class Idled:
    """A function that can be made idle: put in the library's place by `prepare`, it counts its
    calls and passes them on."""

    def __init__(self, name: str, result: Any = None) -> None:
        """`result` is what it returns while idle."""
        self._name, self._result = name, result
        self._calls = 0
        self._is_prepared = False
        self._is_idle = False

    def prepare(self, *places: tuple[Any, str]) -> None:
        """Stand in for the function at these places, (owner, attribute)."""
        if self._is_prepared:
            return
        self._is_prepared = True
        for owner, attribute in places:
            if hasattr(owner, attribute):
                replaced((owner, attribute, self._standing_in(getattr(owner, attribute))))

    def _standing_in(self, function: Any) -> Any:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            return self._result if self._is_idle else function(*args, **kwargs)

        return called

    def apply(self) -> Callable[[], None]:
        """Make it idle; returns what undoes that. Raises CannotApply where nobody called it."""
        if not self._calls:
            raise CannotApply(f"{self._name}() was not called until now")
        self._is_idle = True

        def undo() -> None:
            self._is_idle = False

        return undo
