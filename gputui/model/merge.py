"""Merging parts or events about the same thing, by the rules that their fields declare.

`rules(KernelDelta)` gives the rules of a kind, `merge(a, b)` makes one event or part of two, and a
Merger adds parts up in rows. A row is a part that grows: its class (`row_type`) has all fields and
properties of the part. The session's tables, the sums in a recording and the ranks of a job are all
added up here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast, get_args, get_type_hints

import msgspec

from gputui.base.decoding import made_once
from gputui.model.events import CaptureDelta, OfProcess, Rule
from gputui.model.events.distributions import Accumulator
from gputui.model.steps import StepBlocks

_NESTED = (Rule.PARTS, Rule.BLOCKS)
_Part = TypeVar("_Part", bound=msgspec.Struct)
_Key = TypeVar("_Key", bound=Hashable)


def declared_fields(kind: type, wanted: type) -> dict[str, tuple[Any, Any]]:
    """The fields of a Struct whose annotation carries a mark of type `wanted`: by field name, the
    type without the mark, and the mark."""
    marks = {}
    for field in msgspec.structs.fields(kind):
        carried = getattr(field.type, "__metadata__", ())
        mark = next((item for item in carried if isinstance(item, wanted)), None)
        if mark is not None:
            marks[field.name] = get_args(field.type)[0], mark
    return marks


@made_once
def rules(kind: type[msgspec.Struct]) -> dict[str, Rule]:
    """The rule of every field. Raises TypeError where a field has none: it could not be merged."""
    by_field = {name: rule for name, (_, rule) in declared_fields(kind, Rule).items()}
    for name in kind.__struct_fields__:
        if name not in by_field:
            raise TypeError(f"{kind.__name__}.{name} declares no rule by which it is merged")
    return by_field


def key_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields that say what a part is about."""
    return tuple(name for name, rule in rules(kind).items() if rule is Rule.KEY)


def merge(first: _Part, second: _Part) -> _Part:
    """One event or part for two of the same kind and key; `second` is the newer one."""
    merger = merger_of(type(first))
    row = merger.start(first)
    merger.add(row, second)
    return type(first)(**merger.frozen(row))


def merged_by(
    rows: Iterable[_Part], key: Callable[[_Part], _Key], kind: type[_Part]
) -> dict[_Key, _Part]:
    """Rows of a kind added up by a key of the caller's, in the order in which keys come first.

    A row that is the only one of its key is not copied: it still grows in the table it is from.
    """
    merger = merger_of(kind)
    merged: dict[_Key, _Part] = {}
    copied: set[_Key] = set()
    for row in rows:
        place = key(row)
        first = merged.setdefault(place, row)
        if first is row:
            continue
        if place not in copied:
            copied.add(place)
            first = merged[place] = merger.start(first)
        merger.add(first, row)
    return merged


class PartSums:
    """Parts of one kind, added up by what they are about."""

    __slots__ = ("_key", "_kind", "_merger", "_rows")

    def __init__(self, kind: type[msgspec.Struct], deltas: Iterable[msgspec.Struct] = ()) -> None:
        self._kind = kind
        self._key = attrgetter(*key_fields(kind))
        self._merger = merger_of(kind)
        self._rows: dict[Any, Any] = {}
        self.add(deltas)

    @property
    def count(self) -> int:
        """How many rows there are, one for each key."""
        return len(self._rows)

    def add(self, deltas: Iterable[msgspec.Struct]) -> None:
        """Merge each of `deltas` into the row of its key."""
        for delta in deltas:
            key = self._key(delta)
            row = self._rows.get(key)
            if row is None:
                self._rows[key] = self._merger.start(delta)
            else:
                self._merger.add(row, delta)

    def freeze(self) -> tuple[msgspec.Struct, ...]:
        """The sums as parts, one for each key, in the order in which the keys first came."""
        return tuple(self._kind(**self._merger.frozen(row)) for row in self._rows.values())


class Merger(Generic[_Part]):
    """Adds parts of one kind up in rows of one class."""

    def __init__(self, kind: type[_Part], row: type[Any] | None = None) -> None:
        """`row` may be a class written by hand: only the fields that it shares with the part are
        then added up. Without it, rows have the class that `row_type` makes."""
        types = declared_fields(kind, Rule)
        self._row = row or row_type(kind)
        self._rules = {
            name: rule
            for name, rule in rules(kind).items()
            if row is None or (name in row.__struct_fields__ and rule not in _NESTED)
        }
        self._parts = {
            name: get_args(types[name][0])[0]
            for name, rule in self._rules.items()
            if rule is Rule.PARTS
        }
        self._optional = {name for name, (hint, _) in types.items() if type(None) in get_args(hint)}
        self._fields: Callable[[Any], tuple[Any, ...]] = attrgetter(*self._rules)
        self._growing = [
            (place, name, rule)
            for place, (name, rule) in enumerate(self._rules.items())
            if rule in (Rule.SKETCH, *_NESTED)
        ]
        self.add: Callable[[Any, _Part], None] = self._adder()
        """Add a part, the second, to a row."""

    def start(self, part: _Part) -> _Part:
        """A row with what one part, or another row, holds."""
        values = [*self._fields(part)]
        for place, name, rule in self._growing:
            value = values[place]
            if rule is Rule.SKETCH:
                if value is not None:
                    values[place] = sums = Accumulator()
                    sums.add(value)
            elif rule is Rule.PARTS:
                values[place] = PartSums(self._parts[name], value)
            else:
                values[place] = blocks = StepBlocks()
                blocks.add(cast("CaptureDelta", part))
        return cast("_Part", self._row(*values))

    def frozen(self, row: Any) -> dict[str, Any]:
        """The fields of a part that says what a row came to."""
        values = {name: getattr(row, name) for name in self._rules}
        for name, rule in self._rules.items():
            sums = values[name]
            if rule is Rule.BLOCKS or rule is Rule.PARTS:
                values[name] = sums.freeze()
            elif rule is Rule.SKETCH:
                is_none = sums is None or (name in self._optional and not sums.count)
                values[name] = None if is_none else sums.freeze()
        return values

    def _adder(self) -> Callable[[Any, _Part], None]:
        """This runs for each part of each tick: which fields are added how is sorted out once."""

        def named(*wanted: Rule) -> tuple[str, ...]:
            return tuple(name for name, rule in self._rules.items() if rule in wanted)

        sketches, sums, nested = named(Rule.SKETCH), named(Rule.SUM), named(Rule.PARTS)
        blocks, optional = named(Rule.BLOCKS), self._optional
        others = [(name, self._rules[name]) for name in named(Rule.MIN, Rule.MAX, Rule.NEWEST)]

        def add_sums(row: Any, part: Any) -> None:
            for name in sketches:
                times = getattr(part, name)
                if times is not None:
                    earlier = getattr(row, name)
                    if earlier is None:
                        setattr(row, name, Accumulator.merged((times,)))
                    else:
                        earlier.add(times)
            for name in sums:
                amount = getattr(part, name)
                # Most amounts are 0. One of those changes no sum, but it says that an optional
                # one was measured.
                if amount or (name in optional and amount == 0):
                    setattr(row, name, (getattr(row, name) or 0) + amount)

        def add(row: Any, part: Any) -> None:
            add_sums(row, part)
            for name, rule in others:
                value, earlier = getattr(part, name), getattr(row, name)
                if value is not None and (
                    rule is Rule.NEWEST
                    or earlier is None
                    or (value < earlier if rule is Rule.MIN else value > earlier)
                ):
                    setattr(row, name, value)
            for name in nested:
                getattr(row, name).add(getattr(part, name))
            for name in blocks:
                getattr(row, name).add(part)

        return add if others or nested or blocks else add_sums


def merger_of(kind: type[_Part], row: type[Any] | None = None) -> Merger[_Part]:
    """The one that adds parts of a kind up, in rows of a class of their own where none is given."""
    return _merger_of(kind, row)


@made_once
def _merger_of(kind: type[Any], row: type[Any] | None) -> Merger[Any]:
    return Merger(kind, row)


@made_once
def row_type(kind: type[_Part]) -> type[_Part]:
    """The class of the rows in which parts of a kind are added up.

    It is derived from the part's class, so that a row is read as a part is. Its fields can be set,
    its integers have no bounds, and it has an Accumulator for each Distribution (both are
    Statistics). Rows of parts whose process is that of the delta (OfProcess) have the process as a
    field.
    """
    hints = get_type_hints(kind)
    growing: dict[Rule, Any] = {
        Rule.SKETCH: Accumulator | None,
        Rule.PARTS: PartSums,
        Rule.BLOCKS: StepBlocks,
    }
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [
        (name, growing.get(rule, hints[name])) for name, rule in rules(kind).items()
    ]
    if issubclass(kind, OfProcess):
        fields.append(("process", int, 0))
    row = msgspec.defstruct(f"{kind.__name__}Row", fields, bases=(kind,), frozen=False, gc=False)
    return cast("type[_Part]", row)
