"""The whole machine as events, for the sampler's thread: its GPUs, the host around them, and steps
of the wall clock meanwhile.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from gputui.base import VERSION
from gputui.base.sanitize import sanitize
from gputui.collect import NOTHING_WRITTEN, Written, memory_by_name, used_bytes
from gputui.collect.nvml.device import Turns
from gputui.collect.nvml.gpus import Nvml
from gputui.collect.processes import ProcessTable
from gputui.model.events import (
    JOURNAL_SCHEMA,
    AnyEvent,
    GpuUnavailable,
    Header,
    HostFacts,
    HostSample,
    HostUnavailable,
    MachineSample,
)

# --- The host around the GPUs, as /proc has it.

# If /proc is missing, hidden or malformed.
_UNREADABLE = (OSError, ValueError, LookupError)


def host_facts() -> HostFacts:
    """Facts of this host that do not change. Never raises."""
    try:
        total = memory_by_name()["MemTotal"]
    except _UNREADABLE:
        total = 0
    return HostFacts(
        hostname=sanitize(platform.node(), 255) or "unknown",
        system=_system(),
        cpu_model=_cpu_model(),
        cpu_count=os.cpu_count() or 1,
        memory_total_bytes=total,
    )


_INFINIBAND = Path("/sys/class/infiniband")
# Data of a port is counted in words (Documentation/ABI/stable/sysfs-class-infiniband).
_WORD_BYTES = 4


class InfiniBandReader:
    """Rates of all ports of all adapters, since the previous reading."""

    def __init__(self, folder: Path = _INFINIBAND) -> None:
        self._folder = folder
        self._before: tuple[int, int, int] | None = None

    def rates(self) -> tuple[float | None, float | None]:
        """Bytes a second sent and received; None where the host has no port, at the first reading,
        and where a counter was set back. Raises OSError and ValueError."""
        ports = [*self._folder.glob("*/ports/*/counters")]
        if not ports:
            return None, None
        sent, received = (
            _WORD_BYTES * sum(int((port / name).read_text(encoding="ascii")) for port in ports)
            for name in ("port_xmit_data", "port_rcv_data")
        )
        before, self._before = self._before, (time.monotonic_ns(), sent, received)
        if before is None:
            return None, None
        passed_s = (self._before[0] - before[0]) / 1e9
        moved = (sent - before[1], received - before[2])
        if passed_s <= 0 or min(moved) < 0:
            return None, None
        return moved[0] / passed_s, moved[1] / passed_s


class HostReader:
    """Reads the host. CPU use covers the time since the previous reading, so the first has none."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None
        self._infiniband = InfiniBandReader()

    def sample(self) -> tuple[HostSample, dict[str, str]]:
        """One reading, and the reason for each field that is None."""
        reasons: dict[str, str] = {}
        cpu = used = load = swap = None
        try:
            cpu = self._cpu_percent()
            if cpu is None:
                reasons["cpu_percent"] = "measured from the second reading on"
        except _UNREADABLE as error:
            reasons["cpu_percent"] = sanitize(f"/proc/stat cannot be read: {error}", 200)
        try:
            memory = memory_by_name()
            used, swap = used_bytes(memory), memory["SwapTotal"] - memory["SwapFree"]
        except _UNREADABLE as error:
            why = sanitize(f"/proc/meminfo cannot be read: {error}", 200)
            reasons |= dict.fromkeys(("memory_used_bytes", "swap_used_bytes"), why)
        try:
            load = float(os.getloadavg()[0])
        except OSError:
            reasons["load_1m"] = "this system has no load average"
        sent = received = None
        try:
            sent, received = self._infiniband.rates()
        except _UNREADABLE as error:
            why = sanitize(f"{_INFINIBAND} cannot be read: {error}", 200)
            names = ("infiniband_sent_bytes_per_s", "infiniband_received_bytes_per_s")
            reasons |= dict.fromkeys(names, why)
        sample = HostSample(
            cpu_percent=cpu,
            memory_used_bytes=used,
            load_1m=load,
            swap_used_bytes=swap,
            infiniband_sent_bytes_per_s=sent,
            infiniband_received_bytes_per_s=received,
        )
        return sample, reasons

    def _cpu_percent(self) -> float | None:
        with open("/proc/stat", "rb") as file:
            # What guests use is in what users use (proc_stat(5)).
            ticks = [int(count) for count in file.readline().split()[1:9]]
        all_ticks = sum(ticks)
        before, self._before = self._before, (all_ticks - ticks[3] - ticks[4], all_ticks)
        if before is None:
            return None
        busy, passed = self._before[0] - before[0], self._before[1] - before[1]
        # Waiting for disks may be counted back.
        return round(min(100.0, max(0.0, 100 * busy / passed)), 1) if passed > 0 else 0.0


def _system() -> str:
    """The distribution as people name it ("Ubuntu 24.04"), or the kernel."""
    try:
        release = platform.freedesktop_os_release()
    except (OSError, ValueError):  # missing, or not UTF-8
        return sanitize(f"{platform.system()} {platform.release()}", 120)
    name = f"{release.get('NAME', 'Linux')} {release.get('VERSION_ID', '')}"
    return sanitize(name.strip(), 120)


def _cpu_model() -> str | None:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() in ("model name", "Model"):
                    return sanitize(value.strip(), 120)
    except OSError:
        pass
    return sanitize(platform.processor(), 120) or None


# Wall clocks that are set while gputui watches, as by NTP after a start with a wrong time.

LEAST_NS = 50_000_000
"""What NTP corrects it slews, at most 0.5 ms a second, unless it is off by more (ntpd 128 ms)."""

# Two readings this far apart, or more, had another process between them.
_CLOSE_NS = 5_000_000


def _steady_ns() -> int:
    # Not CLOCK_MONOTONIC, which stands still while the machine sleeps.
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class ClockSteps:
    """How far the wall clock ran away from one that is never set, from reading to reading."""

    def __init__(
        self, wall: Callable[[], int] = time.time_ns, steady: Callable[[], int] = _steady_ns
    ) -> None:
        self._wall, self._steady = wall, steady
        self._ahead_ns: int | None = None

    def read(self) -> int | None:
        """How far it was set since the last reading; None where it was not."""
        before_ns = self._steady()
        wall_ns = self._wall()
        if self._steady() - before_ns >= _CLOSE_NS:
            return None  # the next reading has it
        ahead_ns = wall_ns - before_ns
        step_ns = 0 if self._ahead_ns is None else ahead_ns - self._ahead_ns
        self._ahead_ns = ahead_ns
        return step_ns if abs(step_ns) >= LEAST_NS else None


# The whole machine as events: what the sampler's thread does at its start and at each tick.

PROCESSES_EVERY_NS = 1_900_000_000
"""Listing processes costs as much as four ticks without. Two seconds, less a tick's jitter."""

ENERGY_S = 0.1
"""How long to wait for the energy counters; the slowest call measured took 0.034 s."""

FIRST_STATUS_S = 0.5
"""How long the first tick waits for slow readings, so that `--once` has them."""


def bare_header(arguments: Sequence[str], interval_s: float, reason: str | None) -> Header:
    """The header of a session on this host without GPUs, for `reason`."""
    return Header(
        time_ns=time.time_ns(),
        schema=JOURNAL_SCHEMA,
        gputui_version=VERSION,
        python_version=platform.python_version(),
        monotonic_ns=time.monotonic_ns(),
        arguments=tuple(arguments),
        interval_s=interval_s,
        host=host_facts(),
        gpu_unavailable_reason=reason,
    )


class MachineReader:
    """GPUs, host and processes of this machine. Used from one thread. Close it.

    Opening takes a first reading that only starts the counters; rates are right from 100 ms later
    on.
    """

    def __init__(
        self, only: Sequence[int] | None, arguments: Sequence[str], interval_s: float
    ) -> None:
        self._host = HostReader()
        self._processes = ProcessTable()
        self._nvml = Nvml(only, os.environ.get("CUDA_VISIBLE_DEVICES"))
        self.header = msgspec.structs.replace(
            bare_header(arguments, interval_s, self._nvml.unavailable_reason),
            driver_version=self._nvml.driver_version,
            cuda_driver_version=self._nvml.cuda_driver_version,
            gpus=self._nvml.facts,
        )
        self._said_gpu: dict[int, dict[str, str]] = {}
        self._said_host: dict[str, str] = {}
        self._process_reasons: dict[str, str] = {}
        self._status_told = False
        self._processes_ns: int | None = None
        self._use_turns = Turns([gpu.index for gpu in self._nvml.facts])
        self._clock = ClockSteps()
        self._clock.read()
        self._cpu_ns = time.process_time_ns()
        self._cpu_since_ns = time.monotonic_ns()
        self._start_counters()
        self.opened_ns = time.monotonic_ns()
        """When the first reading ended, on the monotonic clock."""

    def tick(self, written: Written = NOTHING_WRITTEN, *, energy: bool = True) -> list[AnyEvent]:
        """The reasons that changed, then the sample, including the disk space in `written`; with
        `energy`, the energy counters too, which are else read every few seconds only."""
        wait_s = 0.0 if self._status_told else FIRST_STATUS_S
        statuses = self._nvml.statuses(wait_s, energy=energy)
        self._status_told = True
        processes_due = self._processes_due()
        readings = self._nvml.poll(processes_due, self._use_turns.next_turn(time.monotonic_ns()))
        processes = None
        if processes_due:
            processes, self._process_reasons = self._processes.update(
                (reading.sample.index, reading) for reading in readings
            )
        host, host_reasons = self._host.sample()
        now_ns = time.time_ns()
        events: list[AnyEvent] = []
        for reading in readings:
            index = reading.sample.index
            if reading.reasons != self._said_gpu.get(index, {}):
                self._said_gpu[index] = reading.reasons
                events.append(GpuUnavailable(time_ns=now_ns, gpu=index, reasons=reading.reasons))
        reasons = host_reasons | self._process_reasons
        if not self._nvml.facts:
            reasons["processes"] = self._nvml.unavailable_reason or "there is no GPU to ask"
        if reasons != self._said_host:
            self._said_host = reasons
            events.append(HostUnavailable(time_ns=now_ns, reasons=reasons))
        events.append(
            MachineSample(
                time_ns=now_ns,
                host=host,
                gpus=tuple(reading.sample for reading in readings),
                processes=processes,
                launchers=() if processes is None else self._processes.launchers,
                own_cpu_percent=self._own_cpu_percent(),
                recorded_bytes=written[0],
                traced_bytes=written[1],
                clock_set_ns=self._clock.read(),
            )
        )
        events.extend(statuses)
        return events

    def energies(self) -> list[AnyEvent]:
        """The energy counters as they are now; waits a tenth of a second at most."""
        return [*self._nvml.energies(ENERGY_S)]

    def close(self) -> None:
        """Release the driver. Takes at most about a second."""
        self._nvml.close()

    def _start_counters(self) -> None:
        self._nvml.statuses()
        readings = self._nvml.poll(True, self._use_turns.next_turn(time.monotonic_ns()))
        self._processes.update((reading.sample.index, reading) for reading in readings)
        self._host.sample()

    def _processes_due(self) -> bool:
        if not self._nvml.facts:
            return False
        now_ns = time.monotonic_ns()
        if self._processes_ns is not None and now_ns - self._processes_ns < PROCESSES_EVERY_NS:
            return False
        self._processes_ns = now_ns
        return True

    def _own_cpu_percent(self) -> float:
        cpu_ns, now_ns = time.process_time_ns(), time.monotonic_ns()
        spent, passed = cpu_ns - self._cpu_ns, max(1, now_ns - self._cpu_since_ns)
        self._cpu_ns, self._cpu_since_ns = cpu_ns, now_ns
        return 100 * spent / passed
