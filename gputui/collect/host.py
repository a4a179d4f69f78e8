"""The host around the GPUs, as /proc has it."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

from gputui.base.sanitize import sanitize
from gputui.model.events import HostFacts, HostSample

# If /proc is missing, hidden or malformed.
_UNREADABLE = (OSError, ValueError, LookupError)


def host_facts() -> HostFacts:
    """Facts of this host that do not change. Never raises."""
    try:
        total = _memory()["MemTotal"]
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
            memory = _memory()
            used, swap = _used(memory), memory["SwapTotal"] - memory["SwapFree"]
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


def memory_bytes() -> tuple[int, int]:
    """(all, used) of the host. Raises OSError, ValueError or LookupError."""
    memory = _memory()
    return memory["MemTotal"], _used(memory)


def _used(memory: dict[str, int]) -> int:
    # In containers what is available may be the host's.
    return max(0, memory["MemTotal"] - memory["MemAvailable"])


def _memory() -> dict[str, int]:
    """Bytes by the name in /proc/meminfo."""
    sizes_bytes = {}
    with open("/proc/meminfo", encoding="ascii", errors="replace") as file:
        for line in file:
            name, _, rest = line.partition(":")
            sizes_bytes[name] = int(rest.split()[0]) * 1024
    return sizes_bytes


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
