"""Putting functions of a library in place of others, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def replaced(*places: tuple[Any, str, Any]) -> Callable[[], None]:
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


def combined(*undos: Callable[[], None]) -> Callable[[], None]:
    """One function that undoes several changes, the last one first."""

    def undo() -> None:
        for each in reversed(undos):
            each()

    return undo
