"""Payloads: the 8 bytes attached to a range or a mark in a record, and how to read them."""

from __future__ import annotations

import enum
import math
import struct
from typing import Literal

from gputui.model.events import Payload
from gputui.model.units import MISSING


class PayloadType(enum.IntEnum):
    """The type of a payload's 8 bytes, with NVTX's numbers. UINT32, INT32 and FLOAT are widened to
    UINT64, INT64 and DOUBLE; BYTES is the size of the program's own data.
    """

    UINT64 = 1
    INT64 = 2
    DOUBLE = 3
    UINT32 = 4
    INT32 = 5
    FLOAT = 6
    BYTES = 7


NO_PAYLOAD = 0
"""No payload."""

Name = Literal["uint64", "int64", "double", "uint32", "int32", "float", "bytes"]

NAMES: dict[int, Name] = {
    PayloadType.UINT64: "uint64",
    PayloadType.INT64: "int64",
    PayloadType.DOUBLE: "double",
    PayloadType.UINT32: "uint32",
    PayloadType.INT32: "int32",
    PayloadType.FLOAT: "float",
    PayloadType.BYTES: "bytes",
}
"""NVTX's names of the types."""

_SIGNED = {PayloadType.INT64, PayloadType.INT32}
_REAL = {PayloadType.DOUBLE, PayloadType.FLOAT}


def payload_number(kind: int, bits: int) -> int | float | None:
    """The number in the 8 bytes, None if there is no payload."""
    if kind not in NAMES:
        return None
    if kind in _REAL:
        value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
        return value
    return bits - (1 << 64) if kind in _SIGNED and bits >> 63 else bits


def payload_of(kind: int, bits: int) -> Payload | None:
    """The same as a part of an event."""
    value = payload_number(kind, bits)
    if value is None:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return Payload(NAMES[kind], "nan" if math.isnan(value) else "inf" if value > 0 else "-inf")
    return Payload(NAMES[kind], value)


def payload_text(payload: Payload | None) -> str:
    """The value a program attached to a range or mark: "42", "0.125", "64 bytes"."""
    if payload is None:
        return MISSING
    if payload.type == "bytes":
        return f"{payload.value} bytes"
    # Here and not in units, which know no events.
    return f"{payload.value:.6g}" if isinstance(payload.value, float) else str(payload.value)
