"""Merging what is about the same thing, by the rules that its fields declare.

`rules(KernelDelta)` are those of a kind, `merge(a, b)` makes one event or part of two, and a
Merger adds parts up in rows: of any class whose fields have the names of the part's, with an
Accumulator for each Distribution. The session's tables, a recording's sums and the ranks of a job
are all added up by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, TypeVar, get_args

import msgspec

from gputui.base.decoding import made_once
from gputui.model.events import Rule
from gputui.model.sketch import Accumulator
from gputui.model.step_blocks import StepBlocks

_NESTED = (Rule.PARTS, Rule.BLOCKS)
_Part = TypeVar("_Part", bound=msgspec.Struct)


def declared(kind: type, wanted: type) -> dict[str, tuple[Any, Any]]:
    """The fields of a Struct whose annotation carries something of type `wanted`: the annotation's
    type without what it carries, and that."""
    found = {}
    for field in msgspec.structs.fields(kind):
        carried = getattr(field.type, "__metadata__", ())
        mark = next((one for one in carried if isinstance(one, wanted)), None)
        if mark is not None:
            found[field.name] = get_args(field.type)[0], mark
    return found


@made_once
def rules(kind: type[msgspec.Struct]) -> dict[str, Rule]:
    """The rule of every field. Raises TypeError where a field has none: it could not be merged."""
    found = {name: rule for name, (_, rule) in declared(kind, Rule).items()}
    for name in kind.__struct_fields__:
        if name not in found:
            raise TypeError(f"{kind.__name__}.{name} declares no rule by which it is merged")
    return found


def key_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields that say what a part is about."""
    return tuple(name for name, rule in rules(kind).items() if rule is Rule.KEY)


def merge(first: _Part, second: _Part) -> _Part:
    """What both come to, of two events or parts of one kind and the same key; `second` is the
    newer one."""
    merger = merger_of(type(first))
    row = merger.start(first)
    merger.add(row, second)
    return type(first)(**merger.frozen(row))


class PartSums:
    """Parts of one kind, added up by what they are about."""

    __slots__ = ("_key", "_kind", "_merger", "_rows")

    def __init__(self, kind: type[msgspec.Struct], parts: Iterable[msgspec.Struct] = ()) -> None:
        self._kind = kind
        self._key = attrgetter(*key_fields(kind))
        self._merger = merger_of(kind)
        self._rows: dict[Any, Any] = {}
        self.add(parts)

    @property
    def count(self) -> int:
        """How many different things."""
        return len(self._rows)

    def add(self, parts: Iterable[msgspec.Struct]) -> None:
        """Add some up."""
        for part in parts:
            key = self._key(part)
            row = self._rows.get(key)
            if row is None:
                self._rows[key] = self._merger.start(part)
            else:
                self._merger.add(row, part)

    def freeze(self) -> tuple[msgspec.Struct, ...]:
        """One part for each thing, in the order in which they came first."""
        return tuple(self._kind(**self._merger.frozen(row)) for row in self._rows.values())


class Merger:
    """Adds parts of one kind up in rows of one class."""

    def __init__(self, kind: type[msgspec.Struct], row: type[Any]) -> None:
        """Of `row` those fields are filled that `kind` has too; an Accumulator as a row takes the
        one distribution of the kind."""
        own_rows = row is _row_of(kind)
        types = declared(kind, Rule)
        self._row = row
        self._rules = {
            name: rule
            for name, rule in rules(kind).items()
            if name in row.__struct_fields__ and (own_rows or rule not in _NESTED)
        }
        self._parts = {
            name: get_args(types[name][0])[0]
            for name, rule in self._rules.items()
            if rule is Rule.PARTS
        }
        self._optional = {name for name, (of, _) in types.items() if type(None) in get_args(of)}
        needed = {field.name for field in msgspec.structs.fields(row) if field.required}
        self.makes_rows = needed <= self._rules.keys()
        """Whether a part gives all that a row must have."""
        self.start: Callable[[Any], Any] = self._start
        """A row with what one part holds."""
        self.add: Callable[[Any, Any], None] = self._adder()
        """Add a part, the second, to a row."""
        if row is Accumulator:
            self.start, self.add = _of_one_sketch(kind)

    def frozen(self, row: Any) -> dict[str, Any]:
        """The fields of a part that says what a row came to."""
        values = {name: getattr(row, name) for name in self._rules}
        for name, rule in self._rules.items():
            if rule is Rule.BLOCKS:
                values[name] = values[name].freeze()
            elif rule is Rule.PARTS or rule is Rule.SKETCH:
                sums = values[name]
                is_none = name in self._optional and not sums.count
                values[name] = None if is_none else sums.freeze()
        return values

    def _start(self, part: Any) -> Any:
        values: dict[str, Any] = {}
        for name, rule in self._rules.items():
            value = getattr(part, name)
            if rule is Rule.SKETCH:
                value = Accumulator.of(() if value is None else (value,))
            elif rule is Rule.PARTS:
                value = PartSums(self._parts[name], value)
            elif rule is Rule.BLOCKS:
                value = StepBlocks()
                value.add(part)
            values[name] = value
        return self._row(**values)

    def _adder(self) -> Callable[[Any, Any], None]:
        """This runs for each part of each tick: which fields are added how is sorted out once."""

        def named(*wanted: Rule) -> tuple[str, ...]:
            return tuple(name for name, rule in self._rules.items() if rule in wanted)

        sketches, sums, parts = named(Rule.SKETCH), named(Rule.SUM), named(Rule.PARTS)
        blocks = named(Rule.BLOCKS)
        others = [(name, self._rules[name]) for name in named(Rule.MIN, Rule.MAX, Rule.NEWEST)]

        def add(row: Any, part: Any) -> None:
            for name in sketches:
                times = getattr(part, name)
                if times is not None:
                    getattr(row, name).add(times)
            for name in sums:
                amount = getattr(part, name)
                if amount:
                    setattr(row, name, (getattr(row, name) or 0) + amount)
            for name, rule in others:
                value, known = getattr(part, name), getattr(row, name)
                if value is not None and (
                    rule is Rule.NEWEST
                    or known is None
                    or (value < known if rule is Rule.MIN else value > known)
                ):
                    setattr(row, name, value)
            for name in parts:
                getattr(row, name).add(getattr(part, name))
            for name in blocks:
                getattr(row, name).add(part)

        return add


def _of_one_sketch(
    kind: type[msgspec.Struct],
) -> tuple[Callable[[Any], Any], Callable[[Any, Any], None]]:
    (name,) = (name for name, rule in rules(kind).items() if rule is Rule.SKETCH)
    get = attrgetter(name)
    return lambda part: Accumulator.of((get(part),)), lambda row, part: row.add(get(part))


@made_once
def merger_of(kind: type[msgspec.Struct], row: type[Any] | None = None) -> Merger:
    """The one that adds parts of a kind up, in rows of a class of their own where none is given."""
    return Merger(kind, row or _row_of(kind))


@made_once
def _row_of(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    return msgspec.defstruct(f"{kind.__name__}Row", [(name, Any) for name in rules(kind)])
