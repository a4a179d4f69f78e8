"""What a session holds, in plain values that can be compared."""

from __future__ import annotations

from array import array
from collections import deque
from typing import Any

import msgspec

from gputui.model.sketch import Accumulator
from gputui.state import Session


def contents(session: Session) -> dict[str, Any]:
    """All that views can see of `session`."""
    return {name: _plain(value) for name, value in vars(session).items()}


def _plain(value: Any) -> Any:
    match value:
        case Accumulator():
            return value.freeze()
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case array():
            return repr(value)  # what is not a number equals nothing, itself included
        case list() | tuple() | deque():
            return [_plain(item) for item in value]
        case msgspec.Struct() if not value.__struct_config__.frozen:
            return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if type(value).__module__.startswith("gputui.") and hasattr(value, "__dict__"):
        return {name: _plain(item) for name, item in vars(value).items()}
    return value
