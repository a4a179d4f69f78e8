"""What does not change: the driver, and each GPU's make and limits."""

from __future__ import annotations

from gputui.base.sanitize import sanitize
from gputui.collect.nvml.bindings.calls import (
    FUNCTION_NOT_FOUND,
    NOT_SUPPORTED,
    Calls,
    DriverError,
    Handle,
)

_ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada",
    9: "Hopper", 10: "Blackwell", 13: "Rubin",
}  # fmt: skip
"""nvml.h, NVML_DEVICE_ARCH_*."""


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
