"""Ranks that end a job or hold up its start, and hosts whose clocks are apart.

Ranks that died, ran out of memory or failed: a launcher blames whom it saw first, which after a
time-out is a rank that waited. Of a hang the rank is named that is *not* in the collective, whoever
was ended for it afterwards. How long a rank was seen to hang ends with its recording. Where that is
of another host it may end before the others', and then it cannot be told whether the rank hung, was
lost with its host, or goes on.

A late start and a clock that is apart both show as processes that begin at other times. The
collectives distinguish them: all ranks begin their newest one nearly together, so that what its
times are apart is the clocks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from statistics import median, median_low

from gputui.model.units import duration
from gputui.report.explain.analysis import Analysis, RunRule
from gputui.report.explain.finding import MOST_NAMED, Finding, capital, rank_names
from gputui.report.explain.rank_waits import LEAST_COLLECTIVES, hosts, rank_processes
from gputui.state import Run

HANGS_NS = 10_000_000_000
HANGS_STEPS = 20
"""Nothing for this long, and for as many usual steps, is no slow step."""

EVEN_STEPS = "give every rank as many steps as the others, with uneven data too"


def hangs(analysis: Analysis, aborted: Collection[int]) -> tuple[Finding, ...]:
    """Who has not begun a collective that the others are in, on any communicator. Ranks that
    `aborted` were in it until they failed.
    """
    run = analysis.run
    ranked = rank_processes(run)
    entered: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    inside: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    newest: dict[str, int] = defaultdict(int)
    kinds: dict[str, str] = {}
    ranks: dict[str, int] = defaultdict(int)
    for sums in run.collectives.values():
        if sums.process not in ranked:
            continue
        name = sums.communicator
        entered[name][sums.process] += sums.entered
        inside[name][sums.process] += sums.entered - sums.left
        ranks[name] = max(ranks[name], sums.ranks)
        if (sums.entered_ns or 0) > newest[name]:
            newest[name] = sums.entered_ns or 0
            kinds[name] = sums.kind
    ended = {
        process: detached
        for process in ranked
        if (detached := run.processes[process].detached) is not None
    }
    tree = analysis.tree
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
        if not waiting or not missing or len(waiting) + len(missing) < len(everyone):
            continue
        gone = {
            process: ended[process].clean
            for process in missing
            # A rank that ended before the others is one that they wait for: its end hid the hang.
            if process in ended and ended[process].time_ns - newest[name] < least_ns
        }
        if not all(gone.values()):
            continue
        seen = [process for process in (*waiting, *missing) if process not in gone]
        silent_ns = _seen_until_ns(run, seen) - newest[name]
        if silent_ns >= least_ns:
            return (_hang(run, ranked, waiting, missing, kinds[name], silent_ns, least_ns, gone),)
        lost = [number for number in missing if run.processes[number].out_of_sight_ns is not None]
        waited_ns = (
            _seen_until_ns(run, (number for number in seen if number not in lost)) - newest[name]
        )
        if lost and waited_ns >= least_ns:
            return (_lost(run, ranked, waiting, lost, kinds[name], waited_ns, least_ns),)
    return ()


def _seen_until_ns(run: Run, processes: Iterable[int]) -> int:
    """When the first of them ended or was seen last; the newest that is known of the run if they
    all go on."""
    ends: list[int] = []
    for process in map(run.processes.__getitem__, processes):
        detached_ns = process.detached.time_ns if process.detached is not None else None
        ends += [ns for ns in (detached_ns, process.out_of_sight_ns) if ns is not None]
    return min(ends, default=run.updated_ns)


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
    who = _rank_list(ranked, missing)
    where = {place for process in missing if (place := _open_range(run, process))}
    detail = f"; it is in {next(iter(where))}" if len(where) == 1 else ""
    if len(gone) == len(missing):
        word, did = "ended early", "ended without coming to"
        advice = EVEN_STEPS
    else:
        word, did = "hangs" if len(missing) == 1 else "hang", "did not come to"
        pids = [run.processes[process].attached.pid for process in missing]
        advice = f"look at its stack: py-spy dump --pid {pids[0]}"
        if run.ended is not None:
            advice = "run it again, and look at its stack while it hangs: py-spy dump --pid PID"
            # A rank that hung until the run was ended is no more: only that gputui continued it
            # says that it was stopped.
            if set(pids) <= set(run.ended.continued):
                detail += "; stopped (SIGSTOP)"
                advice = "find what stopped it: a debugger, Ctrl-Z, a scheduler"
    return _hang_finding(
        f"{who} {word}",
        f"{capital(who)} {did} the {kind} that {_are(ranked, waiting)} in for "
        f"{duration(silent_ns)}{detail}",
        advice,
        silent_ns,
        least_ns,
    )


def _lost(
    run: Run,
    ranked: dict[int, int],
    waiting: list[int],
    lost: list[int],
    kind: str,
    waited_ns: int,
    least_ns: float,
) -> Finding:
    """Ranks whose recording ended, for which the others wait."""
    who = _rank_list(ranked, lost)
    lost_hosts = sorted(
        {host for process in lost if (host := run.processes[process].attached.host)}
    )
    detail = f" ({', '.join(lost_hosts[:MOST_NAMED])})" if lost_hosts else ""
    rest = "its recording ends before: whether it hangs, was lost with its host or goes on"
    if len(lost) > 1:
        rest = "their recordings end before: whether they hang, were lost with a host or go on"
    return _hang_finding(
        f"{who} {'is' if len(lost) == 1 else 'are'} out of sight",
        f"{capital(who)}{detail} did not come to the {kind} that {_are(ranked, waiting)} in for "
        f"{duration(waited_ns)}, and {rest} cannot be told",
        "look at the host: is it up, does gputui still record there?",
        waited_ns,
        least_ns,
    )


def _rank_list(ranked: dict[int, int], processes: Iterable[int]) -> str:
    return rank_names((ranked[process] for process in processes), MOST_NAMED)


def _are(ranked: dict[int, int], waiting: list[int]) -> str:
    return f"{_rank_list(ranked, waiting)} {'is' if len(waiting) == 1 else 'are'}"


def _hang_finding(word: str, sentence: str, advice: str, for_ns: int, least_ns: float) -> Finding:
    return Finding(
        cause="rank_hangs",
        word=word,
        sentence=sentence.removesuffix(".") + ".",
        advice=advice,
        value=for_ns / 1e9,
        threshold=least_ns / 1e9,
        source="seconds since the newest collective was begun",
        leads=True,
        ends_run=True,
    )


def _open_range(run: Run, process: int) -> str | None:
    """The innermost range that a process has open, of its own domains."""
    matching = [
        node
        for node in run.ranges.values()
        if node.definition.process == process and node.open_since_ns is not None
    ]
    deepest = max(matching, key=lambda node: (node.depth, node.open_since_ns or 0), default=None)
    return None if deepest is None else deepest.path


_RANK_LINE = re.compile(r"^\[rank(\d{1,6})\]: ?(.*)")
_ERROR = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit))(?::|$)")
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|CUDA out of memory|DefaultCPUAllocator")
# What a rank fails with because another one is gone, or because all were stopped.
_ABORTED = re.compile(
    r"DistBackendError|DistNetworkError|DistStoreError|Connection (reset|closed)|Timed out waiting"
    r"|^KeyboardInterrupt|SignalException"
)


def lost_ranks(analysis: Analysis) -> Iterator[Finding]:
    """One finding at most: the first cause, not what followed from it."""
    run = analysis.run
    _, aborted = _errors(run)  # no longer in the collective, for whose sake they failed
    yield from _failed(run) or hangs(analysis, aborted) or _ended_early(run) or _died(analysis)


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
        # One that gave up waiting for another is not the first to fail.
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
    return sum(sums.entered for sums in run.collectives.values() if sums.process == process)


def _first(run: Run, ended_ns: Mapping[int, int]) -> int:
    """Which of these processes ended first."""
    earliest_ns = min(ended_ns.values())
    at_once = [process for process, ns in ended_ns.items() if ns - earliest_ns < AT_ONCE_NS]
    return min(at_once, key=lambda process: (_entered(run, process), ended_ns[process]))


def _died(analysis: Analysis) -> tuple[Finding, ...]:
    """The first to vanish, while others went on."""
    run = analysis.run
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
    since_ns = max(0, analysis.session.time_ns - gone[first])
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
    # Not one that the launcher ended for the first that went.
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
    return Finding(
        cause=rule,
        word=word,
        sentence=sentence.removesuffix(".") + ".",
        advice=advice,
        value=1,
        threshold=0,
        source="which processes of the job ended, and their collectives",
        leads=True,
        ends_run=True,
    )


LATE_START_NS = 10_000_000_000
"""Ranks of a healthy job begin within seconds of each other."""

APART_NS = 10_000_000_000
"""From here on times of two hosts are of two clocks: NTP keeps them within milliseconds."""


def late_starts(analysis: Analysis) -> Iterator[Finding]:
    """Ranks for whose start the others waited."""
    run = analysis.run
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
    # The usual start of all ranks at once: with thousands it took seconds a drawing.
    after = {rank: ns - usual_ns for rank, ns in began.items()}
    late = {rank: ns for rank, ns in after.items() if ns >= LATE_START_NS}
    if not late or len(late) > len(began) / 2:
        return
    who = rank_names(late, MOST_NAMED)
    longest_ns = max(late.values())
    yield Finding(
        cause="rank_began_late",
        word=f"{who} began late",
        sentence=(
            f"{capital(who)} began {duration(longest_ns)} after the others, which wait for "
            "all ranks before the first step"
        ),
        advice=(
            "look at what comes before its first import: the launcher, a container, the file system"
        ),
        value=longest_ns / 1e9,
        threshold=LATE_START_NS / 1e9,
        source="seconds after the median of the other ranks' starts",
    )


def clocks_apart(analysis: Analysis) -> Iterator[Finding]:
    """Hosts whose clock is far from that of most."""
    for host, ns in sorted(clocks_ahead_ns(analysis.run).items()):
        if abs(ns) < APART_NS:
            continue
        way = "ahead of" if ns > 0 else "behind"
        yield Finding(
            cause="clock_apart",
            word=f"clock of {host} apart",
            sentence=(
                f"The clock of {host} is {duration(abs(ns))} {way} the other hosts': its times and "
                "theirs are apart by as much"
            ),
            advice="set the hosts' clocks by NTP or PTP (chronyc tracking)",
            value=abs(ns) / 1e9,
            threshold=APART_NS / 1e9,
            source="seconds between the hosts' times of the same collective",
        )


def clocks_set(analysis: Analysis) -> Iterator[Finding]:
    """Clocks that were set while the run went on."""
    run = analysis.run
    if run.clock_set_ns:
        yield Finding(
            cause="clock_set",
            word="a clock was set",
            sentence=(
                f"A host's clock was set by {duration(run.clock_set_ns)} while it "
                "ran: what went on "
                "then looks longer or shorter by as much"
            ),
            advice="let NTP settle before a run (chronyc waitsync)",
            value=run.clock_set_ns / 1e9,
            threshold=0,
            source="seconds between the wall clock and one that is never set",
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
    for sums in run.collectives.values():
        if sums.process in ranked:
            count, newest_ns = entered[sums.communicator].get(sums.process, (0, 0))
            newest_ns = max(newest_ns, sums.entered_ns or 0)
            entered[sums.communicator][sums.process] = count + sums.entered, newest_ns
    for by_key in entered.values():
        counts = {count for count, _ in by_key.values()}
        if len(by_key) < len(ranked) or len(counts) > 1 or min(counts) < LEAST_COLLECTIVES:
            continue
        by_rank = sorted(by_key, key=ranked.__getitem__)
        newest = _of_hosts(run, {process: by_key[process][1] for process in by_rank})
        began = _of_hosts(run, {process: run.processes[process].began_ns for process in by_rank})
        return {
            host: ns if abs(ns - began[host]) < abs(ns) / 2 else 0 for host, ns in newest.items()
        }
    return {}


def _of_hosts(run: Run, times_ns: Mapping[int, int]) -> dict[str, int]:
    """The median of each host's ranks, from the median of the hosts or, of two, the first."""
    by_host: dict[str, list[int]] = defaultdict(list)
    for process, ns in times_ns.items():
        by_host[_host(run, process)].append(ns)
    medians = {host: round(median(values)) for host, values in by_host.items()}
    first, *more = medians.values()
    usual_ns = sorted(medians.values())[len(medians) // 2] if len(more) > 1 else first
    return {host: ns - usual_ns for host, ns in medians.items()}


def _host(run: Run, process: int) -> str:
    return run.processes[process].attached.host or ""


RULES = (
    RunRule(5, lost_ranks),
    RunRule(12, late_starts),
    RunRule(13, clocks_apart),
    RunRule(14, clocks_set),
)
