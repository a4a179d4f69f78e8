"""The host around the GPUs, through psutil."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

from gputui.base.sanitize import sanitize
from gputui.model.events import HostFacts, HostSample

_UNREADABLE = (OSError, psutil.Error, RuntimeError, ValueError)
"""What psutil raises if /proc is missing, hidden or malformed."""


def host_facts() -> HostFacts:
    """Facts of this host that do not change. Never raises."""
    try:
        memory = int(psutil.virtual_memory().total)
    except _UNREADABLE:
        memory = 0
    return HostFacts(
        hostname=sanitize(platform.node(), 255) or "unknown",
        system=_system(),
        cpu_model=_cpu_model(),
        cpu_count=int(psutil.cpu_count() or os.cpu_count() or 1),
        memory_total_bytes=memory,
    )


class Host:
    """Reads the host. CPU use covers the time since the previous reading, so the first has none."""

    def __init__(self) -> None:
        self._primed = False

    def sample(self) -> tuple[HostSample, dict[str, str]]:
        """One reading, and the reason for each field that is None."""
        reasons: dict[str, str] = {}
        cpu = used = load = swap = None
        try:
            cpu = float(psutil.cpu_percent(interval=None))
        except _UNREADABLE as error:
            reasons["cpu_percent"] = sanitize(f"/proc/stat cannot be read: {error}", 200)
        if cpu is not None and not self._primed:
            cpu = None
            reasons["cpu_percent"] = "measured from the second reading on"
        self._primed = True
        try:
            memory = psutil.virtual_memory()
            used = int(memory.total - memory.available)
        except _UNREADABLE as error:
            reasons["memory_used_bytes"] = sanitize(f"/proc/meminfo cannot be read: {error}", 200)
        try:
            load = float(os.getloadavg()[0])
        except OSError:
            reasons["load_1m"] = "this system has no load average"
        try:
            swap = int(psutil.swap_memory().used)
        except _UNREADABLE as error:
            reasons["swap_used_bytes"] = sanitize(f"/proc/meminfo cannot be read: {error}", 200)
        sample = HostSample(
            cpu_percent=cpu, memory_used_bytes=used, load_1m=load, swap_used_bytes=swap
        )
        return sample, reasons


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
