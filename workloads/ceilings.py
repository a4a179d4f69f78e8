"""What `gemm` and `bandwidth` measured on a card, remembered for the workloads that come after."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

BANDWIDTH = "bytes_per_s"
NOT_MEASURED = (
    "no ceiling of this card was measured: run the workloads gemm and bandwidth on it once"
)

Ceilings = dict[str, float]
"""Of one card: operations per second by precision, and bytes per second as `bytes_per_s`."""


def _path(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_DATA_HOME") or os.path.join(
        os.path.expanduser("~"), ".local", "share"
    )
    return Path(base, "gputui", "ceilings.json")


def _all(environment: Mapping[str, str]) -> dict[str, Ceilings]:
    """What the file has; nothing where it is missing or damaged."""
    try:
        by_card = json.loads(_path(environment).read_text(encoding="utf-8"))
        return {
            str(name): {str(key): float(value) for key, value in rates.items() if float(value) > 0}
            for name, rates in by_card.items()
        }
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def measured_ceilings(device_name: str, environment: Mapping[str, str] = os.environ) -> Ceilings:
    """Of the card with the driver's `device_name`, as measured last; empty if it never was."""
    return _all(environment).get(device_name, {})


def remember_ceilings(
    device_name: str,
    rates: Mapping[str, float | None],
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Keep what was measured of a card; the rest of what is known of it stays. A folder that cannot
    be written to remembers nothing.
    """
    by_card = _all(environment)
    measured = {name: rate for name, rate in rates.items() if rate}
    if not measured:
        return
    by_card[device_name] = by_card.get(device_name, {}) | measured
    path = _path(environment)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps(by_card, indent=1) + "\n", encoding="utf-8")
        new.replace(path)
