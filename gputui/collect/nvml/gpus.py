"""The GPUs of this machine through NVML, each read in a thread of its own.

A driver call may hang for good when a GPU falls off the bus: the thread that waits for it is given
up, and the other GPUs are read on.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Generic, TypeVar

import msgspec

from gputui.collect.nvml import DriverError
from gputui.collect.nvml.bindings import DriverLibrary
from gputui.collect.nvml.device import Device
from gputui.collect.nvml.opening import NO_GPU, ChosenGpus, Opened, open_library
from gputui.collect.nvml.reading import DeviceReading, SlowReading, read_topology
from gputui.model.events import GpuEnergy, GpuFacts, GpuStatus

# A thread for calls that may hang, so that callers wait only as long as they choose.

T = TypeVar("T")


class Worker(Generic[T]):
    """Runs one call at a time in its own daemon thread. Used from one thread.

    A call that hangs blocks only this worker, and does not keep the program from exiting.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], T] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()
        self._asked_at: float | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def waiting_s(self) -> float:
        """How long the current call has been waited for; 0 if there is none."""
        return 0.0 if self._asked_at is None else time.monotonic() - self._asked_at

    @property
    def is_busy(self) -> bool:
        """Whether an answer has yet to be taken."""
        return self._asked_at is not None

    def ask(self, call: Callable[[], T]) -> bool:
        """Start `call`; False if the previous one has not ended. A late answer is dropped."""
        if self._asked_at is not None:
            try:
                self._answers.get_nowait()
            except queue.Empty:
                return False
        self._asked_at = time.monotonic()
        self._calls.put(call)
        return True

    def answer(self, until: float) -> T:
        """The answer, waiting until the monotonic time `until`.

        Raises `TimeoutError` if there is none by then, and whatever the call raised.
        """
        try:
            value, error = self._answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise TimeoutError from None
        self._asked_at = None
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # None here is T's own None

    def rest(self, until: float) -> bool:
        """Whether no call is under way, or it ends before the monotonic time `until`.

        Its answer is dropped.
        """
        if self._asked_at is None:
            return True
        try:
            self._answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return False
        self._asked_at = None
        return True

    def stop(self) -> None:
        """Let the thread end after the current call."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                self._answers.put((call(), None))
            except Exception as error:
                self._answers.put((None, error))


# The GPUs of this machine through NVML, each read in a thread of its own.
#
# No driver is a normal case: `unavailable_reason` says why and there are no devices. A GPU that
# is lost, or whose driver call hangs, shows it on its own card and holds up nothing else.

OPEN_TIMEOUT_S = 5.0
"""How long the driver may take to start, and again to list the facts of its GPUs."""

POLL_TIMEOUT_S = 0.5
"""How long one tick waits for a GPU; the slowest call measured took 0.034 s."""

SETTLE_TIMEOUT_S = 2.0
"""How long preparing the counters and reading the topology may take; if the driver hangs there, the
topology is left out.
"""

STATUS_EVERY_S = 5.0
"""How often slow or seldom changing values are read."""

# What a GPU's worker answers to open, to poll and to close.
_Answer = GpuFacts | DeviceReading | None


class _Gpu(msgspec.Struct):
    """A GPU with its two threads: one for ticks, one for slow calls."""

    device: Device
    worker: Worker[_Answer]
    slow: Worker[SlowReading]
    asked_s: float | None = None
    """When the status was last requested, on the monotonic clock."""
    told_xids: int = 0

    @property
    def index(self) -> int:
        return self.device.index


def missing_gpus(only: Sequence[int]) -> str | None:
    """One line if `only` names GPUs that do not exist; None if all exist or there is no driver.

    Leaves the driver initialized, so that the next caller need not wait for it.
    """
    opener: Worker[Opened] = Worker("nvml-only")
    opener.ask(lambda: open_library(only, None))
    try:
        opened = opener.answer(time.monotonic() + OPEN_TIMEOUT_S)
    except (TimeoutError, DriverError):
        return None
    finally:
        opener.stop()
    reason = opened.chosen.reason
    return reason if reason != NO_GPU else None


class Nvml:
    """The chosen GPUs. Opening never raises; `unavailable_reason` says what is missing.

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
        self._library: DriverLibrary | None = None
        self._gpus: list[_Gpu] = []
        opener: Worker[Opened] = Worker("nvml-open")
        opener.ask(lambda: open_library(only, visible))
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
        self.unavailable_reason = opened.chosen.reason
        self._open_devices(opened.chosen, open_timeout_s)

    def poll(self, processes: bool, process_use: Collection[int]) -> list[DeviceReading]:
        """One reading of each GPU, in parallel; with `processes`, also who is on it. Their use is
        measured anew on the GPUs in `process_use`.

        A GPU that does not answer in time is waited for once, then skipped until it does: its
        reading holds only the reason.
        """
        asked = {
            gpu.index
            for gpu in self._gpus
            if gpu.worker.ask(
                functools.partial(gpu.device.poll, processes, gpu.index in process_use)
            )
        }
        # One deadline for all: several that hang hold up a tick no longer than one does.
        until = time.monotonic() + self._poll_timeout_s
        readings = []
        for gpu in self._gpus:
            try:
                if gpu.index not in asked:
                    raise TimeoutError
                answer = gpu.worker.answer(until)
                assert isinstance(answer, DeviceReading)
                readings.append(answer)
            except TimeoutError:
                reason = f"no answer for {_coarse(gpu.worker.waiting_s)}"
                readings.append(DeviceReading.without(gpu.index, reason))
        return readings

    def statuses(self, wait_s: float = 0.0, *, energy: bool = True) -> list[GpuStatus | GpuEnergy]:
        """The slow readings since the last call: each GPU's status and energy, every few seconds
        and after an Xid; with `energy`, the energy each time. Starts the next readings, and waits
        at most `wait_s` for those that are under way."""
        answers = self._slow_answers(time.monotonic())
        for gpu in self._gpus:
            self._ask_slowly(gpu, energy)
        return answers + self._slow_answers(time.monotonic() + wait_s)

    def energies(self, wait_s: float) -> list[GpuStatus | GpuEnergy]:
        """The energy of each GPU now, where its counter answers within `wait_s`."""
        until = time.monotonic() + wait_s
        answers = self._slow_answers(until)
        for gpu in self._gpus:
            if gpu.device.handle is not None and not gpu.slow.is_busy:
                gpu.slow.ask(gpu.device.read_energy)
        return answers + self._slow_answers(until)

    def _slow_answers(self, until: float) -> list[GpuStatus | GpuEnergy]:
        """What the slow calls under way give until then."""
        answers: list[GpuStatus | GpuEnergy] = []
        for gpu in self._gpus:
            if not gpu.slow.is_busy:
                continue
            try:
                reading = gpu.device.slow = gpu.slow.answer(until)
            except TimeoutError:
                continue
            answers += [answer for answer in (reading.status, reading.energy) if answer is not None]
        return answers

    @staticmethod
    def _ask_slowly(gpu: _Gpu, energy: bool) -> None:
        if gpu.device.handle is None or gpu.slow.is_busy:
            return
        now, xids = time.monotonic(), gpu.device.xid_count
        due = (
            gpu.asked_s is None
            or now - gpu.asked_s >= STATUS_EVERY_S
            or xids != gpu.told_xids
            or "status" in gpu.device.slow.reasons  # it was lost, and may be back
        )
        if due:
            gpu.asked_s, gpu.told_xids = now, xids
        if due or energy or gpu.device.needs_pcie:
            gpu.slow.ask(functools.partial(gpu.device.read_slowly, due, energy))

    def close(self) -> None:
        """Free the driver's objects. Waits at most a second, even if the driver hangs."""
        until = time.monotonic() + 0.5
        idle = True
        closing = []
        for gpu in self._gpus:
            # A slow call under way still uses its handles: leave them.
            if not gpu.slow.rest(until) or not gpu.worker.ask(gpu.device.close):
                idle = False
            else:
                closing.append(gpu.worker)
        for worker in closing:
            try:
                worker.answer(until)
            except TimeoutError:
                idle = False
            except DriverError:
                pass  # a lost GPU frees nothing; the driver goes on without it
        for gpu in self._gpus:
            gpu.worker.stop()
            gpu.slow.stop()
        self._gpus = []
        library, self._library = self._library, None
        # Shut down under a call that is under way, the driver frees what that call uses.
        if library is None or not idle:
            return
        closer: Worker[None] = Worker("nvml-close")
        closer.ask(library.shutdown)
        with contextlib.suppress(TimeoutError, DriverError):
            closer.answer(time.monotonic() + 0.5)
        closer.stop()

    def _open_devices(self, chosen: ChosenGpus, timeout_s: float) -> None:
        library = self._library
        assert library is not None
        for index in chosen.indexes:
            device = Device(library, index, chosen.instance)
            gpu = _Gpu(device, Worker(f"nvml-{index}"), Worker(f"nvml-slow-{index}"))
            gpu.worker.ask(device.open)
            self._gpus.append(gpu)
        until = time.monotonic() + timeout_s
        facts: dict[int, GpuFacts] = {}
        for gpu in self._gpus:
            try:
                answer = gpu.worker.answer(until)
                assert isinstance(answer, GpuFacts)
                facts[gpu.index] = answer
            except (TimeoutError, DriverError):
                facts[gpu.index] = GpuFacts(index=gpu.index, uuid="", name=f"GPU {gpu.index}")
        ways = self._settle(library)
        self.facts = tuple(
            msgspec.structs.replace(gpu, topology=ways.get(index, {}))
            for index, gpu in facts.items()
        )

    def _settle(self, library: DriverLibrary) -> dict[int, dict[int, str]]:
        """Prepare the counters, one GPU at a time; returns the topology.

        Nothing else calls the driver meanwhile.
        """
        opened = [gpu.device for gpu in self._gpus if gpu.device.handle is not None]

        def settle() -> dict[int, dict[int, str]]:
            for device in opened:
                device.warm()
            handles = {device.index: device.handle for device in opened if device.handle}
            return read_topology(library, handles) if len(handles) > 1 else {}

        settler: Worker[dict[int, dict[int, str]]] = Worker("nvml-settle")
        settler.ask(settle)
        try:
            return settler.answer(time.monotonic() + SETTLE_TIMEOUT_S)
        except (TimeoutError, DriverError):
            return {}
        finally:
            settler.stop()


def _coarse(seconds: float) -> str:
    """A rounded time, so that the reason does not change each tick."""
    if seconds < 1:
        return "a moment"
    if seconds >= 60:
        return f"{int(seconds // 60)} min"
    return f"{max(step for step in (1, 2, 5, 10, 20, 30) if step <= seconds)} s"
