"""Who may use the GPUs' hardware counters on this machine, and what opens them.

NVIDIA keeps them for administrators since driver 418.43 (RmProfilingAdminOnly), as counters show
what other users' programs do: https://developer.nvidia.com/ERR_NVGPUCTRPERM.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PARAMETERS = Path("/proc/driver/nvidia/params")
STATUS = Path("/proc/self/status")

_SYS_ADMIN, _PERFMON = 21, 38
"""Bits of the capabilities (capabilities(7))."""

PERFMON_SINCE = 565
"""The first driver to which CAP_PERFMON is enough (NVIDIA's page above)."""

_OPENING = (
    "an administrator puts `options nvidia NVreg_RestrictProfilingToAdminUsers=0` into "
    "/etc/modprobe.d and restarts the machine or reloads the driver; or run gputui with "
    "CAP_SYS_ADMIN, in a container with --cap-add=SYS_ADMIN"
)


class CounterRights(NamedTuple):
    """Whether they are open to this process (None: not known), in words, and what opens them."""

    is_open: bool | None
    detail: str
    opening: str | None = None


def counter_rights(
    parameters: Path = PARAMETERS, status: Path = STATUS, driver: int | None = None
) -> CounterRights:
    """By the driver's parameters and this process's capabilities; `driver` is the number of the
    driver's branch, as 580. Never raises."""
    restricted = _number(parameters, r"^RmProfilingAdminOnly:\s*(\d+)")
    if restricted is None:
        return CounterRights(None, f"{parameters} does not say who may use them")
    if restricted == 0:
        return CounterRights(True, "open to every user (RmProfilingAdminOnly is 0)")
    capabilities = _number(status, r"^CapEff:\s*([0-9a-fA-F]+)", 16) or 0
    only = "kept for administrators (RmProfilingAdminOnly is 1)"
    if capabilities >> _SYS_ADMIN & 1:
        return CounterRights(True, f"{only}; this process has CAP_SYS_ADMIN")
    if capabilities >> _PERFMON & 1 and (driver or 0) >= PERFMON_SINCE:
        return CounterRights(True, f"{only}; this process has CAP_PERFMON")
    return CounterRights(False, only, _OPENING)


def _number(path: Path, pattern: str, base: int = 10) -> int | None:
    try:
        with path.open("rb") as file:
            text = file.read(1 << 16).decode("utf-8", "replace")
    except OSError:
        return None
    match = re.search(pattern, text, re.MULTILINE)
    return int(match[1], base) if match is not None else None
