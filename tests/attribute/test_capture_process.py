"""What becomes of the records of one process, worked out by hand."""

from __future__ import annotations

import tracemalloc
from typing import Union

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputui.attribute import range_stacks
from gputui.attribute.definitions import MAX_NAMES, OTHER_MARKS
from gputui.attribute.operations import MARGIN_NS
from gputui.attribute.range_stacks import MAX_FOLDED, MAX_NODES, MAX_STACKS, OWN_BRANCHES
from gputui.attribute.ranges import LOST, MAX_LEVEL
from gputui.attribute.traced_process import TracedProcess
from gputui.model.events import PAYLOAD_NAMES, WRITTEN_KINDS, CaptureDelta, Mark, StepTimeline
from gputui.model.hub import Numbering
from gputui.model.naming import TOO_MANY, api_name, demangle, is_library_domain, step_rank
from gputui.report.explain.time_tree import time_tree
from gputui.report.phases import phase_rows
from gputui.report.tables import run_tables
from gputui.report.tables.launches import shape_rows
from gputui.ring import FLAG_PAYLOAD, SLOT, RecordKind, WindowEdge
from gputui.state.remarks import remarks
from tests.attribute.capture_program import MAIN, START_NS, Program, Traced


@pytest.fixture
def program() -> Program:
    return Program()


def steps(traced: Traced) -> list[StepTimeline]:
    return [event for event in traced.events if isinstance(event, StepTimeline)]


# --- ranges


def test_ranges_nest_by_thread_and_domain(program):
    traced = Traced(program)
    run = traced.finish(
        program.push(1, "step", color=0xFF8800, category="decode"),
        program.push(2, "copy", thread=101),
        program.push(3, "other", domain="app"),
        program.push(4, "layer"),
        program.pop(7),
        program.push(8, "layer"),
        program.pop(10),
        program.pop(12, domain="app"),
        program.pop(13, thread=101),
        program.pop(20),
    )
    assert {
        traced.place(number): (node.cpu.count, node.cpu.total)
        for number, node in run.ranges.items()
    } == {
        (MAIN, "", "step"): (1, 19),
        (MAIN, "", "step/layer"): (2, 5),
        (MAIN, "app", "other"): (1, 9),
        (101, "", "copy"): (1, 11),
    }
    step = run.ranges[run.roots[0]].definition
    assert (step.color, step.category, step.style) == (0xFF8800, "decode", "PushPop")


def test_a_pop_without_a_push_changes_nothing(program):
    traced = Traced(program)
    run = traced.finish(
        program.pop(1), program.push(2, "a"), program.pop(3), program.pop(4), program.push(5, "b")
    )
    assert [(node.path, node.cpu.count) for node in run.ranges.values()] == [("a", 1), ("b", 1)]


def test_an_open_range_is_reported_with_the_earliest_moment(program):
    traced = Traced(program)
    traced.feed([program.push(5, "serve"), program.push(6, "step", thread=101)])
    traced.feed([program.push(7, "step", thread=102)])
    traced.collect()
    assert {
        node.path + str(node.definition.thread): node.open_since_ns
        for node in traced.run.ranges.values()
    } == {
        "serve100": START_NS + 5,
        "step101": START_NS + 6,
        "step102": START_NS + 7,
    }
    traced.feed([program.pop(9, thread=101)])
    traced.collect()
    assert [node.open_since_ns is None for node in traced.run.ranges.values()] == [
        False,
        True,
        False,
    ]


def test_nothing_new_makes_no_event(program):
    traced = Traced(program)
    traced.feed([program.push(5, "serve")])
    assert traced.collect()
    assert traced.collect(1) == []


def test_start_end_ranges_overlap_and_end_on_any_thread(program):
    traced = Traced(program)

    def start(time: int, name: str, number: int) -> np.void:
        return program.slot(
            RecordKind.RANGE_START, start=time, name=program.id(name), value=number, thread=MAIN
        )

    def end(time: int, number: int) -> np.void:
        return program.slot(RecordKind.RANGE_END, start=time, value=number, thread=101)

    traced.feed([start(1, "request", 11), start(3, "request", 12), end(8, 11)])
    traced.collect()
    node = traced.run.ranges[1]
    assert (node.definition.style, node.definition.parent) == ("StartEnd", 0)
    assert (node.cpu.count, node.cpu.total, node.open_since_ns) == (1, 7, START_NS + 3)
    traced.finish(end(9, 12), end(10, 99))
    assert (node.cpu.count, node.cpu.total, node.open_since_ns) == (2, 13, None)


def test_threads_by_the_thousand_lose_nothing_and_share_a_branch(program):
    count = 3 * MAX_STACKS
    traced = Traced(program)
    run = traced.finish(
        *(
            each(2 * number + later, *name, thread=MAIN + number)
            for number in range(count)
            for later, each, name in ((0, program.push, ("request",)), (1, program.pop, ()))
        )
    )
    branches = [node for node in run.ranges.values() if node.path == "request"]
    assert sum(node.cpu.count for node in branches) == count
    assert len(branches) == OWN_BRANCHES + 1
    assert run.processes[1].dropped == 0


def test_more_stacks_open_at_once_than_are_kept_are_counted_as_dropped(program):
    traced = Traced(program)
    surplus = 100
    traced.feed(program.push(n, "request", thread=MAIN + n) for n in range(MAX_STACKS + surplus))
    run = traced.finish()
    assert run.processes[1].dropped == surplus


def test_dropped_records_leave_one_gap_and_no_more(program):
    records = [
        program.push(1, "step"),
        program.push(2, "layer"),
        program.push(3, "mlp"),
        program.pop(4),
        program.pop(5),
        program.pop(6),
        program.push(7, "step"),
        program.push(8, "layer"),
        program.pop(9),
        program.pop(10),
    ]
    for dropped in range(len(records)):
        traced = Traced(program)
        traced.feed(records[:dropped] + records[dropped + 1 :])
        traced.feed([program.push(20, "step"), program.push(22, "layer")])
        traced.feed([program.pop(24), program.pop(26)])
        traced.collect(ended=True)
        account = traced.account().host
        assert account[MAIN, "", "step"][1] in {6 + 5 + 3, 6 + 6, 6 + 3, 6 + 5}
        assert {path for _, _, path in account} <= {
            "step", "step/layer", "step/layer/mlp", f"{LOST}/layer", f"{LOST}/layer/mlp",
            f"step/{LOST}/mlp",
        }  # fmt: skip
        assert all(node.open_since_ns is None for node in traced.run.ranges.values())


def test_ranges_deeper_than_is_kept_belong_to_the_deepest_kept(program):
    deep = MAX_LEVEL + 40
    records = [program.push(time, "f") for time in range(deep)]
    records.append(program.call(deep, deep + 1, 1))
    records += [program.pop(2 * deep + time) for time in range(deep)]
    traced = Traced(program)
    run = traced.finish(*records, program.kernel(deep + 5, deep + 9, 1))
    assert len(run.ranges) == MAX_LEVEL
    assert [run.ranges[row.range].depth for row in run.kernels.values()] == [MAX_LEVEL - 1]
    assert all(node.cpu.count == 1 for node in run.ranges.values())


@pytest.mark.parametrize(("most", "name"), [(MAX_FOLDED, "request #"), (0, TOO_MANY)])
def test_too_many_ranges_share_a_node(program, monkeypatch, most, name):
    monkeypatch.setattr(range_stacks, "MAX_FOLDED", most)
    count = MAX_NODES + 500
    records = np.zeros(2 * count, SLOT)
    records["kind"] = np.tile([RecordKind.RANGE_PUSH, RecordKind.RANGE_POP], count)
    records["name"] = np.repeat(np.arange(1, count + 1), 2)
    records["start"] = START_NS + np.arange(2 * count)
    records["thread"] = MAIN
    program.strings = {number: f"request {number}" for number in range(1, count + 1)}
    traced = Traced(program)
    traced.feed(records)
    traced.collect(ended=True)
    assert len(traced.run.ranges) == MAX_NODES + 1
    (shared,) = [n for n in traced.run.ranges.values() if n.definition.name == name]
    assert shared.cpu.count == 500


def test_what_xla_compiles_has_a_node_for_each_pass_and_not_for_each_program(program):
    names = [f"XlaPass:#name=algsimp,module=fusion.{n},program_id={n}#" for n in range(40)]
    traced = Traced(program)
    records = [
        record
        for n, name in enumerate(names)
        for record in (program.push(2 * n, name), program.pop(2 * n + 1))
    ]
    run = traced.finish(*records)
    (node,) = run.ranges.values()
    assert (node.definition.name, node.cpu.count) == ("XlaPass algsimp", 40)


def test_a_moment_at_a_boundary_belongs_to_what_begins_there(program):
    traced = Traced(program)
    traced.finish(
        program.push(10, "a"),
        program.pop(20),
        program.call(10, 12, 1),
        program.call(20, 22, 2),
        program.kernel(30, 31, 1),
        program.kernel(31, 33, 2),
    )
    assert traced.account().kernels == {
        ((MAIN, "", "a"), False, "gemm", 0): (1, 1),
        (None, False, "gemm", 0): (1, 2),
    }


# --- calls and operations


def test_a_kernel_finds_its_call_in_either_order_and_over_batches(program):
    traced = Traced(program)
    traced.feed([program.kernel(30, 40, 7), program.push(1, "a")])
    traced.feed([program.call(2, 5, 7, name="cudaGraphLaunch_v10000")])
    traced.feed([program.pop(6), program.kernel(41, 45, 7)])
    traced.collect()
    traced.finish(program.kernel(46, 50, 7), seconds=20)
    assert traced.account().kernels == {((MAIN, "", "a"), False, "gemm", 0): (3, 18)}
    assert traced.run.processes[1].unattributed == 0


def test_launches_are_told_every_ten_seconds_and_at_the_end(program):
    traced = Traced(program)

    def launch(number: int) -> list[np.void]:
        return [
            program.call(10 * number, 10 * number + 2, number),
            program.kernel(10 * number + 3, 10 * number + 7, number, "k"),
        ]

    told = []
    for second in (0, 1, 9, 10, 11):
        traced.feed(launch(second + 1), second)
        events = traced.collect(second)
        told.append([len(e.launches) for e in events if isinstance(e, CaptureDelta)])
    assert told == [[0], [0], [0], [1], [0]]
    traced.collect(12, ended=True)
    (times,) = traced.run.launches.values()
    assert (times.total.count, times.kernel_time.total, times.queue.total) == (5, 20, 5)
    assert times.total.median == 7.0


def test_orphans_are_counted_outside_every_range_after_half_a_minute(program):
    traced = Traced(program)
    traced.feed([program.kernel(1, 5, 9)], seconds=1)
    traced.collect(20)
    assert not traced.run.kernels
    traced.collect(32)
    assert traced.account().kernels == {(None, False, "gemm", 0): (1, 4)}
    assert traced.run.processes[1].unattributed == 1


def test_of_calls_with_one_id_the_newest_counts(program):
    traced = Traced(program)
    traced.feed([program.push(1, "old"), program.call(2, 3, 5), program.kernel(4, 5, 5)])
    traced.feed([program.pop(6), program.push(7, "new"), program.call(8, 9, 5)])
    traced.finish(program.kernel(10, 14, 5))
    assert traced.account().kernels == {
        ((MAIN, "", "old"), False, "gemm", 0): (1, 1),
        ((MAIN, "", "new"), False, "gemm", 0): (1, 4),
    }


def test_calls_are_found_among_many_in_any_order(program):
    traced = Traced(program)
    noise = np.random.default_rng(5)
    count, batches = 120_000, 40
    ids = noise.permutation(2**32 - 1 - np.arange(count, dtype=np.uint64) * 3).astype(np.uint32)
    traced.feed([program.push(0, "step")])
    calls = np.tile(np.array([program.call(1, 2, 0)], SLOT), count)
    calls["correlation"] = ids
    kernels = np.tile(np.array([program.kernel(0, 0, 0)], SLOT), count)
    kernels["correlation"] = noise.permutation(ids)
    kernels["start"] = START_NS + 10 + np.arange(count)
    kernels["end"] = kernels["start"] + (kernels["correlation"] & 1) + 1
    for part in np.split(calls, batches):
        traced.process.feed(part, program.strings, START_NS)
    for part in np.split(kernels, batches):
        traced.process.feed(part, {}, START_NS)
    traced.collect(ended=True)
    total = count + int((ids & 1).sum())
    assert traced.account().kernels == {((MAIN, "", "step"), False, "gemm", 0): (count, total)}
    assert traced.run.processes[1].unattributed == 0


def test_operations_with_the_id_of_a_call_that_cannot_be_theirs_are_in_no_phase(program):
    traced = Traced(program)
    for window, steps in enumerate((20, 80)):
        begin = 10_000_000_000 * (window + 1)
        at = [begin + 5_000_000 * step for step in range(steps)]
        edges = begin - 2, begin - 1, at[-1] + 4_000_000, at[-1] + 4_000_001
        records = [
            program.slot(RecordKind.WINDOW, sub=edge, start=moment)
            for edge, moment in zip(WindowEdge, edges, strict=True)
        ]
        for start in at:
            # As a CUPTI that was switched on too often: the second window's are all one.
            number = 77 if window else start // 5_000_000
            records += [
                program.push(start, "step"),
                program.call(start + 1, start + 2, number),
                program.pop(start + 3),
                program.kernel(start + 10, start + 1010, number),
            ]
        traced.feed(records)
        traced.collect(seconds=begin / 1e9 + 2)
    # Ranges do not wait for what cannot come.
    assert traced.account().host[MAIN, "", "step"] == (100, 300)
    traced.collect(ended=True, seconds=60)
    process = traced.run.processes[1]
    assert (process.contradicted, process.unattributed) == (80, 80)
    assert traced.account().kernels == {
        ((MAIN, "", "step"), False, "gemm", 0): (20, 20_000),
        (None, False, "gemm", 0): (80, 80_000),
    }
    # The window is in no estimate.
    work = [one for e in traced.events if isinstance(e, CaptureDelta) for one in e.window_work]
    assert {one.group for one in work if one.range} == {0}
    (remark,) = [one.line for one in remarks(traced.run) if one.about == "launches"]
    assert remark.startswith("launches: CUPTI gave 80 operations the number of a call")


@pytest.mark.parametrize("driver_first", [True, False])
@pytest.mark.parametrize("apart", [True, False])
def test_a_driver_call_inside_a_runtime_call_is_not_listed(program, driver_first, apart):
    calls = [
        program.call(2, 9, 5),
        program.call(3, 8, 5, name="cuLaunchKernel", driver=True),
    ]
    if driver_first:
        calls.reverse()
    traced = Traced(program)
    traced.feed([program.push(1, "a")])
    for part in [calls[:1], calls[1:]] if apart else [calls]:
        traced.feed(part)
    traced.feed([program.call(20, 22, 6, name="cuLaunchKernelEx", driver=True)])
    traced.finish(program.kernel(10, 14, 5))
    place = (MAIN, "", "a")
    assert traced.account().calls == {
        (place, False, "cudaLaunchKernel"): (1, 7),
        (place, False, "cuLaunchKernelEx"): (1, 2),
    }
    assert traced.account().kernels == {(place, False, "gemm", 0): (1, 4)}


def test_a_driver_call_of_its_own_is_listed_once_two_flushes_brought_no_call_around_it(program):
    traced = Traced(program)
    traced.feed([program.call(2, 4, 6, name="cuLaunchKernelEx", driver=True)])
    traced.feed([program.call(5, 6, 7, name="cuLaunchKernel", driver=True), program.flush(8)])
    traced.collect()
    assert traced.account().calls == {}
    traced.feed([program.flush(9), program.call(4, 7, 7)])
    traced.collect()
    assert traced.account().calls == {
        (None, False, "cuLaunchKernelEx"): (1, 2),
        (None, False, "cudaLaunchKernel"): (1, 3),
    }


def test_a_thread_without_ranges_inherits_from_the_main_thread(program):
    traced = Traced(program)
    run = traced.finish(
        program.push(1, "backward"),
        program.call(2, 3, 1, thread=101),
        program.pop(4),
        program.call(5, 6, 2, thread=101),
        program.kernel(10, 13, 1),
        program.kernel(13, 15, 2),
    )
    assert traced.account().kernels == {
        ((MAIN, "", "backward"), True, "gemm", 0): (1, 3),
        (None, False, "gemm", 0): (1, 2),
    }
    node = run.ranges[1]
    # What it launched ran for the phase; nsys projects only what the phase's own thread launched.
    assert (node.gpu_busy_ns, node.gpu_total_ns, node.projected.count) == (3, 3, 0)
    (row,) = phase_rows(run)
    assert (row.kernels, row.inherited_kernels, row.gpu_idle_ns) == (1, 1, None)


def test_library_domains_get_gpu_time_but_no_rows(program):
    traced = Traced(program)
    traced.finish(
        program.push(1, "step"),
        program.push(2, "ncclAllReduce", domain="NCCL"),
        program.call(3, 4, 1),
        program.pop(5, domain="NCCL"),
        program.pop(6),
        program.push(7, "ncclAllReduce", domain="NCCL"),
        program.call(8, 9, 2),
        program.pop(10, domain="NCCL"),
        program.kernel(20, 25, 1),
        program.kernel(25, 27, 2),
    )
    account = traced.account()
    assert account.kernels == {
        ((MAIN, "", "step"), False, "gemm", 0): (1, 5),
        (None, False, "gemm", 0): (1, 2),
    }
    assert account.gpu_busy == {(MAIN, "", "step"): 5, (MAIN, "NCCL", "ncclAllReduce"): 7}
    assert account.projected == {
        # Instances, time, operations, ranges around, ranges inside that launched something.
        (MAIN, "", "step"): (1, 5, 1, 0, 1),
        (MAIN, "NCCL", "ncclAllReduce"): (2, 7, 2, 1, 0),
    }


def test_memory_operations_are_named_as_nsys_names_them(program):
    traced = Traced(program)
    run = traced.finish(
        program.copy(1, 3, 1, size=100, kind=1, source=1, destination=3),
        program.copy(3, 4, 2, size=50, kind=2, source=3, destination=2),
        program.copy(4, 8, 3, size=8, kind=10, source=3, destination=3),
        program.copy(8, 9, 4, size=1, kind=77, source=9, destination=0),
        program.slot(RecordKind.MEMSET, start=9, end=11, correlation=5, value=4096,
                     destination_kind=5),
    )  # fmt: skip
    assert {
        (both.operation, both.source_kind, both.destination_kind): (
            both.time.total,
            both.size.total,
        )
        for both in run.memory_operations.values()
    } == {
        ("[CUDA memcpy Host-to-Device]", "pageable", "device"): (2, 100),
        ("[CUDA memcpy Device-to-Host]", "device", "pinned"): (1, 50),
        ("[CUDA memcpy Peer-to-Peer]", "device", "device"): (4, 8),
        ("[CUDA memcpy Unknown]", None, None): (1, 1),
        ("[CUDA memset]", None, "managed"): (2, 4096),
    }


def test_a_whole_graph_counts_as_a_kernel(program):
    traced = Traced(program)
    traced.finish(
        program.call(1, 2, 1, name="cudaGraphLaunch_v10000"),
        program.slot(RecordKind.GRAPH, start=5, end=9, correlation=1, e=42),
    )
    assert traced.account().kernels == {(None, False, "[CUDA graph 42]", 0): (1, 4)}


def test_devices_count_the_union_of_what_ran(program):
    traced = Traced(program)
    traced.feed([program.kernel(10, 20, 1), program.kernel(15, 30, 2), program.kernel(50, 60, 3)])
    traced.feed([program.call(1, 2, n) for n in (1, 2, 3, 4)])
    traced.collect()
    traced.finish(program.kernel(55, 70, 4))
    (device,) = traced.run.devices.values()
    assert (device.busy_ns, device.operations) == (40, 4)
    assert device.first_start_ns == START_NS + 10
    assert device.last_end_ns == START_NS + 70


def test_kernel_without_a_time_is_counted_but_not_placed(program):
    traced = Traced(program)
    kernel = program.kernel(0, 0, 1)
    kernel["start"] = kernel["end"] = 0
    run = traced.finish(program.push(1, "a"), program.call(2, 3, 1), kernel)
    assert traced.account().kernels == {((MAIN, "", "a"), False, "gemm", 0): (1, 0)}
    assert not run.devices


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (1 << 62, 1 << 62),
        ((1 << 64) - 1, START_NS + 20),
        (START_NS + 2 * MARGIN_NS, 0),
        (1, 2),
    ],
)
def test_kernels_left_behind_with_times_that_cannot_be_do_not_hide_those_before(
    program, start, end
):
    """As CUPTI reports some that a program has queued when it ends."""
    traced = Traced(program)
    left = program.kernel(0, 0, 3)
    left["start"], left["end"] = start, end
    slots = [program.call(1, 2, 1), program.kernel(10, 20, 1), program.kernel(15, 20, 2)]
    run = traced.finish(*slots, program.call(3, 4, 2), program.call(5, 6, 3), left)
    assert [(use.busy_ns, use.last_end_ns - START_NS) for use in run.devices.values()] == [(10, 20)]
    tree = time_tree(run)
    assert tree is not None
    assert tree.wall_ns == 10
    assert sum(part.time.count for part in run.kernels.values()) == 3
    (remark,) = remarks(run)
    assert remark.line.startswith("times: CUPTI gave 1 operation an impossible time")


# --- projections and steps


def test_a_projection_waits_for_the_last_operation(program):
    traced = Traced(program)
    traced.feed([program.push(1, "a"), program.call(2, 3, 1), program.call(4, 5, 2)])
    traced.feed([program.pop(6), program.kernel(10, 12, 1), *[program.flush(20)] * 3])
    traced.collect()
    assert traced.run.ranges[1].projected.count == 0
    traced.feed([program.kernel(15, 18, 2)])
    traced.feed([program.flush(30), program.flush(40)])
    traced.collect()
    projected = traced.run.ranges[1].projected
    assert (projected.count, projected.total) == (1, 8)


def test_a_projection_does_not_wait_for_ever(program):
    traced = Traced(program)
    traced.feed([program.push(1, "a"), program.call(2, 3, 1), program.call(4, 5, 2)])
    traced.feed([program.pop(6), program.kernel(10, 12, 1)], seconds=1)
    traced.collect(5)
    assert traced.run.ranges[1].projected.count == 0
    traced.collect(11)
    assert traced.run.ranges[1].projected.count == 1


def test_the_last_whole_step_as_a_timeline(program):
    traced = Traced(program, step_range="decode_step")
    step = [
        program.push(100, "decode_step"),
        program.push(110, "attention"),
        program.call(112, 114, 1),
        program.call(115, 117, 2),
        program.pop(120),
        program.push(130, "mlp"),
        program.call(132, 134, 3),
        program.pop(140),
        program.pop(200),
    ]
    traced.feed([program.push(10, "step"), program.pop(20), *step])
    traced.feed([program.kernel(120, 130, 1), program.kernel(130, 140, 2)])
    traced.feed([program.kernel(150, 190, 3)])
    traced.feed([program.flush(300), program.flush(400)])
    traced.collect()
    (timeline,) = steps(traced)
    place = traced.place
    assert place(timeline.range) == (MAIN, "", "decode_step")
    assert (timeline.start_ns, timeline.duration_ns) == (START_NS + 100, 100)
    assert [(s.lane, place(s.range)[2], s.start_ns, s.duration_ns) for s in timeline.spans] == [
        ("cpu", "decode_step/attention", 10, 10),
        ("cpu", "decode_step/mlp", 30, 10),
        ("gpu", "decode_step/attention", 20, 20),
        ("gpu", "decode_step/mlp", 50, 40),
    ]
    assert timeline.spans_left_out == 0


def test_more_in_one_tick_than_is_remembered_of_a_step(program, monkeypatch):
    monkeypatch.setattr("gputui.attribute.traced_process.MAX_ENTRIES", 2)
    traced = Traced(program)
    records = [program.push(1, "train_step")]
    for number in range(5):
        records += [program.push(10 * number + 2, "layer"), program.pop(10 * number + 5)]
    traced.finish(*records, program.pop(100))
    assert len(steps(traced)[-1].spans) == 5


def test_no_part_of_a_long_step_looks_idle_for_want_of_room(program):
    traced = Traced(program)
    records = [program.push(1, "train_step")]
    for number in range(1, 1001):
        name = "layer" if number % 3 else "norm"
        records += [program.push(100 * number, name), program.call(100 * number + 1,
                    100 * number + 2, number), program.pop(100 * number + 3)]  # fmt: skip
    records.append(program.pop(200_000))
    records += [program.kernel(100 * n + 10, 100 * n + 90, n) for n in range(1, 1001)]
    traced.feed(records)
    traced.feed([program.flush(300_000), program.flush(400_000)])
    traced.collect()
    (timeline,) = steps(traced)
    gpu = [span for span in timeline.spans if span.lane == "gpu"]
    assert 100 <= len(gpu) <= 150
    assert sum(span.busy_ns for span in gpu) == 1000 * 80
    assert gpu[-1].start_ns + gpu[-1].duration_ns == 100_000 + 90 - 1
    assert {traced.place(span.range)[2] for span in gpu} == {"train_step/layer"}
    assert (len(timeline.spans), timeline.spans_left_out) == (300, 1000 - (300 - len(gpu)))


def test_steps_of_a_program_without_cuda_are_guessed_by_name(program):
    traced = Traced(program)
    records = []
    for number in range(3):
        records.append(program.push(1000 * number, f"train_step {number}"))
        for part in range(400):
            records.append(program.push(1000 * number + 2 * part, "layer"))
            records.append(program.pop(1000 * number + 2 * part + 1))
        records.append(program.pop(1000 * number + 900))
    traced.feed(records)
    traced.collect()
    assert not steps(traced)
    traced.collect(2)
    (timeline,) = steps(traced)
    assert traced.place(timeline.range) == (MAIN, "", "train_step 2")
    assert (len(timeline.spans), timeline.spans_left_out) == (300, 100)


# --- launch shapes


def shapes_of(traced: Traced) -> dict[tuple[str, tuple[int, ...]], int]:
    """(kernel, grid, block, registers, static and dynamic shared bytes) → launches."""
    rows = shape_rows(traced.session, traced.run)
    return {
        (row.name, (*row.shape.grid, *row.shape.block, row.shape.registers_per_thread,
                    row.shape.static_shared_bytes, row.shape.dynamic_shared_bytes)): row.launches
        for row in rows
    }  # fmt: skip


def test_launches_are_counted_by_kernel_and_shape(program):
    traced = Traced(program)
    traced.feed(
        [
            program.shape(1, (7, 8, 9), (128, 2, 3), 96, 1024, 2**32 - 1),
            program.shape(2, (70_000, 1, 1), (64, 1, 1), name="relu"),
            program.call(1, 2, 11),
            program.kernel(3, 4, 11, shape=1),
            program.call(5, 6, 12),
            program.copy(7, 8, 12),
            program.call(9, 10, 13),
            program.kernel(11, 12, 13, "relu", shape=2),
        ]
    )
    traced.collect()
    traced.finish(program.call(13, 14, 14), program.kernel(15, 16, 14, shape=1))
    assert shapes_of(traced) == {
        ("gemm", (7, 8, 9, 128, 2, 3, 96, 1024, 2**32 - 1)): 2,
        ("relu", (70_000, 1, 1, 64, 1, 1, 32, 0, 0)): 1,
    }


def test_a_shape_whose_definition_was_dropped_is_unknown_until_it_comes(program):
    traced = Traced(program)
    traced.feed([program.call(1, 2, 11), program.kernel(3, 4, 11, shape=5)])
    assert shapes_of(traced) == {}
    traced.finish(
        program.shape(5, (1, 1, 1), (32, 1, 1)),
        program.shape(2**32 - 1, (1, 1, 1), (32, 1, 1)),
        program.call(5, 6, 12),
        program.kernel(7, 8, 12, shape=5),
        program.call(9, 10, 13),
        program.kernel(11, 12, 13, shape=2**32 - 1),
    )
    assert shapes_of(traced) == {("gemm", (1, 1, 1, 32, 1, 1, 32, 0, 0)): 1}


# --- the rest


def test_marks_are_instants(program):
    traced = Traced(program)
    mark = program.slot(RecordKind.MARK, start=5, name=program.id("loaded"), a=program.id("app"),
                        thread=101)  # fmt: skip
    run = traced.finish(mark)
    (found,) = run.newest_marks
    assert found == Mark(time_ns=found.time_ns, process=1, thread=101, domain="app", name="loaded")


def test_marks_of_too_many_names_are_counted_together(program):
    names = [f"mark {number}" for number in range(MAX_NAMES + 2)]
    run = Traced(program).finish(
        *(program.slot(RecordKind.MARK, name=program.id(name)) for name in [*names, names[0]])
    )
    counts = {found.name: found.count for found in run.marks.values()}
    assert len(counts) == MAX_NAMES + 1
    assert (counts[names[0]], counts[names[1]], counts[OTHER_MARKS]) == (2, 1, 2)


def test_ranges_and_marks_without_a_name_are_not_those_whose_name_was_lost(program):
    lost = program.slot(RecordKind.MARK, start=2, name=4000)
    nameless = program.slot(RecordKind.MARK, start=3)
    push = program.push(4, "x")
    push["name"] = 0
    run = Traced(program).finish(lost, nameless, push, program.pop(5))
    assert [mark.name for mark in run.newest_marks] == ["(name lost)", "(no name)"]
    assert [row.path for row in phase_rows(run)] == ["(no name)"]


@given(st.lists(st.tuples(st.integers(0, 255), st.integers(0, 2**64 - 1)), max_size=8))
def test_any_payload_of_a_ring_is_kept_or_left_out(payloads):
    program = Program()
    records = []
    for time, (kind, bits) in enumerate(payloads):
        record = program.slot(RecordKind.MARK, name=program.id("m"), sub=FLAG_PAYLOAD,
                              source_kind=kind)  # fmt: skip
        record["end"] = bits
        push = program.push(2 * time, "r")
        push["sub"], push["source_kind"], push["end"] = FLAG_PAYLOAD, kind, bits
        records += [record, push, program.pop(2 * time + 1)]
    traced = Traced(program)
    run = traced.finish(*records)
    known = [kind for kind, _ in payloads if kind in PAYLOAD_NAMES]
    told = [mark.payload.type for mark in run.newest_marks if mark.payload]
    assert told == [PAYLOAD_NAMES[kind] for kind in known]
    if known:
        [node] = run.ranges.values()
        assert node.payload == run.marks[1, "", "m"].payload
    again = msgspec.json.decode(msgspec.json.encode(traced.events), type=list[Union[WRITTEN_KINDS]])  # type: ignore[valid-type]  # noqa: UP007
    assert again == traced.events


def test_numbers_are_shared_by_processes():
    numbering = Numbering()
    ranges, kernels = [], []
    for number in (1, 2):
        program = Program()
        process = TracedProcess(number, MAIN, numbering)
        records = [program.push(1, "a"), program.call(2, 3, 1), program.kernel(4, 5, 1, "gemm")]
        process.feed(np.array(records, SLOT), program.strings, START_NS)
        for event in process.collect(START_NS, ended=True):
            if isinstance(event, CaptureDelta):
                kernels += [delta.kernel for delta in event.kernels]
                ranges += [delta.range for delta in event.kernels]
    assert ranges == [1, 2]
    assert kernels == [1, 1]


@pytest.mark.parametrize(
    ("given_name", "expected"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cudaMemcpyAsync_v3020", "cudaMemcpyAsync"),
        ("cudaLaunchKernelExC_v11060", "cudaLaunchKernelExC_v11060"),
        ("cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync_v2"),
        ("__cudaLaunchKernel_v13000", "cudaLaunchKernel"),
        ("\x1b[31mcuInit", "\N{REPLACEMENT CHARACTER}[31mcuInit"),
    ],
)
def test_api_names(given_name, expected):
    assert api_name(given_name) == expected


@pytest.mark.parametrize(
    ("mangled", "expected"),
    [
        ("_Z3addIfEvPT_S1_i", "void add<float>(float*, float*, int)"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("_Znot really", "_Znot really"),
        ("", ""),
    ],
)
def test_kernel_names_are_demangled(mangled, expected):
    assert demangle(mangled) == expected


def test_domains_and_steps_by_name():
    assert is_library_domain("NCCL")
    assert is_library_domain("cuBLASLt")
    assert not is_library_domain("app")
    ranks = [step_rank(name, None) for name in ("train_step", "step", "ProfilerStep#12", "batch")]
    assert ranks == sorted(ranks)
    assert step_rank("prefill", None) > step_rank("iteration 7", None)
    assert step_rank("step", "decode") > step_rank("decode", "decode")


EXTREMES = np.array([0, 1, 2, 3, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1], np.uint64)
FIELDS = ("start", "end", "value", "thread", "correlation", "name", "a", "b", "d", "e")
KINDS = [int(kind) for kind in RecordKind] + [0, 255]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 100), st.sets(st.sampled_from(FIELDS)))
def test_random_slots_never_break_it(seed, count, extreme):
    noise = np.random.default_rng(seed)
    traced = Traced(Program())
    operations = 0
    for seconds in range(3):
        slots = noise.integers(0, 256, (count, SLOT.itemsize), np.uint8).view(SLOT).reshape(-1)
        slots["kind"] = noise.choice(KINDS, count)
        operations += np.isin(slots["kind"], [RecordKind.KERNEL, RecordKind.GRAPH]).sum()
        for name in sorted(extreme):
            limit = np.uint64(np.iinfo(slots[name].dtype).max)
            slots[name] = np.minimum(noise.choice(EXTREMES, count), limit)
        traced.process.feed(slots, {}, START_NS + seconds * 20_000_000_000)
        traced.collect(seconds * 20)
    traced.collect(60, ended=True)
    assert sum(part.time.count for part in traced.run.kernels.values()) == operations
    assert traced.run.processes[1].records == 3 * count
    assert all(part.time.total >= 0 for part in traced.run.kernels.values())


def test_a_flood_of_nonsense_takes_bounded_memory_and_no_crash():
    noise = np.random.default_rng(3)
    traced = Traced(Program())
    for seconds in range(3):
        slots = noise.integers(0, 256, (20_000, SLOT.itemsize), np.uint8).view(SLOT).reshape(-1)
        slots["kind"] = noise.choice([int(kind) for kind in RecordKind], len(slots))
        traced.process.feed(slots, {}, START_NS + seconds * 10**9)
        traced.collect(seconds)
    traced.collect(4, ended=True)
    assert len(traced.run.ranges) <= MAX_NODES + MAX_FOLDED + 1


def test_long_kernel_names_are_cut_marked_and_stay_apart(program):
    names = ["k" * 5000 + ending for ending in "ab"]
    traced = Traced(program)
    traced.finish(
        *(program.kernel(i, i + 1, i, name) for i, name in enumerate(names, 1)), seconds=100
    )
    kernels = traced.session.kernel_names.values()
    assert [kernel.mangled for kernel in kernels] == names
    shown = [kernel.name for kernel in kernels]
    assert len(set(shown)) == 2
    assert all(len(name) <= 4096 and "… [5001 characters, " in name for name in shown)


def test_a_kernel_in_several_ranges_of_one_name_counts_once_there(program):
    traced = Traced(program)
    run = traced.finish(
        program.start(1, "request", 1),
        program.start(2, "request", 2),
        program.call(3, 5, 1),
        program.end(10, 1),
        program.end(12, 2),
        program.kernel(20, 30, 1),
    )
    rows = run_tables()["nvtx_kern_sum"].table(traced.session, run).cells
    assert [row[:7] for row in rows] == [(":request", "StartEnd", MAIN, MAIN, 2, 1, 20)]


def test_a_start_end_range_that_another_thread_ended_has_no_gpu_work(program):
    traced = Traced(program)
    run = traced.finish(
        program.start(1, "request", 1),
        program.call(3, 5, 1),
        program.end(10, 1, thread=101),
        program.kernel(20, 30, 1),
    )
    assert not run_tables()["nvtx_gpu_proj_sum"].table(traced.session, run).rows
    rows = run_tables()["nvtx_kern_sum"].table(traced.session, run).cells
    assert [row[:7] for row in rows] == [("", "", MAIN, MAIN, 0, 1, 10)]


def test_many_open_ranges_are_no_work_while_nothing_happens() -> None:
    program, count = Program(), 20_000
    records = np.array([program.start(n, "leak", n + 1) for n in range(count)])
    process = TracedProcess(1, MAIN, Numbering())
    process.feed(records, program.strings, START_NS + count)
    collected = [e for e in process.collect(START_NS + count) if isinstance(e, CaptureDelta)]
    assert len(collected[0].open_ranges) == 1
    tracemalloc.start()
    process.feed(np.empty(0, SLOT), {}, START_NS + 2 * count)
    assert process.collect(START_NS + 2 * count) == []
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 8 * count  # not so much as a number for each


def test_what_nests_too_deep_is_counted_as_dropped(program):
    traced, deep = Traced(program), MAX_LEVEL + 40
    run = traced.finish(
        *(program.push(n, "down") for n in range(deep)),
        *(program.pop(1000 + n) for n in range(deep)),
    )
    assert sum(node.cpu.count for node in run.ranges.values()) == MAX_LEVEL
    assert sum(process.dropped for process in run.processes.values()) == 2 * 40


def test_ranges_left_open_over_the_limit_are_counted_as_dropped(program, monkeypatch):
    monkeypatch.setattr("gputui.attribute.ranges.MAX_OPEN", 500)
    count = 500 + 25
    traced = Traced(program)
    run = traced.finish(*(program.start(n, "leak", n + 1) for n in range(count)))
    assert sum(process.dropped for process in run.processes.values()) == 25
