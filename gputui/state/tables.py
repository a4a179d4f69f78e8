"""The tables that capture deltas fill: found by their declarations, added up by the fields' rules.

`kernels: Annotated[dict[KernelKey, KernelTimes], Of("kernels")]` has a row for each KernelKey
among the parts in `CaptureDelta.kernels`. Keys and rows take the part's fields by their names;
`process` is the delta's where parts have none, and `device`, which is a process's own number, is
the machine's index.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple, get_args

import msgspec

from gputui.base.decoding import made_once
from gputui.model.events import CaptureDelta, Rule
from gputui.model.merge import declared, key_fields, merger_of


class Of(msgspec.Struct, frozen=True):
    """A table of the parts in this field of CaptureDelta."""

    field: str


class Places(NamedTuple):
    """What the numbers in one process's delta stand for."""

    process: int
    gpus: Mapping[int, int]
    """The machine's index of each device number of the process."""
    ranges: Container[int]
    """Those that are known; 0, outside every range, need not be among them."""
    kernels: Container[int] = ()
    other_kernels: int | None = None
    """Stands for every kernel that is not among `kernels`; None if each stands for itself."""


Fold = Callable[[Any, CaptureDelta, Places], int]
"""Fold a delta into the tables of an object; gives how many parts named what is not known."""


@made_once
def fold_of(holder: type[msgspec.Struct]) -> Fold:
    """The fold of the tables that a class declares."""
    tables = [
        (name, mark.field, _table_fold(mark.field, *get_args(table)))
        for name, (table, mark) in declared(holder, Of).items()
    ]

    def fold(tables_of: Any, delta: CaptureDelta, places: Places) -> int:
        unknown = 0
        for name, field, fold_parts in tables:
            parts = getattr(delta, field)
            if parts:
                unknown += fold_parts(getattr(tables_of, name), parts, places)
        return unknown

    return fold


def _table_fold(
    field: str, key: type[Any], row: type[Any]
) -> Callable[[dict[Any, Any], Iterable[Any], Places], int]:
    kind = get_args(declared(CaptureDelta, Rule)[field][0])[0]
    merger = merger_of(kind, row)
    key_of = _key_maker(kind, key)
    makes_rows, start, add = merger.makes_rows, merger.start, merger.add
    in_range = "range" in key_fields(kind)
    has_kernel = "kernel" in key_fields(kind)

    def fold(rows: dict[Any, Any], parts: Iterable[Any], places: Places) -> int:
        unknown = 0
        if has_kernel and places.other_kernels is not None:
            parts = _within_limit(parts, places.kernels, places.other_kernels)
        for part in parts:
            if in_range and part.range and part.range not in places.ranges:
                unknown += 1
                continue
            number = key_of(part, places)
            known = rows.get(number)
            if known is not None:
                add(known, part)
            elif makes_rows:
                rows[number] = start(part)
            else:
                unknown += 1
        return unknown

    return fold


def _within_limit(parts: Iterable[Any], kernels: Container[int], other: int) -> Iterator[Any]:
    for part in parts:
        yield part if part.kernel in kernels else msgspec.structs.replace(part, kernel=other)


def _key_maker(kind: type[msgspec.Struct], key: type[Any]) -> Callable[[Any, Places], Any]:
    if key is int:
        (name,) = key_fields(kind)
        return lambda part, _: getattr(part, name)
    names: tuple[str, ...] = getattr(key, "_fields", None) or key.__struct_fields__
    of_process = names[0] == "process"
    own = names[1:] if of_process else names
    get: Callable[[Any], tuple[Any, ...]] = attrgetter(*own) if len(own) > 1 else _only(own[0])
    device = own.index("device") if "device" in own else None
    # A NamedTuple's own constructor is a call in Python.
    make = key if issubclass(key, msgspec.Struct) else lambda *values: tuple.__new__(key, values)

    def key_of(part: Any, places: Places) -> Any:
        values = get(part)
        if device is not None and (index := places.gpus[values[device]]) != values[device]:
            values = *values[:device], index, *values[device + 1 :]
        return make(places.process, *values) if of_process else make(*values)

    return key_of


def _only(name: str) -> Callable[[Any], tuple[Any]]:
    return lambda part: (getattr(part, name),)
