"""Who is late: named where the others wait for it, and nobody where nobody is."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest
from msgspec.structs import replace

from gputui.model.events import (
    AnyEvent,
    CaptureDelta,
    CollectiveDelta,
    Distribution,
    HostSample,
    JobFacts,
    LeafTime,
    LoopDelta,
    MachineSample,
    ProcessAttached,
    RangeDefined,
    RangeLeaf,
    RunStarted,
    Scope,
    StepBlock,
)
from gputui.model.events.distributions import encoded_values
from gputui.model.leaves import Leaf
from gputui.model.steps import StepBlocks
from gputui.report.explain import Analysis, findings
from gputui.report.explain.ranks import Lateness, late_over_steps
from gputui.report.explain.time_tree import time_tree
from gputui.report.explain.verdict import verdict
from gputui.report.tables import table
from gputui.state import Run, Session
from tests.sessions_for_tests import analysed

STEPS = 60
STEP_NS = 116_000_000
MATMUL_NS = 33_000_000
TRANSFER_NS = 8_000_000


def job(ranks: Sequence[dict[Leaf, int]], count: int = STEPS) -> tuple[Session, Run]:
    """Ranks of one job, as job_events has them."""
    session = Session.from_events(job_events(ranks, count))
    return session, session.runs[1]


def job_events(
    ranks: Sequence[dict[Leaf, int]],
    count: int = STEPS,
    here: Iterable[int] | None = None,
    facts: JobFacts | None = None,
) -> list[AnyEvent]:
    """Ranks of one job, each with its times a step without collectives: they last until all
    ranks have come, and TRANSFER_NS longer. Of those `here`, if not of all."""
    come = [sum(leaves.values()) for leaves in ranks]
    step_ns = max(come) + TRANSFER_NS
    events: list[AnyEvent] = [
        RunStarted(time_ns=0, run=1, kind="command", name="p", arguments=(), pid=5)
    ]
    for device, rank in enumerate(range(len(ranks)) if here is None else here):
        number = device + 1
        leaves = {**ranks[rank], Leaf.COMMUNICATION: step_ns - come[rank]}
        lengths = Distribution(
            count, count * step_ns, 0.0, step_ns, step_ns, encoded_values([(step_ns, count)])
        )
        whole_ns = count * step_ns
        events += [
            ProcessAttached(
                time_ns=0,
                run=1,
                process=number,
                pid=5 + number,
                parent_pid=5,
                rank=rank,
                job=facts,
                command="p",
                cuda_status="tracing",
            ),
            CaptureDelta(
                time_ns=1,
                process=number,
                leaf_times=tuple(
                    LeafTime(number, device, Scope.STEADY, 0, leaf, ns * count)
                    for leaf, ns in leaves.items()
                ),
                loops=(
                    LoopDelta(
                        number, device, Scope.STEADY, 0, count, count, 1, 1 + whole_ns, lengths
                    ),
                ),
            ),
        ]
    return events


def rank(jitter: random.Random | None = None, **more: int) -> dict[Leaf, int]:
    """A rank's times a step: usual ones, and `more` of some leaves."""
    noise = jitter.randrange(60_000) if jitter else 0
    usual = {Leaf.MATMUL: MATMUL_NS + noise, Leaf.LAUNCH: 1_000_000}
    return {
        leaf: usual.get(leaf, 0) + more.get(leaf.name.lower(), 0)
        for leaf in {*usual, *(Leaf[name.upper()] for name in more)}
    }


def who(run: Run) -> dict[int, str | None]:
    found = analysed(run).lateness
    return {one.time.rank: one.cause for one in found.late} if found else {}


def late(run: Run) -> Lateness:
    found = analysed(run).lateness
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("leaf", "cause"),
    [
        ("wait", "host"),
        ("host", "host"),
        ("sync", "host"),
        ("input", "data"),
        ("matmul", "more work"),
        ("attention", "more work"),
        ("copy_pageable", "copies"),
        ("unknown", None),
    ],
)
@pytest.mark.parametrize("count", [2, 4, 8])
def test_the_late_rank_and_its_cause_are_named(leaf: str, cause: str | None, count: int) -> None:
    ranks = [rank() for _ in range(count)]
    ranks[1] = rank(**{leaf: 43_000_000})
    _, run = job(ranks)
    assert who(run) == {1: cause}
    assert late(run).cost_ns == pytest.approx(43_000_000)


def unnumbered(parents: Sequence[int]) -> Run:
    """Four processes of one job whose environment does not say their ranks, as started by
    torch.multiprocessing.spawn, and one beside them that loads data; the third is late."""
    ranks = [rank(), rank(), rank(host=43_000_000), rank()]
    events = [
        replace(one, rank=None, job=None, parent_pid=parents[one.process - 1])
        if isinstance(one, ProcessAttached)
        else one
        for one in job_events(ranks)
    ]
    loader = ProcessAttached(
        time_ns=0, run=1, process=9, pid=5, parent_pid=5, command="p", cuda_status="tracing"
    )
    return Session.from_events([*events, loader]).runs[1]


def test_processes_that_one_parent_started_are_ranks_in_the_order_of_their_start() -> None:
    run = unnumbered([5, 5, 5, 5])
    assert who(run) == {2: "host"}
    assert late(run).evidence[0].startswith("Rank 2 (process 8, GPU 2): ")
    # Not all by one: which is first is not known.
    assert who(unnumbered([5, 6, 7, 8])) == {}


def test_two_late_ranks_are_both_named() -> None:
    ranks = [rank() for _ in range(8)]
    ranks[2], ranks[5] = rank(wait=20_000_000), rank(matmul=23_000_000)
    session, run = job(ranks)
    assert who(run) == {2: "host", 5: "more work"}
    found = verdict(analysed(run))
    assert found is not None
    assert found.word == "RANKS 2 AND 5 ARE LATE"
    assert findings(Analysis(session, run))[0].cause == "idle.rank"


@pytest.mark.parametrize("seed", range(20))
def test_nobody_late_is_nobody_named(seed: int) -> None:
    jitter = random.Random(seed)
    _, run = job([rank(jitter) for _ in range(jitter.choice((2, 4, 8)))])
    assert analysed(run).lateness is None


def test_one_early_rank_makes_nobody_late() -> None:
    _, run = job([rank(wait=40_000_000) for _ in range(3)] + [rank()])
    assert analysed(run).lateness is None
    found = verdict(analysed(run))
    assert found is not None
    assert "no one rank is late" in " ".join(one.sentence for one in found.findings)


def test_collectives_that_pass_through_the_cpu_are_no_imbalance() -> None:
    """Gloo's: no kernel runs, both ranks are in the collective, and it takes that long."""
    events = [
        replace(
            one,
            leaf_times=tuple(
                replace(time, leaf=Leaf.RANK) if time.leaf is Leaf.COMMUNICATION else time
                for time in one.leaf_times
            ),
        )
        if isinstance(one, CaptureDelta)
        else one
        for one in job_events([rank(), rank()])
    ]
    run = Session.from_events(events).runs[1]
    assert analysed(run).lateness is None
    found = verdict(analysed(run))
    assert found is not None
    assert found.word == "COLLECTIVES WAIT"
    assert "no one rank is late" in found.headline
    assert "NCCL" in found.findings[0].advice


@pytest.mark.parametrize(("late_ns", "named"), [(1_000_000, False), (2_000_000, True)])
def test_little_lateness_is_not_named(late_ns: int, named: bool) -> None:
    _, run = job([rank(), rank(wait=late_ns)])
    assert (analysed(run).lateness is not None) is named


def test_lateness_below_a_finding_stands_beside_the_verdict() -> None:
    session, run = job([rank(), rank(wait=2_500_000)])
    found = verdict(analysed(run))
    assert found is not None
    assert [one.cause for one in found.findings] == ["busy.comm"]
    assert [one.cause for one in findings(Analysis(session, run))] == ["busy.comm", "late_rank"]


def test_too_few_steps_or_one_rank_name_nobody() -> None:
    assert analysed(job([rank(), rank(wait=40_000_000)], count=19)[1]).lateness is None
    assert analysed(job([rank()])[1]).lateness is None


def test_waiting_for_another_rank_is_idle_time_and_all_adds_up() -> None:
    session, run = job([rank(), rank(wait=43_000_000)])
    waiting, late = [one.tree for one in sorted(analysed(run).ranks, key=lambda one: one.rank)]
    assert waiting is not None
    assert late is not None
    for tree in (waiting, late):
        assert sum(tree.leaves.values()) == tree.wall_ns
        assert tree.leaves[Leaf.COMMUNICATION] == STEPS * TRANSFER_NS
    assert waiting.leaves[Leaf.RANK] == STEPS * 43_000_000
    assert late.leaves[Leaf.RANK] == 0
    rows = table(session, run, "ranks").records()
    assert [row["rank"] for row in rows] == [1, 0]
    assert [row["late_ns"] for row in rows] == [pytest.approx(43_000_000), 0]
    for row in rows:
        assert row["busy_percent"] + row["idle_percent"] == pytest.approx(100)
        assert row["compute_percent"] + row["transfer_percent"] == pytest.approx(
            row["busy_percent"]
        )


def test_collectives_that_other_work_hides_make_nobody_wait() -> None:
    """Matched ones that waited, on ranks whose trees have no exposed collective."""
    session, run = job([rank(), rank()])
    for of in (run.leaf_times, run.collectives):
        of.clear()
    session.apply(
        [
            CaptureDelta(
                time_ns=1,
                process=number,
                leaf_times=(LeafTime(number, number - 1, Scope.STEADY, 0, Leaf.MATMUL, STEP_NS),),
                collectives=(
                    CollectiveDelta(
                        communicator="c",
                        kind="all_reduce",
                        size_class=20,
                        count=100,
                        compared=100,
                        matched=100,
                        time_ns=2_000_000,
                        matched_ns=2_000_000,
                        wait_ns=1_000_000,
                        first_ns=1,
                        last_ns=STEP_NS,
                    ),
                ),
            )
            for number in (1, 2)
        ]
    )
    tree = time_tree(run)
    assert tree is not None
    assert tree.leaves == {Leaf.MATMUL: 2 * STEP_NS}


def matched_rows(
    count: int, wait_ns: int, kind: str = "all_reduce", *more_ns: int
) -> CollectiveDelta:
    """Collectives that each took the transfer and `wait_ns`; some of them `more_ns` longer."""
    waited_ns = count * wait_ns + sum(more_ns)
    each_us = [(wait_ns + ns) // 1000 for ns in more_ns] + [wait_ns // 1000] * (
        count - len(more_ns)
    )
    return CollectiveDelta(
        communicator="a",
        kind=kind,
        size_class=9,
        count=count,
        time_ns=count * TRANSFER_NS + waited_ns,
        compared=count,
        matched=count,
        matched_ns=count * TRANSFER_NS + waited_ns,
        wait_ns=waited_ns,
        longest_wait_ns=1000 * max(each_us),
        wait_us2=sum(us**2 for us in each_us),
        first_ns=1,
        last_ns=1 + STEPS * STEP_NS,
    )


BASELINE_NS = 7_400_000_000
"""What one rank does by itself before the loop, while the others wait for it."""


def waiting_once(
    rows: Sequence[Sequence[CollectiveDelta]], late_ns: int = 0
) -> tuple[Session, Run]:
    """Two ranks; the first waited for BASELINE_NS beside the steps, the second is `late_ns` late in
    each of them."""
    session, run = job([rank(), rank(wait=late_ns)])
    waited = LeafTime(1, 0, Scope.TAIL, 0, Leaf.COMMUNICATION, BASELINE_NS)
    for process, deltas in enumerate(rows, 1):
        session.apply(
            [
                CaptureDelta(
                    time_ns=2,
                    process=process,
                    collectives=tuple(deltas),
                    leaf_times=(waited,) if process == 1 else (),
                )
            ]
        )
    return session, run


@pytest.mark.parametrize(("late_ns", "named"), [(0, {}), (40_000_000, {1: "host"})])
def test_a_wait_beside_the_loop_makes_nobody_late_in_it(
    late_ns: int, named: dict[int, str]
) -> None:
    once = matched_rows(3, 0, "all_gather", BASELINE_NS)
    _, run = waiting_once(
        [(matched_rows(STEPS, late_ns), once), (matched_rows(STEPS, 0),)], late_ns
    )
    assert who(run) == named
    waiting = max(analysed(run).ranks, key=lambda one: -one.rank).tree
    assert waiting is not None
    assert waiting.leaves.get(Leaf.RANK, 0) == pytest.approx(STEPS * late_ns, rel=0.01)
    if named:
        assert late(run).share == pytest.approx(late_ns / STEP_NS, rel=0.01)


def test_where_the_loops_own_collectives_waited_beside_it_nobody_is_named() -> None:
    """Steps and baseline end in the same kind of barrier: which of them waited is not known."""
    _, run = waiting_once(
        [(matched_rows(STEPS, 0, "all_reduce", BASELINE_NS),), (matched_rows(STEPS, 0),)]
    )
    assert analysed(run).lateness is None
    assert all(Leaf.RANK not in one.tree.leaves for one in analysed(run).ranks if one.tree)


@pytest.mark.parametrize(("late_ms", "named"), [(0, {}), (80, {1: "host"})])
def test_two_baselines_of_one_rank_do_not_make_it_late(late_ms: int, named: dict[int, str]) -> None:
    """In barriers that are like those of the loop, and without a GPU that says what is a step."""
    _, run = on_cores([0, late_ms * 1_000_000], [0, 0], [40, 40])
    (waits,) = (sums for sums in run.collectives.values() if sums.process == 2 - bool(named))
    for ns in (BASELINE_NS, BASELINE_NS // 4):
        waits.wait_ns += ns
        waits.wait_us2 += (ns // 1000) ** 2
        waits.longest_wait_ns = max(waits.longest_wait_ns, ns)
    assert who(run) == named


def test_a_baseline_that_other_ranks_wait_for_is_no_lateness_and_its_steps_are_the_runs() -> None:
    """Too few collectives to be compared: that a rank waits is known from its Python lines."""
    session, run = job([rank(), rank()])
    for of in (run.leaf_times, run.loops):
        for key in [key for key, row in of.items() if row.process == 2]:
            del of[key]  # type: ignore[attr-defined]
    waiting = LeafTime(2, 1, Scope.UNSTEPPED, 0, Leaf.RANK, STEPS * STEP_NS)
    few = CollectiveDelta(communicator="a", kind="all_reduce", size_class=3, count=3, ranks=2)
    session.apply(
        [
            CaptureDelta(time_ns=2, process=1, collectives=(few,)),
            CaptureDelta(time_ns=2, process=2, collectives=(few,), leaf_times=(waiting,)),
        ]
    )
    assert analysed(run).lateness is None
    tree = time_tree(run)
    assert tree is not None
    assert Leaf.RANK not in tree.leaves
    assert tree.wall_ns == STEPS * (MATMUL_NS + 1_000_000 + TRANSFER_NS)
    assert table(session, run, "ranks").note.startswith("which rank is late is not known")


@pytest.mark.parametrize(("set_ns", "is_named"), [(-1_000_000_000, False), (60_000_000, True)])
def test_nobody_is_late_by_sums_where_a_clock_was_set(set_ns: int, is_named: bool) -> None:
    """The collective in which it was is a second shorter or longer on one host."""
    session, run = job([rank(), rank(wait=40_000_000)])
    run.updated_ns = STEPS * STEP_NS
    assert who(run) == {1: "host"}
    session.apply([MachineSample(time_ns=2, host=HostSample(), clock_set_ns=set_ns)])
    assert (who(run) == {1: "host"}) == is_named
    assert table(session, run, "ranks").note == (
        ""
        if is_named
        else "which rank is late is not known: a host's clock was set by 1.00 s while it ran"
    )
    assert any(one.cause == "clock_set" for one in findings(Analysis(session, run)))


def test_ranks_of_different_loops_have_no_step_in_common() -> None:
    session, run = job([rank(), rank(wait=40_000_000)])
    lengths = Distribution(
        STEPS, STEPS * STEP_NS, 0.0, STEP_NS, STEP_NS, encoded_values([(STEP_NS, STEPS)])
    )
    more = LoopDelta(1, 0, Scope.STEADY, 0, STEPS, STEPS, 1, 2, lengths)
    session.apply([CaptureDelta(time_ns=2, process=1, loops=(more,))])
    for process, wait_ns in ((1, 40_000_000), (2, 0)):
        rows = (matched_rows(STEPS, wait_ns),)
        session.apply([CaptureDelta(time_ns=2, process=process, collectives=rows)])
    assert who(run) == {1: "host"}
    assert late(run).cost_ns is None
    assert "% of the time for rank 1 in collectives" in late(run).sentence


def test_what_makes_a_rank_late_is_reported_once() -> None:
    _, run = job([rank(), rank(wait=80_000_000)])
    found = verdict(analysed(run))
    assert found is not None
    assert found.word == "RANK 1 IS LATE"
    assert [one.cause for one in found.findings] == ["idle.rank"]
    assert found.headline == "The other rank waits 80.0 ms of each 122 ms step for rank 1."
    assert "waits for its CPU (CPU waiting) 80.0 ms a step more" in found.findings[0].evidence[0]


def test_in_a_pipeline_who_waits_little_is_not_late() -> None:
    ranks = [rank(), rank(wait=40_000_000)]
    session, run = job(ranks)
    assert who(run) == {1: "host"}
    for process in (1, 2):
        sent = CollectiveDelta(
            communicator="a", kind="send_recv", size_class=9, count=900, time_ns=900_000_000
        )
        session.apply([CaptureDelta(time_ns=2, process=process, collectives=(sent,))])
    assert analysed(run).lateness is None
    assert Leaf.RANK not in analysed(run).ranks[0].tree.leaves  # type: ignore[union-attr]


def test_what_one_rank_does_besides_does_not_make_it_late() -> None:
    """Collectives were matched, and rank 0 computed as long again by itself."""
    session, run = job([rank(), rank(), rank(), rank(wait=20_000_000)])
    more = LeafTime(1, 0, Scope.STEADY, 0, Leaf.MATMUL, STEPS * STEP_NS)
    session.apply([CaptureDelta(time_ns=2, process=1, leaf_times=(more,))])
    for process, wait_ns in enumerate((20_000_000, 20_000_000, 20_000_000, 0), 1):
        matched = CollectiveDelta(
            communicator="a",
            kind="all_reduce",
            size_class=9,
            count=STEPS,
            time_ns=STEPS * (wait_ns + TRANSFER_NS),
            ranks=4,
            compared=STEPS,
            matched=STEPS,
            matched_ns=STEPS * (wait_ns + TRANSFER_NS),
            wait_ns=STEPS * wait_ns,
            first_ns=1,
            last_ns=1 + STEPS * 62_000_000,
        )
        session.apply([CaptureDelta(time_ns=2, process=process, collectives=(matched,))])
    found = analysed(run).lateness
    assert found is not None
    assert [one.time.rank for one in found.late] == [3]
    hidden = {row["rank"]: row["hidden_percent"] for row in table(session, run, "ranks").records()}
    assert hidden == dict.fromkeys(range(4), 0.0)


def test_the_phase_that_makes_a_rank_late_is_named() -> None:
    session, run = job([rank(), rank(wait=80_000_000)])
    for process in (1, 2):
        late_ns = 80_000_000 * STEPS if process == 2 else 0
        events: list[AnyEvent] = [
            RangeDefined(
                time_ns=2,
                range=10 * process + at,
                process=process,
                thread=1,
                parent=parent,
                name=name,
            )
            for at, parent, name in (
                (0, 0, "step"),
                (1, 10 * process, "load"),
                (2, 10 * process, "forward"),
                (3, 0, "build"),
            )
        ]
        idle = tuple(
            RangeLeaf(process - 1, 10 * process + at, Leaf.HOST, ns)
            for at, ns in ((1, late_ns), (2, STEPS * 1_000_000), (3, late_ns * 2))
        )
        session.apply([*events, CaptureDelta(time_ns=2, process=process, range_leaves=idle)])
    assert ", most of it in step/load" in late(run).evidence[0]


def test_lateness_over_the_steps_says_since_when() -> None:
    """Rank 1 falls behind in the second half; blocks of both are of different sizes."""
    session, run = job([rank(), rank()])
    waits = {0: [(40, 1), (20, 9)], 1: [(20, 1), (20, 1), (20, 1)]}
    for place, blocks in waits.items():
        run.step_blocks[place + 1] = StepBlocks()
        for count, wait in blocks:
            leaves = ((int(Leaf.COMMUNICATION), count * wait * 1_000_000),)
            block = StepBlock(place, 0, count, count * STEP_NS, leaves)
            run.step_blocks[place + 1].append(block)
    late = late_over_steps(analysed(run).ranks, 6)
    assert late == {(2, 1): [0, 0, 8e6], (1, 0): [0, 0, 0]}
    rows = {row["rank"]: row["late_in_order_ns"] for row in table(session, run, "ranks").records()}
    assert rows == {0: [0, 0, 0], 1: [0, 0, 8e6]}


def on_cores(
    late_ns: Sequence[int], core_wait_ns: Sequence[int], core_run_ns: Sequence[int]
) -> tuple[Session, Run]:
    """Ranks without a GPU: how late to every collective, how long without a core and on one."""
    session = Session()
    events: list[AnyEvent] = [
        RunStarted(time_ns=0, run=1, kind="command", name="p", arguments=(), pid=5)
    ]
    for at, (late, no_core_ns, ran_ns) in enumerate(
        zip(late_ns, core_wait_ns, core_run_ns, strict=True)
    ):
        attached = ProcessAttached(
            time_ns=0,
            run=1,
            process=at + 1,
            pid=6 + at,
            parent_pid=5,
            rank=at,
            command="p",
            cuda_status="not_used",
        )
        delta = CaptureDelta(
            time_ns=1,
            process=at + 1,
            collectives=(matched_rows(STEPS, max(late_ns) - late),),
            core_run_ns=STEPS * ran_ns,
            core_wait_ns=STEPS * no_core_ns,
            core_watched_ns=STEPS * STEP_NS,
        )
        events += [attached, delta]
    session.apply(events)
    return session, session.runs[1]


@pytest.mark.parametrize(
    ("late_ms", "core_wait_ms", "named", "why"),
    [
        ([0, 20, 0, 0], [8, 30, 6, 9], {}, "rank 1 came last, but had no CPU core 26 %"),
        ([0, 20, 15, 0], [8, 30, 25, 9], {}, "ranks 1 and 2 came last, but had no CPU core 22 to"),
        ([0, 40, 0, 0], [8, 30, 6, 9], {1: "host"}, None),
        ([0, 20, 15, 0], [8, 30, 9, 9], {2: "host"}, None),
        ([0, 20], [30, 8], {1: "host"}, None),
        ([0, 20], [8, 27], {}, "rank 1 came last, but had no CPU core 23 % of the time"),
        ([0, 2], [8, 27], {}, None),
    ],
)
def test_who_had_no_core_is_not_named_late(
    late_ms: list[int], core_wait_ms: list[int], named: dict[int, str], why: str | None
) -> None:
    """A step of 116 ms, of which each rank computes 40 to 45."""
    ran_ms = range(40, 40 + len(late_ms))
    times = ([ms * 1_000_000 for ms in each] for each in (late_ms, core_wait_ms, ran_ms))
    session, run = on_cores(*times)
    assert who(run) == named
    found = [one for one in findings(Analysis(session, run)) if one.cause == "ranks_lack_cores"]
    note = table(session, run, "ranks").note
    assert note.startswith(f"no rank is named late: {why}" if why else "")
    assert [one.sentence for one in found] == ([f"N{note[1:]}."] if why else [])
    assert bool(note) == bool(why)


@pytest.mark.parametrize(
    ("times", "core_wait_ms", "named"),
    [(STEPS, 24, {1: "host"}), (4, 24, {}), (4, 4, {1: "host"})],
)
def test_who_may_be_last_by_chance_is_not_named_late(
    times: int, core_wait_ms: int, named: dict[int, str]
) -> None:
    """Of the time as late in every step as in a few of them, where both ranks lacked cores."""
    lengths = ([0, 20], [core_wait_ms + 1, core_wait_ms], [40, 40])
    _, run = on_cores(*([ms * 1_000_000 for ms in each] for each in lengths))
    (waits,) = (sums for sums in run.collectives.values() if sums.process == 1)
    waits.wait_us2 = times * (waits.wait_ns // 1000 // times) ** 2
    assert who(run) == named


def test_ranks_of_several_hosts_without_a_gpu_are_not_compared_and_it_says_why() -> None:
    session, run = on_cores([0, 40_000_000], [0, 0], [40_000_000, 40_000_000])
    assert who(run) == {1: "host"}
    for one, host in zip(run.processes.values(), "ab", strict=True):
        one.attached = replace(one.attached, host=host)
    assert who(run) == {}
    assert "matched within a host" in table(session, run, "ranks").note


def test_who_sleeps_and_computes_a_little_when_it_wakes_has_no_more_work() -> None:
    times = ([ms * 1_000_000 for ms in each] for each in ([0, 40], [0, 0], [1, 8]))
    _, run = on_cores(*times)
    assert who(run) == {1: "host"}
    assert late(run).evidence[0].startswith("Rank 1: on its CPU")


@pytest.mark.parametrize(("ran_ms", "named"), [(44, {}), (49, {}), (60, {1: "more work"})])
def test_who_computes_longer_is_late_though_it_had_no_core(
    ran_ms: int, named: dict[int, str]
) -> None:
    times = ([ms * 1_000_000 for ms in each] for each in ([0, 20], [8, 30], [40, ran_ms]))
    _, run = on_cores(*times)
    assert who(run) == named
    if named:
        assert (
            late(run)
            .evidence[0]
            .startswith("Rank 1: its CPU computes 1.5 times as long as the others'")
        )
