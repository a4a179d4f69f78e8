"""Typed bindings to the driver's management library (NVML): the only place that touches `pynvml`.

Each method is one call. It returns plain numbers and strings in gputui's units, or raises
`DriverError` with a readable reason. Handles, samples and requests are opaque objects. Calls are
grouped by the pace at which they are worth making: facts once, readings at each tick, health every
few seconds.
"""

from __future__ import annotations

from typing import NamedTuple, NewType

from gputui.base.sanitize import sanitize
from gputui.collect.nvml import (
    ARGUMENT_VERSION_MISMATCH,
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    TIMEOUT,
    Calls,
    CounterCalls,
    DriverError,
    Handle,
    MigCalls,
    ProcessCalls,
)

# What does not change: the driver, and each GPU's make and limits.

# nvml.h, NVML_DEVICE_ARCH_*.
_ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada",
    9: "Hopper", 10: "Blackwell", 13: "Rubin",
}  # fmt: skip


class FactCalls(Calls):
    """Calls that take milliseconds each, so made only at the start."""

    def driver_version(self) -> str:
        return sanitize(str(self._call("nvmlSystemGetDriverVersion")), 80)

    def cuda_driver_version(self) -> str:
        version = int(self._call("nvmlSystemGetCudaDriverVersion_v2"))
        return f"{version // 1000}.{version % 1000 // 10}"

    def device_count(self) -> int:
        return int(self._call("nvmlDeviceGetCount"))

    def handle(self, index: int) -> Handle:
        return Handle(self._call("nvmlDeviceGetHandleByIndex", index))

    def index_of_uuid(self, uuid: str) -> int:
        """Index of the GPU with this UUID, or of the GPU that holds this MIG instance."""
        handle = self._call("nvmlDeviceGetHandleByUUID", uuid)
        if uuid.startswith("MIG-"):
            handle = self._call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        return int(self._call("nvmlDeviceGetIndex", handle))

    def name(self, handle: Handle) -> str:
        return sanitize(str(self._call("nvmlDeviceGetName", handle)), 96)

    def uuid(self, handle: Handle) -> str:
        return sanitize(str(self._call("nvmlDeviceGetUUID", handle)), 96)

    def pci_bus_id(self, handle: Handle) -> str:
        return sanitize(str(self._call("nvmlDeviceGetPciInfo", handle).busId), 32)

    def vbios_version(self, handle: Handle) -> str:
        return sanitize(str(self._call("nvmlDeviceGetVbiosVersion", handle)), 32)

    def architecture(self, handle: Handle) -> str:
        number = int(self._call("nvmlDeviceGetArchitecture", handle))
        return _ARCHITECTURES.get(number, f"architecture {number}")

    def compute_capability(self, handle: Handle) -> str:
        major, minor = self._call("nvmlDeviceGetCudaComputeCapability", handle)
        return f"{major}.{minor}"

    def core_count(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetNumGpuCores", handle))

    def memory_bus_width_bits(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetMemoryBusWidth", handle))

    def bar1_total_bytes(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetBAR1MemoryInfo", handle).bar1Total)

    def max_sm_clock_mhz(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetMaxClockInfo", handle, self._nvml.NVML_CLOCK_SM))

    def max_memory_clock_mhz(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetMaxClockInfo", handle, self._nvml.NVML_CLOCK_MEM))

    def power_limit_default_watts(self, handle: Handle) -> float:
        return int(self._call("nvmlDeviceGetPowerManagementDefaultLimit", handle)) / 1000

    def power_limit_range_watts(self, handle: Handle) -> tuple[float, float]:
        """The lowest and highest settable limit."""
        least, most = self._call("nvmlDeviceGetPowerManagementLimitConstraints", handle)
        return int(least) / 1000, int(most) / 1000

    def slowdown_celsius(self, handle: Handle) -> float:
        return self._threshold(handle, self._nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)

    def shutdown_celsius(self, handle: Handle) -> float:
        return self._threshold(handle, self._nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN)

    def memory_maximum_celsius(self, handle: Handle) -> float:
        return self._threshold(handle, self._nvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX)

    def max_pcie_generation(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetMaxPcieLinkGeneration", handle))

    def max_pcie_width(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetMaxPcieLinkWidth", handle))

    def mig_enabled(self, handle: Handle) -> bool:
        try:
            return bool(self._call("nvmlDeviceGetMigMode", handle)[0])
        except DriverError as error:
            if error.code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                return False
            raise

    def _threshold(self, handle: Handle, which: int) -> float:
        return float(self._call("nvmlDeviceGetTemperatureThreshold", handle, which))


# What a tick reads: calls of microseconds each.

# NVML_FI_DEV_MEMORY_TEMP; the next is NVML_FI_DEV_POWER_INSTANT.
_MEMORY_TEMPERATURE = 82

# nvml.h, NVML_FI_DEV_*.
_POWER_INSTANT = 186

# NVML_CLOCK_VIDEO.
_VIDEO_CLOCK = 3

# What a card without such a sensor answers, with success.
_NO_MEMORY_SENSOR = 0


class GpuMemory(NamedTuple):
    """Bytes of GPU memory. `used` leaves `reserved` out, except where `reserved` is None."""

    total: int
    used: int
    reserved: int | None


class ReadingCalls(Calls):
    """Values that change from tick to tick."""

    def utilization_percent(self, handle: Handle) -> float:
        """Share of the driver's last sample window (1/6 to 1 s) in which a kernel ran."""
        return float(self._call("nvmlDeviceGetUtilizationRates", handle).gpu)

    def memory(self, handle: Handle) -> GpuMemory:
        """The memory by version 2 of the call, which agrees with nvidia-smi; otherwise by version
        1."""
        try:
            version = self._nvml.nvmlMemory_v2
            info = self._call("nvmlDeviceGetMemoryInfo", handle, version)
            return GpuMemory(int(info.total), int(info.used), int(info.reserved))
        except DriverError as error:
            if error.code not in (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH):
                raise
        info = self._call("nvmlDeviceGetMemoryInfo", handle)
        return GpuMemory(int(info.total), int(info.used), None)

    def has_memory(self, handle: Handle) -> bool:
        """False for a chip without memory of its own (GB10, Jetson), which neither call
        supports.
        """
        for arguments in ((self._nvml.nvmlMemory_v2,), ()):
            try:
                self._call("nvmlDeviceGetMemoryInfo", handle, *arguments)
            except DriverError as error:
                if error.code == NOT_SUPPORTED:
                    continue
            return True
        return False

    def power_watts(self, handle: Handle) -> float:
        return int(self._call("nvmlDeviceGetPowerUsage", handle)) / 1000

    def power_limit_watts(self, handle: Handle) -> float:
        return int(self._call("nvmlDeviceGetEnforcedPowerLimit", handle)) / 1000

    def instant_power_and_memory_temperature(
        self, handle: Handle
    ) -> tuple[float | DriverError, float | DriverError]:
        """Watts and degrees, in one call. A missing sensor reads 0."""
        answers = self.fields(handle, (_POWER_INSTANT, _MEMORY_TEMPERATURE))
        power, celsius = answers[_POWER_INSTANT], answers[_MEMORY_TEMPERATURE]
        if celsius == _NO_MEMORY_SENSOR:
            celsius = DriverError(NOT_SUPPORTED, "this GPU has no such sensor")
        return (
            power if isinstance(power, DriverError) else power / 1000,
            celsius if isinstance(celsius, DriverError) else float(celsius),
        )

    def temperature_celsius(self, handle: Handle) -> float:
        sensor = self._nvml.NVML_TEMPERATURE_GPU
        return float(
            self._newest("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", handle, sensor)
        )

    def temperature_margin_celsius(self, handle: Handle) -> float:
        return float(self._call("nvmlDeviceGetMarginTemperature", handle))

    def fan_percent(self, handle: Handle) -> float:
        return float(self._call("nvmlDeviceGetFanSpeed", handle))

    def performance_state(self, handle: Handle) -> int:
        state = int(self._call("nvmlDeviceGetPerformanceState", handle))
        if not 0 <= state <= 15:
            raise DriverError(999, "unknown to the driver")
        return state

    def sm_clock_mhz(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetClockInfo", handle, self._nvml.NVML_CLOCK_SM))

    def memory_clock_mhz(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetClockInfo", handle, self._nvml.NVML_CLOCK_MEM))

    def video_clock_mhz(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetClockInfo", handle, _VIDEO_CLOCK))

    def encoder_percent(self, handle: Handle) -> float:
        return float(self._call("nvmlDeviceGetEncoderUtilization", handle)[0])

    def decoder_percent(self, handle: Handle) -> float:
        return float(self._call("nvmlDeviceGetDecoderUtilization", handle)[0])

    def clock_event_bits(self, handle: Handle) -> int:
        """The reasons for the current clocks, as the driver's bit mask."""
        return int(
            self._newest(
                "nvmlDeviceGetCurrentClocksEventReasons",
                "nvmlDeviceGetCurrentClocksThrottleReasons",
                handle,
            )
        )


# Energy, throttle times, errors and modes: what is worth reading every few seconds.

XidWatch = NewType("XidWatch", object)

# nvml.h, NVML_FI_DEV_PERF_POLICY_*: nanoseconds. Newer fields distinguish the hardware slowdowns,
# but their numbers changed between drivers 570 and 590, so they cannot be requested.
_THROTTLE_FIELDS = {
    74: "power cap",
    75: "thermal slowdown (software)",
    76: "sync boost",
    77: "board limit",
    79: "reliability",
}

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
        seconds = {
            word: answer / 1e9
            for field, word in _THROTTLE_FIELDS.items()
            if not isinstance(answer := answers[field], DriverError)
        }
        if not seconds:
            raise next(answer for answer in answers.values() if isinstance(answer, DriverError))
        return seconds

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


# PCIe and NVLink: what the links are, what they carry, and where they lead.

# NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON.
_NVLINK_SPEED_MBPS = 90

_NVLINK_LINK_COUNT = 91

# NVML_FI_DEV_NVLINK_GET_SPEED.
_NVLINK_GET_SPEED = 164

# NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX.
_NVLINK_DATA_TX_KIB = 138

# nvml.h, NVML_FI_DEV_NVLINK_*.
_NVLINK_DATA_RX_KIB = 139

# nvml.h: as scope of a throughput field, the sum of all links.
_ALL_LINKS = 0xFFFFFFFF

# NVML_NVLINK_MAX_LINKS.
_MAXIMUM_LINKS = 36

_PCIE_TX, _PCIE_RX = 0, 1

# NVML_P2P_CAPS_INDEX_NVLINK, and NVML_P2P_STATUS_OK.
_P2P_NVLINK = 2

_P2P_OK = 0

# nvmlGpuTopologyLevel_t in the words of `nvidia-smi topo -m`.
_ANCESTORS = {0: "SELF", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


class NvlinkBytes(NamedTuple):
    """What all links of a GPU carried since some moment in the past."""

    rx: int
    tx: int


class LinkCalls(Calls):
    """Links of one GPU, and between two."""

    def pcie_link_generation(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetCurrPcieLinkGeneration", handle))

    def pcie_link_width(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetCurrPcieLinkWidth", handle))

    def pcie_replays(self, handle: Handle) -> int:
        return int(self._call("nvmlDeviceGetPcieReplayCounter", handle))

    def pcie_rx_bytes_per_s(self, handle: Handle) -> float:
        """Averaged over 20 ms, and takes that long."""
        return 1024.0 * int(self._call("nvmlDeviceGetPcieThroughput", handle, _PCIE_RX))

    def pcie_tx_bytes_per_s(self, handle: Handle) -> float:
        """Averaged over 20 ms, and takes that long."""
        return 1024.0 * int(self._call("nvmlDeviceGetPcieThroughput", handle, _PCIE_TX))

    def nvlink_count(self, handle: Handle) -> int:
        return int(self.field(handle, _NVLINK_LINK_COUNT))

    def nvlink_link_bytes_per_s(self, handle: Handle) -> float:
        """What one link carries each way; the first link's if there is no common value."""
        try:
            return 1e6 * self.field(handle, _NVLINK_SPEED_MBPS)
        except DriverError as error:
            if error.code != NOT_SUPPORTED:
                raise
        answer = self.fields(handle, [(_NVLINK_GET_SPEED, 0)])[_NVLINK_GET_SPEED]
        if isinstance(answer, DriverError):
            raise answer
        return 1e6 * answer

    def nvlink_active_count(self, handle: Handle) -> int:
        active, has_answered = 0, False
        for link in range(_MAXIMUM_LINKS):
            try:
                active += bool(self._call("nvmlDeviceGetNvLinkState", handle, link))
                has_answered = True
            except DriverError as error:
                # Links are numbered without gaps; the first missing one ends them.
                if error.code == INVALID_ARGUMENT or (has_answered and error.code == NOT_SUPPORTED):
                    break
                raise
        return active

    def nvlink_bytes(self, handle: Handle) -> NvlinkBytes:
        """Counters, in steps of 1 KiB."""
        answers = self.fields(
            handle, [(_NVLINK_DATA_RX_KIB, _ALL_LINKS), (_NVLINK_DATA_TX_KIB, _ALL_LINKS)]
        )
        rx, tx = answers[_NVLINK_DATA_RX_KIB], answers[_NVLINK_DATA_TX_KIB]
        for answer in (rx, tx):
            if isinstance(answer, DriverError):
                raise answer
        return NvlinkBytes(1024 * int(rx), 1024 * int(tx))  # type: ignore[arg-type]

    def common_ancestor(self, first: Handle, second: Handle) -> str:
        """The PCIe path between two GPUs: PIX, PXB, PHB, NODE or SYS."""
        level = int(self._call("nvmlDeviceGetTopologyCommonAncestor", first, second))
        return _ANCESTORS.get(level, f"level {level}")

    def has_nvlink_between(self, first: Handle, second: Handle) -> bool:
        """Whether two GPUs reach each other over NVLink, directly or through a switch."""
        status = self._call("nvmlDeviceGetP2PStatus", first, second, _P2P_NVLINK)
        return int(status) == _P2P_OK

    def nvlinks_to(self, handle: Handle, pci_bus_id: str) -> int:
        """How many active links end at that GPU. 0 if they end at a switch."""
        count = 0
        for link in range(_MAXIMUM_LINKS):
            try:
                if self._call("nvmlDeviceGetNvLinkState", handle, link):
                    remote = self._call("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
                    count += str(remote.busId).lower() == pci_bus_id.lower()
            except DriverError:
                break
        return count


class DriverLibrary(
    FactCalls, ReadingCalls, HealthCalls, LinkCalls, MigCalls, ProcessCalls, CounterCalls
):
    """NVML, loaded and initialized by the constructor. Raises `DriverError`."""
