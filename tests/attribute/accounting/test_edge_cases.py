"""What makes an accounting go wrong: several threads and streams, graphs, attaching, clocks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from gputui.attribute import Strings, timed_operations
from gputui.attribute.accounting import Accounting
from gputui.attribute.accounting.device import DeviceTime
from gputui.attribute.accounting.device_steps import DeviceSteps
from gputui.attribute.accounting.host_threads import SHORT_NS, Doing, HostThreads, kind_of_call
from gputui.attribute.accounting.operations import (
    FIRST_KERNEL,
    LATENCY_NS,
    Columns,
    Kernels,
    columns,
    refine,
)
from gputui.attribute.accounting.program_steps import ProgramSteps
from gputui.attribute.accounting.thread_readings import LineReading
from gputui.attribute.arrays import Busy
from gputui.attribute.calls import CALL
from gputui.attribute.range_stacks import RangeStacks
from gputui.model.events import (
    BESIDE_ASLEEP,
    BESIDE_RUNNING,
    NO_LEAF,
    OUTSIDE_STEPS,
    RECOMPUTING,
    LeafTime,
    LineSamples,
    LoopDelta,
    Scope,
)
from gputui.model.leaves import LEAVES, Leaf, leaf_of_kernel
from gputui.ring import SLOT, RecordKind
from tests.attribute.accounting.test_device import MAIN, START, by_leaf, device, operations

WORKER = 8
LAUNCH = Doing.LAUNCHING


def of_threads(calls: dict[int, list[tuple[int, int, Doing]]]) -> DeviceTime:
    threads = HostThreads()
    for thread, made in calls.items():
        starts, ends, kinds = (np.array(column) for column in zip(*made, strict=True))
        threads.add(np.full(len(made), thread), starts, ends, kinds.astype(np.int8))
    return DeviceTime(threads, MAIN)


def by(found: Columns, **columns: list[int]) -> Columns:
    """With other threads or streams."""
    return found._replace(**{name: np.array(values, np.uint32) for name, values in columns.items()})


def test_a_gap_is_blamed_on_the_thread_that_launched_what_ends_it() -> None:
    """The main thread sleeps for long, a worker feeds the GPU and stops in a wait."""
    late = START + 400_000
    of = of_threads(
        {
            MAIN: [(START - 10, START, LAUNCH), (START + 10**9, START + 10**9 + 10, LAUNCH)],
            WORKER: [(START - 5, START + 12_000, Doing.WAITING), (late, late + 10, LAUNCH)],
        }
    )
    rows = operations(
        (START, START + 10_000, START - 10, START, Leaf.MATMUL),
        (late + 10, late + 20, late, late + 10, Leaf.MATMUL),
    )
    of.add(by(rows, threads=[MAIN, WORKER]))
    found = by_leaf(of)
    assert Leaf.HOST not in found
    assert found[Leaf.SYNC] > 300_000


def test_gaps_inside_a_graph_are_dependencies() -> None:
    """One launch, many kernels: the CPU has nothing to do with what lies between them."""
    call = START - 20_000, START - 5_000
    of = device([(*call, LAUNCH), (START + 50 * SHORT_NS, START + 50 * SHORT_NS + 10, LAUNCH)])
    of.add(
        operations(
            *(
                (START + at, START + at + 4_000, *call, Leaf.MATMUL)
                for at in range(0, 100_000, 10_000)
            )
        )
    )
    assert by_leaf(of) == {Leaf.MATMUL: 40_000, Leaf.DEPENDENCY: 54_000}


def test_waiting_for_another_gpu_is_a_dependency() -> None:
    """A model's layers on two GPUs: while one works, the other idles and the CPU waits."""
    again = START + 10_000 + 30 * SHORT_NS
    wait = (START + 5_000, again - 2_000, Doing.WAITING)
    of = device([(START - 10, START, LAUNCH), wait, (again - 100, again - 50, LAUNCH)])
    half = START + 10_000 + 15 * SHORT_NS
    of.siblings = Busy(np.array([START]), np.array([half]))
    of.add(
        operations(
            (START, START + 10_000, START - 10, START, Leaf.MATMUL),
            (again, again + 10, again - 100, again - 50, Leaf.MATMUL),
        )
    )
    found = by_leaf(of)
    assert found[Leaf.DEPENDENCY] == pytest.approx(15 * SHORT_NS, rel=0.01)
    assert found[Leaf.SYNC] == pytest.approx(15 * SHORT_NS, rel=0.01)


def test_streams_are_never_summed() -> None:
    """Two streams that run side by side fill the time once, compute before copies."""
    calls = [(START - 20, START - 10, LAUNCH), (START - 10, START, LAUNCH)]
    of = device(calls)
    rows = operations(
        (START, START + 10_000, START - 20, START - 10, Leaf.MATMUL),
        (START + 4_000, START + 14_000, START - 10, START, Leaf.COPY_PINNED),
    )
    of.add(by(rows, streams=[7, 9]))
    assert by_leaf(of) == {Leaf.MATMUL: 10_000, Leaf.COPY_PINNED: 4_000}


def test_attached_in_the_middle() -> None:
    """Launches from before are not known: that is said, not blamed on the program."""
    late = START + 30_000
    of = device([(late, late + 2_000, LAUNCH)])
    of.add(
        operations(
            (START, START + 10_000, 0, 0, Leaf.MATMUL),
            (START + 12_000, START + 20_000, 0, 0, Leaf.MATMUL),
            (late + 3_000, late + 9_000, late, late + 2_000, Leaf.MATMUL),
        )
    )
    found = by_leaf(of)
    assert found[Leaf.UNKNOWN] == 2_000
    assert sum(found.values()) == 39_000


def test_a_kernel_that_begins_before_its_launch_does_by_the_clocks() -> None:
    """Clocks a few microseconds apart must not make time out of nothing."""
    late = START + 30_000
    of = device([(START - 10, START, LAUNCH), (late, late + 8_000, LAUNCH)])
    of.add(
        operations(
            (START, START + 10_000, START - 10, START, Leaf.MATMUL),
            (late - 5_000, late + 5_000, late, late + 8_000, Leaf.MATMUL),
        )
    )
    found = by_leaf(of)
    assert sum(found.values()) == 35_000
    assert found[Leaf.MATMUL] == 20_000
    assert sum(ns for leaf, ns in found.items() if LEAVES[leaf].is_idle) == 15_000


def test_latency_is_no_fault_of_anyone() -> None:
    """A kernel starts some microseconds after its launch, however idle the GPU is."""
    late = START + 10_000 + 2 * SHORT_NS
    of = device([(START - 10, START, LAUNCH), (late, late + 5_000, LAUNCH)])
    begin = late + 5_000 + LATENCY_NS // 2
    of.add(
        operations(
            (START, START + 10_000, START - 10, START, Leaf.MATMUL),
            (begin, begin + 1_000, late, late + 5_000, Leaf.MATMUL),
        )
    )
    found = by_leaf(of)
    assert found[Leaf.HOST] == 2 * SHORT_NS
    assert found.get(Leaf.DEPENDENCY, 0) + found[Leaf.LAUNCH] == 5_000 + LATENCY_NS // 2


def test_what_was_not_traced_is_in_no_leaf() -> None:
    """Windows of tracing: a second between two of them, and what a step took there, is unknown."""
    steps = DeviceSteps(1, 0, device())
    rows, boundaries = [], []
    for window in range(2):
        for step in range(8):
            at = START + window * 10**9 + step * 10**7
            boundaries.append(at)
            rows.append((at, at + 8_000_000, at - 10, at - 5, Leaf.MATMUL))
    ends = START + 8 * 10**7 - 1_000_000
    steps.time.holes.add(ends, START + 10**9 - 1_000)
    steps.add(operations(*rows))
    steps.mark(boundaries, renewed=False)
    parts = steps.collect(None, False)
    sums, turns = Counter[tuple[Scope, Leaf]](), Counter[Scope]()
    for part in parts:
        if isinstance(part, LeafTime):
            sums[part.scope, Leaf(part.leaf)] += part.ns
        elif isinstance(part, LoopDelta):
            turns[part.scope] += part.steps
    # The last step of the first window goes on where nothing was traced.
    assert turns == {Scope.STEADY: 15}
    assert sums[Scope.STEADY, Leaf.MATMUL] == 15 * 8_000_000
    assert sum(sums.values()) == 15 * 8_000_000 + 14 * 2_000_000


@pytest.mark.parametrize(("fetches", "leaf"), [(True, Leaf.INPUT), (False, Leaf.WAIT)])
def test_only_what_is_fetched_is_input_in_a_pause(fetches: bool, leaf: Leaf) -> None:
    """Every ten steps: a data loader starts again, or a server's queue is empty."""
    steps = DeviceSteps(1, 0, device())
    rows, at = [], START
    for number in range(60):
        rows.append((at, at + 9_000_000, at - 10, at - 5, Leaf.MATMUL))
        if number % 10 == 9:
            inside = (7, 8) if number < 40 else (7, 9)  # what a line calls, and that in turn
            reading = LineReading(at + 150_000_000, 1, Leaf.INPUT, fetches, inside)
            steps.time._threads.lines.add(MAIN, reading)
            at += 300_000_000
        at += 10_000_000
    steps.add(operations(*rows))
    steps.mark([row[0] for row in rows], renewed=False)
    found, said = Counter[Leaf](), Counter[int]()
    for part in steps.collect(None, False):
        if isinstance(part, LeafTime) and part.scope is Scope.PAUSE:
            found[Leaf(part.leaf)] += part.ns
        if isinstance(part, LineSamples):
            said[part.leaf] += part.samples
            assert (part.inside, part.inside_samples) == (8, 4)
    assert said == {Leaf.INPUT: 5}
    assert found == {Leaf.MATMUL: 5 * 9_000_000, leaf: 5 * 301_000_000 - 50, Leaf.LAUNCH: 50}


def test_what_a_backward_pass_computes_again_counts_though_the_device_is_busy() -> None:
    marked = ProgramSteps(1, Strings())
    accounting = Accounting(1, MAIN, RangeStacks(Strings()), marked, live=False)
    accounting.devices[0] = steps = DeviceSteps(1, 0, device())
    starts = range(START, START + 10**9, 10**8)
    rows = [(at, at + 10**8, at - 10, at - 5, Leaf.MATMUL) for at in starts]
    for row in rows:
        accounting.add_recomputation(LineReading(row[0] + 5 * 10**7, 31))
    steps.add(operations(*rows))
    steps.mark([row[0] for row in rows], renewed=False)
    found = [part for part in steps.collect(None, False) if isinstance(part, LineSamples)]
    # The last one in what may still be a step.
    assert {(part.line, part.leaf) for part in found} == {(31, RECOMPUTING)}
    assert [part.samples for part in found] == [9, 1]


def test_a_thread_that_holds_the_lock_is_one_beside_those_that_launch() -> None:
    accounting = Accounting(1, MAIN, RangeStacks(Strings()), ProgramSteps(1, Strings()), live=False)
    accounting.devices[0] = steps = DeviceSteps(1, 0, device())
    launch = np.array([START - 10]), np.array([START - 5])
    accounting.define_call("cudaLaunchKernel")
    accounting.add_calls(np.array([0]), np.array([MAIN]), *launch)
    rows = [
        (at, at + 10**8, at - 10, at - 5, Leaf.MATMUL) for at in range(START, START + 10**9, 10**8)
    ]
    for row in rows:
        accounting.add_lock_holder(WORKER, LineReading(row[0] + 5 * 10**7, 31))
        accounting.add_lock_holder(MAIN, LineReading(row[0] + 5 * 10**7, 32))
    steps.add(operations(*rows))
    steps.mark([row[0] for row in rows], renewed=False)
    found = [part for part in steps.collect(None, False) if isinstance(part, LineSamples)]
    assert {(part.line, part.leaf) for part in found} == {(31, BESIDE_RUNNING)}


@pytest.mark.parametrize("stepped", [True, False])
@pytest.mark.parametrize("computes", [True, False])
def test_where_other_threads_are_while_the_launching_one_sleeps(
    stepped: bool, computes: bool
) -> None:
    """Two compute in turns, as Python's lock lets them, one sleeps in a line of the program, one in
    a library's; while the launching thread computes itself they are nobody's business."""
    steps = DeviceSteps(1, 0, device())
    threads = steps.time._threads
    rows, first, second, sleeping, inside = [], 31, 32, 33, 34
    for number in range(40):
        at = START + number * 10**8
        rows.append((at, at + 10**7, at - 10, at - 5, Leaf.MATMUL))
        runs = {MAIN: number >= 30, first: 0.45 * computes, second: 0.45 * computes}
        for thread in (MAIN, first, second, sleeping, inside):
            ran_ns = round(number * 10**8 * runs.get(thread, 0.02))
            threads.add_state(thread, at, ran_ns, 0, Leaf.WAIT)
            within = (9,) if thread == inside else ()
            threads.lines.add(thread, LineReading(at + 5 * 10**7, thread, inside=within))
    steps.add(operations(*rows))
    if stepped:
        steps.mark([row[0] for row in rows], renewed=False)
    found = Counter[tuple[int, int]]()
    for part in steps.collect(None, False):
        if isinstance(part, LineSamples):
            assert (part.loop == OUTSIDE_STEPS) is not stepped
            found[part.line, part.leaf] += part.samples
    assert found.pop((MAIN, NO_LEAF)) >= 30
    assert set(found.values()) <= {28, 29, 30}
    if computes:
        assert set(found) == {(first, BESIDE_RUNNING), (second, BESIDE_RUNNING)}
    else:
        asleep = first, second, sleeping
        assert set(found) == {(thread, BESIDE_ASLEEP) for thread in asleep}


def test_a_worker_thread_that_waits_for_the_main_thread_is_not_to_blame() -> None:
    """Autograd's thread launched last; in between the main thread was in an allocation."""
    late = START + 10_000 + 40 * SHORT_NS
    of = of_threads(
        {
            MAIN: [(START + 10_000, late - 5 * SHORT_NS, Doing.ALLOCATING)],
            WORKER: [(START - 10, START, LAUNCH), (late, late + 10, LAUNCH)],
        }
    )
    rows = operations(
        (START, START + 10_000, START - 10, START, Leaf.MATMUL),
        (late + 10, late + 20, late, late + 10, Leaf.MATMUL),
    )
    of.add(by(rows, threads=[WORKER, WORKER]))
    found = by_leaf(of)
    assert found[Leaf.ALLOCATION] == 35 * SHORT_NS
    assert found[Leaf.HOST] == 5 * SHORT_NS


PRODUCT, ELEMENTWISE = "sm90_xmma_gemm_bf16", "vectorized_elementwise_kernel<4>"
KERNELS = {
    Leaf.MATMUL: PRODUCT,
    Leaf.MATMUL_SIMT: "ampere_sgemm_128x64_tn",
    Leaf.MATMUL_UNALIGNED: "cutlass_75_wmma_tensorop_bf16_s161616gemm_bf16_align1",
    Leaf.ATTENTION: "flash_fwd_kernel",
    Leaf.NORMALIZATION: "vectorized_layer_norm_kernel",
    Leaf.SOFTMAX: "softmax_warp_forward",
    Leaf.ELEMENTWISE: ELEMENTWISE,
    Leaf.OPTIMIZER: "multi_tensor_apply_kernel<FusedAdam>",
    Leaf.OTHER: "mystery_kernel",
    Leaf.COMMUNICATION: "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
}
"""A name of each kind of kernel."""

COPIES = {Leaf.COPY_PAGEABLE: (1, 1, 3), Leaf.COPY_PINNED: (1, 3, 2), Leaf.COPY_DEVICE: (8, 3, 3)}
"""Direction and kinds of memory, as CUPTI numbers them."""

IN_A_ROW = {
    Leaf.ELEMENTWISE_CHAIN: [Leaf.ELEMENTWISE] * 4,
    Leaf.ATTENTION_UNFUSED: [Leaf.MATMUL, Leaf.ELEMENTWISE, Leaf.SOFTMAX, Leaf.MATMUL],
}

CALLS = {Leaf.SYNC: "cudaStreamSynchronize", Leaf.ALLOCATION: "cudaMalloc",
         Leaf.CUDA: "cuModuleLoadData"}  # fmt: skip

STATES = {Leaf.HOST: (1, 0, Leaf.WAIT), Leaf.SCHEDULER: (0, 1, Leaf.WAIT),
          Leaf.INPUT: (0, 0, Leaf.INPUT), Leaf.WAIT: (0, 0, Leaf.WAIT)}  # fmt: skip
"""Parts of the time on a core and waiting for one, and where it counts while asleep."""

FRAMES = {Leaf.COMPILE, Leaf.RANK}

AWAY_NS = 100 * SHORT_NS


def gap_of(leaf: Leaf, begins: int) -> tuple[DeviceTime, int]:
    """A device whose thread is at what makes this leaf, and when it launches again."""
    again = begins + AWAY_NS
    call = (begins + 10, again - 10, kind_of_call(CALLS[leaf])) if leaf in CALLS else None
    calls = [(begins - 20_010, begins - 20_000, LAUNCH), *([call] if call else [])]
    if leaf is Leaf.LAUNCH:
        calls += [(at, at + 5, LAUNCH) for at in range(begins, again - 10, SHORT_NS // 2)]
    of = device([*calls, (again, again + 10, LAUNCH)])
    threads = of._threads
    if leaf in STATES:
        run, delay, asleep_in = STATES[leaf]
        threads.add_state(MAIN, begins - 10, 0, 0, asleep_in)
        threads.add_state(MAIN, again + 10, run * AWAY_NS, delay * AWAY_NS, asleep_in)
    if leaf in FRAMES:
        threads.lines.add(MAIN, LineReading(begins + AWAY_NS // 2, 1, leaf))
    return of, again


def shares_of(leaves: list[Leaf]) -> dict[Leaf, int]:
    """Gaps that each have one of these causes, one after the other."""
    found = Counter[Leaf]()
    for leaf in leaves:
        of, again = gap_of(leaf, START + 10_000)
        called = {Leaf.DEPENDENCY: START - 10, Leaf.UNKNOWN: 0}.get(leaf, again)
        of.add(
            operations(
                (START, START + 10_000, START - 10_010, START - 10_000, Leaf.MATMUL),
                (again + 10, again + 20, called, called + 10, Leaf.MATMUL),
            )
        )
        found += Counter(by_leaf(of))
    del found[Leaf.MATMUL]
    return dict(found)


@pytest.mark.parametrize(
    ("blamed", "shares"),
    [
        (MAIN, {Leaf.HOST: 0.1, Leaf.SCHEDULER: 0.6, Leaf.WAIT: 0.3}),
        # What it launches comes after what it computed: 30 % of its own, 10 % of the main thread's.
        (WORKER, {Leaf.HOST: 0.4, Leaf.SCHEDULER: 0.6, Leaf.WAIT: 0.0}),
    ],
)
def test_a_thread_that_sleeps_until_another_gets_a_core_lacks_the_core(
    blamed: int, shares: dict[Leaf, float]
) -> None:
    """In a backward pass on a crowded core: autograd's thread runs for 30 %, is ready without one
    for 50 %, and the main thread, which waits for it, sleeps for 80 %."""
    again = START + 10_000 + AWAY_NS
    launched = {MAIN: START - 20, WORKER: START - 10}
    of = of_threads(
        {
            thread: [(at, at + 5, LAUNCH)] + [(again, again + 10, LAUNCH)] * (thread == blamed)
            for thread, at in launched.items()
        }
    )
    threads = of._threads
    for thread, run, delay in ((MAIN, 10, 10), (WORKER, 30, 50)):
        for at in range(11):
            moment = START + at * (again + 10 - START) // 10
            states = (moment, at * run * AWAY_NS // 1000, at * delay * AWAY_NS // 1000)
            threads.add_state(thread, *states, Leaf.WAIT)
    rows = operations(
        (START, START + 10_000, START - 20, START - 15, Leaf.MATMUL),
        (again + 10, again + 20, again, again + 10, Leaf.MATMUL),
    )
    of.add(by(rows, threads=[MAIN, blamed]))
    found = by_leaf(of)
    for leaf, share in shares.items():
        assert found.get(leaf, 0) / AWAY_NS == pytest.approx(share, abs=0.01)


IDLE = [leaf for leaf, meaning in LEAVES.items() if meaning.is_idle]
CASES = {*KERNELS, *COPIES, *IN_A_ROW, *CALLS, *STATES, *FRAMES, Leaf.LAUNCH, Leaf.DEPENDENCY,
         Leaf.UNKNOWN}  # fmt: skip


def test_every_leaf_has_a_case_here() -> None:
    """What another process takes is known from its use of the GPU only (test_verdict), or from its
    own records (test_sharing)."""
    assert set(Leaf) - {Leaf.SHARED, Leaf.PEER} == CASES
    assert {*CALLS, *STATES, *FRAMES, Leaf.LAUNCH, Leaf.DEPENDENCY, Leaf.UNKNOWN} == set(IDLE)


@pytest.mark.parametrize("leaf", IDLE)
def test_one_cause_of_idling(leaf: Leaf) -> None:
    found = shares_of([leaf])
    assert max(found, key=lambda one: found[one]) is leaf
    assert found[leaf] >= 0.95 * sum(found.values())


@pytest.mark.parametrize(("large", "small"), list(zip(IDLE, [*IDLE[1:], IDLE[0]], strict=True)))
def test_of_two_causes_each_has_its_part(large: Leaf, small: Leaf) -> None:
    found = shares_of([large, large, small])
    whole = sum(found.values())
    assert found[large] / whole == pytest.approx(2 / 3, abs=0.03)
    assert found[small] / whole == pytest.approx(1 / 3, abs=0.03)


@pytest.mark.parametrize("leaf", KERNELS)
def test_a_kernels_name_says_its_leaf(leaf: Leaf) -> None:
    assert leaf_of_kernel(KERNELS[leaf]) is leaf


@pytest.mark.parametrize("leaf", COPIES)
def test_a_copys_memory_says_its_leaf(leaf: Leaf) -> None:
    record = np.zeros(1, SLOT)
    record["kind"] = RecordKind.MEMCPY
    record["sub"], record["source_kind"], record["destination_kind"] = COPIES[leaf]
    none = np.zeros(1, np.int64)
    with_calls = timed_operations(record, np.zeros(1, CALL), none - 1, np.ones(1, np.bool_))
    found = columns(record, with_calls, Kernels())
    assert found.leaves.tolist() == [leaf]


@pytest.mark.parametrize("leaf", IN_A_ROW)
def test_kernels_in_a_row_say_their_leaf(leaf: Leaf) -> None:
    kinds = np.array(IN_A_ROW[leaf], np.uint8)
    starts = np.arange(len(kinds)) * 50_000
    streams = np.full(len(kinds), 7, np.uint32)
    codes = np.arange(len(kinds), dtype=np.uint32)
    widths = np.full(len(kinds), 1024).take
    found = refine(kinds, starts, starts + 40_000, streams, codes, widths)
    assert leaf in found.tolist()


@pytest.mark.parametrize(("different", "is_attention"), [(1, True), (9, False)])
def test_attention_over_scores_that_are_taken_in_pieces(different: int, is_attention: bool) -> None:
    """Of more than 4 GiB: each elementwise kernel is launched several times in a row. As many
    different ones are no attention."""
    inner = [Leaf.ELEMENTWISE] * 9
    leaves = [Leaf.MATMUL, *inner, Leaf.SOFTMAX, *inner, Leaf.MATMUL]
    numbers = np.arange(9) % different
    codes = np.array([50, *numbers, 51, *(20 + numbers), 52], np.uint32)
    kinds = np.array(leaves, np.uint8)
    starts = np.arange(len(kinds)) * 50_000
    streams, widths = np.zeros(len(kinds), np.uint32), np.full(len(kinds), 1024)
    found = refine(kinds, starts, starts + 40_000, streams, codes, widths.take)
    assert (found[1:-1] == Leaf.ATTENTION_UNFUSED).all() == is_attention


@pytest.mark.parametrize(("times", "is_chain"), [(2, True), (4, True), (3, False)])
def test_a_chain_goes_on_where_a_thread_takes_more_elements_of_a_smaller_type(
    times: int, is_chain: bool
) -> None:
    """Under autocast: FP32 and BF16 in turn, over as many elements, rounded up to blocks."""
    kinds = np.full(4, Leaf.ELEMENTWISE, np.uint8)
    starts = np.arange(4) * 50_000
    least = 1_000_064
    widths = np.array([times * least - 100, least, times * least - 100, least])
    zeros = np.zeros(4, np.uint32)
    found = refine(kinds, starts, starts + 40_000, zeros, zeros, widths.take)
    assert (found == Leaf.ELEMENTWISE_CHAIN).all() == is_chain


def test_a_change_of_layout_is_no_link_of_a_chain() -> None:
    """It has a cure of its own, and counts once."""
    known = Kernels()
    names = ["vectorized_elementwise_kernel", "void cudnn::nchwToNhwcKernel<__half>", "triton_poi"]
    for number, name in enumerate(names):
        known.define(number, name)
    known.define_shape(1, 1024)
    codes = np.arange(len(names), dtype=np.uint32) + FIRST_KERNEL
    assert known.widths(codes, np.ones(len(names), np.uint32)).tolist() == [1024, 0, 0]
