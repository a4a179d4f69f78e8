"""What the layer needs, and which sizes cannot be grouped: without torch."""

from __future__ import annotations

from collections.abc import Mapping

from ..declaration import Forecast, Value
from ..errors import DoesNotFit
from ..peaks import Peak
from .formats import GROUP


def needed_bytes(inputs: int, outputs: int) -> int:
    """The weights in fp32 and twice in fp64, for the product that errors are against."""
    return 20 * inputs * outputs


def refuse_what_does_not_fit(inputs: int, outputs: int) -> None:
    """Raise DoesNotFit for sizes that cannot be grouped."""
    for name, value, multiple in (("inputs", inputs, GROUP), ("outputs", outputs, 16)):
        if value % multiple:
            raise DoesNotFit(f"{name}: {value} is not a multiple of {multiple}", name)


def forecast(values: Mapping[str, Value], peak: Peak | None) -> Forecast:
    """Its memory; the ways differ too much in time."""
    del peak
    inputs, outputs = int(values["inputs"]), int(values["outputs"])
    refuse_what_does_not_fit(inputs, outputs)
    return Forecast(memory_bytes=needed_bytes(inputs, outputs))
