"""What is read of a GPU every few seconds, in a thread of its own because it may be slow."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from gputui.collect.nvml.bindings import DriverLibrary, XidWatch
from gputui.collect.nvml.driver_calls import GPU_IS_LOST, DriverError, Handle
from gputui.collect.nvml.reading import STATUS_FIELDS, Fields, calls_named
from gputui.model.events import GpuEnergy, GpuFacts, GpuStatus

_MARGIN = "temperature_margin_celsius"
_STATUS_CALLS = calls_named(
    field for field in STATUS_FIELDS if field not in (_MARGIN, "energy_joules")
)
_XIDS_AT_ONCE = 64
"""A failing GPU may report faster than it is polled: the rest is read next time."""


class Xids:
    """Counts the Xid errors of one GPU since creation. Used from one thread; free it."""

    def __init__(self, library: DriverLibrary, handle: Handle) -> None:
        self._library = library
        self._watch: XidWatch | None = None
        self.reason: str | None = None
        self.count = 0
        self.last: int | None = None
        self.last_ns: int | None = None
        try:
            self._watch = library.xid_watch(handle)
        except DriverError as error:
            if error.code == GPU_IS_LOST:
                raise
            self.reason = error.reason

    def poll(self) -> None:
        """Count those that have arrived. Never waits."""
        if self._watch is None:
            return
        try:
            for _ in range(_XIDS_AT_ONCE):
                xid = self._library.next_xid(self._watch)
                if xid is None:
                    return
                self.last_ns, self.last = time.time_ns(), xid
                self.count += 1
        except DriverError as error:
            # The card already shows what is wrong; listening on would only repeat it.
            self.reason = error.reason
            self.close()

    def close(self) -> None:
        """Stop listening for the driver's Xid errors."""
        watch, self._watch = self._watch, None
        if watch is not None:
            self._library.xid_free(watch)


class SlowReading(msgspec.Struct, frozen=True):
    """Results of the slow calls. `status` is None if it was not due, or the GPU is lost; `energy`
    if the GPU has no counter.
    """

    status: GpuStatus | None
    energy: GpuEnergy | None = None
    reasons: dict[str, str] = msgspec.field(default_factory=dict)
    pcie: dict[str, float] = msgspec.field(default_factory=dict)
    pcie_reasons: dict[str, str] = msgspec.field(default_factory=dict)


def read_pcie(library: DriverLibrary, handle: Handle) -> tuple[dict[str, float], dict[str, str]]:
    """PCIe rates by field, or why not. Each direction takes 20 ms; GPM gives both for free."""
    values, fields = {}, Fields()
    for name, call in (
        ("pcie_rx_bytes_per_s", library.pcie_rx_bytes_per_s),
        ("pcie_tx_bytes_per_s", library.pcie_tx_bytes_per_s),
    ):
        value = fields.read(name, call, handle)
        if value is not None:
            values[name] = value
    return values, fields.reasons


def read_energy(
    library: DriverLibrary, handle: Handle, gpu: int, fields: Fields
) -> GpuEnergy | None:
    """The energy counter; None where there is none, which `fields` then says. It takes 3 to 34 ms:
    the moment is the middle of the call. Raises `DriverError` for a lost GPU.
    """
    before_ns = time.time_ns()
    joules = fields.read("energy_joules", library.energy_joules, handle)
    if joules is None:
        return None
    return GpuEnergy(time_ns=(before_ns + time.time_ns()) // 2, gpu=gpu, joules=joules)


def read_status(
    library: DriverLibrary,
    handle: Handle,
    facts: GpuFacts,
    xids: Xids,
    energy: GpuEnergy | None,
    fields: Fields,
) -> tuple[GpuStatus, dict[str, str]]:
    """The status with the `energy` just read into `fields`, and why fields are missing. Raises
    `DriverError` for a lost GPU."""
    read = fields.read
    rows = read("remapped_rows_corrected", library.remapped_rows, handle)
    if rows is None:
        reason = fields.reasons["remapped_rows_corrected"]
        for name in ("remapped_rows_uncorrected", "row_remapping_pending", "row_remapping_failed"):
            fields.reasons[name] = reason
    if xids.reason is not None:
        fields.reasons["xid_count"] = xids.reason
    figures: dict[str, Any] = {
        name: read(name, getattr(library, name), handle) for name in _STATUS_CALLS
    }
    status = GpuStatus(
        time_ns=time.time_ns(),
        gpu=facts.index,
        energy_joules=None if energy is None else energy.joules,
        temperature_margin_celsius=_margin(library, handle, facts, fields),
        remapped_rows_corrected=None if rows is None else rows.corrected,
        remapped_rows_uncorrected=None if rows is None else rows.uncorrected,
        row_remapping_pending=None if rows is None else rows.pending,
        row_remapping_failed=None if rows is None else rows.failed,
        xid_count=None if xids.reason is not None else xids.count,
        last_xid=xids.last,
        last_xid_time_ns=xids.last_ns,
        **figures,
    )
    return status, fields.reasons


def _margin(
    library: DriverLibrary, handle: Handle, facts: GpuFacts, fields: Fields
) -> float | None:
    """The driver's own margin, or else the distance to the slowdown threshold."""
    margin = fields.read(_MARGIN, library.temperature_margin_celsius, handle)
    threshold = facts.temperature_slowdown_celsius
    if margin is not None or threshold is None:
        return margin
    celsius = fields.read(_MARGIN, library.temperature_celsius, handle)
    if celsius is None:
        return None
    del fields.reasons[_MARGIN]
    return threshold - celsius
