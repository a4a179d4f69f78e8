"""The cells of a table as columns of one type each, for data frames and Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

import msgspec

KINDS = (str, int, float, bool, list[str], list[int], list[float])

_LARGEST = 2**63 - 1
_NUMBERS = {int, float}


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """Values of one type, one of KINDS; missing is None. `declared` is the column's own name, of
    which it may be a part."""

    name: str
    declared: str
    kind: Any
    values: list[Any]


def typed_columns(
    declared: Mapping[str, Any], records: Iterable[Mapping[str, Any]]
) -> Iterator[TypedColumn]:
    """`records` column by column, each of the type that is `declared` for it by an annotation, also
    where it is empty: a float where one cell is, or does not fit 64 bits.

    Where words stand beside numbers, as among a workload's metrics, the words go to a column of
    their own, `_text` behind its name. What is a structure becomes JSON.
    """
    rows = list(records)
    for name, kind in declared.items():
        cells = [_plain(row[name]) for row in rows]
        found = {type(cell) for cell in cells if cell is not None}
        if len(found) > 1 and not found <= _NUMBERS:
            numbers = [cell if _is_number(cell) else None for cell in cells]
            texts = [None if cell is None or _is_number(cell) else str(cell) for cell in cells]
            has_numbers = bool(found & _NUMBERS)
            if has_numbers:
                yield TypedColumn(name, name, *_typed(float, numbers))
            yield TypedColumn(f"{name}_text" if has_numbers else name, name, str, texts)
        else:
            yield TypedColumn(name, name, *_typed(kind, cells))


def _typed(declared: Any, cells: list[Any]) -> tuple[Any, list[Any]]:
    """The type of cells that are all of one Python type, or numbers, and the cells in it."""
    found = {type(cell) for cell in cells if cell is not None}
    kind = _kind(declared)
    if found == {list}:
        parts = [part for cell in cells for part in cell or ()]
        _, typed = _typed(get_args(kind)[0] if get_origin(kind) is list else str, parts)
        kind = list[type(typed[0])] if typed else kind  # type: ignore[misc]
        left = iter(typed)
        cells = [None if cell is None else [next(left) for _ in cell] for cell in cells]
    elif found and found <= _NUMBERS:
        if found == {int} and all(-_LARGEST <= cell <= _LARGEST for cell in cells if cell):
            kind = kind if kind in _NUMBERS else int
        else:
            kind = float
        cells = [as_float(cell) for cell in cells] if kind is float else cells
    elif found:
        [kind] = found
    return kind, cells


def _kind(declared: Any) -> Any:
    """One of KINDS for an annotation such as `int | None`; str for what is none of them."""
    parts = [part for part in get_args(declared) if part not in (type(None), ...)]
    if get_origin(declared) in (list, tuple):
        declared = list[_kind(parts[0])]  # type: ignore[misc]
    elif len(parts) == 1:
        return _kind(parts[0])
    return declared if declared in KINDS else str


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, msgspec.Struct | dict):
        return msgspec.json.encode(value).decode()
    return value


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def as_float(value: Any) -> float | None:
    """A figure as a float; None for what is none and for what no float can hold."""
    try:
        return None if value is None else float(value)
    except OverflowError:
        return None
