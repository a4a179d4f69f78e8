"""Ranks that died, ran out of memory, failed, or hang while the others wait in a collective.

A launcher blames whom it saw first: after a time-out that is a rank which waited. Of a hang the
rank is named that is *not* in the collective, whoever was ended for it afterwards.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from gputui.model.units import duration
from gputui.report.explain.finding import Finding, RunRule, rank_names
from gputui.report.explain.rank_waits import rank_processes
from gputui.report.explain.time_tree import time_tree
from gputui.state import Run, Session

HANGS_NS = 10_000_000_000
HANGS_STEPS = 20
"""Nothing for this long, and for as many usual steps, is no slow step."""

MOST_NAMED = 4
"""Of more ranks their number is enough."""

EVEN_STEPS = "give every rank as many steps as the others, with uneven data too"

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
    yield from _failed(run) or _hangs(run) or _ended_early(run) or _died(session, run)


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
        if (detached := run.processes[process].detached) is not None and not detached.clean
    }
    if not gone or len(ranked) < 2 or (run.ended is not None and run.ended.stopped):
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
    }
    if not aborted or not ended or (run.ended is not None and run.ended.stopped):
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


def _hangs(run: Run) -> tuple[Finding, ...]:
    """Who has not begun a collective that the others are in, on any communicator."""
    ranked = rank_processes(run)
    entered: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    inside: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    newest: dict[str, int] = defaultdict(int)
    kinds: dict[str, str] = {}
    ranks: dict[str, int] = defaultdict(int)
    for key, sums in run.collectives.items():
        if key.process not in ranked:
            continue
        name = key.communicator
        entered[name][key.process] += sums.entered
        inside[name][key.process] += sums.entered - sums.left
        ranks[name] = max(ranks[name], sums.ranks)
        if (sums.entered_ns or 0) > newest[name]:
            newest[name] = sums.entered_ns or 0
            kinds[name] = key.kind
    ended = {
        process: detached
        for process in ranked
        if (detached := run.processes[process].detached) is not None
    }
    _, aborted = _errors(run)  # no longer in the collective, for whose sake they failed
    tree = time_tree(run)
    usual_ns = (tree.step_ns.median or 0.0) if tree is not None else 0.0
    least_ns = max(HANGS_NS, HANGS_STEPS * usual_ns)
    for name, counts in entered.items():
        everyone = ranked if ranks[name] == len(ranked) else counts
        most = max(counts.values())
        waiting = [
            process
            for process, count in counts.items()
            if count == most and (inside[name][process] or ranked[process] in aborted)
        ]
        missing = [process for process in everyone if counts.get(process, 0) < most]
        gone = {
            process: ended[process].clean
            for process in missing
            if process in ended and ended[process].time_ns - newest[name] < least_ns
        }
        ends = [ended[one].time_ns for one in (*waiting, *missing) if one in ended.keys() - gone]
        silent_ns = min(ends, default=run.updated_ns) - newest[name]
        if not all(gone.values()) or not waiting or not missing or silent_ns < least_ns:
            continue
        if len(waiting) + len(missing) < len(everyone):
            continue
        if _are_out_of_sight(run, missing, waiting):
            continue
        return (_hang(run, ranked, waiting, missing, kinds[name], silent_ns, least_ns, gone),)
    return ()


def _are_out_of_sight(run: Run, missing: Iterable[int], waiting: Iterable[int]) -> bool:
    """Whether ranks are on a host of which no rank waits and that has not been seen to its end: its
    stream may have ended before the others', and they go on."""
    of_waiting = {run.processes[process].attached.host for process in waiting}
    return any(
        run.processes[process].attached.host not in of_waiting
        and run.processes[process].detached is None
        for process in missing
    )


def _hang(
    run: Run,
    ranked: dict[int, int],
    waiting: list[int],
    missing: list[int],
    kind: str,
    silent_ns: int,
    least_ns: float,
    gone: Collection[int],
) -> Finding:
    who = rank_names((ranked[process] for process in missing), MOST_NAMED)
    they = rank_names((ranked[process] for process in waiting), MOST_NAMED)
    where = {place for process in missing if (place := _open_range(run, process))}
    at = f"; it is in {next(iter(where))}" if len(where) == 1 else ""
    verb = "is" if len(waiting) == 1 else "are"
    if len(gone) == len(missing):
        word, did = "ended early", "ended without coming to"
        advice = EVEN_STEPS
    else:
        word, did = "hangs" if len(missing) == 1 else "hang", "did not come to"
        pid = run.processes[missing[0]].attached.pid
        advice = f"look at its stack: py-spy dump --pid {pid}"
    return Finding(
        "rank_hangs",
        f"{who} {word}",
        f"{who[0].upper()}{who[1:]} {did} the {kind} that {they} {verb} in for "
        f"{duration(silent_ns)}{at}",
        advice,
        silent_ns / 1e9,
        least_ns / 1e9,
        "seconds since the newest collective was begun",
        leads=True,
        ends_run=True,
    )


def _open_range(run: Run, process: int) -> str | None:
    """The innermost range that a process has open, of its own domains."""
    found = [
        node
        for node in run.ranges.values()
        if node.definition.process == process and node.open_since_ns is not None
    ]
    deepest = max(found, key=lambda node: (node.depth, node.open_since_ns or 0), default=None)
    return None if deepest is None else deepest.path


def _finding(rule: str, word: str, sentence: str, advice: str) -> Finding:
    return Finding(rule, word, sentence, advice, 1, 0, "gputui", leads=True, ends_run=True)


RULES = (RunRule(5, lost_ranks),)
