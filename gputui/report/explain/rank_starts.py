"""Ranks that began long after the others, and hosts whose clocks are apart or were set.

Both show as processes that begin at other times. The collectives distinguish them: all ranks begin
their newest one nearly together, so that what its times are apart is the clocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import median, median_low

from gputui.model.units import duration
from gputui.report.explain.finding import MOST_NAMED, Finding, RunRule, capital, rank_names
from gputui.report.explain.members import hosts, rank_processes
from gputui.report.explain.rank_waits import LEAST_COLLECTIVES
from gputui.state import Run, Session

LATE_START_NS = 10_000_000_000
"""Ranks of a healthy job begin within seconds of each other."""

APART_NS = 10_000_000_000
"""From here on times of two hosts are of two clocks: NTP keeps them within milliseconds."""


def late_starts(_session: Session, run: Run) -> Iterator[Finding]:
    """Ranks for whose start the others waited."""
    ranked = rank_processes(run)
    ahead = clocks_ahead_ns(run)
    are_several = len(hosts(run)) > 1
    began: dict[int, int] = {}
    for process, rank in ranked.items():
        # Without a common collective a start on another host is of another clock.
        if not are_several or _host(run, process) in ahead:
            ns = run.processes[process].began_ns - ahead.get(_host(run, process), 0)
            began[rank] = min(ns, began.get(rank, ns))  # a launcher may have started it again
    if len(began) < 2:
        return
    usual_ns = median_low(began.values())
    after = {rank: ns - usual_ns for rank, ns in began.items()}
    late = {rank: ns for rank, ns in after.items() if ns >= LATE_START_NS}
    if not late or len(late) > len(began) / 2:
        return
    who = rank_names(late, MOST_NAMED)
    longest_ns = max(late.values())
    yield Finding(
        "rank_began_late",
        f"{who} began late",
        f"{capital(who)} began {duration(longest_ns)} after the others, which wait for "
        "all ranks before the first step",
        "look at what comes before its first import: the launcher, a container, the file system",
        longest_ns / 1e9,
        LATE_START_NS / 1e9,
        "seconds after the median of the other ranks' starts",
    )


def clocks_apart(_session: Session, run: Run) -> Iterator[Finding]:
    """Hosts whose clock is far from that of most."""
    for host, ns in sorted(clocks_ahead_ns(run).items()):
        if abs(ns) < APART_NS:
            continue
        way = "ahead of" if ns > 0 else "behind"
        yield Finding(
            "clock_apart",
            f"clock of {host} apart",
            f"The clock of {host} is {duration(abs(ns))} {way} the other hosts': its times and "
            "theirs are apart by as much",
            "set the hosts' clocks by NTP or PTP (chronyc tracking)",
            abs(ns) / 1e9,
            APART_NS / 1e9,
            "seconds between the hosts' times of the same collective",
        )


def clocks_set(_session: Session, run: Run) -> Iterator[Finding]:
    """Clocks that were set while the run went on."""
    if run.clock_set_ns:
        yield Finding(
            "clock_set",
            "a clock was set",
            f"A host's clock was set by {duration(run.clock_set_ns)} while it ran: what went on "
            "then looks longer or shorter by as much",
            "let NTP settle before a run (chronyc waitsync)",
            run.clock_set_ns / 1e9,
            0,
            "seconds between the wall clock and one that is never set",
        )


def clocks_ahead_ns(run: Run) -> Mapping[str, int]:
    """How far each host's clock is ahead of the median of all, of two hosts of that of rank 0, to
    within what ranks come late by; empty where the ranks of several hosts have not all begun the
    same collective.

    A collective may have waited long for one host. A clock that is apart shows in the starts too:
    where those are not apart alike, it is right.
    """
    ranked = rank_processes(run)
    entered: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    for key, sums in run.collectives.items():
        if key.process in ranked:
            count, newest_ns = entered[key.communicator].get(key.process, (0, 0))
            newest_ns = max(newest_ns, sums.entered_ns or 0)
            entered[key.communicator][key.process] = count + sums.entered, newest_ns
    for of in entered.values():
        counts = {count for count, _ in of.values()}
        if len(of) < len(ranked) or len(counts) > 1 or min(counts) < LEAST_COLLECTIVES:
            continue
        by_rank = sorted(of, key=ranked.__getitem__)
        newest = _of_hosts(run, {process: of[process][1] for process in by_rank})
        began = _of_hosts(run, {process: run.processes[process].began_ns for process in by_rank})
        return {
            host: ns if abs(ns - began[host]) < abs(ns) / 2 else 0 for host, ns in newest.items()
        }
    return {}


def _of_hosts(run: Run, times_ns: Mapping[int, int]) -> dict[str, int]:
    """The median of each host's ranks, from the median of the hosts or, of two, the first."""
    of: dict[str, list[int]] = defaultdict(list)
    for process, ns in times_ns.items():
        of[_host(run, process)].append(ns)
    medians = {host: round(median(values)) for host, values in of.items()}
    first, *more = medians.values()
    usual_ns = sorted(medians.values())[len(medians) // 2] if len(more) > 1 else first
    return {host: ns - usual_ns for host, ns in medians.items()}


def _host(run: Run, process: int) -> str:
    return run.processes[process].attached.host or ""


RULES = (RunRule(12, late_starts), RunRule(13, clocks_apart), RunRule(14, clocks_set))
