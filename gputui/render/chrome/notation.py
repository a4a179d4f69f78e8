"""How moments and names are written in a trace."""

from __future__ import annotations

import json

UNKNOWN = '"(unknown)"'
"""The name of what was never defined."""


def us(ns: int) -> str:
    """Nanoseconds as microseconds with three decimals, without rounding."""
    if ns < 0:
        return f"-{-ns // 1000}.{-ns % 1000:03d}"
    return f"{ns // 1000}.{ns % 1000:03d}"


def named(what: str, pid: int, tid: int, name: str) -> str:
    """The name of a process or a thread: a complete event, without what follows it."""
    return json.dumps(
        {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}
    )
