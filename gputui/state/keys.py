"""What statistics are kept by. Records of msgspec: made, hashed and compared in C."""

from __future__ import annotations

from typing import NamedTuple

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
    captured: int = 0

    @property
    def phase(self) -> int:
        """The range in which phases count it."""
        return self.captured or self.range


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
    captured: int = 0

    @property
    def phase(self) -> int:
        """The range in which phases count it."""
        return self.captured or self.range


class ApiKey(msgspec.Struct, frozen=True, gc=False):
    """What statistics of CUDA calls are kept by."""

    process: int
    range: int
    name: str
    inherited: bool


class RangeKernel(NamedTuple):
    """A kernel that instances of a range launched."""

    range: int
    kernel: int


class MarkKey(NamedTuple):
    """What marks are counted by."""

    process: int
    domain: str
    name: str


class LossKey(NamedTuple):
    """Why records of a process were lost, as in Loss."""

    cause: str
    domain: str


class DeviceKey(NamedTuple):
    """A device that a process used. `device` is the machine's index."""

    process: int
    device: int


class RangeLeafKey(NamedTuple):
    """A leaf of the time tree in a range, as RangeLeaf has it. `device` is the machine's index."""

    process: int
    device: int
    range: int
    leaf: int


class LeafKey(NamedTuple):
    """A leaf of the time tree, as LeafTime has it. `device` is the machine's index."""

    process: int
    device: int
    scope: int
    loop: int
    leaf: int


class LoopKey(NamedTuple):
    """A scope of a loop on a device."""

    process: int
    device: int
    scope: int
    loop: int


class CollectiveKey(NamedTuple):
    """Collectives of a process, as CollectiveDelta has them."""

    process: int
    communicator: str
    kind: str
    size_class: int


class PeerKey(NamedTuple):
    """Messages between a process and another, as PeerDelta has them."""

    process: int
    peer: int


class LaunchedLineKey(NamedTuple):
    """A line that launched work on a device. `device` is the machine's index."""

    process: int
    device: int
    line: int


class LineKey(NamedTuple):
    """A line of a process at which it was while a device idled in steps of a loop, and the leaf
    that the frames around it speak of; NO_LEAF where they do not."""

    process: int
    device: int
    loop: int
    line: int
    leaf: int


class ThreadKey(NamedTuple):
    """A thread of a process."""

    process: int
    thread: int


class WindowWorkKey(NamedTuple):
    """A range, in a group of windows."""

    range: int
    group: int


class WindowCostKey(NamedTuple):
    """A group of windows of a process."""

    process: int
    group: int


class StreamKey(msgspec.Struct, frozen=True):
    """A stream of a process. `device` is the machine's index; `stream` CUPTI's number."""

    process: int
    device: int
    stream: int
