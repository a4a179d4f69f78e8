"""Recordings of schema 1, which spelled out the parts of capture events, converted to the current
schema.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gputui.model.events import (
    JOURNAL_SCHEMA,
    ApiDelta,
    DeviceDelta,
    KernelDelta,
    LaunchDelta,
    MemoryOperationDelta,
    RangeDelta,
)
from gputui.model.sketch import steps

_PARTS: dict[str, type[msgspec.Struct]] = {
    "ranges": RangeDelta,
    "kernels": KernelDelta,
    "kernels_beside": KernelDelta,
    "launches": LaunchDelta,
    "memory_operations": MemoryOperationDelta,
    "api": ApiDelta,
    "devices": DeviceDelta,
}
_DISTRIBUTIONS = frozenset({"cpu", "projected", "time", "size", "total", "call", "queue"}) | {
    "kernel_time"
}
_VALUES = 5
"""Position of a distribution's values, which were pairs of value and count."""


def upgraded(document: Any) -> Any:
    """A decoded line, converted if its shape differs; not in place.

    Raises ValueError if it never had that shape; types are checked later.
    """
    if isinstance(document, dict) and document.get("event") == "header":
        return document | {"schema": JOURNAL_SCHEMA}
    if not isinstance(document, dict) or document.get("event") != "capture":
        return document
    return {
        name: [_part(_PARTS[name], part) for part in _listed(value)] if name in _PARTS else value
        for name, value in document.items()
    }


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("a list was expected")
    return value


def _part(kind: type[msgspec.Struct], part: Any) -> list[Any]:
    if not isinstance(part, dict):
        raise ValueError("an object was expected")
    values = []
    for field in msgspec.structs.fields(kind):
        default = None if field.default is msgspec.NODEFAULT else field.default
        value = part.get(field.name, default)
        is_distribution = field.name in _DISTRIBUTIONS and value is not None
        values.append(_distribution(value) if is_distribution else value)
    return values


def _distribution(value: Any) -> list[Any]:
    result = list(_listed(value))
    if len(result) <= _VALUES:
        raise ValueError("a distribution is incomplete")
    pairs = []
    before = -1
    for pair in _listed(result[_VALUES]):
        match pair:
            case [int(amount), int(count)] if amount > before and count > 0:
                pairs.append((amount, count))
                before = amount
            case _:
                raise ValueError("the values of a distribution are out of order")
    result[_VALUES] = list(steps(pairs))
    return result
