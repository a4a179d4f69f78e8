"""What a program has made, by its kind: whether a cure has anything to change."""

from __future__ import annotations

import gc
from typing import Any


def instances(*kinds: Any) -> list[Any] | None:
    """The objects of these classes, of all that the garbage collector tracks (some 50 ms); None
    where it does not show all (gc.freeze)."""
    if gc.get_freeze_count():
        return None
    return [each for each in gc.get_objects() if isinstance(type(each), type) and _is(each, kinds)]


def _is(value: Any, kinds: tuple[Any, ...]) -> bool:
    # By its class alone: isinstance would ask objects that pretend to be of another.
    return any(issubclass(type(value), kind) for kind in kinds)
