"""What binds each phase, and the roofline by counters: on recordings of which it is known."""

from __future__ import annotations

import csv
import dataclasses
import io

import pytest
from msgspec.structs import replace

from gputui.model.events import (
    CaptureDelta,
    DeviceDelta,
    GpuSample,
    HostSample,
    KernelDefined,
    KernelDelta,
    MachineSample,
    ProcessSample,
    RangeDelta,
    RangeLeaf,
)
from gputui.model.leaves import Leaf, leaf_of_kernel
from gputui.playback.opening import Loaded, load
from gputui.report.explain import Analysis
from gputui.report.explain.time_tree import time_tree
from gputui.report.phases import phase_rows
from gputui.report.roofline import Roof, roofline, roofs_of_phase, steady_scope, tensor_type
from gputui.report.tables.bounds import TARGETS, PhaseCauses, causes_of, phase_causes, phase_facts
from tests.conftest import DATA
from tests.events_for_tests import defined, gpu, header, times
from tests.report.test_verdict import STEP_NS, a_run, delta

KERNELS = {1: "nvjet_gemm", 2: "vectorized_elementwise_kernel", 3: "ncclDevKernel_AllReduce"}


def phase(kernels: dict[int, int], idle_ns: int, launches: int = 1) -> PhaseCauses:
    """One phase whose kernels took so long."""
    busy_ns = sum(kernels.values())
    session, run = a_run(
        header(gpu()),
        defined(1, "outer"),
        defined(2, "step", parent=1),
        *(KernelDefined(time_ns=1, kernel=n, name=x, mangled=x) for n, x in KERNELS.items()),
        CaptureDelta(
            time_ns=2,
            process=1,
            ranges=(
                RangeDelta(range=1, cpu=times(10), gpu_busy_ns=busy_ns),
                RangeDelta(range=2, cpu=times(10), gpu_busy_ns=busy_ns),
            ),
            kernels=tuple(
                KernelDelta(
                    process=1, range=2, kernel=number, device=0,
                    time=times(*([ns // launches] * launches)),
                )
                for number, ns in kernels.items()
            ),
            api=(),
            range_leaves=(
                RangeLeaf(0, 2, Leaf.HOST, idle_ns),
                *(RangeLeaf(0, 2, leaf_of_kernel(KERNELS[n]), ns) for n, ns in kernels.items()),
            ),
            devices=(
                DeviceDelta(
                    process=1, device=0, busy_ns=busy_ns, operations=1, first_start_ns=1,
                    last_end_ns=2,
                ),
            ),
        ),
    )  # fmt: skip
    outer, inner = phase_causes(session, run)
    assert (outer.busy_ns, outer.idle_ns, outer.leaves) == (
        inner.busy_ns,
        inner.idle_ns,
        inner.leaves,
    )
    return inner


@pytest.mark.parametrize(
    ("kernels", "idle_ns", "bound"),
    [
        ({1: 600, 2: 400}, 100, "matmul"),
        ({1: 400, 2: 600}, 100, "memory"),
        ({3: 700, 1: 300}, 100, "communication"),
        ({1: 400, 2: 300, 3: 300}, 100, None),
        ({1: 400, 2: 100}, 10**9, "host"),
    ],
)
def test_what_leads_binds(kernels: dict[int, int], idle_ns: int, bound: str | None) -> None:
    found = phase(kernels, idle_ns)
    assert found.bound == bound
    assert found.busy_ns == sum(kernels.values())
    assert sum(found.leaves.values()) == found.wall_ns == found.busy_ns + idle_ns


@pytest.fixture(scope="module")
def demo() -> Loaded:
    return load(str(DATA / "h200-medium.gputui"))


def test_phases_of_a_real_decode_are_launch_bound(demo: Loaded) -> None:
    assert demo.run is not None
    found = {one.row.path: one for one in phase_causes(demo.session, demo.run)}
    decode = found["decode"]
    assert decode.bound == "launch"
    assert decode.idle_percent == pytest.approx(78, abs=1)
    assert found["decode/step/norm"].largest == ("normalization", pytest.approx(100, abs=1))
    assert found["decode/step/lm_head"].bound == "matmul"
    whole = sum(one.wall_ns for path, one in found.items() if "/" not in path)
    assert sum(one.idle_ns for path, one in found.items() if "/" not in path) < whole


def test_every_phase_has_its_own_tree() -> None:
    """A report of nsys: `load` computes on the CPU, a step launches and waits, by turns."""
    loaded = load(str(DATA / "h200-ranges.sqlite.gz"))
    assert loaded.run is not None
    found = {one.row.path: one for one in phase_causes(loaded.session, loaded.run)}
    load_phase, step = found["load"], found["step"]
    assert load_phase.idle_percent == 100
    assert load_phase.cause == ("CPU code", pytest.approx(98.6, abs=0.1))
    assert load_phase.bound == "host"
    assert step.cause == ("launch-bound", pytest.approx(67.2, abs=0.1))
    assert step.bound == "launch"
    for one in found.values():
        assert sum(one.leaves.values()) == one.wall_ns
        alone = causes_of(loaded.run, one.row)
        assert alone is not None
        assert (alone.leaves, alone.bound) == (one.leaves, one.bound)
    details = phase_facts(step.row, on_gpu=True, causes=step)
    shown = [(label.strip(), value) for label, value in details]
    assert ("bound by", "launch") in shown
    assert shown[-6][0] == "launch-bound"
    assert shown[-6][1].startswith("58.0 %")
    recorded = loaded.run.timing.range_leaves.values()
    whole = sum(time.ns for time in loaded.run.leaf_times.values())
    assert sum(time.ns for time in recorded) == whole


def test_the_roofline_of_a_real_decode(demo: Loaded) -> None:
    assert demo.run is not None
    rows = {row.scope: row for row in roofline(Analysis(demo.session, demo.run))}
    decode = rows["decode"]
    assert decode.limit == "neither"
    assert decode.samples == 7
    # Data sheet of the H200: 4.8 TB/s; 989 TFLOP/s at 1830 MHz, which is 1070 at 1980.
    assert decode.peak_bytes_per_s == pytest.approx(4.8e12, rel=0.01)
    assert decode.peak_flops_per_s == pytest.approx(989.4e12 * 1980 / 1830, rel=0.01)
    for row in phase_rows(demo.run):
        roofs = roofs_of_phase(demo.session, demo.run, row)
        assert roofs == ([rows[row.path]] if row.path in rows else [])
        details = phase_facts(row, on_gpu=True, roofs=roofs)
        shown = {label.strip(): value for label, value in details}
        assert shown.get("GPU 0 in it") == (f"{roofs[0].samples} samples" if roofs else None)
    assert all(row.watts and row.joules for row in rows.values())


@pytest.mark.parametrize(
    ("name", "limit"),
    [("healthy_copy", "memory"), ("tensor_cores-cure", "compute"), ("launch", "neither")],
)
def test_the_limit_of_known_programs(name: str, limit: str) -> None:
    loaded = load(str(DATA / "faults" / f"{name}.gputui.gz"))
    assert loaded.run is not None
    assert roofline(Analysis(loaded.session, loaded.run))[0].limit == limit


def test_tensor_cores_are_judged_by_the_type_of_the_products() -> None:
    names = ("sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n", "nvjet_sm90_tst_256x128_64x4_h_bz_coopA_TNT")
    named = [KernelDefined(time_ns=1, kernel=n, name=name, mangled=name)
             for n, name in enumerate(names, 1)]  # fmt: skip

    def of(tf32_ns: int) -> tuple[str, float]:
        ran = [KernelDelta(process=1, range=0, kernel=n, device=0, time=times(ns))
               for n, ns in ((1, tf32_ns), (2, 100)) if ns]  # fmt: skip
        work = replace(delta({Leaf.MATMUL: 1.0}), kernels=tuple(ran))
        return tensor_type(*a_run(header(gpu()), *named, work))

    assert of(10**6)[0] == "tf32"
    assert of(300) == ("tf32 and fp16", pytest.approx(0.625))
    assert of(0) == ("fp16", 1.0)


def test_what_lies_between_the_steps_is_named() -> None:
    """Counters are read over all of it."""
    loaded = load(str(DATA / "faults" / "launch.gputui.gz"))
    assert loaded.run is not None
    tree = time_tree(loaded.run)
    assert tree is not None
    assert steady_scope(tree) == "steady steps"
    paused = dataclasses.replace(tree, last_ns=tree.last_ns + (tree.last_ns - tree.first_ns) // 4)
    assert steady_scope(paused) == "first to last steady step"


def test_a_card_without_counters_has_power_but_no_limit() -> None:
    readings = [
        MachineSample(
            time_ns=(1 + number) * STEP_NS,
            host=HostSample(),
            gpus=(GpuSample(index=0, power_watts=100.0),),
        )
        for number in range(5)
    ]
    used = DeviceDelta(
        process=1, device=0, busy_ns=9, operations=1, first_start_ns=1, last_end_ns=2
    )
    steps = replace(delta({Leaf.MATMUL: 1.0}), devices=(used,))
    session, run = a_run(header(gpu()), steps, *readings)
    [found] = roofline(Analysis(session, run))
    assert (found.scope, found.samples, found.watts) == ("steady steps", 5, pytest.approx(100.0))
    assert (found.limit, found.peak_flops_per_s, found.flops_per_byte) == (None, None, None)


@pytest.mark.parametrize("others", [0.0, 5.0, 40.0])
def test_counters_of_a_card_that_others_use_are_not_the_runs(others: float) -> None:
    readings = [
        MachineSample(
            time_ns=(1 + number) * STEP_NS,
            host=HostSample(),
            gpus=(GpuSample(index=0, power_watts=100.0, tensor_active_percent=70.0,
                            fp32_active_percent=80.0),),
            processes=(
                ProcessSample(pid=5, gpu=0, sm_percent=50.0),
                ProcessSample(pid=77, gpu=0, sm_percent=others),
            ),
        )
        for number in range(5)
    ]  # fmt: skip
    used = DeviceDelta(
        process=1, device=0, busy_ns=9, operations=1, first_start_ns=1, last_end_ns=2
    )
    steps = replace(delta({Leaf.MATMUL: 1.0}), devices=(used,))
    session, run = a_run(header(gpu()), steps, *readings)
    [row] = roofline(Analysis(session, run))
    targets = {row.figure: row for row in TARGETS.rows(session, run)}
    compute = targets["compute throughput"]
    assert row.samples == compute.samples == 5
    if others < 10:
        assert (row.limit, row.others_percent) == ("compute", None)
        assert (compute.value, compute.met) == (80.0, True)
        assert compute.meaning.endswith("here fp32")
    else:
        assert (row.limit, row.watts, row.others_percent) == (None, None, 40.0)
        assert (compute.value, compute.met) == (None, None)
        assert "others used 40 %" in compute.meaning


def test_nothing_read_is_nothing_shown() -> None:
    session, run = a_run(header(gpu()), delta({Leaf.MATMUL: 1.0}))
    assert roofline(Analysis(session, run)) == []
    assert phase_causes(session, run) == []


def test_compute_leads_where_both_limits_are_near() -> None:
    near_memory = Roof("x", 0, 1, 1, tensor_active_percent=30.0, memory_peak_percent=76.0)
    assert near_memory.limit == "memory"
    near_both = Roof("x", 0, 1, 1, tensor_active_percent=70.0, memory_peak_percent=76.0)
    assert near_both.limit == "compute"


def test_the_checklists_figures_stand_beside_their_targets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from gputui.cli.dispatch import run as gputui

    report = str(DATA / "h200-medium.gputui")
    assert gputui(["summary", report, "--table", "targets", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    by_figure = {row["Figure"]: row for row in rows}
    assert list(by_figure) == [
        "kernel launch", "SM occupancy", "memory bandwidth", "compute throughput",
        "tensor cores active",
    ]  # fmt: skip
    # A launch is under 10 µs. Between its runs this program compiles for minutes.
    launch = by_figure["kernel launch"]
    assert (launch["Value"], launch["Target"], launch["Met"]) == ("5.1 µs", "< 10 µs", "yes")
    assert by_figure["SM occupancy"]["Target"] == "> 50 %"
    for name in list(by_figure)[1:]:
        assert by_figure[name]["Met"] in ("", "n/a")
        assert by_figure[name]["Meaning"].startswith("n/a: steps fill 6 %")
