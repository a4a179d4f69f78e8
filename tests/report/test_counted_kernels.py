"""Kernels by their own sampled counters: rows of the roofline, and what is found by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from gputui.model.events import (
    AnyEvent,
    CountedKernel,
    DeviceDelta,
    GpuCounters,
    GpuSample,
    HostSample,
    KernelDefined,
    KernelDelta,
    LaunchShape,
    MachineSample,
)
from gputui.model.leaves import Leaf
from gputui.report.explain import Analysis, Finding, conclusion, findings
from gputui.report.explain.counted_kernels import ALONE, FP64, IDLE
from gputui.report.explain.verdict import verdict
from gputui.report.roofline import Roof, roofline
from gputui.report.tables import run_tables
from gputui.state import Run, Session
from gputui.state.remarks import remarks
from tests.events_for_tests import gpu, header, times
from tests.report.test_facts import samples
from tests.report.test_verdict import STEP_NS, a_run, delta

COUNTERS = (
    "sm_cycles", "sm_active_percent", "tensor_active_percent", "memory_read_bytes",
    "memory_write_bytes", "l2_bytes", "occupancy_percent", "issue_percent",
    "fp64_active_percent", "fma_issue_percent",
)  # fmt: skip
CARD = replace(
    gpu(), max_sm_clock_mhz=2000, memory_bus_width_bits=5000, max_memory_clock_mhz=3200,
    sm_count=100, compute_capability="9.0",
)  # fmt: skip
"""4 TB/s and 819 TFLOP/s."""

IDLING = {"sm_cycles": 1.5e9, "sm_active_percent": 24.0, "tensor_active_percent": 0.0,
          "memory_read_bytes": 60e9, "memory_write_bytes": 60e9, "l2_bytes": 200e9,
          "occupancy_percent": 6.0, "issue_percent": 4.0, "fp64_active_percent": 0.0,
          "fma_issue_percent": 0.4}  # fmt: skip
SCATTER = "void (anonymous namespace)::indexing_backward_kernel<float, 4>(long const*, float*)"
OTHER = "my_kernel(float*)"


def kernel(
    number: int, rates: Mapping[str, float | None], *, alone: float = 100.0, error: float = 0.001
) -> CountedKernel:
    """`error` is a share of the rate."""
    values = tuple(rates.get(name) for name in COUNTERS)
    errors = tuple(None if value is None else error * value for value in values)
    return CountedKernel(number, 1, 1_000_000, round(10_000 * alone), values, errors)


def run_of(
    *rows: CountedKernel,
    name: str = OTHER,
    busy: float = 0.95,
    reason: str | None = None,
    unit: float = 1.0,
    leaf: Leaf = Leaf.OTHER,
    elementwise: float = 0.0,
    events: Sequence[AnyEvent] = (),
) -> tuple[Session, Run]:
    """`elementwise` is the part of `busy` in which another kernel ran."""
    used = DeviceDelta(
        process=1, device=0, busy_ns=9, operations=1, first_start_ns=1, last_end_ns=2
    )
    another = elementwise / busy
    ran = tuple(
        KernelDelta(process=1, range=0, kernel=number, device=0, time=times(round(1e6 * share)))
        for number, share in ((1, 1 - another), (2, another))
        if share
    )
    parts = {leaf: busy - elementwise, Leaf.DEPENDENCY: 1 - busy}
    steps = delta(parts | ({Leaf.ELEMENTWISE: elementwise} if elementwise else {}))
    steps = replace(steps, devices=(used,), kernels=ran)
    counted = GpuCounters(
        time_ns=2, process=1, device=0, counters=COUNTERS, samples=5000, kernels=rows,
        unavailable_reason=reason, amounts_per_s=unit,
    )  # fmt: skip
    named = KernelDefined(time_ns=1, kernel=1, name=name, mangled=name)
    return a_run(header(CARD), named, *events, steps, counted)


def found(*rows: CountedKernel, **of_run) -> dict[str, Finding]:
    session, run = run_of(*rows, **of_run)
    return {one.cause: one for one in findings(Analysis(session, run))}


def roof_of(*rows: CountedKernel, **of_run) -> Roof:
    session, run = run_of(*rows, **of_run)
    [roof] = [roof for roof in roofline(Analysis(session, run)) if roof.kernel]
    return roof


def test_a_kernel_is_a_row_with_its_share_of_the_peaks():
    roof = roof_of(kernel(1, IDLING | {"tensor_active_percent": 50.0, "memory_read_bytes": 1e12}))
    assert (roof.scope, roof.gpu, roof.samples) == ("my_kernel", 0, 5000)
    assert roof.peak_bytes_per_s == pytest.approx(4e12)
    assert roof.memory_peak_percent == pytest.approx(100 * 1.06e12 / 4e12)
    # Half of the cycles at 1.5 of 2 GHz, 4,096 operations a cycle on each of 100 SMs.
    assert roof.tensor_peak_percent == pytest.approx(37.5)
    assert roof.tensor_flops_per_s == pytest.approx(0.5 * 1.5e9 * 4096 * 100)
    assert roof.alone_percent == 100.0
    assert roof.memory_error_percent == pytest.approx(0.1 * 1.06 / 4)


def test_launch_shapes_of_a_kernel_are_one_row_by_their_time():
    small, large = kernel(1, IDLING), kernel(1, IDLING | {"sm_active_percent": 94.0})
    roof = roof_of(small, replace(large, shape=2, time_ns=3_000_000, alone_ns=3_000_000))
    assert roof.length_ns == 4_000_000
    assert roof.sm_active_percent == pytest.approx((24.0 + 3 * 94.0) / 4)


def test_what_the_samples_cannot_tell_is_not_shown():
    roof = roof_of(kernel(1, IDLING | {"sm_active_percent": None}))
    assert roof.sm_active_percent is None
    roof = roof_of(kernel(1, IDLING | {"tensor_active_percent": 90.0}, error=0.2))
    assert roof.tensor_active_percent is None
    assert roof.tensor_peak_percent is roof.tensor_error_percent is None


def test_the_reason_stands_where_nothing_was_sampled():
    session, run = run_of(reason="kept for administrators")
    assert [remark.line for remark in remarks(run)] == ["counters: GPU 0: kept for administrators"]
    reading = GpuSample(index=0)
    session.apply([MachineSample(time_ns=3 * STEP_NS, host=HostSample(), gpus=(reading,))])
    table = run_tables()["roofline"].table(session, run)
    assert table.unavailable["alone_percent"] == "kept for administrators"


def test_figures_of_any_size_break_nothing():
    for value in (1e308, -1e308, -5.0):
        rates = dict.fromkeys(COUNTERS, value)
        session, run = run_of(kernel(1, rates))
        roofline(Analysis(session, run))
        findings(Analysis(session, run))
        run_tables()["roofline"].table(session, run)


def test_a_serial_scatter_is_found_and_named():
    finding = found(kernel(1, IDLING), name=SCATTER)["idle_kernel"]
    assert "3.0 % of the memory's rate and 0 % of the tensor pipes" in finding.sentence
    assert "on 24 % of the SMs: a serial scatter" in finding.sentence
    assert "use_deterministic_algorithms" in finding.advice


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({}, "too few blocks for the card"),
        ({"sm_active_percent": 90.0}, "few warps, which wait"),
        ({"sm_active_percent": 90.0, "occupancy_percent": 60.0}, "all its warps wait"),
    ],
)
def test_the_kind_is_told_by_blocks_and_warps(changed, kind):
    assert kind in found(kernel(1, IDLING | changed))["idle_kernel"].sentence


@pytest.mark.parametrize(
    ("changed", "alone", "speaks"),
    [
        ({"issue_percent": IDLE - 0.1}, 100.0, True),
        ({"issue_percent": IDLE + 0.1}, 100.0, False),
        ({"memory_read_bytes": (IDLE + 1) * 4e10}, 100.0, False),
        ({"tensor_active_percent": IDLE + 1}, 100.0, False),
        ({"fma_issue_percent": IDLE + 1}, 100.0, False),
        ({"fp64_active_percent": IDLE + 1}, 100.0, False),
        ({"l2_bytes": 2e12}, 100.0, False),  # 29 % of what it can do
        ({"issue_percent": None}, 100.0, False),
        ({}, ALONE + 0.1, True),
        ({}, ALONE - 0.1, False),
    ],
)
def test_a_kernel_that_uses_any_unit_or_is_not_alone_is_none(changed, alone, speaks):
    assert ("idle_kernel" in found(kernel(1, IDLING | changed, alone=alone))) == speaks


@pytest.mark.parametrize(("active", "speaks"), [(FP64 + 1, True), (FP64 - 1, False)])
def test_fp64_is_found_by_its_pipes(active, speaks):
    causes = found(kernel(1, IDLING | {"fp64_active_percent": active}))
    assert ("fp64" in causes) == speaks


TRANSPOSES = IDLING | {
    "sm_active_percent": 98.0, "occupancy_percent": 89.0, "issue_percent": 21.0,
    "memory_read_bytes": 4e11, "memory_write_bytes": 4e11, "l2_bytes": 4e12,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "speaks"),
    [
        ({}, True),
        ({"l2_bytes": 3.1e12}, True),
        ({"l2_bytes": 3.0e12}, False),  # 44 % of what it can do
        ({"memory_read_bytes": 1.0e12}, False),  # 2.9 times as much
        ({"tensor_active_percent": 6.0}, False),
        ({"fma_issue_percent": 21.0}, False),
        ({"issue_percent": 41.0}, False),
        ({"l2_bytes": None}, False),
    ],
)
def test_memory_out_of_order_shows_in_the_l2_cache(changed, speaks):
    causes = found(kernel(1, TRANSPOSES | changed))
    assert ("out_of_order" in causes) == speaks
    if not changed:
        assert "5.0 times the bytes that the memory moves" in causes["out_of_order"].sentence


GATHER = "index_elementwise_kernel<128, 4, gpu_index_kernel<index_kernel_impl<OpaqueType<4> > > >"
TORCH_GATHER = (
    "_scatter_gather_elementwise_kernel<128, 8, "
    "_cuda_scatter_gather_internal_kernel<false, OpaqueType<4>, long>::operator()<TensorAssign>"
)
COPY = "elementwise_kernel<128, 2, gpu_kernel_impl_nocast<direct_copy_kernel_cuda>>"
ADD = "elementwise_kernel<128, 4, gpu_kernel_impl_nocast<CUDAFunctor_add<c10::BFloat16> > >"
READS = IDLING | {
    "sm_active_percent": 99.0,
    "occupancy_percent": 70.0,
    "issue_percent": 10.0,
    "memory_read_bytes": 2.7e12,
    "memory_write_bytes": 0.15e12,
    "l2_bytes": 3e12,
}


@pytest.mark.parametrize(
    ("name", "changed", "word"),
    [
        (GATHER, {}, "uncoalesced gather"),
        (GATHER, {"memory_write_bytes": 0.39e12}, "uncoalesced gather"),
        (GATHER, {"memory_write_bytes": 0.41e12}, None),
        (GATHER.replace("<4>", "<1>"), {}, None),  # 9 for each, of which 8 are the index
        (COPY, {}, "strided reads"),
        (COPY, {"memory_write_bytes": 0.4e12}, None),
        (ADD, {}, "strided reads"),
        (ADD.replace("elementwise_kernel", "vectorized_elementwise_kernel"), {}, None),
        (OTHER, {}, None),  # may well be a sum
        (SCATTER, {}, None),
        (TORCH_GATHER, {}, "uncoalesced gather"),
        (TORCH_GATHER.replace("<false", "<true"), {}, None),
    ],
)
def test_reads_that_nobody_needs(name, changed, word):
    """Of kernels whose names say how much they need for what they write."""
    finding = found(kernel(1, READS | changed), name=name).get("uncoalesced")
    assert (finding.word if finding is not None else None) == word


def test_one_kernel_that_leaves_most_sms_without_blocks_is_named():
    """And not the longest, which may fill them: a scan in one block was called after a product."""
    reading = GpuSample(
        index=0, sm_active_percent=40.0, tensor_active_percent=5.0, memory_bandwidth_percent=10.0
    )
    session, run = run_of(kernel(1, IDLING), events=samples(*[reading] * 5))
    assert {"few_blocks", "idle_kernel"} <= {one.cause for one in findings(Analysis(session, run))}
    answer = conclusion(Analysis(session, run))
    assert answer is not None
    assert [one.cause for one in answer.findings] == ["idle_kernel"]


@pytest.mark.parametrize(("blocks", "speaks"), [(1000, True), (20_000_000, False)])
def test_a_gather_writes_no_more_than_its_launch_has_elements(blocks, speaks):
    """Of 17 MB, an L2 cache of 50 that may have kept them hid that it read 20 times as much."""
    few = READS | {"memory_read_bytes": 0.8e12, "memory_write_bytes": 0.4e12}
    grid, block = (blocks, 1, 1), (128, 1, 1)
    launched = LaunchShape(
        time_ns=1, shape=1, kernel=1, grid=grid, block=block, registers_per_thread=36
    )
    assert ("uncoalesced" in found(kernel(1, few), name=GATHER, events=(launched,))) == speaks
    assert "uncoalesced" not in found(kernel(1, few), name=GATHER)


def test_fp64_leads_over_the_chain_of_kernels_that_it_makes_slow():
    doubles = READS | {"fp64_active_percent": 25.0, "memory_write_bytes": 2e12}
    session, run = run_of(kernel(1, doubles), leaf=Leaf.ELEMENTWISE_CHAIN)
    answer = conclusion(Analysis(session, run))
    assert answer is not None
    assert answer.word == "COMPUTES IN FP64"


@pytest.mark.parametrize(
    ("active", "name", "is_said"),
    [
        (1.6, "loop_multiply_fusion_3", True),
        (0.8, "loop_multiply_fusion_3", False),
        (1.6, "nvjet_sm90_tst_192x192_64x4_h_bz", False),  # of half precision
    ],
)
def test_fp64_is_seen_by_the_gpus_counters_where_names_have_no_type(active, name, is_said):
    reading = GpuSample(index=0, fp64_active_percent=active)
    session, run = run_of(name=name, events=samples(*[reading] * 5), leaf=Leaf.ELEMENTWISE_CHAIN)
    answer = conclusion(Analysis(session, run))
    assert answer is not None
    assert (answer.word == "FP64") is is_said


@pytest.mark.parametrize(
    ("elementwise", "word"), [(0.0, "MEMORY OUT OF ORDER"), (0.4, "UNFUSED ATTENTION")]
)
def test_copies_around_a_softmax_lead_where_they_are_most_of_what_seems_attention(
    elementwise, word
):
    """And not where the kernel may lie outside of it."""
    session, run = run_of(
        kernel(1, TRANSPOSES), leaf=Leaf.ATTENTION_UNFUSED, elementwise=elementwise
    )
    answer = conclusion(Analysis(session, run))
    assert answer is not None
    assert answer.word == word


def test_a_unit_of_amounts_is_the_same_figures():
    spared = {
        name: rate if name.endswith("_percent") else rate / 1e9 for name, rate in IDLING.items()
    }
    with_unit = roof_of(kernel(1, spared), unit=1e9)
    assert with_unit == roof_of(kernel(1, IDLING))


def test_a_small_kernel_is_no_finding():
    for rates in (IDLING | {"fp64_active_percent": 90.0}, IDLING, TRANSPOSES):
        causes = set(found(kernel(1, rates), busy=0.05))
        assert not {"idle_kernel", "fp64", "out_of_order"} & causes


def test_a_healthy_run_says_how_near_its_kernels_come_to_the_limit():
    near = IDLING | {"memory_read_bytes": 3e12, "memory_write_bytes": 0.4e12}
    session, run = run_of(kernel(1, near))
    outcome = verdict(Analysis(session, run))
    assert outcome is not None
    assert outcome.word == "HEALTHY"
    assert "its memory moves 85 % of what it could at most while kernels run" in outcome.headline
