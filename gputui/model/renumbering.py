"""Giving the numbers of a session's events anew: several recordings become one session by it.

Which fields are such numbers is declared where they are (events.base.Numbered).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from gputui.base.decoding import made_once
from gputui.model.events import Numbered

Numbers = Mapping[Numbered, Callable[[int], int]]
"""The new number of each, by what it refers to."""

_Part = TypeVar("_Part", bound=msgspec.Struct)


class _Plan(NamedTuple):
    numbers: tuple[tuple[str, Numbered], ...]
    tuples: tuple[str, ...]


def renumbered(part: _Part, numbers: Numbers) -> _Part:
    """The same event or part of one with other numbers, also in its parts."""
    plan = _plan(type(part))
    changed: dict[str, Any] = {}
    for name, kind in plan.numbers:
        value = getattr(part, name)
        if value is not None and (new := numbers[kind](value)) != value:
            changed[name] = new
    for name in plan.tuples:
        if value := getattr(part, name):
            changed[name] = tuple(renumbered(item, numbers) for item in value)
    return msgspec.structs.replace(part, **changed) if changed else part


@made_once
def _plan(kind: type[msgspec.Struct]) -> _Plan:
    numbers, tuples = [], []
    for field in msgspec.structs.fields(kind):
        for hint in _members(field.type):
            marks = [
                item for item in getattr(hint, "__metadata__", ()) if isinstance(item, Numbered)
            ]
            if marks:
                numbers.append((field.name, marks[0]))
            elif get_origin(hint) is tuple and any(map(_holds_numbers, get_args(hint))):
                tuples.append(field.name)
    return _Plan(tuple(numbers), tuple(tuples))


def _members(hint: Any) -> list[Any]:
    """The types of a field that may be one of several, without what else is declared of it."""
    if get_origin(hint) is Annotated:
        if any(isinstance(item, Numbered) for item in hint.__metadata__):
            return [hint]
        return _members(get_args(hint)[0])
    if get_origin(hint) is tuple or not get_args(hint):
        return [hint]
    return [member for item in get_args(hint) for member in _members(item)]


def _holds_numbers(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct) and any(_plan(hint))
