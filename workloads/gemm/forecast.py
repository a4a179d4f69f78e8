"""What the products need, and which sizes do not go together: without torch."""

from __future__ import annotations

from collections.abc import Mapping

from ..declaration import Forecast, Value
from ..errors import DoesNotFit
from ..formulas import gemm_flops
from ..peaks import PRECISIONS, Peak
from . import SIZES

# At most, for each element: the fp32 factors, their converted copies and the result.
_ELEMENT_BYTES = 20


def forecast(values: Mapping[str, Value], peak: Peak | None) -> Forecast:
    """Every size in every precision that the GPU has a rate for. Raises DoesNotFit for sizes in
    the wrong order.
    """
    smallest, largest = int(values["smallest"]), int(values["largest"])
    if smallest > largest:
        raise DoesNotFit(
            f"smallest is {smallest}, which is more than largest, {largest}", "smallest", "largest"
        )
    asked = PRECISIONS if values["precision"] == "all" else (str(values["precision"]),)
    rates = [peak.flops_per_s(name) for name in asked] if peak is not None else []
    once = sum(gemm_flops(n, n, n) for n in SIZES if smallest <= n <= largest)
    times = int(values["warmup"]) + int(values["products"])
    seconds = sum(times * once / rate for rate in rates if rate)
    return Forecast(
        memory_bytes=_ELEMENT_BYTES * largest**2,
        seconds=seconds or None,
        made_of=f"{_ELEMENT_BYTES} bytes × {largest}²",
        advice="use a smaller largest",
    )
