"""Ranks that hang: the others wait for them in a collective that they do not come to.

How long a rank was seen to do so ends with its recording. Where that is of another host it may end
before the others', and then it cannot be told whether the rank hung, was lost with its host, or
goes on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from gputui.model.units import duration
from gputui.report.explain.finding import MOST_NAMED, Finding, capital, rank_names
from gputui.report.explain.members import rank_processes
from gputui.report.explain.time_tree import time_tree
from gputui.state import Run

HANGS_NS = 10_000_000_000
HANGS_STEPS = 20
"""Nothing for this long, and for as many usual steps, is no slow step."""

EVEN_STEPS = "give every rank as many steps as the others, with uneven data too"


def hangs(run: Run, aborted: Collection[int]) -> tuple[Finding, ...]:
    """Who has not begun a collective that the others are in, on any communicator. Ranks that
    `aborted` were in it until they failed.
    """
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
        if not waiting or not missing or len(waiting) + len(missing) < len(everyone):
            continue
        gone = {
            process: ended[process].clean
            for process in missing
            if process in ended and ended[process].time_ns - newest[name] < least_ns
        }
        if not all(gone.values()):
            continue
        seen = [process for process in (*waiting, *missing) if process not in gone]
        silent_ns = _seen_until_ns(run, seen) - newest[name]
        if silent_ns >= least_ns:
            return (_hang(run, ranked, waiting, missing, kinds[name], silent_ns, least_ns, gone),)
        lost = [one for one in missing if run.processes[one].out_of_sight_ns is not None]
        waited_ns = _seen_until_ns(run, (one for one in seen if one not in lost)) - newest[name]
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
    who = _named(ranked, missing)
    where = {place for process in missing if (place := _open_range(run, process))}
    at = f"; it is in {next(iter(where))}" if len(where) == 1 else ""
    if len(gone) == len(missing):
        word, did = "ended early", "ended without coming to"
        advice = EVEN_STEPS
    else:
        word, did = "hangs" if len(missing) == 1 else "hang", "did not come to"
        pids = [run.processes[process].attached.pid for process in missing]
        advice = f"look at its stack: py-spy dump --pid {pids[0]}"
        if run.ended is not None:
            advice = "run it again, and look at its stack while it hangs: py-spy dump --pid PID"
            if set(pids) <= set(run.ended.continued):
                at += "; stopped (SIGSTOP)"
                advice = "find what stopped it: a debugger, Ctrl-Z, a scheduler"
    return _finding(
        f"{who} {word}",
        f"{capital(who)} {did} the {kind} that {_are(ranked, waiting)} in for "
        f"{duration(silent_ns)}{at}",
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
    who = _named(ranked, lost)
    of = sorted({host for one in lost if (host := run.processes[one].attached.host)})
    at = f" ({', '.join(of[:MOST_NAMED])})" if of else ""
    rest = "its recording ends before: whether it hangs, was lost with its host or goes on"
    if len(lost) > 1:
        rest = "their recordings end before: whether they hang, were lost with a host or go on"
    return _finding(
        f"{who} {'is' if len(lost) == 1 else 'are'} out of sight",
        f"{capital(who)}{at} did not come to the {kind} that {_are(ranked, waiting)} in for "
        f"{duration(waited_ns)}, and {rest} cannot be told",
        "look at the host: is it up, does gputui still record there?",
        waited_ns,
        least_ns,
    )


def _named(ranked: dict[int, int], processes: Iterable[int]) -> str:
    return rank_names((ranked[process] for process in processes), MOST_NAMED)


def _are(ranked: dict[int, int], waiting: list[int]) -> str:
    return f"{_named(ranked, waiting)} {'is' if len(waiting) == 1 else 'are'}"


def _finding(word: str, sentence: str, advice: str, for_ns: int, least_ns: float) -> Finding:
    return Finding(
        "rank_hangs",
        word,
        sentence,
        advice,
        for_ns / 1e9,
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
