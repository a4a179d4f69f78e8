"""What the layer needs, and which sizes cannot be grouped: without torch."""

from __future__ import annotations

from collections.abc import Mapping

from ..declaration import Forecast, Value
from ..errors import DoesNotFit
from ..peaks import Peak
from .formats import GROUP

# A weight in fp32 and twice in fp64, for the product that errors are against.
_WEIGHT_BYTES = 20


def forecast(values: Mapping[str, Value], peak: Peak | None) -> Forecast:
    """Its memory; the ways differ too much in time. Raises DoesNotFit for sizes that cannot be
    grouped.
    """
    del peak
    inputs, outputs = int(values["inputs"]), int(values["outputs"])
    for name, value, multiple in (("inputs", inputs, GROUP), ("outputs", outputs, 16)):
        if value % multiple:
            raise DoesNotFit(f"{name}: {value} is not a multiple of {multiple}", name)
    return Forecast(
        memory_bytes=_WEIGHT_BYTES * inputs * outputs,
        made_of=f"{_WEIGHT_BYTES} bytes × {inputs} × {outputs}",
        advice="use smaller inputs or outputs",
    )
