"""Ranks that died, ran out of memory, failed, or hang while the others wait in a collective.

A launcher blames whom it saw first: after a time-out that is a rank which waited. Of a hang the
rank is named that is *not* in the collective, whoever was ended for it afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gputui.model.units import duration
from gputui.report.explain.finding import Finding, RunRule
from gputui.report.explain.hung_ranks import EVEN_STEPS, hangs
from gputui.report.explain.members import rank_processes
from gputui.state import Run, Session

_RANK_LINE = re.compile(r"^\[rank(\d{1,6})\]: ?(.*)")
_ERROR = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit))(?::|$)")
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|CUDA out of memory|DefaultCPUAllocator")
_ABORTED = re.compile(
    r"DistBackendError|DistNetworkError|DistStoreError|Connection (reset|closed)|Timed out waiting"
    r"|^KeyboardInterrupt|SignalException"
)
"""What a rank fails with because another one is gone, or because all were stopped."""


def lost_ranks(session: Session, run: Run) -> Iterator[Finding]:
    """One finding at most: the first cause, not what followed from it."""
    _, aborted = _errors(run)  # no longer in the collective, for whose sake they failed
    yield from _failed(run) or hangs(run, aborted) or _ended_early(run) or _died(session, run)


def _failed(run: Run) -> tuple[Finding, ...]:
    """What torch prints of an exception is marked with the rank."""
    errors, _ = _errors(run)
    if not errors:
        return ()
    rank, text = next(iter(errors.items()))
    if _OUT_OF_MEMORY.search(text):
        return (
            _finding(
                "rank_out_of_memory",
                f"rank {rank} out of memory",
                f"Rank {rank} ran out of memory{_others(errors)}: {text[:200]}",
                "less work for that rank, activation checkpointing, or sharded states",
            ),
        )
    return (
        _finding(
            "rank_failed",
            f"rank {rank} failed",
            f"Rank {rank} failed first{_others(errors)}: {text[:200]}",
            "read its traceback in the output",
        ),
    )


def _errors(run: Run) -> tuple[dict[int, str], set[int]]:
    """The first error of each rank that failed by itself, and the ranks that others took along."""
    errors: dict[int, str] = {}
    aborted: set[int] = set()
    for line in run.log:
        of_rank = _RANK_LINE.match(line.text)
        if of_rank is None or not (_ERROR.match(of_rank[2]) or _OUT_OF_MEMORY.search(of_rank[2])):
            continue
        if _ABORTED.search(of_rank[2]):
            aborted.add(int(of_rank[1]))
        else:
            errors.setdefault(int(of_rank[1]), of_rank[2])
    return errors, aborted


def _others(errors: dict[int, str]) -> str:
    more = len(errors) - 1
    return f", and {more} more" if more else ""


AT_ONCE_NS = 1_000_000_000
"""Within this the end of one rank may be seen before that of another which ended first. Then it was
the one that had begun fewer collectives: the others waited for it."""


def _entered(run: Run, process: int) -> int:
    return sum(sums.entered for key, sums in run.collectives.items() if key.process == process)


def _first(run: Run, ended_ns: Mapping[int, int]) -> int:
    """Which of these processes ended first."""
    earliest_ns = min(ended_ns.values())
    at_once = [process for process, ns in ended_ns.items() if ns - earliest_ns < AT_ONCE_NS]
    return min(at_once, key=lambda process: (_entered(run, process), ended_ns[process]))


def _died(session: Session, run: Run) -> tuple[Finding, ...]:
    """The first to vanish, while others went on."""
    ranked = rank_processes(run)
    gone = {
        process: detached.time_ns
        for process in ranked
        if (detached := run.processes[process].detached) is not None
        and not detached.clean
        and not run.was_asked_to_end(detached.time_ns)
    }
    if not gone or len(ranked) < 2 or run.is_cut_off:
        return ()
    first = _first(run, gone)
    still = sum(run.processes[process].detached is None for process in ranked)
    if not still and len(gone) < 2 and run.ended is not None and run.ended.exit_code == 0:
        return ()
    since_ns = max(0, session.time_ns - gone[first])
    others = "1 other still runs" if still == 1 else f"{still} others still run"
    went_on = f"; {others}, {duration(since_ns)} later" if still else ""
    return (
        _finding(
            "rank_died",
            f"rank {ranked[first]} died",
            f"Rank {ranked[first]} (pid {run.processes[first].attached.pid}) vanished without "
            f"ending properly{went_on}",
            "killed, perhaps for host memory: look at dmesg and at the launcher's exit codes",
        ),
    )


def _ended_early(run: Run) -> tuple[Finding, ...]:
    """The first to end properly, where others failed in a collective for want of it."""
    _, aborted = _errors(run)
    ranked = rank_processes(run)
    ended = {
        process: ended_ns
        for process in ranked
        if (ended_ns := run.processes[process].ended_ns) is not None
        and not run.was_asked_to_end(ended_ns)
    }
    if not aborted or not ended or run.is_cut_off:
        return ()
    first = _first(run, ended)
    rank, detached = ranked[first], run.processes[first].detached
    if rank in aborted or detached is None or not detached.clean:
        return ()
    return (
        _finding(
            "rank_ended_early",
            f"rank {rank} ended early",
            f"Rank {rank} ended before the others, whose collectives then failed",
            EVEN_STEPS,
        ),
    )


def _finding(rule: str, word: str, sentence: str, advice: str) -> Finding:
    return Finding(rule, word, sentence, advice, 1, 0, "gputui", leads=True, ends_run=True)


RULES = (RunRule(5, lost_ranks),)
