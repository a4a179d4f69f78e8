"""The tables that capture deltas fill: found by their declarations, added up by the fields' rules.

`kernels: FoldedTable[KernelDelta] = {}` in a run, or in another struct of the session, holds the
parts in `CaptureDelta.kernels`, merged. A row is a part that grows: it has all fields of the part.
In it `process` is the delta's, and `device`, which is a process's own number, is the machine's
index.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import msgspec

from gputui.base.decoding import made_once
from gputui.model.events import CaptureDelta, OfProcess
from gputui.model.merge import declared, key_fields, merger_of, row_type

_Part = TypeVar("_Part", bound=msgspec.Struct)


class TableOf(msgspec.Struct, frozen=True):
    """What a field is that was declared as a FoldedTable: its rows are parts of this kind."""

    kind: type[Any]


if TYPE_CHECKING:
    FoldedTable = dict[tuple[Any, ...], _Part]
    """Rows by what they are about: the process, where it belongs to that, and the fields of the
    part with the rule Key, in their order. What is in the key is in the row, too."""
else:

    class FoldedTable:
        """As above, with the class of the rows as that which msgspec decodes."""

        def __class_getitem__(cls, kind: type[Any]) -> Any:
            return Annotated[dict[tuple, row_type(kind)], TableOf(kind)]


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
    """The fold of the tables that a class declares, each under the name of the delta's field."""
    tables = [
        (name, _table_fold(mark.kind, name in ALSO_OUTSIDE))
        for name, (_, mark) in declared(holder, TableOf).items()
    ]

    def fold(tables_of: Any, delta: CaptureDelta, places: Places) -> int:
        unknown = 0
        for name, fold_parts in tables:
            changes = getattr(delta, name)
            if changes:
                unknown += fold_parts(getattr(tables_of, name), changes, places)
        return unknown

    return fold


ALSO_OUTSIDE = ("kernels", "memory_operations", "api", "range_leaves")
"""Tables whose rows count outside every range where the recording does not define theirs, so that
their sums stay what was captured. Others say something of the range itself."""


def _table_fold(
    kind: type[Any], counts_outside: bool
) -> Callable[[dict[tuple[Any, ...], Any], Iterable[Any], Places], int]:
    merger = merger_of(kind)
    start, add = merger.start, merger.add
    own = [name for name in key_fields(kind) if name != "process"]
    of_process = issubclass(kind, OfProcess) or "process" in key_fields(kind)
    get: Callable[[Any], tuple[Any, ...]] = attrgetter(*own) if len(own) > 1 else _only(own[0])
    device = own.index("device") if "device" in own else None
    kernel = own.index("kernel") if "kernel" in own else None
    in_range = "range" in own
    place_of_range = own.index("range") if in_range else 0

    def fold(rows: dict[tuple[Any, ...], Any], changes: Iterable[Any], places: Places) -> int:
        unknown = 0
        process, gpus, ranges, kernels, other = places
        prefix = (process,) if of_process else ()
        for change in changes:
            key = get(change)
            is_undefined = in_range and change.range and change.range not in ranges
            if is_undefined:
                unknown += 1
                if not counts_outside:
                    continue
                key = *key[:place_of_range], 0, *key[place_of_range + 1 :]
            if device is not None and (index := gpus[key[device]]) != key[device]:
                key = *key[:device], index, *key[device + 1 :]
            if kernel is not None and other is not None and key[kernel] not in kernels:
                key = *key[:kernel], other, *key[kernel + 1 :]
            place = prefix + key
            row = rows.get(place)
            if row is not None:
                add(row, change)
                continue
            row = rows[place] = start(change)
            # The row has the key's numbers, which are the session's, not the part's.
            if of_process:
                row.process = process
            if device is not None:
                row.device = key[device]
            if kernel is not None:
                row.kernel = key[kernel]
            if is_undefined:
                row.range = 0
        return unknown

    return fold


def _only(name: str) -> Callable[[Any], tuple[Any]]:
    return lambda part: (getattr(part, name),)
