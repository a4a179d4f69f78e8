"""Matched among ranks, collectives say who is late: the one that is, and nobody where nobody is.

Ranks are simulated with jitter, clocks that are apart by some µs, two communicators, and lateness
of several causes. What the sums say is judged by the rule that a person reads.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from gputui.attribute.local_collectives import Collective, CollectiveReport, Entered
from gputui.attribute.matched_collectives import SETTLING_NS, Matching
from gputui.model.events import CaptureDelta, CollectiveDelta, ProcessAttached, RunStarted
from gputui.report.explain.rank_waits import matched, why_not_matched
from gputui.report.tables import table
from gputui.state import Run, Session
from tests.sessions_for_tests import analysed

LAYERS = 6
STEPS = 30
COMPUTE_NS, JITTER_NS, TRANSFER_NS = 10_000_000, 60_000, 300_000
START_NS = 1_700_000_000_000_000_000


class Job:
    """Ranks that compute, then reduce together, LAYERS times a step."""

    def __init__(self, ranks: int, seed: int) -> None:
        self.ranks = ranks
        self.random = np.random.default_rng(seed)
        self.now_ns = np.full(ranks, START_NS, np.int64)
        self.found: list[list[Collective]] = [[] for _ in range(ranks)]
        self.skew_ns = self.random.integers(-5_000, 5_000, ranks)
        self._ends = np.zeros(ranks, np.int64)

    def reduce(self, late_ns: dict[int, int], members: Iterable[int], name: str = "world") -> None:
        """Everybody of `members` computes, and the late ones longer."""
        at = np.array(sorted(members))
        came = self.now_ns[at] + COMPUTE_NS + self.random.normal(0, JITTER_NS, len(at))
        came += np.array([late_ns.get(int(rank), 0) for rank in at])
        came = came.astype(np.int64)
        end = came.max() + TRANSFER_NS + np.abs(self.random.normal(0, 8_000, len(at)))
        for rank, start_ns, end_ns in zip(at.tolist(), came, end.astype(np.int64), strict=True):
            skew = self.skew_ns[rank]
            own_ns = int(start_ns - self._ends[rank]) if self._ends[rank] else 0
            self.found[rank].append(
                Collective(
                    name, "all_reduce", 4096, int(start_ns + skew), int(end_ns + skew), own_ns, 1
                )
            )
            self._ends[rank] = self.now_ns[rank] = end_ns

    def run(self, matching: Matching | None = None) -> Run:
        """What the session knows of it."""
        matching = matching or Matching()
        for rank, found in enumerate(self.found):
            matching.add(rank + 1, CollectiveReport(found, [], {}, {}), None)
        matching.match()
        return folded([matching.take_collectives(rank + 1) for rank in range(self.ranks)])


def folded(sums: list[tuple[CollectiveDelta, ...]]) -> Run:
    session = Session()
    started = RunStarted(time_ns=0, run=1, kind="command", name="p", arguments=(), pid=5)
    session.apply([started])
    for rank, parts in enumerate(sums):
        session.apply(
            [
                ProcessAttached(
                    time_ns=0,
                    run=1,
                    process=rank + 1,
                    pid=6 + rank,
                    parent_pid=5,
                    rank=rank,
                    command="p",
                    cuda_status="tracing",
                ),
                CaptureDelta(time_ns=1, process=rank + 1, collectives=parts),
            ]
        )
    return session.runs[1]


def named(run: Run) -> list[int]:
    found = analysed(run).lateness
    return [] if found is None else [one.time.rank for one in found.late]


SEEDS = range(20)


@pytest.mark.parametrize("ranks", [2, 8])
def test_nobody_late_nobody_named(ranks: int) -> None:
    for seed in SEEDS:
        job = Job(ranks, seed)
        for _ in range(STEPS * LAYERS):
            job.reduce({}, range(ranks))
        assert named(job.run()) == [], seed


@pytest.mark.parametrize("ranks", [2, 8])
def test_one_late_in_one_of_six_phases_is_named(ranks: int) -> None:
    for seed in SEEDS:
        job = Job(ranks, seed)
        late = seed % ranks
        for _ in range(STEPS):
            for layer in range(LAYERS):
                job.reduce({late: 6_000_000} if layer == 2 else {}, range(ranks))
        assert named(job.run()) == [late], seed


def test_two_late_are_both_named_at_once_or_by_turns() -> None:
    for seed in SEEDS:
        job = Job(8, seed)
        for step in range(STEPS * LAYERS):
            late = {2: 2_000_000, 5: 2_300_000}
            if seed % 2:
                late = {(2, 5)[step % 2]: 3_000_000}
            job.reduce(late, range(8))
        assert named(job.run()) == [2, 5], seed


def test_who_is_late_on_one_communicator_for_its_peer_on_another_is_not_named() -> None:
    for seed in SEEDS:
        job = Job(4, seed)
        for _ in range(STEPS):
            for _ in range(LAYERS):
                job.reduce({1: 1_500_000}, (0, 1), "tp0")
                job.reduce({}, (2, 3), "tp1")
            job.reduce({}, (0, 2), "dp0")
            job.reduce({}, (1, 3), "dp1")
        assert named(job.run()) == [1], seed


def test_on_two_by_two_by_two_the_late_one_is_named_and_each_group_has_its_ranks() -> None:
    """Data, tensor and pipeline: rank 5 is late in its matrices, and so is all of its stage."""
    for seed in range(2):
        job = Job(8, seed)
        for _ in range(STEPS):
            for first in (0, 2, 4, 6):
                for _ in range(LAYERS):
                    job.reduce({5: 1_500_000}, (first, first + 1), f"{0x7E0 + first:016x}")
            for first in (0, 1, 4, 5):
                job.reduce({}, (first, first + 2), f"{0xDA0 + first:016x}")
        run = job.run()
        assert named(run) == [5], seed
        rows = table(Session(), run, "collectives").records()
        assert {row["group"] for row in rows if row["rank"] == 5} == {"4,5", "5,7"}
        assert len({row["communicator"] for row in rows}) == 8


@pytest.mark.parametrize(("times", "expected"), [(1, []), (6, [1])])
def test_what_happened_once_makes_nobody_late(times: int, expected: list[int]) -> None:
    """As a checkpoint that one rank writes."""
    for seed in SEEDS:
        job = Job(4, seed)
        for number in range(240):
            is_late = number in range(120, 120 + 10 * times, 10)
            job.reduce({1: 200_000_000} if is_late else {}, range(4))
        assert named(job.run()) == expected, seed


def test_waits_and_transfers_are_those_made() -> None:
    job = Job(4, 0)
    job.skew_ns[:] = 0
    for _ in range(200):
        job.reduce({3: 20_000_000}, range(4))
    by_process = matched(job.run())
    settled = [one for one in job.found[0] if one.start_ns >= START_NS + SETTLING_NS]
    for rank in range(3):
        wait_ns = by_process[rank + 1].waited_ns / len(settled)
        assert wait_ns == pytest.approx(20_000_000, rel=0.02)
    assert by_process[4].waited_ns == 0
    assert by_process[4].last == len(settled)


@pytest.mark.parametrize("lost", [0.02, 0.5])
def test_lost_records_are_skipped_and_where_many_are_nobody_is_named(lost: float) -> None:
    job = Job(4, 1)
    for _ in range(200):
        job.reduce({2: 5_000_000}, range(4))
    for rank in range(4):
        kept = job.random.random(len(job.found[rank])) >= lost / 4
        job.found[rank] = [one for one, keep in zip(job.found[rank], kept, strict=True) if keep]
    run = job.run()
    assert named(run) == ([2] if lost < 0.1 else [])
    why = why_not_matched(run)
    assert (why is None) == (lost < 0.1)
    assert why is None or why.endswith("% of the collectives were found on all ranks")


def test_ranks_traced_at_different_moments_match_nothing() -> None:
    job = Job(2, 1)
    for _ in range(200):
        job.reduce({1: 5_000_000}, range(2))
    middle = START_NS + 1_500_000_000
    job.found[0] = [one for one in job.found[0] if one.end_ns < middle]
    job.found[1] = [one for one in job.found[1] if one.start_ns > middle]
    assert named(job.run()) == []


@pytest.mark.parametrize("held_back", [False, True])
def test_what_comes_piece_by_piece_and_late_is_matched_the_same(held_back: bool) -> None:
    """CUPTI keeps a buffer back while a kernel in it runs: records come later than was claimed,
    out of order by a little, or all of a rank's by as much as its program launches ahead."""
    job = Job(3, 5)
    for _ in range(150):
        job.reduce({1: 3_000_000}, range(3))
    whole = matched(job.run())
    matching, parts = Matching(), [[], [], []]  # type: ignore[var-annotated]
    moment = START_NS
    delays = [0, 0, 8_000_000_000] if held_back else [300_000_000] * 3
    left = [
        [
            (one, one.end_ns + (delay if held_back else int(job.random.integers(0, delay))))
            for one in found
        ]
        for found, delay in zip(job.found, delays, strict=True)
    ]
    for rank in range(3):  # a range is not kept back
        begun = [Entered("world", "all_reduce", 4096, START_NS)]
        matching.add(rank + 1, CollectiveReport([], begun, {}, {}), START_NS)
    while any(left):
        moment += 170_000_000
        for rank in job.random.permutation(3).tolist():
            until_ns = moment - rank * 40_000_000
            new = [one for one, comes_ns in left[rank] if comes_ns < until_ns]
            left[rank] = [pair for pair in left[rank] if pair[1] >= until_ns]
            matching.add(rank + 1, CollectiveReport(new, [], {}, {}), until_ns)
        matching.match()
        for rank in range(3):
            parts[rank] += matching.take_collectives(rank + 1)
    for rank in range(3):
        matching.add(rank + 1, CollectiveReport([], [], {}, {}), None)
    matching.match()
    for rank in range(3):
        parts[rank] += matching.take_collectives(rank + 1)
    session_run = folded([tuple(part) for part in parts])
    assert matched(session_run) == whole


def test_a_lost_record_holds_up_the_others_for_a_second_only() -> None:
    job = Job(2, 2)
    for _ in range(300):
        job.reduce({1: 3_000_000}, range(2))
    del job.found[0][100]
    matching = Matching()
    until_ns = job.found[0][-1].end_ns
    for rank, found in enumerate(job.found):
        matching.add(rank + 1, CollectiveReport(found, [], {}, {}), until_ns)
    matching.match()
    run = folded([matching.take_collectives(1), matching.take_collectives(2)])
    [row] = [row for row in run.collectives.values() if row.process == 2]
    settled = [one for one in job.found[1] if one.start_ns >= START_NS + SETTLING_NS]
    assert (row.compared, row.matched) == (len(settled), len(settled) - 1)
    assert named(run) == [1]
