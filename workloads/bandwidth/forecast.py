"""What the arrays need, and which sizes do not go together: without torch."""

from __future__ import annotations

from collections.abc import Mapping

from ..declaration import Forecast, Value
from ..errors import DoesNotFit
from ..peaks import Peak

_MIB = 2**20


def needed_bytes(largest: int) -> int:
    """Three arrays of `largest` MiB."""
    return 3 * largest * _MIB


def refuse_what_does_not_fit(smallest: int, largest: int) -> None:
    """Raise DoesNotFit for sizes in the wrong order."""
    if smallest > largest:
        raise DoesNotFit(
            f"smallest is {smallest} MiB, which is more than largest, {largest} MiB",
            "smallest",
            "largest",
        )


def forecast(values: Mapping[str, Value], peak: Peak | None) -> Forecast:
    """Its memory; how long it takes depends on how long a size has to run to be measured."""
    del peak
    smallest, largest = int(values["smallest"]), int(values["largest"])
    refuse_what_does_not_fit(smallest, largest)
    return Forecast(memory_bytes=needed_bytes(largest))
