"""What statistics are kept by. Records of msgspec: made, hashed and compared in C."""

from __future__ import annotations

import msgspec


class KernelKey(msgspec.Struct, frozen=True, gc=False):
    """What kernel statistics are kept by. `range` 0 is outside every range; `thread` as in
    KernelDelta."""

    process: int
    range: int
    kernel: int
    device: int
    inherited: bool
    thread: int = 0


class LaunchKey(msgspec.Struct, frozen=True, gc=False):
    """What the times of launches are kept by. `name` is the CUDA call's."""

    process: int
    thread: int
    device: int
    name: str
    kernel: int


class MemoryOperationKey(msgspec.Struct, frozen=True, gc=False):
    """What statistics of copies and memsets are kept by."""

    process: int
    range: int
    operation: str
    device: int
    source_kind: str | None
    destination_kind: str | None
    inherited: bool


class ApiKey(msgspec.Struct, frozen=True, gc=False):
    """What statistics of CUDA calls are kept by."""

    process: int
    range: int
    name: str
    inherited: bool
