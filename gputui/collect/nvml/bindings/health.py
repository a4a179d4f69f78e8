"""Energy, throttle times, errors and modes: what is worth reading every few seconds."""

from __future__ import annotations

from typing import NamedTuple, NewType

from gputui.collect.nvml.bindings.calls import TIMEOUT, Calls, DriverError, Handle

XidWatch = NewType("XidWatch", object)

_THROTTLE_FIELDS = {
    74: "power cap",
    75: "thermal slowdown (software)",
    76: "sync boost",
    77: "board limit",
    79: "reliability",
}
"""nvml.h, NVML_FI_DEV_PERF_POLICY_*: nanoseconds. Newer fields distinguish the hardware slowdowns,
but their numbers changed between drivers 570 and 590, so they cannot be requested.
"""

_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_CORRECTED, _UNCORRECTED = 0, 1
_SINCE_RESET, _LIFETIME = 0, 1


class RemappedRows(NamedTuple):
    """Rows of memory replaced by spare ones (Ampere and later)."""

    corrected: int
    uncorrected: int
    pending: bool
    failed: bool


class HealthCalls(Calls):
    """Calls that take up to tens of milliseconds, or whose answer seldom changes."""

    def energy_joules(self, handle: Handle) -> float:
        return int(self._call("nvmlDeviceGetTotalEnergyConsumption", handle)) / 1000

    def throttle_seconds(self, handle: Handle) -> dict[str, float]:
        """Time spent throttled since the driver was loaded, by reason."""
        answers = self.fields(handle, tuple(_THROTTLE_FIELDS))
        known = {
            word: answer / 1e9
            for field, word in _THROTTLE_FIELDS.items()
            if not isinstance(answer := answers[field], DriverError)
        }
        if not known:
            raise next(answer for answer in answers.values() if isinstance(answer, DriverError))
        return known

    def bar1_used_bytes(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetBAR1MemoryInfo", handle).bar1Used)

    def compute_mode(self, handle: Handle) -> str:
        number = int(self._call("nvmlDeviceGetComputeMode", handle))
        return _COMPUTE_MODES.get(number, f"mode {number}")

    def persistence_mode(self, handle: Handle) -> bool:
        return bool(self._call("nvmlDeviceGetPersistenceMode", handle))

    def ecc_enabled(self, handle: Handle) -> bool:
        return bool(self._call("nvmlDeviceGetEccMode", handle)[0])

    def ecc_corrected(self, handle: Handle) -> int:
        return self._ecc(handle, _CORRECTED, _SINCE_RESET)

    def ecc_uncorrected(self, handle: Handle) -> int:
        return self._ecc(handle, _UNCORRECTED, _SINCE_RESET)

    def ecc_corrected_lifetime(self, handle: Handle) -> int:
        return self._ecc(handle, _CORRECTED, _LIFETIME)

    def ecc_uncorrected_lifetime(self, handle: Handle) -> int:
        return self._ecc(handle, _UNCORRECTED, _LIFETIME)

    def remapped_rows(self, handle: Handle) -> RemappedRows:
        corrected, uncorrected, pending, failed = self._call("nvmlDeviceGetRemappedRows", handle)
        return RemappedRows(int(corrected), int(uncorrected), bool(pending), bool(failed))

    def retired_pages(self, handle: Handle) -> int:
        """Pages of memory no longer used because of single-bit and double-bit errors."""
        return sum(
            len(self._newest("nvmlDeviceGetRetiredPages_v2", "nvmlDeviceGetRetiredPages", *cause))
            for cause in ((handle, 0), (handle, 1))
        )

    def page_retirement_pending(self, handle: Handle) -> bool:
        return bool(self._call("nvmlDeviceGetRetiredPagesPendingStatus", handle))

    def xid_watch(self, handle: Handle) -> XidWatch:
        """Start listening for Xid errors of this GPU."""
        watch = self._call("nvmlEventSetCreate")
        try:
            kind = self._nvml.nvmlEventTypeXidCriticalError
            self._call("nvmlDeviceRegisterEvents", handle, kind, watch)
        except DriverError:
            self._call("nvmlEventSetFree", watch)
            raise
        return XidWatch(watch)

    def next_xid(self, watch: XidWatch) -> int | None:
        """The next Xid already queued; never waits."""
        try:
            return int(self._call("nvmlEventSetWait_v2", watch, 0).eventData)
        except DriverError as error:
            if error.code == TIMEOUT:
                return None
            raise

    def xid_free(self, watch: XidWatch) -> None:
        self._call("nvmlEventSetFree", watch)

    def _ecc(self, handle: Handle, kind: int, counter: int) -> int:
        return int(self._call("nvmlDeviceGetTotalEccErrors", handle, kind, counter))
