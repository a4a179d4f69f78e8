"""Why a recording lacks figures: never 0, never without a reason.

Reports of other tools lack figures that gputui records, a run may have ended before some were
known, and records may have been lost. The reason is deduced from what a recording has, not from
the kind of file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from gputui.model.steps import HELD_NS
from gputui.model.units import count
from gputui.report.schema import ROWS
from gputui.state import Run

REASON = "not measured when this was recorded"
"""Why a figure is missing."""


def has_idle_times(run: Run, process: int, device: int) -> bool:
    """Whether gaps and overlap of a process's work on a device were measured.

    A device of which neither is there had no gap and one stream, or it was not measured: then the
    figures of single streams, which came with them, are missing too.
    """
    use = run.timing.devices.get((process, device))
    if use is None or not use.operations:
        return True
    return (
        bool(use.idle is not None and use.idle.count)
        or bool(use.overlap_ns)
        or any(
            (stream.process, stream.device) == (process, device)
            for stream in run.timing.streams.values()
        )
    )


def why_unaccounted(run: Run) -> str:
    """Why it is not known where the time of a run went in which kernels ran."""
    if run.is_active:
        # Or was, where the recording ends before the run.
        return f"The steps are not known yet: that takes up to {HELD_NS / 1e9:g} s of GPU work."
    return f"Where the time went was {REASON}."


def has_streams(run: Run) -> bool:
    """Whether streams, and the launches of threads, were measured if anything ran."""
    return bool(run.timing.streams) or not run.devices


def has_idle_ranges(run: Run) -> bool:
    """Whether the range in which a GPU was idle was recorded, if one was idle."""
    return bool(run.timing.idle_by_range() or not run.ranges) or all(
        has_idle_times(run, use.process, use.device) and not (use.idle and use.idle.total)
        for use in run.timing.devices.values()
    )


def has_shapes(run: Run) -> bool:
    """Whether the launch shapes of kernels were recorded, if there are kernels."""
    return bool(run.shapes) or not run.kernels


def empty_of_kernels(run: Run, rows: Sequence[object]) -> Mapping[str, str]:
    """Why a table is empty though kernels ran."""
    return {ROWS: REASON} if run.kernels and not rows else {}


def no_rows_unless(measured: Callable[[Run], bool]) -> Callable[[Run, object], Mapping[str, str]]:
    """Why a table is empty if its subject was not `measured`."""
    return lambda run, _rows: {} if measured(run) else {ROWS: REASON}


# Why records of a run were lost, in words.

# Domains named in one sentence; the others are counted. Chosen for its length.
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
        lost_on_gpus = [loss.records for loss in process.losses.values() if loss.cause in _ON_GPUS]
        lost += sum(lost_on_gpus) if process.losses else process.dropped
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
