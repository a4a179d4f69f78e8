"""Why records of a run were lost, in words."""

from __future__ import annotations

from collections import Counter

from gputui.model.units import count
from gputui.state import Run

_MOST_DOMAINS = 4

_WORDS = {
    "ring": "because the ring was full",
    "unread": "left in the ring at the end",
    "cupti": "because CUPTI's buffers were full",
    "domains": "a thread had ranges open in 32 others",
    "deferred": "deferred events are not supported",
    "places": "because more ranges were open at once than are followed",
}


def lost_count(run: Run) -> int:
    """How many were lost, for any reason."""
    return sum(process.dropped for process in run.processes.values())


_ON_GPUS = ("ring", "unread", "cupti")
"""Causes by which records of kernels, copies and calls are lost; the others are of ranges."""


def lost_share(run: Run) -> float:
    """Which part of all that was to be captured of GPUs and calls was lost, 0 to 1."""
    lost = records = 0
    for process in run.processes.values():
        records += process.records
        known = [loss.records for loss in process.losses.values() if loss.cause in _ON_GPUS]
        lost += sum(known) if process.losses else process.dropped
    return lost / (lost + records) if lost else 0.0


def why_lost(run: Run) -> str:
    """The causes, largest first: "12 because the ring was full; 8 in domains a, b: …"; empty for
    an older recording, which lacks them.
    """
    causes: Counter[str] = Counter()
    domains: dict[str, Counter[str]] = {"domains": Counter(), "deferred": Counter()}
    for process in run.processes.values():
        for loss in process.losses.values():
            causes[loss.cause] += loss.records
            if loss.cause in domains:
                domains[loss.cause][loss.domain or "default"] += loss.records
    return "; ".join(
        f"{count(records)} {_of_domains(domains[cause]) if cause in domains else ''}{_WORDS[cause]}"
        for cause, records in causes.most_common()
    )


def _of_domains(domains: Counter[str]) -> str:
    names = ", ".join(name for name, _ in domains.most_common(_MOST_DOMAINS))
    more = len(domains) - _MOST_DOMAINS
    return (
        f"in {'domain' if len(domains) == 1 else 'domains'} {names}"
        f"{f' and {more} more' if more > 0 else ''}: "
    )
