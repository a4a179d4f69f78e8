"""A machine of fake GPUs: the state file of fake_nvml.c, and a child that reads the machine on it.

The child loads the real pynvml, which finds the fake libnvidia-ml.so.1 through LD_LIBRARY_PATH.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Union

import msgspec

from gputui.model.events import (
    KINDS,
    AnyEvent,
    GpuSample,
    GpuStatus,
    GpuUnavailable,
    Header,
    HostUnavailable,
    MachineSample,
)

HERE = Path(__file__).parent
GUARD_S = 30.0
"""Only so that a broken test ends: nothing is expected to take it."""

NOT_SUPPORTED, NO_PERMISSION, LOST = "!3", "!4", "!15"
NOT_AVAILABLE_BYTES = 2**64 - 1

H200 = {
    "nvmlDeviceGetHandleByIndex_v2": 0,
    "nvmlDeviceGetName": "NVIDIA H200",
    "nvmlDeviceGetPciInfo_v3": "00000000:0F:00.0",
    "nvmlDeviceGetCudaComputeCapability": "9 0",
    "nvmlDeviceGetNumGpuCores": 16896,
    "nvmlDeviceGetMemoryBusWidth": 6016,
    "nvmlDeviceGetMaxClockInfo.1": 1980,
    "nvmlDeviceGetMaxClockInfo.2": 3201,
    "nvmlDeviceGetArchitecture": 9,
    "nvmlDeviceGetVbiosVersion": "96.00.BC.00.02",
    "nvmlDeviceGetBAR1MemoryInfo": "274877906944 1048576",
    "nvmlDeviceGetPowerManagementDefaultLimit": 700000,
    "nvmlDeviceGetPowerManagementLimitConstraints": "200000 700000",
    "nvmlDeviceGetTemperatureThreshold.0": 92,
    "nvmlDeviceGetTemperatureThreshold.1": 89,
    "nvmlDeviceGetTemperatureThreshold.2": 95,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetMigMode": "0 0",
    "nvmlDeviceGetUtilizationRates": "97 40",
    "nvmlDeviceGetMemoryInfo": "150754820096 1704853504",
    "nvmlDeviceGetMemoryInfo_v2": "150754820096 1059913728 644939776",
    "nvmlDeviceGetPowerUsage": 612345,
    "nvmlDeviceGetEnforcedPowerLimit": 700000,
    "nvmlDeviceGetTemperatureV.0": 54,
    "nvmlDeviceGetTemperature.0": 54,
    "nvmlDeviceGetMarginTemperature": 33,
    "nvmlDeviceGetPerformanceState": 0,
    "nvmlDeviceGetClockInfo.1": 1965,
    "nvmlDeviceGetClockInfo.2": 3201,
    "nvmlDeviceGetClockInfo.3": 1545,
    "nvmlDeviceGetEncoderUtilization": "0 167000",
    "nvmlDeviceGetDecoderUtilization": "0 167000",
    "nvmlDeviceGetCurrentClocksEventReasons": 0,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0,
    "nvmlDeviceGetComputeRunningProcesses_v3": "",
    "nvmlDeviceGetComputeRunningProcesses_v2": "",
    "nvmlDeviceGetGraphicsRunningProcesses_v3": "",
    "nvmlDeviceGetGraphicsRunningProcesses_v2": "",
    "nvmlDeviceGetProcessUtilization": "",
    "nvmlDeviceGetTotalEnergyConsumption": 1234567890,
    "nvmlDeviceGetCurrPcieLinkGeneration": 5,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetPcieReplayCounter": 0,
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetComputeMode": 0,
    "nvmlDeviceGetEccMode": "1 1",
    "nvmlDeviceGetTotalEccErrors.0.0": 2,
    "nvmlDeviceGetTotalEccErrors.1.0": 0,
    "nvmlDeviceGetTotalEccErrors.0.1": 5,
    "nvmlDeviceGetTotalEccErrors.1.1": 1,
    "nvmlDeviceGetRemappedRows": "1 0 0 0",
    **{f"nvmlDeviceGetNvLinkState.{link}": 1 for link in range(18)},
    "field.74": 12_000_000_000,
    "field.75": 0,
    "field.76": 0,
    "field.77": 0,
    "field.79": 0,
    "field.82": 61,
    "field.90": 26562,
    "field.91": 18,
    "field.186": 640500,
    "xid": "0 0",
    "nvmlGpmQueryDeviceSupport": 1,
    "nvmlGpmSampleGet": 0,
    "gpm.4": 9.0,
    "gpm.11": 0.0,
    "gpm.12": 4.0,
    "gpm.13": 1.5,
    "gpm.2": 97.0,
    "gpm.3": 14.0,
    "gpm.5": 91.0,
    "gpm.10": 16.0,
    "gpm.20": 3.0,
    "gpm.21": 5.0,
    "gpm.60": 147000.0,
    "gpm.61": 146000.0,
}
"""What the driver of an H200 answered (580.159.04), by function of fake_nvml.c."""

H200_REASONS = {
    "fan_percent": "not supported by this GPU",
    "retired_pages": "not supported by this GPU",
    "page_retirement_pending": "not supported by this GPU",
}
"""An H200 has no fan of its own, and replaces rows instead of retiring pages."""


class FakeMachine:
    """The state file. Change `system` and `gpus` freely, then `write`."""

    def __init__(self, path: Path, count: int = 1) -> None:
        self.path = path
        self.system: dict[str, object] = {}
        self.gpus: list[dict[str, object]] = []
        self.reset(count)

    def reset(self, count: int = 1) -> None:
        self.system = {
            "nvmlInitWithFlags": 0,
            "nvmlSystemGetDriverVersion": "580.159.04",
            "nvmlSystemGetCudaDriverVersion_v2": 13000,
        }
        self.gpus = [
            H200 | {"nvmlDeviceGetUUID": f"GPU-{index:08x}-aaaa-bbbb-cccc-000000000000"}
            for index in range(count)
        ]

    def write(self) -> None:
        lines = [f"{key} {value}" for key, value in self.system.items()]
        if "nvmlDeviceGetCount_v2" not in self.system:
            lines.append(f"nvmlDeviceGetCount_v2 {len(self.gpus)}")
        for index, gpu in enumerate(self.gpus):
            lines += [f"{index}.{key} {value}" for key, value in gpu.items()]
        fresh = self.path.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n")
        os.replace(fresh, self.path)

    @property
    def unfreed_samples(self) -> int:
        """GPM samples that were not freed when the library was last shut down."""
        return int(Path(f"{self.path}.log").read_text())


class Reading:
    """The events of `--once`, or of a stream so far, looked up by kind."""

    def __init__(self, events: Sequence[AnyEvent]) -> None:
        self.events = list(events)

    @property
    def header(self) -> Header:
        assert isinstance(self.events[0], Header)
        return self.events[0]

    @property
    def sample(self) -> MachineSample:
        return [event for event in self.events if isinstance(event, MachineSample)][-1]

    @property
    def host_reasons(self) -> dict[str, str]:
        said = [event.reasons for event in self.events if isinstance(event, HostUnavailable)]
        return said[-1] if said else {}

    def gpu(self, index: int = 0) -> GpuSample:
        return next(gpu for gpu in self.sample.gpus if gpu.index == index)

    def status(self, index: int = 0) -> GpuStatus:
        return [e for e in self.events if isinstance(e, GpuStatus) and e.gpu == index][-1]

    def reasons(self, index: int = 0) -> dict[str, str]:
        """Why figures are missing, but for those no H200 has."""
        said = self.all_reasons(index)
        return {name: said[name] for name in said if said[name] != H200_REASONS.get(name)}

    def all_reasons(self, index: int = 0) -> dict[str, str]:
        said = [e.reasons for e in self.events if isinstance(e, GpuUnavailable) and e.gpu == index]
        return said[-1] if said else {}


class Probe:
    """A child process that runs gputui's machine sources and prints their events."""

    def __init__(
        self, machine: FakeMachine | None, library: Path | None, *, hasty: bool = False
    ) -> None:
        """A `hasty` one waits for the driver no longer than gputui does."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_")}
        environment["PYTHONPATH"] = str(HERE.parent.parent)
        if machine is not None and library is not None:
            environment |= {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(machine.path)}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "probe.py"), *["hasty"] * hasty],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.pid = self._process.pid
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def once(self, only: Sequence[int] | None = None, visible: str | None = None) -> Reading:
        self.send(do="once", only=only, visible=visible)
        return Reading(self.events())

    def send(self, **command: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def line(self) -> str:
        line = self._lines.get(timeout=GUARD_S)
        assert line, "the probe ended"
        return line

    def events(self) -> list[AnyEvent]:
        return msgspec.json.decode(self.line(), type=list[Union[KINDS]])  # type: ignore[valid-type]  # noqa: UP007

    def until(self, seen: list[AnyEvent], enough: Callable[[Reading], bool]) -> Reading:
        """Takes emissions into `seen` until `enough`."""
        for _ in range(1000):
            seen.extend(self.events())
            sampled = any(isinstance(event, MachineSample) for event in seen)
            if sampled and enough(Reading(seen)):
                return Reading(seen)
        raise AssertionError(f"never seen: {seen[-3:]}")

    def close(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(GUARD_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put("")
