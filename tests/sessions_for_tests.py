"""What a session holds, in plain values that can be compared."""

from __future__ import annotations

from typing import Any

import msgspec

from gputui.model.sketch import Accumulator
from gputui.state import Session
from gputui.state.history import History


def contents(session: Session) -> dict[str, Any]:
    """All that views can see of `session`."""
    return {name: _plain(getattr(session, name)) for name in session.__struct_fields__}


def _plain(value: Any) -> Any:
    match value:
        case Accumulator():
            return value.freeze()
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple() | History():
            return [_plain(item) for item in value]
        case msgspec.Struct() if not value.__struct_config__.frozen:
            return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    return value
