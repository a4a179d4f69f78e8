"""What was captured of a run: its processes, their ranges, kernels and copies, added up."""

from __future__ import annotations

import msgspec

from gputui.model.events import (
    Loss,
    Payload,
    ProcessAttached,
    ProcessDetached,
    RangeDefined,
    ResourceNamed,
    ThreadNamed,
)
from gputui.model.sketch import Accumulator
from gputui.state.tables import Table


class Launched(msgspec.Struct, array_like=True):
    """What was launched in a range itself, not in those inside it."""

    kernels: int = 0
    kernel_ns: int = 0
    launches: int = 0
    memcpy_bytes: int = 0
    replayed: int = 0
    """Of the kernels, those of CUDA graphs."""

    def add(self, other: Launched) -> None:
        """Add what another one counted."""
        self.replayed += other.replayed
        self.kernels += other.kernels
        self.kernel_ns += other.kernel_ns
        self.launches += other.launches
        self.memcpy_bytes += other.memcpy_bytes


class Range(msgspec.Struct):
    """A node of the range tree with all that was seen in it."""

    definition: RangeDefined
    children: list[int] = []
    depth: int = 0
    path: str = ""
    cpu: Accumulator = msgspec.field(default_factory=Accumulator)
    projected: Accumulator = msgspec.field(default_factory=Accumulator)
    gpu_busy_ns: int = 0
    gpu_total_ns: int = 0
    projected_range_ns: int = 0
    gpu_operations: int = 0
    levels: int = 0
    children_with_work: int = 0
    incomplete: int = 0
    """As in RangeDelta: sums over projected instances."""
    launched: Launched = msgspec.field(default_factory=Launched)
    inherited: Launched | None = None
    """By threads without a range of their own, while this one was open on the main thread."""
    payload: Payload | None = None
    """Of the newest instance that had one."""
    open_since_ns: int | None = None


class Process(msgspec.Struct):
    """A traced process of a run."""

    attached: ProcessAttached
    began_ns: int
    """When it loaded the capture library, or was first seen if that is unknown."""
    detached: ProcessDetached | None = None
    out_of_sight_ns: int | None = None
    """When its own recording ended, where others go on and it was not seen to end."""
    records: int = 0
    dropped: int = 0
    unattributed: int = 0
    contradicted: int = 0
    wrong_times: int = 0
    callback_ns: int = 0
    reader_cpu_ns: int = 0
    traced_ns: int = 0
    paused_ns: int = 0
    core_run_ns: int = 0
    core_wait_ns: int = 0
    core_watched_ns: int = 0
    windows: int = 0
    standing_ppm: int | None = None
    updated_ns: int = 0
    """When its newest delta was made."""
    nodes: int = 0
    """Its ranges in the run's tree."""
    open_nodes: list[int] = []
    """Those that were open at its newest delta."""
    left_out_nodes: int = 0
    """Ranges over a limit, and those below them."""
    threads: dict[int, ThreadNamed] = {}
    """What its threads are called, by their ids."""
    resources: dict[tuple[str, int, int | None], ResourceNamed] = {}
    """By kind, number and the machine's index of the device."""
    losses: Table[Loss] = {}
    """The parts of `dropped`; older recordings lack them."""

    @property
    def ended_ns(self) -> int | None:
        """When it ended, or was seen to be gone where it did not say; None while it is there."""
        if self.detached is None:
            return None
        return self.detached.ended_ns or self.detached.time_ns

    def stream_name(self, gpu: int, stream: int) -> str | None:
        """What the program calls a stream, None where it does not."""
        named = self.resources.get(("stream", stream, gpu)) or self.resources.get(
            ("stream", stream, None)
        )
        return named.name if named else None
