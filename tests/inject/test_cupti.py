"""CUDA activity through the real library, from a stand-in for libcupti that a test scripts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gputui.ring import (
    UNKNOWN_DEVICE,
    CudaState,
    GraphPart,
    RecordKind,
    Resource,
    WindowEdge,
)
from tests.inject.traced import run

CHILD = Path(__file__).with_name("cuda_child.py")


@pytest.fixture(scope="module")
def cupti(compile_program) -> Path:
    return compile_program("fake_cupti.c", "libcupti.so.13", "-shared", "-fPIC").parent


@pytest.fixture(scope="module")
def driver(compile_program) -> Path:
    return compile_program(
        "fake_driver.c", "driver.so", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"
    )


def run_cuda(cupti, folder, part="none", **extra):
    environment = {"GPUTUI_CUPTI_PATH": str(cupti)} | extra
    outcome = run([sys.executable, str(CHILD), str(cupti), part], folder, environment, kernels=True)
    assert outcome.status == 0, outcome.output
    return outcome


def resource_names(trace) -> list[tuple[Resource, int, int, str]]:
    return [
        (Resource(int(record["sub"])), int(record["a"]), int(record["b"]),
         trace.name(record["name"]))
        for record in trace.of(RecordKind.RESOURCE_NAME)
    ]  # fmt: skip


def test_resources_are_named_by_their_numbers(cupti, nvtx_program, tmp_path):
    extra = {"GPUTUI_CUPTI_PATH": str(cupti)}
    outcome = run([nvtx_program, "resources"], tmp_path, extra, kernels=True)
    assert outcome.words == ["1", "1"]
    assert resource_names(outcome.trace) == [
        (Resource.STREAM, 7, UNKNOWN_DEVICE, "early, for every context"),
        (Resource.DEVICE, 1, 1, "trainer"),
        (Resource.STREAM, 13, UNKNOWN_DEVICE, "copies"),
        (Resource.STREAM, 14, UNKNOWN_DEVICE, "cömpute"),
        (Resource.STREAM, 7, UNKNOWN_DEVICE, "default"),
        (Resource.STREAM, 7, UNKNOWN_DEVICE, "default as well"),
        (Resource.CONTEXT, 5, 2, "context of 2"),
        (Resource.STREAM, 15, UNKNOWN_DEVICE, "of the driver"),
        (Resource.STREAM, 16, UNKNOWN_DEVICE, "registered"),
    ]


def test_streams_without_a_handle_are_of_the_current_context(cupti, driver, nvtx_program, tmp_path):
    extra = {"GPUTUI_CUPTI_PATH": str(cupti), "GPUTUI_TEST_DRIVER": str(driver)}
    outcome = run([nvtx_program, "resources-with-driver"], tmp_path, extra, kernels=True)
    named = resource_names(outcome.trace)
    assert named[2:6] == [
        (Resource.STREAM, 13, 1, "copies"),
        (Resource.STREAM, 14, 1, "cömpute"),
        (Resource.STREAM, 30, 2, "default"),
        (Resource.STREAM, 30, 2, "default as well"),
    ]
    assert (Resource.STREAM, 31, 2, "this thread's") in named


def fields(record, *names):
    return tuple(int(record[name]) for name in names)


@pytest.fixture(scope="module")
def oldest_cupti(compile_program) -> Path:
    """One that cannot be told which calls to record, as of CUDA 12.4 and before."""
    return compile_program("fake_cupti.c", "libcupti.so.12", "-shared", "-fPIC", "-DALL_CALLS")


def test_a_libcupti_that_records_all_calls_of_a_domain_serves(oldest_cupti, tmp_path):
    outcome = run_cuda(oldest_cupti, tmp_path, "old")
    assert not [call for call in outcome.words if "Api(" in call]
    assert {"ActivityEnable(4)", "ActivityEnable(5)"} <= set(outcome.words)
    names = [outcome.trace.name(call["name"]) for call in outcome.trace.of(RecordKind.API)]
    assert names == ["cudaLaunchKernel_v7000", "cudaLaunchKernel_ptsz_v7000", "cuLaunchKernel"]


@pytest.mark.parametrize("generation", ["old", "new"])
def test_every_kind_of_activity_arrives_whatever_its_size(cupti, tmp_path, generation):
    trace = run_cuda(cupti, tmp_path, generation).trace
    kernels = trace.of(RecordKind.KERNEL)
    assert [trace.name(kernel["name"]) for kernel in kernels] == ["_Z4gemmPf"] * 3
    assert kernels["correlation"].tolist() == [39, 45, 46]
    kernel = fields(kernels[0], "start", "end", "a", "b", "c", "value", "e")
    assert kernel == (1000, 2500, 1, 13, 2, 77, 5)

    shapes = {int(shape["d"]): shape for shape in trace.of(RecordKind.LAUNCH_SHAPE)}
    assert len(shapes) == 2
    assert kernels["d"][0] == kernels["d"][1] != kernels["d"][2]
    shape = shapes[int(kernels["d"][0])]
    assert trace.name(shape["name"]) == "_Z4gemmPf"
    assert fields(shape, "start", "end", "value") == (7 | 8 << 32, 9 | 128 << 32, 2 | 3 << 32)
    assert fields(shape, "a", "b", "c") == (96, 1024, 2048)
    assert int(shapes[int(kernels["d"][2])]["start"]) == 70000 | 8 << 32

    copy, there, back = trace.of(RecordKind.MEMCPY)
    assert fields(copy, "value", "start", "end", "correlation") == (4096, 11, 22, 40)
    assert fields(copy, "sub", "source_kind", "destination_kind") == (1, 2, 3)
    assert fields(copy, "a", "b", "c", "e") == (1, 13, 2, 6)
    assert fields(copy, "d", "thread") == (9, 6)
    assert fields(there, "value", "sub", "a", "c", "correlation") == (1 << 33, 10, 0, 1, 41)
    assert fields(back, "sub", "a", "c") == (10, 0, 3)

    (memset,) = trace.of(RecordKind.MEMSET)
    assert fields(memset, "value", "correlation", "destination_kind") == (512, 42, 3)
    assert fields(memset, "start", "end", "a", "b", "c", "e") == (11, 22, 1, 13, 2, 0)

    calls = trace.of(RecordKind.API)
    assert [trace.name(call["name"]) for call in calls] == [
        "cudaLaunchKernel_v7000",
        "cudaLaunchKernel_ptsz_v7000",
        "cuLaunchKernel",
    ]
    call = fields(calls[1], "start", "end", "thread", "correlation", "sub", "a")
    assert call == (900, 990, 4321, 45, 0, 700)
    assert calls["sub"].tolist() == [0, 0, 1]

    (graph,) = trace.of(RecordKind.GRAPH)
    assert fields(graph, "correlation", "start", "end") == (44, 11, 22)
    assert fields(graph, "a", "b", "c", "e") == (1, 13, 2, 6)


def test_threads_that_only_call_cuda_have_names(cupti, tmp_path):
    trace = run_cuda(cupti, tmp_path, "callers").trace
    named = trace.of(RecordKind.THREAD_NAME)
    assert [trace.name(record["name"]) for record in named] == ["launcher"] * len(named)
    assert len(named) == len(set(trace.of(RecordKind.API)["thread"].tolist())) > 0


def test_the_end_of_the_process_flushes_and_says_goodbye(cupti, tmp_path):
    trace = run_cuda(cupti, tmp_path, "new").trace
    flush, goodbye = trace.records[-2:]
    assert (flush["kind"], goodbye["kind"]) == (RecordKind.FLUSH, RecordKind.EXIT)
    assert int(flush["value"]) == trace.health.cupti_dropped == 5
    assert trace.exited
    assert trace.health.heartbeat_ns > 0
    assert trace.health.callback_ns > 0
    assert trace.facts.cuda_state == CudaState.TRACING
    assert trace.facts.cuda_text == "tracing"
    assert trace.facts.cupti_version == 130001


def test_only_what_is_wanted_is_enabled_and_in_this_order(cupti, tmp_path):
    calls = run_cuda(cupti, tmp_path).words
    assert calls[:3] == ["Subscribe(0)", "SetThreadIdType(1)", "ActivityRegisterCallbacks(0)"]
    kinds = [call for call in calls if call.startswith("ActivityEnable(")]
    # Never KERNEL (3), which serialises; DRIVER (4) or RUNTIME (5) whole; MARKER (12);
    # SYNCHRONIZATION (38), which costs more than all the rest.
    assert kinds == [f"ActivityEnable({kind})" for kind in (10, 1, 2, 22)]
    runtime = [call for call in calls if "RuntimeApi" in call]
    wanted = (20, 41, 131, 211, 214, 311, 505, 506)
    assert runtime == [f"ActivityEnableRuntimeApi({call})" for call in wanted]
    assert [call for call in calls if "DriverApi" in call] == [
        "ActivityEnableDriverApi(276)",
        "ActivityEnableDriverApi(307)",
    ]


def test_whole_graphs_on_request(cupti, tmp_path):
    assert "ActivityEnable(51)" in run_cuda(cupti, tmp_path, GPUTUI_GRAPH_TRACE="graph").words


def test_xla_is_asked_for_no_records_before_the_end(cupti, compile_program, tmp_path):
    """Its graphs that copy died of it: CUPTI hands over what is full."""
    plugin = compile_program("fake_driver.c", "xla_cuda_plugin.so", "-shared", "-fPIC")
    outcome = run_cuda(cupti, tmp_path, "xla", GPUTUI_TEST_DRIVER=str(plugin))
    assert outcome.words[:2] == ["flushes", "0"]
    words = outcome.words
    assert words.index("ActivityFlushPeriod(100)") < words.index("ActivityEnable(10)")
    assert int(outcome.words[3]) <= 32 << 10, "what is in the last buffer is shown late"
    assert len(outcome.trace.of(RecordKind.KERNEL)) == 1, "at its end"
    assert "ActivityFlushPeriod(100)" not in run_cuda(cupti, tmp_path / "other").words


def test_a_buffer_that_waits_holds_back_what_is_complete(cupti, compile_program, tmp_path):
    plugin = compile_program("fake_driver.c", "xla_cuda_plugin.so", "-shared", "-fPIC")
    outcome = run_cuda(cupti, tmp_path, "xla order", GPUTUI_TEST_DRIVER=str(plugin))
    *before, at_end = outcome.trace.of(RecordKind.FLUSH)["start"].tolist()
    assert before
    assert max(before) <= int(outcome.words[0]) < at_end


def test_xla_that_comes_late_is_noticed(cupti, compile_program, tmp_path):
    plugin = compile_program("fake_driver.c", "xla_cuda_plugin.so", "-shared", "-fPIC")
    outcome = run_cuda(cupti, tmp_path, "xla late", GPUTUI_TEST_PLUGIN=str(plugin))
    assert outcome.words[:3] == ["flushes", "0", "more"]
    assert outcome.words.count("ActivityFlushPeriod(100)") == 1
    assert len(outcome.trace.of(RecordKind.KERNEL)) == 1


def test_records_are_asked_for_without_the_list_of_libraries(cupti, tmp_path):
    """glibc's list is not safe to look at while another thread loads one: programs died of it."""
    assert run_cuda(cupti, tmp_path, "amid libraries").words[0] == "forked"


def test_graphs_are_followed_from_their_capture_to_their_end(cupti, tmp_path):
    trace = run_cuda(cupti, tmp_path, "graphs").trace
    parts = trace.of(RecordKind.GRAPH_PART)
    assert [fields(part, "sub", "value", "e") for part in parts] == [
        (GraphPart.GRAPH, 0, 3),
        (GraphPart.NODE, 3 << 32, 3),
        (GraphPart.NODE, 3 << 32 | 1, 3),
        *((GraphPart.CLONE, graph << 32 | number, 0) for graph in (4, 5) for number in range(2)),
        (GraphPart.GONE, 0, 4),
    ]
    clones = parts[parts["sub"] == GraphPart.CLONE]
    assert clones["end"].tolist() == [3 << 32, 3 << 32 | 1] * 2
    assert set(parts["thread"].tolist()) == {trace.facts.pid}
    # Each between the records of the ranges around it: the reader sees what was open.
    kinds = trace.records["kind"].tolist()
    second = trace.records["start"][kinds.index(RecordKind.GRAPH_PART)]
    opened = trace.of(RecordKind.RANGE_PUSH)["start"]
    assert opened[0] < second < opened[1] < parts["start"][1] < opened[2] < parts["start"][2]
    assert [int(kernel["value"]) for kernel in trace.of(RecordKind.KERNEL)] == [
        5 << 32,
        5 << 32 | 1,
    ]


def test_whole_graphs_are_not_followed(cupti, tmp_path):
    trace = run_cuda(cupti, tmp_path, "graphs", GPUTUI_GRAPH_TRACE="graph").trace
    assert not len(trace.of(RecordKind.GRAPH_PART))


def test_many_kernels_in_many_buffers_stay_in_order(cupti, tmp_path):
    trace = run_cuda(cupti, tmp_path, "many").trace
    kernels = trace.of(RecordKind.KERNEL)
    assert trace.health.dropped == 0
    assert kernels["correlation"].tolist() == list(range(20_000))
    names = [trace.name(kernel["name"]) for kernel in kernels[:51]]
    assert names[:50] == [f"_Z{number}" + "k" * 2000 for number in range(50)]
    assert names[50] == "short0"


def test_a_forked_child_delivers_nothing(cupti, tmp_path):
    trace = run_cuda(cupti, tmp_path, "fork").trace
    assert [trace.name(kernel["name"]) for kernel in trace.of(RecordKind.KERNEL)] == ["parent"]
    assert len(trace.of(RecordKind.EXIT)) == 1


def with_driver(cupti, driver, sampling) -> dict[str, str]:
    return {
        "GPUTUI_CUPTI_PATH": str(cupti),
        "GPUTUI_TEST_DRIVER": str(driver),
        "GPUTUI_TRACE_SAMPLING": sampling,
        "GPUTUI_RING_BYTES": str(1 << 16),
    }


def test_a_fork_while_other_threads_push_steps_hangs_no_child(
    cupti, driver, nvtx_program, tmp_path
):
    extra = with_driver(cupti, driver, "steps 1 2 step")
    outcome = run([nvtx_program, "forks-into-cuda", "75"], tmp_path, extra, kernels=True)
    assert outcome.words == ["75"]
    states = [trace.facts.cuda_state for trace in outcome.traces]
    assert states == [CudaState.NONE, *[CudaState.TRACING] * 75]


def test_a_step_of_a_signal_handler_hangs_nothing(cupti, driver, nvtx_program, tmp_path):
    extra = with_driver(cupti, driver, "steps 1 2 outer")
    outcome = run([nvtx_program, "steps-in-signals", "5000"], tmp_path, extra, kernels=True)
    assert outcome.status == 0
    assert outcome.trace.exited


def test_a_forked_worker_that_initialises_cuda_has_a_ring_of_its_own(cupti, tmp_path):
    parent, worker = run_cuda(cupti, tmp_path, "worker").traces
    assert parent.ranges() == [("push", "shared name", "", "0"), ("pop", "", "0")]
    assert parent.facts.cuda_state == CudaState.NONE
    assert worker.facts.parent_pid == parent.facts.pid
    assert worker.facts.cuda_state == CudaState.TRACING
    assert worker.ranges() == [("push", "shared name", "", "0"), ("pop", "", "0")]
    assert set(worker.of(RecordKind.RANGE_PUSH)["thread"]) == {worker.facts.pid}
    assert parent.exited
    assert worker.exited


def test_kernels_of_some_steps_alone(cupti, tmp_path):
    outcome = run_cuda(cupti, tmp_path, "steps", GPUTUI_TRACE_SAMPLING="steps 2 3 step")
    trace = outcome.trace
    assert trace.ranges() == [("push", "step", "", "0"), ("pop", "", "0")] * 7
    names = [trace.name(kernel["name"]) for kernel in trace.of(RecordKind.KERNEL)]
    assert names == ["step0", "step1", "step3", "step4", "step6"]
    # Off and on again: the kinds, and of the calls those that were made.
    switched = [word for word in outcome.words if word.startswith("Activity")][-22:]
    kinds = [f"Activity{{}}able({kind})" for kind in (10, 1, 2, 22)]
    off = [*(kind.format("Dis") for kind in kinds), "ActivityEnableRuntimeApi(off)"]
    on = ["ActivityEnableRuntimeApi(211)", *(kind.format("En") for kind in kinds)]
    assert switched[-20:] == (off + on) * 2
    assert trace.health.traced_ns > 0
    assert trace.health.paused_ns > 0


LOOPS = ["inner0", "beside", "loop0", "inner1", "beside", "loop1", "own", "started"]


@pytest.mark.parametrize(
    ("wish", "recorded"),
    [
        ("range loop", LOOPS),
        ("range outer", LOOPS[:6]),
        ("range none", []),
        ("first 1 loop", LOOPS[:3]),
        ("first 1 warmup", ["warmup"]),
    ],
)
def test_kernels_of_a_captured_range_alone(cupti, tmp_path, wish, recorded):
    trace = run_cuda(cupti, tmp_path, "captured", GPUTUI_TRACE_SAMPLING=wish).trace
    assert [trace.name(kernel["name"]) for kernel in trace.of(RecordKind.KERNEL)] == recorded
    assert len(trace.of(RecordKind.RANGE_PUSH)) == 10  # ranges are recorded always
    assert trace.health.paused_ns > 0
    edges = trace.of(RecordKind.WINDOW)["sub"].tolist()
    assert edges[:2] == [WindowEdge.ON, WindowEdge.OFF]  # nothing before the first
    assert edges.count(WindowEdge.ON) == edges.count(WindowEdge.OFF)


def test_kernels_between_the_calls_of_the_profiler_alone(cupti, tmp_path):
    trace = run_cuda(cupti, tmp_path, "profiled", GPUTUI_TRACE_SAMPLING="profiler").trace
    names = [trace.name(kernel["name"]) for kernel in trace.of(RecordKind.KERNEL)]
    assert names == ["profiled2", "profiled1"]
    whole = run_cuda(cupti, tmp_path, "profiled").trace
    assert len(whole.of(RecordKind.KERNEL)) == 5


def test_kernels_of_some_time_alone(cupti, tmp_path):
    # Windows begin at multiples of the period since the epoch: of a century none begins here. The
    # flushing thread ends the first one, and counts from then on, every 100 ms or later.
    sampling = "time 100000000 3155760000000000000"
    health = run_cuda(cupti, tmp_path, "time", GPUTUI_TRACE_SAMPLING=sampling).trace.health
    assert min(health.traced_ns, health.paused_ns) >= 100_000_000


@pytest.mark.parametrize(
    "sampling",
    ["steps 3 3 step", "steps 0 3 step", "time 5", "nonsense", "range ", "first 0 a", "first x"],
)
def test_a_sampling_that_is_none_traces_all(cupti, tmp_path, sampling):
    trace = run_cuda(cupti, tmp_path, "steps", GPUTUI_TRACE_SAMPLING=sampling).trace
    assert len(trace.of(RecordKind.KERNEL)) == 7
    assert trace.health.paused_ns == 0


@pytest.mark.parametrize(
    ("fails", "text"),
    [
        (
            "Subscribe=39",
            "cuptiSubscribe: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39), "
            "another profiler is at work in this process",
        ),
        ("SetThreadIdType=15", "cuptiSetThreadIdType: CUPTI_ERROR_NOT_INITIALIZED (15)"),
        ("ActivityRegisterCallbacks=7", "cuptiActivityRegisterCallbacks: unknown (7)"),
        ("ActivityEnable=15", "cuptiActivityEnable(CONCURRENT_KERNEL): "),
    ],
)
def test_a_failure_is_named_and_the_program_goes_on(cupti, tmp_path, fails, text):
    trace = run_cuda(cupti, tmp_path, FAKE_CUPTI_FAILS=fails).trace
    assert trace.facts.cuda_state == CudaState.FAILED
    assert trace.facts.cuda_text.startswith(text)
    assert trace.exited


def test_calls_that_cannot_be_enabled_are_said(cupti, tmp_path):
    library = run_cuda(cupti, tmp_path, FAKE_CUPTI_FAILS="ActivityEnableRuntimeApi=15").trace
    assert library.facts.cuda_state == CudaState.TRACING


def test_no_libcupti_is_said(cupti, tmp_path, compile_program):
    stub = compile_program("nvtx_program.c", "not_cupti.so", "-shared", "-fPIC")
    outcome = run_cuda(cupti, tmp_path, GPUTUI_CUPTI_PATH=str(stub))
    facts = outcome.trace.facts
    if facts.cuda_state == CudaState.TRACING:
        pytest.skip("this machine has a libcupti of its own")
    assert facts.cuda_state == CudaState.FAILED
    assert facts.cuda_text.startswith((f"{stub} lacks cuptiGetVersion", "cuptiSubscribe"))


def test_kernels_that_were_not_asked_for_leave_cupti_alone(cupti, tmp_path):
    outcome = run_cuda(cupti, tmp_path, GPUTUI_CAPTURE_KERNELS="0")
    assert outcome.words == []
    assert outcome.trace.facts.cuda_state == CudaState.OFF


@pytest.mark.parametrize(("value", "expected"), [("3,1", "3,1"), ("", "")])
def test_the_visible_devices_are_told(cupti, tmp_path, value, expected):
    trace = run_cuda(cupti, tmp_path, CUDA_VISIBLE_DEVICES=value).trace
    assert trace.facts.visible_devices == expected


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False)])
def test_launches_that_block_are_told(cupti, tmp_path, value, expected):
    trace = run_cuda(cupti, tmp_path, CUDA_LAUNCH_BLOCKING=value).trace
    assert trace.facts.launch_blocking is expected


def test_no_visible_devices_are_told_where_none_are_set(cupti, tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert run_cuda(cupti, tmp_path).trace.facts.visible_devices is None
