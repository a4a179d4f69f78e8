"""The type of payload a record carries."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gputui.model.payloads import NO_PAYLOAD
from gputui.ring.layout import FLAG_PAYLOAD


def payload_types(records: npt.NDArray[np.void]) -> npt.NDArray[np.uint8]:
    """The payload type of each range or mark (layout.SLOT), NO_PAYLOAD if it has none."""
    has = records["sub"] & FLAG_PAYLOAD
    types: npt.NDArray[np.uint8] = np.where(has, records["source_kind"], NO_PAYLOAD)
    return types.astype(np.uint8)
