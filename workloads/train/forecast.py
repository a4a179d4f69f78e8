"""What a step needs, and which values do not go together: without torch."""

from __future__ import annotations

from collections.abc import Mapping

from ..declaration import Forecast, Value
from ..errors import DoesNotFit
from ..parameters import ELEMENT_BYTES
from ..peaks import Peak
from .memory import Footprint
from .shapes import GPT2_CONTEXT, SHAPES, step_flops


def refuse_unless_in_context(size: str, ctx: int) -> None:
    """Raise DoesNotFit for a sequence longer than GPT-2's position table."""
    if SHAPES[size].family == "gpt2" and ctx > GPT2_CONTEXT:
        raise DoesNotFit(
            f"ctx {ctx} is more than {size}'s context of {GPT2_CONTEXT}", "ctx", "size"
        )


def forecast(values: Mapping[str, Value], peak: Peak | None) -> Forecast:
    """Of one configuration; a sweep's rows differ, and those that do not fit are left out."""
    if values["sweep"] != "none":
        return Forecast()
    size, precision, mode = (str(values[name]) for name in ("size", "precision", "mode"))
    batch, ctx, checkpoint = (int(values[name]) for name in ("batch", "ctx", "checkpoint"))
    refuse_unless_in_context(size, ctx)
    shape, naive = SHAPES[size], values["attention"] == "naive"
    footprint = Footprint.estimate(
        shape,
        batch,
        ctx,
        mode=mode,
        naive=naive,
        checkpoint=checkpoint,
        element_bytes=ELEMENT_BYTES[precision],
        optimizer=str(values["optimizer"]),
    )
    flops = step_flops(
        shape,
        batch * int(values["accumulate"]),
        ctx,
        backward=mode != "fwd",
        naive=naive,
        recomputes=checkpoint > 0,
    )
    steps = int(values["warmup"]) + int(values["steps"])
    rate = peak.flops_per_s(precision) if peak is not None else None
    return Forecast(
        memory_bytes=footprint.peak_bytes,
        seconds=steps * flops.hardware / rate if rate else None,
    )
