"""The verdict: which leaf leads, when nothing does, and what belongs to the scope."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.model.events import (
    BESIDE_ASLEEP,
    BESIDE_RUNNING,
    NO_LEAF,
    OUTSIDE_STEPS,
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    DeviceDelta,
    Distribution,
    GpuSample,
    HostSample,
    KernelDefined,
    KernelDelta,
    LeafTime,
    LineDefined,
    LineSamples,
    LoopDelta,
    Loss,
    MachineSample,
    ProcessAttached,
    ProcessSample,
    RunStarted,
    Scope,
    StepBlock,
    Stretch,
)
from gputui.model.events.distributions import encoded_values
from gputui.model.leaves import CAUSES, LEAVES, Leaf
from gputui.model.units import duration
from gputui.render.prometheus import figures
from gputui.report.answer import interruptions
from gputui.report.compare import Condition, Subject, compare
from gputui.report.explain import Analysis, conclusion, findings
from gputui.report.explain.advice import (
    APART,
    COMPUTE,
    COPY_LESS,
    IN_A_PROCESS,
    LET_GO,
    LOAD,
    PLANS,
    SAVE,
    SEND_LESS,
    TUNES,
)
from gputui.report.explain.finding import Finding, finding_documents
from gputui.report.explain.leaves import taken_by_others
from gputui.report.explain.time_tree import time_tree
from gputui.report.explain.verdict import Verdict, verdict
from gputui.report.summary_document import summary_document
from gputui.report.tables.time import leaf_rows
from gputui.state import Run, Session
from gputui.state.readings import Sharing
from gputui.tui.model import Model
from tests.events_for_tests import gpu, header, times
from tests.sessions_for_tests import analysed

STEPS = 100
STEP_NS = 10_000_000
WALL_NS = STEPS * STEP_NS


def a_run(*events: AnyEvent) -> tuple[Session, Run]:
    session = Session.from_events(
        [
            RunStarted(time_ns=0, run=1, kind="command", name="p", arguments=(), pid=5),
            ProcessAttached(
                time_ns=0, run=1, process=1, pid=5, parent_pid=1, command="p", cuda_status="tracing"
            ),
            *events,
        ]
    )
    return session, session.runs[1]


def delta(
    shares: dict[Leaf, float],
    scope: Scope = Scope.STEADY,
    loop: int = 0,
    count: int = STEPS,
    length: float = 1.0,
    blocks: tuple[StepBlock, ...] = (),
) -> CaptureDelta:
    """Steps of `length` × STEP_NS, their time divided as `shares` say."""
    step_ns = round(length * STEP_NS)
    wall_ns = count * step_ns
    lengths = Distribution(
        count, wall_ns, 0.0, step_ns, step_ns, encoded_values([(step_ns, count)]) if count else ()
    )
    return CaptureDelta(
        time_ns=1,
        process=1,
        leaf_times=tuple(
            LeafTime(1, 0, scope, loop, leaf, round(share * wall_ns))
            for leaf, share in shares.items()
        ),
        loops=(LoopDelta(1, 0, scope, loop, count, 300 * count, 1, 1 + wall_ns, lengths),),
        step_blocks=blocks,
    )


def verdict_on(shares: dict[Leaf, float]) -> Verdict:
    _, run = a_run(delta(shares))
    found = verdict(analysed(run))
    assert found is not None
    return found


@pytest.mark.parametrize("leaf", CAUSES)
def test_each_cause_leads_where_it_is_large(leaf: Leaf) -> None:
    rest = Leaf.MATMUL if LEAVES[leaf].is_idle else Leaf.ATTENTION
    found = verdict_on({leaf: 0.6, rest: 0.4})
    assert [one.cause for one in found.findings] == [LEAVES[leaf].key]
    assert "60 %" in found.headline
    assert "6.00 ms of 10.0 ms" in found.headline


@pytest.mark.parametrize(("first", "second"), [(Leaf.LAUNCH, Leaf.SYNC), (Leaf.HOST, Leaf.LAUNCH)])
def test_of_two_causes_the_larger_leads(first: Leaf, second: Leaf) -> None:
    found = verdict_on({first: 0.4, second: 0.3, Leaf.MATMUL: 0.3})
    assert [one.cause for one in found.findings] == [LEAVES[first].key, LEAVES[second].key]


@pytest.mark.parametrize(
    ("read", "first"), [(1, Leaf.LAUNCH), (30, Leaf.SYNC)], ids=["its token", "each layer"]
)
def test_launching_that_is_reading_values_is_synchronizing(read: int, first: Leaf) -> None:
    """A decoder reads one value a step; a program that logs every layer spends its launches on
    copies of values and on waiting for them."""
    calls = {"cudaLaunchKernel": 60, "cudaMemcpyAsync": read, "cudaStreamSynchronize": read}
    api = tuple(
        ApiDelta(process=1, range=0, name=name, time=times(*[1000] * (STEPS * count)))
        for name, count in calls.items()
    )
    shares = {Leaf.LAUNCH: 0.4, Leaf.SYNC: 0.25, Leaf.MATMUL: 0.35}
    _, run = a_run(replace(delta(shares), api=api))
    found = verdict(analysed(run))
    assert found is not None
    assert found.findings[0].cause == LEAVES[first].key
    moved = 0.4 * 0.5 if first is Leaf.SYNC else 0.0
    share = {one.cause: (one.share_percent or 0.0) / 100 for one in found.findings}
    assert share["idle.launch"] == pytest.approx(0.4 - moved)
    # The tree answers itself why: what was moved, from where, and for what reason.
    assert found.tree is not None
    assert [(one.source, one.target, one.why) for one in found.tree.moves] == (
        [(Leaf.LAUNCH, Leaf.SYNC, "most calls read values back and wait")] if moved else []
    )
    assert sum(one.ns for one in found.tree.moves) == pytest.approx(moved * WALL_NS)


def test_the_main_loop_is_the_one_whose_usual_steps_take_longest() -> None:
    """Copying a model to the GPU repeats as well: a hundred short turns, some of which wait for
    imports and files for a second."""
    turns = delta({Leaf.HOST: 1.0}, loop=0)
    copies = encoded_values([(300_000, 90), (2 * STEP_NS, 10)])
    uneven = Distribution(STEPS, 30 * WALL_NS, 0.0, 300_000, 2 * STEP_NS, copies)
    slow = replace(
        turns,
        loops=(replace(turns.loops[0], step_ns=uneven),),
        leaf_times=(LeafTime(1, 0, Scope.STEADY, 0, Leaf.HOST, 30 * WALL_NS),),
    )
    _, run = a_run(slow, delta({Leaf.INPUT: 0.6, Leaf.MATMUL: 0.4}, loop=1))
    found = verdict(analysed(run))
    assert found is not None
    assert found.findings[0].cause == "idle.input"


def test_a_small_leaf_says_nothing() -> None:
    found = verdict_on({Leaf.LAUNCH: 0.05, Leaf.SYNC: 0.05, Leaf.HOST: 0.04, Leaf.MATMUL: 0.86})
    assert found.word == "HEALTHY"
    assert found.findings == ()
    assert "works 86 % of each step, 86 % on matmul" in found.headline


def test_a_leaf_under_a_small_parent_says_nothing() -> None:
    assert verdict_on({Leaf.SYNC: 0.15, Leaf.MATMUL: 0.85}).findings == ()


@pytest.mark.parametrize(
    ("waited", "sync", "launch"), [(None, 0.4, 0.1), (0.5, 0.4, 0.1), (0.03, 0.03, 0.47)]
)
def test_syncs_cost_no_more_than_the_cpu_waits_in_them(
    waited: float | None, sync: float, launch: float
) -> None:
    """A CPU that launches all through the step would not be faster without them."""
    shares = {Leaf.SYNC: 0.4, Leaf.LAUNCH: 0.1, Leaf.MATMUL: 0.5}
    event = delta(shares)
    waited_ns = None if waited is None else round(waited * WALL_NS)
    loops = tuple(msgspec.structs.replace(loop, waited_ns=waited_ns) for loop in event.loops)
    _, run = a_run(msgspec.structs.replace(event, loops=loops))
    tree = time_tree(run)
    assert tree is not None
    found = {leaf: tree.share(ns) for leaf, ns in tree.leaves.items()}
    assert found == pytest.approx({Leaf.SYNC: sync, Leaf.LAUNCH: launch, Leaf.MATMUL: 0.5})


def test_a_gain_is_an_interval_of_what_one_gets() -> None:
    """The gaps of a graph's kernels are left of a launch-bound step; of a card that nothing is
    known of no gain is said."""
    [found] = verdict_on({Leaf.LAUNCH: 0.75, Leaf.MATMUL: 0.25}).findings
    [modelled], [gain] = found.modelled, found.gains
    assert 3.0 < modelled.low < modelled.high < 4.0
    # Models were off by more than they said, but a graph spares no kernels.
    assert 1.0 < gain.low < modelled.low
    assert gain.high == found.alone == 4.0
    assert found.step_ns is not None
    step_ns = found.step_ns / 0.75
    least, most = duration(step_ns / gain.high), duration(step_ns / gain.low)
    ends = f"{least.removesuffix(' ms')} to {most}"
    text = f"{gain.low:.1f} to {gain.high:.1f}× faster ({duration(step_ns)} a step → {ends})"
    # All that idles goes: no more of the bar does.
    condition = "4.0× if all idle time goes, more with larger kernels"
    assert found.gain_text == f"CUDA graphs: {text}: {condition}."
    # What a synchronization keeps from the GPU is idle time, and no kernels.
    [found] = verdict_on({Leaf.SYNC: 0.5, Leaf.MATMUL: 0.5}).findings
    assert found.gains[0].high == 2.0
    assert "more" not in found.gain_text
    [found] = verdict_on({Leaf.MATMUL_SIMT: 1.0}).findings
    assert found.gains == ()
    assert found.gain_text == (
        "How much faster is not known: what this card's tensor cores do is not known."
    )


def test_copies_that_have_nothing_to_hide_behind_are_to_be_fewer() -> None:
    """Overlapping them gains nothing there: the advice is another one, and no gain is said."""
    [found] = verdict_on({Leaf.COPY_PINNED: 0.98, Leaf.DEPENDENCY: 0.02}).findings
    assert (found.word, found.advice) == ("COPY-BOUND", COPY_LESS)
    assert found.gain_text == (
        "How much faster is not known: it depends on how much need not be copied."
    )
    [found] = verdict_on({Leaf.COPY_PINNED: 0.4, Leaf.MATMUL: 0.6}).findings
    assert found.advice == CAUSES[Leaf.COPY_PINNED].advice
    assert found.modelled[0].high == pytest.approx(1 / 0.6)


def test_collectives_that_have_nothing_to_hide_behind_are_to_be_smaller() -> None:
    [found] = verdict_on({Leaf.COMMUNICATION: 0.95, Leaf.MATMUL: 0.05}).findings
    assert (found.advice, found.gains) == (SEND_LESS, ())
    [found] = verdict_on({Leaf.COMMUNICATION: 0.6, Leaf.MATMUL: 0.4}).findings
    assert found.modelled[0].high == pytest.approx(1 / 0.6)


def test_a_run_is_healthy_only_where_the_gpu_works_in_even_steps() -> None:
    assert verdict_on({Leaf.SYNC: 0.14, Leaf.MATMUL: 0.86}).word == "HEALTHY"
    found = verdict_on({Leaf.SYNC: 0.24, Leaf.MATMUL: 0.76})
    assert (found.word, found.headline) == (
        "PARTLY IDLE", "The GPU idles 24 % of each step: sync 24 %.",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("leaf", "idle", "word"),
    [
        (Leaf.WAIT, 0.19, "HEALTHY"),
        (Leaf.LAUNCH, 0.19, "HEALTHY"),
        (Leaf.LAUNCH, 0.21, "LAUNCH-BOUND"),
        (Leaf.ALLOCATION, 0.19, "ALLOCATION-BOUND"),  # no step has to
    ],
)
def test_a_little_idle_time_is_usual_and_is_told(leaf: Leaf, idle: float, word: str) -> None:
    found = verdict_on({leaf: idle, Leaf.MATMUL: 1 - idle})
    assert found.word == word
    told = f"If nothing idled ({LEAVES[leaf].label} 19 %), it would be 1.2× faster."
    assert found.headline.endswith(told) is (word == "HEALTHY")


def test_warm_up_and_other_loops_are_not_in_the_scope() -> None:
    _, run = a_run(
        delta({Leaf.HOST: 1.0}, Scope.SETUP, count=0),
        delta({Leaf.COMPILE: 1.0}, Scope.WARMUP, count=50),
        delta({Leaf.SYNC: 1.0}, Scope.STEADY, loop=0, count=40),
        delta({Leaf.LAUNCH: 0.5, Leaf.MATMUL: 0.5}, Scope.STEADY, loop=1),
    )
    tree = time_tree(run)
    assert tree is not None
    assert tree.wall_ns == WALL_NS
    assert set(tree.leaves) == {Leaf.LAUNCH, Leaf.MATMUL}
    assert tree.beside_ns[Scope.WARMUP] == 50 * STEP_NS
    assert tree.steps == STEPS


def test_a_server_without_requests_is_no_fault() -> None:
    _, run = a_run(
        delta({Leaf.MATMUL: 0.7, Leaf.SYNC: 0.3}, count=20),
        delta({Leaf.WAIT: 1.0}, Scope.PAUSE, count=80),
    )
    found = verdict(analysed(run))
    assert found is not None
    assert (found.word, found.findings) == ("WAITS FOR WORK", ())
    assert interruptions(found) == []


@pytest.mark.parametrize(
    ("saves", "length", "cause"),
    [
        (10, 10.0, ["idle.host"]),
        (10, 1.2, []),
        (3, 40.0, ["idle.host"]),
        (3, 10.0, []),
        (2, 60.0, []),
    ],
    ids=["often", "quickly", "longer than the steps", "shorter", "seldom"],
)
def test_what_a_loop_does_in_its_pauses_counts_where_it_is_a_habit(
    saves: int, length: float, cause: list[str]
) -> None:
    """A model that is saved every few steps: those take long, and are none of the steady ones."""
    _, run = a_run(
        delta({Leaf.MATMUL: 0.95, Leaf.SYNC: 0.05}),
        delta({Leaf.HOST: 0.8, Leaf.COPY_PAGEABLE: 0.2}, Scope.PAUSE, count=saves, length=length),
    )
    share = 100 * saves * length / (saves * length + STEPS)
    found = verdict(analysed(run))
    assert found is not None
    assert [one.cause for one in found.findings] == cause
    strict = Condition.parse("idle.host>20%").tripped(compare([Subject("", Session(), run)] * 2))
    assert bool(strict) == bool(cause)
    if cause:
        said = f"{0.8 * share:.0f} % of the time while the CPU runs the program's own code: "
        said += f"{saves} pauses between steps take {share:.0f} % of all time."
        assert said in found.headline
        [one] = finding_documents(found.findings)
        assert (one.with_pauses, round(one.share_percent or 0)) == (True, round(0.8 * share))
    pauses = f"{saves} pauses take {share:.0f} % of the loop's time"
    # A verdict that has them says so once.
    said_once = [] if cause else [f"{pauses} (CPU code 80 %, pageable copies 20 % of it)."]
    assert interruptions(found) == said_once


def test_a_stretch_of_work_is_no_pause() -> None:
    """An evaluation, or steps of another form than the others, some seconds long."""
    _, run = a_run(
        delta({Leaf.MATMUL: 0.95, Leaf.SYNC: 0.05}),
        delta({Leaf.MATMUL: 0.7, Leaf.LAUNCH: 0.3}, Scope.PAUSE, count=1, length=STEPS / 4),
    )
    assert interruptions(verdict(analysed(run))) == [
        "Work that is in no step takes 20 % of the loop's time (matmul 70 %, launch-bound 30 % of "
        "it)."
    ]


@pytest.mark.parametrize(
    ("slow", "idle", "says"),
    [
        (1, 0.05, ["1 slow step takes 20.0 ms longer than a usual one: 1.9 % of the time."]),
        (5, 0.05, ["5 slow steps take 100 ms longer than usual ones: 8.7 % of the time."]),
        # With 1 % of idle time nothing is lost in them.
        (5, 0.01, ["5 slow steps take 100 ms longer than usual ones, and the GPU works in them: "
                   "8.7 % of the time."]),
        (0, 0.05, []),
    ],
)  # fmt: skip
def test_slow_steps_are_worth_a_sentence_where_they_take_time(
    slow: int, idle: float, says: list[str]
) -> None:
    steady = delta({Leaf.MATMUL: 1.0 - idle, Leaf.SYNC: idle})
    few = delta({Leaf.MATMUL: 1.0 - idle, Leaf.SYNC: idle}, count=slow, length=3.0)
    few = replace(few, loops=(replace(few.loops[0], slow_steps=slow, slow_ns=slow * 3 * STEP_NS),))
    found = verdict(analysed(a_run(steady, few)[1]))
    assert interruptions(found) == says
    longer = replace(steady, loops=(replace(steady.loops[0], slow_steps=1, slow_ns=19_000_000),))
    assert interruptions(verdict(analysed(a_run(longer)[1]))) == []  # 0.9 %


def test_without_steps_the_scope_is_all_time_since_the_first_kernel() -> None:
    _, run = a_run(delta({Leaf.LAUNCH: 1.0}, Scope.UNSTEPPED, count=2))
    found = verdict(analysed(run))
    assert found is not None
    assert "of the time since its first kernel" in found.headline


@pytest.mark.parametrize(
    ("readings", "lost"),
    [
        ([{5: 40.0, 77: 60.0}], 0.52),  # no more than kernels are stretched
        ([{5: 70.0, 77: 30.0}, {5: 90.0, 77: 10.0}], 0.2),  # no more than the others used
        ([{77: 97.0}, {5: 0.0, 77: 97.0}, {5: 95.0}], 0.0),  # done before this one began
        ([{5: 95.0}, {5: 95.0, 77: 0.0}, {77: 97.0}], 0.0),  # beginning when this one is done
        ([{5: 95.0, 77: 2.0}], 0.0),  # a desktop, a monitor
        ([{77: 95.0}], 0.0),  # a container: the driver's number of the run's own process
        ([{5: 95.0}], 0.0),
    ],
)
def test_a_shared_gpu_takes_kernels_stretched_and_another_process_meanwhile(
    readings: list[dict[int, float]], lost: float
) -> None:
    stretched = CaptureDelta(time_ns=1, process=1, stretches=(Stretch(1, 0, 1000, 520),))
    samples = [
        MachineSample(
            time_ns=1 + at,
            host=HostSample(),
            gpus=(),
            processes=tuple(
                ProcessSample(pid=pid, gpu=0, sm_percent=use) for pid, use in pids.items()
            ),
        )
        for at, pids in enumerate(readings)
    ]
    _, run = a_run(delta({Leaf.MATMUL: 0.8, Leaf.LAUNCH: 0.2}), stretched, *samples)
    tree = time_tree(run)
    assert tree is not None
    assert tree.leaves.get(Leaf.SHARED, 0) == round(lost * 0.8 * WALL_NS)
    assert sum(tree.leaves.values()) == WALL_NS
    assert ("SHARED GPU" in [one.word for one in tree_findings(run)]) is (lost > 0)


@pytest.mark.parametrize(
    ("stretched", "rank", "host", "leaf", "lost"),
    [
        ((520, 400), None, None, Leaf.MATMUL, (0.48, 0.384)),  # no more than the other used
        ((100, 400), None, None, Leaf.MATMUL, (0.1, 0.4)),  # no more than kernels are stretched
        ((0, 0), None, None, Leaf.MATMUL, (0.0, 0.0)),  # one after the other
        ((520, 400), 1, None, Leaf.MATMUL, (0.0, 0.0)),  # a rank
        ((520, 400), None, None, Leaf.COMMUNICATION, (0.0, 0.0)),  # ranks of one job
        ((520, 400), None, "box", Leaf.MATMUL, (0.0, 0.0)),
        ((520, 400), None, None, Leaf.COPY_PINNED, (0.0, 0.384)),  # copies hold up no kernel
    ],
)
def test_processes_of_a_run_with_work_of_their_own_take_a_gpu_from_each_other(
    stretched: tuple[int, int],
    rank: int | None,
    host: str | None,
    leaf: Leaf,
    lost: tuple[float, float],
) -> None:
    """Training beside its own evaluation; the other process is at `leaf` for 80 % of its time."""
    second = CaptureDelta(
        time_ns=1,
        process=2,
        leaf_times=(
            LeafTime(2, 0, Scope.STEADY, 0, leaf, round(0.8 * WALL_NS)),
            LeafTime(2, 0, Scope.STEADY, 0, Leaf.LAUNCH, round(0.2 * WALL_NS)),
        ),
        stretches=(Stretch(2, 0, 1000, stretched[1]),),
    )
    own = leaf if leaf is Leaf.COMMUNICATION else Leaf.MATMUL
    first = replace(
        delta({own: 0.8, Leaf.LAUNCH: 0.2}), stretches=(Stretch(1, 0, 1000, stretched[0]),)
    )
    other = ProcessAttached(
        time_ns=0, run=1, process=2, pid=6, parent_pid=1, command="p", cuda_status="tracing",
        rank=rank, host=host,
    )  # fmt: skip
    _, run = a_run(other, first, second)
    for process, share in enumerate(lost, 1):
        assert taken_by_others(run, process, 0) == pytest.approx(share, abs=0.001)
    words = {one.word: one for one in tree_findings(run)}
    assert ("SHARED GPU" in words) is (lost[0] > 0)
    if lost[0]:
        assert words["SHARED GPU"].advice == APART


def tree_findings(run: Run) -> tuple[Finding, ...]:
    of = verdict(analysed(run))
    assert of is not None
    return of.findings


def test_nothing_captured_is_no_verdict() -> None:
    session, run = a_run()
    assert verdict(analysed(run)) is None
    assert findings(Analysis(session, run)) == []
    assert leaf_rows(run) == []


@given(
    parts=st.dictionaries(st.sampled_from(list(Leaf)), st.integers(1, 10**12), min_size=1),
)
def test_shares_sum_to_a_hundred(parts: dict[Leaf, int]) -> None:
    total = sum(parts.values())
    _, run = a_run(delta({leaf: ns / total for leaf, ns in parts.items()}))
    rows = leaf_rows(run)
    if rows:
        assert sum(row.share_percent for row in rows) == pytest.approx(100.0, abs=0.1)


def test_the_document_has_the_verdict_its_scope_and_the_findings() -> None:
    session, run = a_run(
        delta({Leaf.HOST: 1.0}, Scope.SETUP, count=0),
        delta({Leaf.LAUNCH: 0.6, Leaf.MATMUL: 0.4}),
        delta({Leaf.COMPILE: 1.0}, Scope.WARMUP, count=3),
    )
    document = summary_document(session, run)
    verdict_of = document["verdict"]
    assert verdict_of["word"] == "LAUNCH-BOUND"
    assert verdict_of["scope"] == "steady steps"
    assert (verdict_of["steps"], verdict_of["step_ns"]) == (STEPS, STEP_NS)
    assert verdict_of["idle_percent"] == pytest.approx(60.0)
    assert verdict_of["beside_ns"] == {"warmup": 3 * STEP_NS}
    [found] = document["findings"]
    assert found["cause"] == "idle.launch"
    assert found["share_percent"] == pytest.approx(60.0)
    assert found["step_ns"] == pytest.approx(0.6 * STEP_NS)
    [gain] = found["gains"]
    assert 1.2 < gain["low"] < 2.0
    assert gain["high"] == 2.5, "no graph takes more than all that idles"
    assert found["try"].startswith("CUDA graphs")
    assert [row["key"] for row in document["time"]] == ["idle.launch", "busy.matmul"]


def test_prometheus_has_every_leaf_of_each_gpu() -> None:
    session, _ = a_run(delta({Leaf.LAUNCH: 0.6, Leaf.MATMUL: 0.4}))
    series = {
        (family.name, dict(labels).get("cause")): value
        for labels, found in figures(session, ())
        for family, value in found
    }
    assert series["gputui_cause_share_ratio", "idle.launch"] == pytest.approx(0.6)
    assert series["gputui_cause_seconds", "busy.matmul"] == pytest.approx(0.4 * WALL_NS / 1e9)
    assert series["gputui_cause_share_ratio", "idle.rank"] == 0.0
    assert series["gputui_step_seconds", None] == pytest.approx(STEP_NS / 1e9)
    shares = [value for (name, _), value in series.items() if name == "gputui_cause_share_ratio"]
    assert len(shares) == len(LEAVES)
    assert sum(shares) == pytest.approx(1.0)


@pytest.mark.parametrize(("lost", "word"), [(40, "LAUNCH-BOUND"), (60, "INCOMPLETE")])
def test_lost_records_are_a_hole_and_no_idle_time(lost: int, word: str) -> None:
    _, run = a_run(
        replace(
            delta({Leaf.LAUNCH: 0.7, Leaf.MATMUL: 0.3}),
            records=1000 - lost,
            dropped=lost,
            losses=(Loss("ring", "", lost),),
        )
    )
    found = verdict(analysed(run))
    assert found is not None
    assert found.word == word
    if word == "INCOMPLETE":
        assert "6 % of the records were lost (60 because the ring was full)" in found.headline


def test_lost_ranges_leave_the_time_of_the_gpu_alone() -> None:
    _, run = a_run(
        replace(
            delta({Leaf.LAUNCH: 0.7, Leaf.MATMUL: 0.3}),
            records=100,
            dropped=900,
            losses=(Loss("deferred", "x", 900),),
        )
    )
    found = verdict(analysed(run))
    assert found is not None
    assert found.word == "LAUNCH-BOUND"


def test_busy_leaves_speak_in_spite_of_a_hole() -> None:
    shares = {Leaf.MATMUL_SIMT: 0.5, Leaf.LAUNCH: 0.5}
    _, run = a_run(replace(delta(shares), records=800, dropped=200))
    found = verdict(analysed(run))
    assert found is not None
    assert [one.cause for one in found.findings] == ["busy.matmul_simt"]


def test_idle_time_whose_launches_were_not_seen_is_not_explained() -> None:
    found = verdict_on({Leaf.UNKNOWN: 0.5, Leaf.LAUNCH: 0.2, Leaf.MATMUL: 0.3})
    assert (found.word, found.findings) == ("INCOMPLETE", ())
    assert verdict_on({Leaf.UNKNOWN: 0.1, Leaf.LAUNCH: 0.6, Leaf.MATMUL: 0.3}).findings


def test_many_small_causes_are_named_together() -> None:
    found = verdict_on(
        {Leaf.LAUNCH: 0.09, Leaf.HOST: 0.08, Leaf.WAIT: 0.09, Leaf.CUDA: 0.09, Leaf.MATMUL: 0.65}
    )
    assert (found.word, found.findings) == ("NO SINGLE CAUSE", ())
    assert "idles 35 % of each step: launch-bound 9 %, CPU waiting 9 %" in found.headline


@pytest.mark.parametrize(
    ("gib", "of_gib", "found", "leads", "others"),
    [
        ([10, 11, 12, 13, 14, 15, 16, 17], 80, True, True, 0),
        ([10, 11, 12, 13, 14, 15, 16, 17], 80, False, False, 60),  # maybe another program's
        ([10, 11, 12, 13, 14, 15, 16, 17], 1000, True, False, 0),  # full in two minutes
        ([10, 10, 11, 11, 12, 13, 13, 14], 80, True, True, 0),  # the allocator takes blocks
        ([10, 10, 10, 10, 10, 14, 14, 14], 80, False, False, 0),  # another part of the program
        ([10, 14, 10, 14, 10, 14, 10, 14], 80, False, False, 0),
    ],
)
def test_memory_that_grows_leads_where_it_is_full_soon_and_does_not_grow_that_jumps_once(
    gib: list[int], of_gib: int, found: bool, leads: bool, others: float
) -> None:
    used_by = DeviceDelta(
        process=1, device=0, busy_ns=1, operations=1, first_start_ns=1, last_end_ns=2
    )
    session, run = a_run(
        header(replace(gpu(0), memory_total_bytes=of_gib << 30)),
        delta({Leaf.LAUNCH: 0.3, Leaf.MATMUL: 0.7}),
        CaptureDelta(time_ns=1, process=1, devices=(used_by,)),
    )
    session.apply(
        [
            MachineSample(
                time_ns=1 + WALL_NS * number // len(gib),
                host=HostSample(),
                gpus=(GpuSample(index=0, memory_used_bytes=used << 30),),
            )
            for number, used in enumerate(gib)
        ]
    )
    if others:
        run.readings.sharing[0] = Sharing(8, 8 * others)
    names = [one.cause for one in findings(Analysis(session, run))]
    assert ("memory_grows" in names) is found
    answer = conclusion(Analysis(session, run))
    assert answer is not None
    assert answer.word == ("MEMORY OF GPU 0 GROWS" if leads else "LAUNCH-BOUND")
    assert names[0] == answer.findings[0].cause


def test_the_main_loop_is_the_one_with_most_steady_time() -> None:
    """Parameters were set up one by one, with pauses between that took longer than the training."""
    _, run = a_run(
        delta({Leaf.COPY_PAGEABLE: 1.0}, Scope.STEADY, loop=0, count=60),
        delta({Leaf.HOST: 1.0}, Scope.PAUSE, loop=0, count=200),
        delta({Leaf.MATMUL: 1.0}, Scope.STEADY, loop=1),
    )
    tree = time_tree(run)
    assert tree is not None
    assert (tree.steps, set(tree.leaves)) == (STEPS, {Leaf.MATMUL})


@pytest.mark.parametrize(
    ("name", "calls", "found"),
    [
        ("cudnn_generated_fort_native_sdpa_sm80_flash_fprop", STEPS, True),
        ("cudnn_generated_fort_native_sdpa_sm80_flash_fprop", 1, False),
        ("flash_fwd_kernel", STEPS, False),
    ],
)
def test_advice_knows_that_cudnn_plans_attention(name: str, calls: int, found: bool) -> None:
    kernel = KernelDelta(process=1, range=0, kernel=1, device=0, time=times(*[1000] * calls))
    _, run = a_run(replace(delta({Leaf.HOST: 0.8, Leaf.ATTENTION: 0.2}), kernels=(kernel,)))
    defined = KernelDefined(time_ns=1, kernel=1, name=name, mangled=name)
    answer = verdict(analysed(run, {1: defined}))
    assert answer is not None
    assert answer.findings[0].advice.startswith(PLANS) is found


@pytest.mark.parametrize(("events", "found"), [(30, True), (3, False)])
@pytest.mark.parametrize("leaf", [Leaf.WAIT, Leaf.HOST, Leaf.ALLOCATION])
def test_advice_knows_that_convolutions_are_tuned(leaf: Leaf, events: int, found: bool) -> None:
    """Each algorithm is timed, with a wait for the device and one for an event."""
    api = tuple(
        ApiDelta(process=1, range=0, name=name, time=times(*[1000] * (STEPS * count)))
        for name, count in {"cudaDeviceSynchronize": 30, "cudaEventSynchronize": events}.items()
    )
    _, run = a_run(replace(delta({leaf: 0.8, Leaf.MATMUL: 0.2}), api=api))
    name = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc"
    answer = verdict(
        analysed(run, {1: KernelDefined(time_ns=1, kernel=1, name=name, mangled=name)})
    )
    assert answer is not None
    assert (answer.findings[0].advice == TUNES) is found


def test_where_no_line_is_frequent_the_function_is_named() -> None:
    shares = {Leaf.HOST: 0.9, Leaf.MATMUL: 0.1}
    seen = [(None, line, 5) for line in range(1, 5)]
    answer = verdict(analysed(at_lines(shares, *seen)))
    assert answer is not None
    says = "In 100 % of 20 samples the program was in f, at lines such as t.py:1 and t.py:2"
    assert answer.findings[0].evidence == (says,)
    assert (
        verdict(analysed(at_lines(shares, *seen, function="<module>"))).findings[0].evidence == ()
    )  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("other", "readings", "says", "advice"),
    [
        (
            BESIDE_RUNNING,
            12,
            "Meanwhile another thread ran in f (t.py)",
            IN_A_PROCESS.format(where="f (t.py)"),
        ),
        (
            BESIDE_ASLEEP,
            12,
            "Meanwhile another thread slept in f (t.py)",
            LET_GO.format(where="f (t.py)"),
        ),
        (BESIDE_RUNNING, 4, None, CAUSES[Leaf.WAIT].advice),
    ],
    ids=["holds Python's lock", "holds a lock", "at times"],
)
def test_what_a_thread_that_sleeps_may_wait_for_is_named(
    other: int, readings: int, says: str | None, advice: str
) -> None:
    """Another thread of the program, at whichever of its lines."""
    beside = [(other, 2, readings // 2), (other, 3, readings // 2)]
    answer = verdict(analysed(at_lines({Leaf.WAIT: 0.9, Leaf.MATMUL: 0.1}, (None, 1, 12), *beside)))
    assert answer is not None
    [one] = answer.findings
    mine = "In 100 % of 12 samples the program was at t.py:1 f"
    assert one.evidence == ((mine, says) if says else (mine,))
    assert one.advice == advice


@pytest.mark.parametrize(("scope", "evidence"), [(Scope.UNSTEPPED, True), (Scope.STEADY, False)])
def test_lines_outside_of_steps_count_where_there_are_none(scope: Scope, evidence: bool) -> None:
    _, run = a_run(
        LineDefined(time_ns=0, process=1, line=1, path="/m/t.py", number=1, function="f"),
        replace(
            delta({Leaf.HOST: 0.9, Leaf.MATMUL: 0.1}, scope),
            line_samples=(LineSamples(1, 0, OUTSIDE_STEPS, 1, 12),),
        ),
    )
    answer = verdict(analysed(run))
    assert answer is not None
    assert bool(answer.findings[0].evidence) is evidence


def test_validation_between_bursts_of_training_is_other_work() -> None:
    _, run = a_run(
        delta({Leaf.MATMUL: 0.95, Leaf.SYNC: 0.05}),
        delta({Leaf.MATMUL: 0.9, Leaf.LAUNCH: 0.1}, Scope.PAUSE, count=6, length=STEPS / 2),
    )
    answer = verdict(analysed(run))
    assert answer is not None
    assert (answer.word, [one.cause for one in answer.findings]) == ("OTHER WORK", ["other_work"])
    assert "75 % of the time" in answer.headline
    assert interruptions(answer) == []


@pytest.mark.parametrize(
    ("path", "function", "readings", "advice"),
    [
        ("/m/model.py", "forward", 10, COMPUTE),
        ("/m/train.py", "augment", 10, LOAD),
        ("/m/train.py", "prepare", 10, LOAD),
        ("/m/dataset.py", "one", 10, LOAD),
        ("/m/train.py", "save", 10, SAVE),
        ("/m/train.py", "save", 9, CAUSES[Leaf.HOST].advice),
        ("/m/train.py", "catalogue", 10, CAUSES[Leaf.HOST].advice),
        ("/m/train.py", "<module>", 10, CAUSES[Leaf.HOST].advice),
    ],
)
def test_advice_goes_by_the_line(path: str, function: str, readings: int, advice: str) -> None:
    """A loop that decodes has no use for workers that load its data."""
    _, run = a_run(
        LineDefined(time_ns=0, process=1, line=1, path=path, number=7, function=function),
        replace(
            delta({Leaf.HOST: 0.8, Leaf.MATMUL: 0.2}),
            line_samples=(LineSamples(1, 0, 0, 1, readings),),
        ),
    )
    answer = verdict(analysed(run))
    assert answer is not None
    assert answer.findings[0].advice == advice


def test_the_line_that_synchronizes_is_named() -> None:
    """It is not where the program is outside CUDA, in which it is at another line."""
    _, run = a_run(
        *(
            LineDefined(time_ns=0, process=1, line=line, path="t.py", number=line, function="step")
            for line in (3, 4)
        ),
        replace(
            delta({Leaf.SYNC: 0.5, Leaf.HOST: 0.2, Leaf.MATMUL: 0.3}),
            line_samples=(
                LineSamples(1, 0, 0, 3, 20, int(Leaf.SYNC)),
                LineSamples(1, 0, 0, 4, 10),
            ),
        ),
    )
    answer = verdict(analysed(run))
    assert answer is not None
    assert {one.cause: one.place for one in answer.findings} == {
        "idle.sync": "t.py:3 step",
        "idle.host": "t.py:4 step",
    }
    assert answer.headline.endswith("Mostly at t.py:3 step.")


@pytest.mark.parametrize(
    ("function", "path", "advice"),
    [
        ("_save", "torch/library.py", SAVE),
        ("__getitem__", "torch/library.py", LOAD),
        ("_engine_run_backward", "torch/autograd/graph.py", CAUSES[Leaf.LAUNCH].advice),
        ("embedding_bag", "torch/nn/functional.py", COMPUTE),
        ("conv2d", "scipy/signal.py", CAUSES[Leaf.HOST].advice),
    ],
)
def test_advice_goes_by_what_a_library_does_for_the_line(
    function: str, path: str, advice: str
) -> None:
    """What PyTorch's backward pass does on the CPU is to prepare launches; an embedding that takes
    long is the CPU's."""
    lines = (("/m/train.py", "<module>"), (path, function))
    _, run = a_run(
        *(
            LineDefined(time_ns=0, process=1, line=line, path=path, number=7, function=name)
            for line, (path, name) in enumerate(lines, 1)
        ),
        replace(
            delta({Leaf.HOST: 0.8, Leaf.MATMUL: 0.2}),
            line_samples=(LineSamples(1, 0, 0, 1, 10, inside=2, inside_samples=9),),
        ),
    )
    answer = verdict(analysed(run))
    assert answer is not None
    assert answer.findings[0].advice == advice


def at_lines(
    shares: dict[Leaf, float], *seen: tuple[int | None, int, int], function: str = "f"
) -> Run:
    """Steps, and the leaf, the line and the number of readings of the program."""
    lines = [
        LineDefined(time_ns=0, process=1, line=line, path="/m/t.py", number=line, function=function)
        for line in {line for _, line, _ in seen}
    ]
    samples = tuple(
        LineSamples(1, 0, 0, line, readings, leaf=NO_LEAF if leaf is None else leaf)
        for leaf, line, readings in seen
    )
    return a_run(*lines, replace(delta(shares), line_samples=samples))[1]


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (8, "In 60 % of 20 samples the program was at t.py:1 f; in 40 % at t.py:2 f"),
        (5, "In 71 % of 17 samples the program was at t.py:1 f"),
    ],
)
def test_two_lines_are_named_where_each_has_a_third(second: int, says: str) -> None:
    """A model's forward pass, and the choice of a token on the CPU."""
    run = at_lines({Leaf.HOST: 0.9, Leaf.MATMUL: 0.1}, (None, 1, 12), (None, 2, second))
    answer = verdict(analysed(run))
    assert answer is not None
    assert answer.findings[0].evidence == (says,)


@pytest.mark.parametrize(
    ("line", "causes"), [(1, ["idle.compile"]), (2, ["idle.compile", "idle.wait"])]
)
def test_what_compiles_waits_at_the_same_line_for_threads_that_do(
    line: int, causes: list[str]
) -> None:
    """The backward pass is compiled by autograd's thread, or by processes."""
    shares = {Leaf.COMPILE: 0.5, Leaf.WAIT: 0.4, Leaf.MATMUL: 0.1}
    answer = verdict(analysed(at_lines(shares, (Leaf.COMPILE, 1, 50), (None, line, 40))))
    assert answer is not None
    first = answer.findings[0]
    assert [one.cause for one in answer.findings] == causes
    assert first.advice == CAUSES[Leaf.COMPILE].advice
    if len(causes) == 1:
        assert "90 % of each step while the program is at one line" in first.sentence
        assert "(compile 50 %, CPU waiting 40 %)" in first.sentence
        assert first.evidence == ("In 100 % of 50 samples the program was at t.py:1 f",)


def test_ranks_at_one_line_are_at_one_line() -> None:
    shares = {Leaf.HOST: 0.9, Leaf.MATMUL: 0.1}
    lines = [
        LineDefined(time_ns=0, process=rank, line=rank, path="/m/t.py", number=7, function="f")
        for rank in (1, 2)
    ]
    mine, others = (LineSamples(rank, 0, 0, rank, 10) for rank in (1, 2))
    other = ProcessAttached(
        time_ns=0, run=1, process=2, pid=6, parent_pid=1, command="p", cuda_status="tracing"
    )
    beside = CaptureDelta(time_ns=1, process=2, line_samples=(others,))
    _, run = a_run(other, *lines, replace(delta(shares), line_samples=(mine,)), beside)
    answer = verdict(analysed(run))
    assert answer is not None
    assert answer.findings[0].evidence == ("In 100 % of 20 samples the program was at t.py:7 f",)


def test_an_analysis_computes_its_verdict_once_and_another_one_its_own() -> None:
    session, run = a_run(delta({Leaf.LAUNCH: 0.6, Leaf.MATMUL: 0.4}))
    first = Analysis(session, run)
    before = conclusion(first)
    assert before is not None
    assert before is verdict(first)
    assert findings(first) is findings(first)
    session.apply([delta({Leaf.HOST: 0.9, Leaf.MATMUL: 0.1}, count=10 * STEPS)])
    after = conclusion(Analysis(session, run))
    assert after is not None
    assert (before.word, after.word) == ("LAUNCH-BOUND", "CPU-BOUND")


def test_the_screen_shares_an_analysis_until_the_run_changes() -> None:
    session, run = a_run(delta({Leaf.LAUNCH: 0.6, Leaf.MATMUL: 0.4}))
    model = Model(session)
    first = model.analysis(run)
    assert model.analysis(run) is first
    assert model.found[0] is conclusion(first)
    model.apply([delta({Leaf.HOST: 0.9, Leaf.MATMUL: 0.1}, count=10 * STEPS)])
    assert model.analysis(run) is not first
    assert model.found[0] is not None
    assert model.found[0].word == "CPU-BOUND"
