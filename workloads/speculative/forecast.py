"""What a draft and a target need, and which values do not go together: without torch."""

from __future__ import annotations

from collections.abc import Mapping

from ..declaration import Forecast, Value
from ..errors import DoesNotFit
from ..inference.memory import Footprint
from ..inference.shapes import SHAPES
from ..parameters import ELEMENT_BYTES
from ..peaks import Peak


def needed_bytes(values: Mapping[str, Value]) -> int:
    """Weights and two KV caches."""
    tokens = int(values["tokens"]) + int(values["ahead"])
    needed = Footprint.of(
        SHAPES[str(values["size"])],
        int(values["batch"]),
        int(values["prompt"]),
        tokens,
        ELEMENT_BYTES[str(values["precision"])],
    )
    return needed.total_bytes + needed.kv_cache_bytes


def refuse_what_does_not_fit(values: Mapping[str, Value]) -> None:
    """Raise DoesNotFit for a draft that is no smaller than the target, and for what exceeds the
    context.
    """
    shape = SHAPES[str(values["size"])]
    if int(values["draft"]) >= shape.layers:
        raise DoesNotFit(
            f"draft: {values['draft']} layers are not fewer than {shape.layers}", "draft", "size"
        )
    positions = sum(int(values[name]) for name in ("prompt", "tokens", "ahead"))
    if positions > shape.context:
        raise DoesNotFit(
            f"prompt + tokens + ahead = {positions} is more than {shape.context}",
            "tokens",
            "prompt",
            "ahead",
        )


def forecast(values: Mapping[str, Value], peak: Peak | None) -> Forecast:
    """Its memory; the time depends on how many proposals are accepted."""
    del peak
    refuse_what_does_not_fit(values)
    return Forecast(memory_bytes=needed_bytes(values))
