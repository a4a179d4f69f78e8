"""What a tick reads: calls of microseconds each."""

from __future__ import annotations

from typing import NamedTuple

from gputui.collect.nvml.bindings.calls import (
    ARGUMENT_VERSION_MISMATCH,
    FUNCTION_NOT_FOUND,
    NOT_SUPPORTED,
    Calls,
    DriverError,
    Handle,
)

_MEMORY_TEMPERATURE = 82
_POWER_INSTANT = 186
"""nvml.h, NVML_FI_DEV_*."""

_VIDEO_CLOCK = 3
_NO_MEMORY_SENSOR = 0


class Memory(NamedTuple):
    """Bytes of GPU memory. `used` leaves `reserved` out, except where `reserved` is None."""

    total: int
    used: int
    reserved: int | None


class ReadingCalls(Calls):
    """Values that change from tick to tick."""

    def utilization_percent(self, handle: Handle) -> float:
        """Share of the driver's last sample window (1/6 to 1 s) in which a kernel ran."""
        return float(self._call("nvmlDeviceGetUtilizationRates", handle).gpu)

    def memory(self, handle: Handle) -> Memory:
        """By version 2 of the call, which matches nvidia-smi; else by the first version."""
        try:
            version = self._nvml.nvmlMemory_v2
            info = self._call("nvmlDeviceGetMemoryInfo", handle, version)
            return Memory(int(info.total), int(info.used), int(info.reserved))
        except DriverError as error:
            if error.code not in (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH):
                raise
        info = self._call("nvmlDeviceGetMemoryInfo", handle)
        return Memory(int(info.total), int(info.used), None)

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
