"""The GPUs of this machine through NVML, each read in a thread of its own.

No driver is a normal case: `unavailable_reason` says so and there are no devices. A GPU that is
lost, or whose driver call hangs, says so on its own card and stops nobody.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from gputui.events import GpuFacts
from gputui.sources.device import Device, DeviceReading
from gputui.sources.library import DriverError, Library
from gputui.sources.selection import choose_devices
from gputui.sources.worker import Worker

OPEN_TIMEOUT_S = 5.0
"""How long the driver may take to start, and again to tell the facts of its GPUs."""
POLL_TIMEOUT_S = 0.5
"""How long one tick waits for a GPU; the slowest call measured took 0.034 s."""

_NO_GPU = "the NVIDIA driver works but sees no GPU (in a container: start it with --gpus)"

_Answer = GpuFacts | DeviceReading | None
"""What a GPU's worker answers to open, to poll and to close."""


@dataclass(frozen=True, slots=True)
class _Opened:
    library: Library
    driver_version: str | None
    cuda_driver_version: str | None
    indexes: tuple[int, ...]
    reason: str | None


def _open_library(only: Sequence[int] | None, visible: str | None) -> _Opened:
    library = Library()
    driver = cuda = None
    with contextlib.suppress(DriverError):
        driver = library.driver_version()
    with contextlib.suppress(DriverError):
        cuda = library.cuda_driver_version()
    count = library.device_count()
    if count == 0:
        return _Opened(library, driver, cuda, (), _NO_GPU)

    def uuids() -> list[str]:
        found = []
        for index in range(count):
            try:
                found.append(library.uuid(library.handle(index)))
            except DriverError:
                found.append("")
        return found

    indexes, reason = choose_devices(count, only, visible, uuids, library.index_of_uuid)
    return _Opened(library, driver, cuda, indexes, reason)


class Nvml:
    """The chosen GPUs. Opening never raises; `unavailable_reason` says what is not there.

    Used from one thread. Close it.
    """

    def __init__(
        self,
        only: Sequence[int] | None = None,
        visible: str | None = None,
        *,
        open_timeout_s: float = OPEN_TIMEOUT_S,
        poll_timeout_s: float = POLL_TIMEOUT_S,
    ) -> None:
        """`only` and `visible` (CUDA_VISIBLE_DEVICES) choose, as `choose_devices` says."""
        self.driver_version: str | None = None
        self.cuda_driver_version: str | None = None
        self.unavailable_reason: str | None = None
        self.facts: tuple[GpuFacts, ...] = ()
        self._poll_timeout_s = poll_timeout_s
        self._library: Library | None = None
        self._devices: list[tuple[Device, Worker[_Answer]]] = []
        opener: Worker[_Opened] = Worker("nvml-open")
        opener.ask(lambda: _open_library(only, visible))
        try:
            opened = opener.answer(time.monotonic() + open_timeout_s)
        except TimeoutError:
            self.unavailable_reason = (
                f"the NVIDIA driver did not answer within {open_timeout_s:g} s: try `nvidia-smi`, "
                "see dmesg; GPUs are left out until gputui is started again"
            )
            return
        except DriverError as error:
            self.unavailable_reason = error.reason
            return
        finally:
            opener.stop()
        self._library = opened.library
        self.driver_version = opened.driver_version
        self.cuda_driver_version = opened.cuda_driver_version
        self.unavailable_reason = opened.reason
        self._open_devices(opened.indexes, open_timeout_s)

    def poll(self, processes: bool) -> list[DeviceReading]:
        """One reading of each GPU, side by side; with `processes`, also who is on it.

        A GPU that does not answer in time is waited for once, then left to itself until it
        does: its reading has nothing but the reason.
        """
        asked = {
            device.index
            for device, worker in self._devices
            if worker.ask(functools.partial(device.poll, processes))
        }
        until = time.monotonic() + self._poll_timeout_s
        readings = []
        for device, worker in self._devices:
            try:
                if device.index not in asked:
                    raise TimeoutError
                answer = worker.answer(until)
                assert isinstance(answer, DeviceReading)
                readings.append(answer)
            except TimeoutError:
                reason = f"no answer for {_coarse(worker.waiting_s)}"
                readings.append(DeviceReading.without(device.index, reason))
        return readings

    def close(self) -> None:
        """Frees what the driver holds for us. Waits at most a second, also for a hung driver."""
        until = time.monotonic() + 0.5
        idle = True
        closing = []
        for device, worker in self._devices:
            if worker.ask(device.close):
                closing.append(worker)
            else:
                idle = False
        for worker in closing:
            try:
                worker.answer(until)
            except TimeoutError:
                idle = False
            except DriverError:
                pass  # a lost GPU frees nothing; the driver goes on without it
        for _, worker in self._devices:
            worker.stop()
        self._devices = []
        library, self._library = self._library, None
        if library is None or not idle:
            return
        closer: Worker[None] = Worker("nvml-close")
        closer.ask(library.shutdown)
        with contextlib.suppress(TimeoutError, DriverError):
            closer.answer(time.monotonic() + 0.5)
        closer.stop()

    def _open_devices(self, indexes: Sequence[int], timeout_s: float) -> None:
        assert self._library is not None
        for index in indexes:
            device = Device(self._library, index)
            worker: Worker[_Answer] = Worker(f"nvml-{index}")
            worker.ask(device.open)
            self._devices.append((device, worker))
        until = time.monotonic() + timeout_s
        facts = []
        for device, worker in self._devices:
            try:
                answer = worker.answer(until)
                assert isinstance(answer, GpuFacts)
                facts.append(answer)
            except (TimeoutError, DriverError):
                facts.append(GpuFacts(index=device.index, uuid="", name=f"GPU {device.index}"))
        self.facts = tuple(facts)


def _coarse(seconds: float) -> str:
    """A time that changes seldom, so that a reason is not said anew each tick."""
    if seconds < 1:
        return "a moment"
    if seconds >= 60:
        return f"{int(seconds // 60)} min"
    return f"{max(step for step in (1, 2, 5, 10, 20, 30) if step <= seconds)} s"
