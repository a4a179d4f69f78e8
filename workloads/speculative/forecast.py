"""What a draft and a target need, and which values do not go together: without torch."""

from __future__ import annotations

from collections.abc import Mapping

from ..declaration import Forecast, Value
from ..errors import DoesNotFit
from ..inference.memory import Footprint
from ..inference.shapes import SHAPES
from ..parameters import ELEMENT_BYTES
from ..peaks import Peak


def forecast(values: Mapping[str, Value], peak: Peak | None) -> Forecast:
    """Its memory; the time depends on how many proposals are accepted. Raises DoesNotFit for a
    draft that is no smaller than the target, and for what exceeds the context.
    """
    del peak
    shape = SHAPES[str(values["size"])]
    if int(values["draft"]) >= shape.layers:
        raise DoesNotFit(
            f"draft: {values['draft']} layers are not fewer than {shape.layers}", "draft", "size"
        )
    prompt, tokens, ahead = (int(values[name]) for name in ("prompt", "tokens", "ahead"))
    positions = prompt + tokens + ahead
    if positions > shape.context:
        raise DoesNotFit(
            f"prompt + tokens + ahead = {positions} is more than {shape.context}",
            "tokens",
            "prompt",
            "ahead",
        )
    element_bytes = ELEMENT_BYTES[str(values["precision"])]
    needed = Footprint.estimate(shape, int(values["batch"]), prompt, tokens + ahead, element_bytes)
    return Forecast(
        memory_bytes=needed.total_bytes + needed.kv_cache_bytes,
        made_of="weights and two KV caches",
        advice="use a smaller size",
    )
