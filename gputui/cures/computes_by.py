"""What a function of the program computes by but what it is given: values that it, and what it
calls, hold or take from their modules and from objects by name, as they are now."""

from __future__ import annotations

import os
import random
import sys
import sysconfig
import types
from collections import deque
from typing import Any

from . import PLAIN

MOST_REACHED = 4096
MOST_BYTES = 1 << 16
"""Of an array of NumPy that is compared as a whole: whether a larger one was written to is not
known."""
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_CURES = {
    os.path.join(os.path.dirname(__file__), name) for name in ("jax_traces.py", "__init__.py")
}
_HELD = (list, tuple, set, frozenset, deque)


def computes_by(
    values: list[Any], *, of_libraries: bool = False
) -> tuple[tuple[Any, ...], list[Any]]:
    """A key that is another where these functions and objects compute by something else, and what
    it has by their ids, which are to stay; also what functions `of_libraries` hold. Raises
    TypeError where that is not known: of generators of random numbers, of large arrays of NumPy, of
    too many values."""
    rest, key, kept = values[::-1], [], []
    names, seen, holders = {"__call__"}, set[int](), list[Any]()
    asked: set[tuple[int, str]] = set()
    while rest:
        while rest:
            value = rest.pop()
            while isinstance(value, types.FunctionType) and value.__code__.co_filename in _CURES:
                value = getattr(value, "__wrapped__", None)  # a cure stands in for it
            is_again = id(value) in seen
            key.append(_itself(value))
            if isinstance(value, PLAIN) or is_again:
                continue
            seen.add(id(value))
            kept.append(value)
            if len(seen) > MOST_REACHED:
                raise TypeError("too much")
            if isinstance(value, _HELD):
                key.append(len(value))
                rest += reversed([*value])
            elif isinstance(value, dict):
                key.append(len(value))
                rest += reversed([each for pair in value.items() for each in pair])
            elif isinstance(value, types.MethodType):
                rest += value.__self__, value.__func__
            elif isinstance(value, types.FunctionType):
                if not _is_of_library(value.__code__.co_filename):
                    names |= (own := _names(value.__code__))
                    rest += _held_by(value, own)
                elif of_libraries:
                    rest += _held_by(value, set())
            else:
                holders.append(value)
        for holder in holders:
            for name in sorted(names):
                if (id(holder), name) not in asked:
                    asked.add((id(holder), name))
                    rest += _attribute(holder, name)
    return tuple(key), kept


def _itself(value: Any) -> Any:
    """What is the same of one value where it is the same: functions made of one code are, too."""
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, types.MethodType):
        return types.MethodType
    if isinstance(value, types.FunctionType) and not _is_of_library(value.__code__.co_filename):
        return value.__code__
    numpy: Any = sys.modules["numpy"]
    if isinstance(value, numpy.generic):
        return value.dtype.str, value.tobytes()
    if isinstance(value, numpy.ndarray):
        if value.nbytes > MOST_BYTES or value.dtype.hasobject:
            raise TypeError("an array that may be written to")
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, (random.Random, numpy.random.Generator, numpy.random.RandomState)):
        raise TypeError("it draws")
    return id(value)


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            names |= _names(each)
    return names


def _held_by(function: types.FunctionType, names: set[str]) -> list[Any]:
    """What a function holds, and what it takes from its module."""
    taken = function.__globals__
    try:
        held = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:
        raise TypeError("what is not set yet") from None
    held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [*held, *(taken[name] for name in sorted(names) if name in taken)]


def _attribute(holder: Any, name: str) -> list[Any]:
    """An object's attribute, without calling anything; an own module's."""
    own = getattr(holder, "__dict__", None)
    if isinstance(holder, types.ModuleType):
        is_own = not _is_of_library(getattr(holder, "__file__", None) or _LIBRARIES[0])
        return [own[name]] if is_own and own and name in own else []
    if isinstance(own, dict) and name in own and not isinstance(holder, type):
        return [name, own[name]]
    kinds = holder.__mro__ if isinstance(holder, type) else type(holder).__mro__
    for kind in kinds:
        value = vars(kind).get(name)
        if isinstance(value, types.MemberDescriptorType) and not isinstance(holder, type):
            return [getattr(holder, name, None)]
        if isinstance(value, (property, staticmethod, classmethod)):
            value = value.fget if isinstance(value, property) else value.__func__
        if isinstance(value, (*PLAIN, *_HELD, dict, types.FunctionType)) and value is not None:
            return [value]
    return []


def _is_of_library(path: str) -> bool:
    return path.startswith(_LIBRARIES)
