"""What the arrays need, and which sizes do not go together: without torch."""

from __future__ import annotations

from collections.abc import Mapping

from ..declaration import Forecast, Value
from ..errors import DoesNotFit
from ..peaks import Peak

_MIB = 2**20


def forecast(values: Mapping[str, Value], peak: Peak | None) -> Forecast:
    """Its memory; how long it takes depends on how long a size has to run to be measured. Raises
    DoesNotFit for sizes in the wrong order.
    """
    del peak
    smallest, largest = int(values["smallest"]), int(values["largest"])
    if smallest > largest:
        raise DoesNotFit(
            f"smallest is {smallest} MiB, which is more than largest, {largest} MiB",
            "smallest",
            "largest",
        )
    return Forecast(
        memory_bytes=3 * largest * _MIB,
        made_of=f"3 arrays × {largest} MiB",
        advice="use a smaller largest",
    )
