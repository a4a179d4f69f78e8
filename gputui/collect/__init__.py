"""Live sources: each turns something outside gputui into events."""

from __future__ import annotations

Written = tuple[int | None, int | None]
"""The disk space of what is recorded, for whoever samples it: the bytes of the recording and of the
trace beside it; None for one that is not written. It is here because the sampler imports nothing
heavy."""

NOTHING_WRITTEN: Written = (None, None)


def memory_bytes() -> tuple[int, int]:
    """(all, used) of the host. Raises OSError, ValueError or LookupError."""
    memory = memory_by_name()
    return memory["MemTotal"], used_bytes(memory)


def used_bytes(memory: dict[str, int]) -> int:
    """The used memory in bytes, by the sizes by name. In containers the available memory may be the
    host's."""
    return max(0, memory["MemTotal"] - memory["MemAvailable"])


def memory_by_name() -> dict[str, int]:
    """Bytes by the name in /proc/meminfo."""
    sizes_bytes = {}
    with open("/proc/meminfo", encoding="ascii", errors="replace") as file:
        for line in file:
            name, _, rest = line.partition(":")
            sizes_bytes[name] = int(rest.split()[0]) * 1024
    return sizes_bytes
