"""Saved states of a session: what changes is copied, what is immutable is shared."""

from __future__ import annotations

from collections import deque
from copy import copy as shallow_copy
from typing import Any

import msgspec

from gputui.model.events import Distribution
from gputui.model.sketch import Accumulator
from gputui.playback.histories import Histories, Tail
from gputui.state import Session

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Accumulator)
_SHARED = (str, int, float, bool, bytes, tuple, frozenset, type(None))


class Checkpoint:
    """A saved state of a session, from which others can continue.

    Events and other frozen records are shared; containers and mutable objects are copied once,
    however many refer to them. Distributions, which are most of a session, are kept packed, and
    histories together with those of the session's other states.
    """

    def __init__(self, session: Session, histories: Histories | None = None) -> None:
        """`histories` are those of earlier states of this same session."""
        self._frozen = _copy(session, histories or Histories())

    def session(self) -> Session:
        """An independent session that continues from here."""
        return _copy(self._frozen, Histories())

    def drop(self) -> None:
        """Release it. A session refers to itself, and no collector frees what is frozen."""
        vars(self._frozen).clear()


def _copy(session: Session, histories: Histories) -> Session:
    copy = Session()
    known: dict[int, Any] = {id(session): copy}
    for name, value in vars(session).items():
        setattr(copy, name, _copied(value, known, histories))
    return copy


def _copied(value: Any, known: dict[int, Any], histories: Histories) -> Any:
    if isinstance(value, _SHARED):
        # A session has no bytes, and below no distribution, of its own.
        return _decoder.decode(value) if type(value) is bytes else value
    found = known.get(id(value))
    if found is not None:
        return found
    kind: Any = type(value)
    if kind is Accumulator:
        try:
            return _encoder.encode(value)
        except OverflowError:  # of figures that no machine has
            return value.freeze()
    if kind is Distribution:
        return Accumulator.of((value,))
    if kind is dict:
        result: dict[Any, Any] = {}
        known[id(value)] = result
        result.update((key, _copied(item, known, histories)) for key, item in value.items())
        return result
    if kind is list:
        items: list[Any] = []
        known[id(value)] = items
        items.extend(_copied(item, known, histories) for item in value)
        return items
    if kind is set:
        return set(value)
    if kind is deque or kind is Tail:
        # Histories hold only frozen objects: moments, samples, lines.
        known[id(value)] = history = histories.kept(value) if kind is deque else value.items()
        return history
    if kind.__module__.startswith("gputui.") and not _is_frozen(kind):
        thing = shallow_copy(value)
        known[id(value)] = thing
        for name in _attributes(value):
            setattr(thing, name, _copied(getattr(value, name), known, histories))
        return thing
    return value


def _is_frozen(kind: type) -> bool:
    parameters = getattr(kind, "__dataclass_params__", None) or getattr(
        kind, "__struct_config__", None
    )
    return bool(parameters is not None and parameters.frozen)


def _attributes(value: object) -> list[str]:
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*slots, *getattr(value, "__dict__", {})]
