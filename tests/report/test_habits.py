"""What a program does in each step that no leaf names: from recordings where there are some, else
from the events that such a program makes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputui.model.events import (
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    GarbageCollections,
    HostSample,
    KernelDefined,
    KernelDelta,
    LineCalls,
    LineDefined,
    LineLaunches,
    LineSamples,
    MachineSample,
    MemoryOperationDelta,
    ProcessSample,
    RangeDefined,
    RangeLeaf,
    Scope,
    StepMarks,
    StepSource,
    ThreadLaunches,
)
from gputui.model.leaves import CAUSES, LEAVES, Leaf, leaf_of_kernel
from gputui.model.naming import MEMSET
from gputui.report.explain import Analysis, conclusion, findings
from gputui.report.explain.advice import AS_IT_IS, BY_MASK, OF_OTHER_THREADS, WORK_BESIDE
from gputui.report.explain.evidence import GATHER_THERE, UNSEEN
from gputui.report.explain.finding import Finding
from gputui.report.explain.habits import (
    ANOMALY,
    FREEZE,
    KEEP_BLOCKS,
    NO_COLLECT,
    checks_gradients,
    threads_compute,
)
from gputui.report.explain.launches import COMPILE_WHOLE, LOOP_INSIDE, launch_advice
from gputui.report.explain.trends import KEEP_CACHE
from gputui.report.explain.verdict import Verdict
from tests.events_for_tests import at, times
from tests.report import gains
from tests.report.test_faults import fault
from tests.report.test_verdict import STEP_NS, STEPS, a_run, delta


def analysis_of(*events: AnyEvent) -> Analysis:
    return Analysis(*a_run(*events))


def concluded(*events: AnyEvent) -> Verdict:
    outcome = conclusion(analysis_of(*events))
    assert outcome is not None
    return outcome


def finding_of(analysis: Analysis, cause: str) -> Finding | None:
    return next((one for one in findings(analysis) if one.cause == cause), None)


def calls(**each: tuple[int, int]) -> CaptureDelta:
    """So many calls of a name in the run, of so many ns."""
    return CaptureDelta(
        time_ns=1,
        process=1,
        api=tuple(
            ApiDelta(process=1, range=0, name=name, time=times(*[ns] * count))
            for name, (count, ns) in each.items()
        ),
    )


def kernels(**each: tuple[int, int]) -> list[AnyEvent]:
    """So many kernels of a name in the run, of so many ns."""
    numbers = {name: number for number, name in enumerate(each, 1)}
    return [
        *(KernelDefined(time_ns=1, kernel=n, name=name, mangled=name)
          for name, n in numbers.items()),
        CaptureDelta(time_ns=1, process=1, kernels=tuple(
            KernelDelta(process=1, range=0, kernel=numbers[name], device=0,
                        time=times(*[ns] * count))
            for name, (count, ns) in each.items()
        )),
    ]  # fmt: skip


def cpu(percent: float, readings: int = 4) -> list[AnyEvent]:
    """Readings of the run's process at so much CPU."""
    process = ProcessSample(pid=5, gpu=0, cpu_percent=percent)
    return [
        MachineSample(time_ns=at(second), host=HostSample(), processes=(process,))
        for second in range(readings)
    ]


@pytest.mark.parametrize("name", ["anomaly_left_on", "anomaly_slow_cpu"])
def test_anomaly_mode_is_called_by_its_name(name: str) -> None:
    outcome = conclusion(Analysis(*fault(name)))
    assert outcome is not None
    assert {one.advice for one in outcome.findings} == {ANOMALY}
    assert "set_detect_anomaly(False)" in ANOMALY


@pytest.mark.parametrize("name", ["log_sync", "sync", "optimizer", "healthy_training"])
def test_values_that_are_read_are_no_anomaly_mode(name: str) -> None:
    assert not checks_gradients(Analysis(*fault(name)))


@pytest.mark.parametrize(("reads", "is_anomaly"), [(25, True), (500, False)])
def test_values_that_a_loop_reads_are_no_anomaly_mode(reads: int, is_anomaly: bool) -> None:
    """Conditions on values, one by one, beside some results of `any`: no call reads them."""
    steps = delta({Leaf.SYNC: 0.6, Leaf.MATMUL: 0.4})
    watched = replace(steps, line_calls=(LineCalls(0, "optimizer.step", 1, 1000, ""),))
    ran = {"reduce_kernel<or_kernel>": 25, "at::native::CompareFunctor": 25, "gelu_backward": 9}
    waits = calls(cudaStreamSynchronize=(reads * STEPS, 1000))
    each = kernels(**{name: (count * STEPS, 100) for name, count in ran.items()})
    [found] = concluded(watched, waits, *each).findings
    assert (found.advice == ANOMALY) is is_anomaly
    assert (found.advice == BY_MASK) is not is_anomaly
    assert any(f"some {reads} waits for the GPU" in text for text in found.evidence)


ASLEEP = (
    delta({Leaf.MATMUL: 0.9, Leaf.SYNC: 0.1}, count=100),
    delta({Leaf.WAIT: 0.98, Leaf.HOST: 0.02}, Scope.PAUSE, count=20, length=40.0),
)


def test_a_thread_that_holds_the_lock_is_no_lack_of_work() -> None:
    """A server's thread computes with Python's lock held, and the launching one cannot go on."""
    outcome = concluded(*ASLEEP, *cpu(101.0))
    assert outcome.word == "ANOTHER THREAD RUNS"
    assert "sleeps 89 % of the time while other threads of its process take 88 % of a core" in (
        outcome.headline
    )
    assert outcome.findings[0].advice == "move what the other threads compute to processes"
    for readings in ([], cpu(12.0), cpu(101.0, 2)):  # unknown, at rest, read too seldom
        assert concluded(*ASLEEP, *readings).word == "WAITS FOR WORK"


def test_in_steps_too_other_threads_are_named_where_they_compute() -> None:
    steps = delta({Leaf.WAIT: 0.6, Leaf.MATMUL: 0.4})
    [found] = concluded(steps, *cpu(99.0)).findings
    assert found.advice == OF_OTHER_THREADS
    assert "Meanwhile other threads take 59 % of a core" in found.evidence
    [found] = concluded(steps, *cpu(30.0)).findings
    assert found.advice != OF_OTHER_THREADS


@pytest.mark.parametrize("given_mb", [100, 1])
def test_arrays_that_jax_copies_for_each_call_are_no_lock(given_mb: int) -> None:
    """Threads of XLA's copy them, too."""
    copied = MemoryOperationDelta(
        process=1, range=0, device=0, operation="[CUDA memcpy Host-to-Device]",
        time=times(*[1_000_000] * STEPS), size=times(*[given_mb * 1_000_000] * STEPS),
    )  # fmt: skip
    steps = replace(delta({Leaf.WAIT: 0.6, Leaf.MATMUL: 0.4}), memory_operations=(copied,))
    analysis = analysis_of(steps, *kernels(loop_add_fusion_3=(STEPS, 10)), *cpu(99.0))
    outcome = conclusion(analysis)
    assert outcome is not None
    [found] = outcome.findings
    if given_mb == 1:
        assert found.advice == OF_OTHER_THREADS
        return
    assert found.cause == "given_to_each_call"
    assert found.sentence.startswith("95.4 MiB of NumPy arrays are copied to the GPU")
    assert "idle.wait" in found.covers


def test_a_server_without_requests_waits_for_work() -> None:
    """Its thread reads a queue, which samples take for fetching input; nobody fills it."""
    fetching = (
        delta({Leaf.MATMUL: 0.9, Leaf.SYNC: 0.1}, count=100),
        delta({Leaf.INPUT: 0.98, Leaf.HOST: 0.02}, Scope.PAUSE, count=20, length=40.0),
    )
    assert concluded(*fetching, *cpu(9.0)).word == "WAITS FOR WORK"
    # Somebody prepares what is waited for, or nobody knows.
    assert concluded(*fetching, *cpu(78.0)).word == "INPUT-BOUND"
    assert concluded(*fetching).word == "INPUT-BOUND"


SERIAL = "void at::native::(anonymous namespace)::indexing_backward_kernel<float, 4>(long const*)"


def test_a_serial_scatter_is_found_where_the_tree_is_all_busy() -> None:
    steps = delta({Leaf.ELEMENTWISE: 0.9, Leaf.MATMUL: 0.1})
    scatter = kernels(**{SERIAL: (STEPS, 89), "nvjet_sm90": (STEPS, 11)})
    outcome = concluded(steps, *scatter)
    assert outcome.word == "SERIAL SCATTER 89 % OF KERNELS"
    assert "take 89 % of the kernels' time, most of it indexing_backward_kernel" in outcome.headline
    assert "use_deterministic_algorithms(False)" in outcome.findings[0].advice
    few = kernels(**{SERIAL: (STEPS, 5), "nvjet_sm90": (STEPS, 95)})
    assert finding_of(analysis_of(steps, *few), "serial_scatter") is None


def test_graphs_that_each_step_captures_are_found() -> None:
    steps = delta({Leaf.CUDA: 0.3, Leaf.MATMUL: 0.7})
    anew = calls(cudaStreamBeginCapture=(STEPS, 1000), cudaGraphInstantiate=(STEPS, STEP_NS // 5),
                 cudaGraphLaunch=(STEPS, 1000))  # fmt: skip
    found = finding_of(analysis_of(steps, anew), "graphs_captured_anew")
    assert found is not None
    assert found.sentence == (
        "Steps capture CUDA graphs anew, 1.0 a step: instantiating them takes 20 % of the time."
    )
    once = calls(cudaStreamBeginCapture=(1, 1000), cudaGraphInstantiate=(1, 1000),
                 cudaGraphLaunch=(STEPS, 1000))  # fmt: skip
    many = calls(cudaStreamBeginCapture=(STEPS, 10), cudaGraphLaunch=(36 * STEPS, 10))
    # One for each step, in four times the time that all steps take: before them.
    before = calls(cudaStreamBeginCapture=(STEPS, 1000), cudaGraphLaunch=(STEPS, 1000),
                   cudaGraphInstantiate=(STEPS, 4 * STEP_NS))  # fmt: skip
    for each in (once, many, before):
        assert finding_of(analysis_of(steps, each), "graphs_captured_anew") is None


def with_part_of_line(
    steps: CaptureDelta, function: str, whole: str, part: str, amount: int
) -> Verdict:
    """What is concluded where the hook counted so much of 1,000 at a line of the function."""
    line = LineDefined(time_ns=0, process=1, line=3, path="/u/t.py", number=7, function=function)
    calls = (LineCalls(3, whole, 1, 1000, ""), LineCalls(3, part, 1, amount, ""))
    return concluded(line, replace(steps, line_calls=calls))


@pytest.mark.parametrize("padding", [700, 300])
def test_texts_that_are_mostly_padding_are_found_with_the_line_that_copies_them(
    padding: int,
) -> None:
    outcome = with_part_of_line(
        delta({Leaf.MATMUL: 0.97, Leaf.DEPENDENCY: 0.03}),
        "train",
        "tokens.all",
        "tokens.padding",
        padding,
    )
    if padding < 500:
        assert outcome.word == "HEALTHY"
        return
    [finding] = outcome.findings
    assert finding.cause == "padding"
    assert finding.sentence == "70 % of the tokens that are copied to the GPU are padding."
    assert finding.evidence == ("They are copied at t.py:7 train",)


def test_padding_of_texts_that_are_copied_once_before_the_loop_is_none() -> None:
    line = LineDefined(time_ns=0, process=1, line=3, path="/u/t.py", number=7, function="prompts")
    counts = (
        LineCalls(3, "tokens.all", 1, 1000, ""),
        LineCalls(3, "tokens.padding", 1, 800, ""),
        LineCalls(3, "to", 1, 8000, ""),
    )
    steps = delta({Leaf.MATMUL: 0.97, Leaf.DEPENDENCY: 0.03})
    assert concluded(line, replace(steps, line_calls=counts)).word == "HEALTHY"


@pytest.mark.parametrize("gathered", [40, 5])
def test_a_graph_convolution_that_could_keep_what_it_propagates_is_found(gathered: int) -> None:
    line = LineDefined(time_ns=0, process=1, line=3, path="/u/t.py", number=7, function="forward")
    steps = delta({Leaf.OTHER: 0.6, Leaf.MATMUL: 0.37, Leaf.DEPENDENCY: 0.03})
    uncached = replace(steps, line_calls=(LineCalls(3, "layers.uncached", 90, 0, ""),))
    ran = kernels(vectorized_gather_kernel=(gathered, 100), nvjet=(100 - gathered, 100))
    outcome = concluded(line, uncached, *ran)
    assert finding_of(analysis_of(line, steps, *ran), "propagated_again") is None
    if gathered < 10:
        assert outcome.word == "HEALTHY"
        return
    [finding] = outcome.findings
    assert finding.cause == "propagated_again"
    assert finding.place == "t.py:7 forward"
    share = 0.4 * 0.97
    assert finding.modelled[0].high == pytest.approx(1 / (1 - 1.5 * share))


def test_threads_of_xla_hold_no_lock_of_python() -> None:
    marks = StepMarks(
        time_ns=at(1), process=1, thread=5, source="jax", site="jit_step", first=1, marks=9,
        span_ns=8 * STEP_NS, lengths_ns=(STEP_NS,) * 8,
    )  # fmt: skip
    steps = delta({Leaf.WAIT: 0.5, Leaf.MATMUL: 0.5})
    assert threads_compute(analysis_of(steps, *cpu(180.0)))
    assert not threads_compute(analysis_of(steps, marks, *cpu(180.0)))


@pytest.mark.parametrize("shared", [900, 300])
def test_a_beginning_that_all_texts_share_is_found_with_the_line_of_the_model(shared: int) -> None:
    outcome = with_part_of_line(
        delta({Leaf.MATMUL: 0.9, Leaf.OTHER: 0.07, Leaf.DEPENDENCY: 0.03}),
        "score",
        "beginning.all",
        "beginning.shared",
        shared,
    )
    if shared < 500:
        assert outcome.word == "HEALTHY"
        return
    [finding] = outcome.findings
    assert finding.cause == "shared_beginning"
    assert finding.sentence.startswith("90 % of the tokens that the model computes are a beginning")
    assert finding.evidence == ("The model is called at t.py:7 score",)
    assert finding.modelled[0].high == pytest.approx(1 / (1 - 0.9 * 0.97))


@pytest.mark.parametrize(("again", "matmul"), [(600, 0.9), (100, 0.9), (600, 0.1)])
def test_layers_that_compute_the_same_again_are_found_with_their_line(
    again: int, matmul: float
) -> None:
    line = LineDefined(time_ns=0, process=1, line=3, path="/u/t.py", number=7, function="attend")
    steps = replace(
        delta({Leaf.MATMUL: matmul, Leaf.OTHER: 0.97 - matmul, Leaf.DEPENDENCY: 0.03}),
        line_calls=(
            LineCalls(3, "layers.all", 1, 1000, ""),
            LineCalls(3, "layers.repeated", 1, again, ""),
        ),
    )
    outcome = concluded(line, steps)
    if again < 150 or matmul < 0.5:
        assert outcome.word == "HEALTHY"
        return
    [finding] = outcome.findings
    assert finding.cause == "repeated_layers"
    assert finding.sentence.startswith("60 % of what layers compute is of the very tensors")
    assert finding.evidence == ("They are called at t.py:7 attend",)
    assert finding.modelled[0].high == pytest.approx(1 / (1 - 0.6 * 0.97))


@pytest.mark.parametrize(("its_ms", "graphs", "is_found"),
                         [(300, 0, True), (80, 0, False), (300, 5, False)])  # fmt: skip
def test_what_a_function_makes_again_of_the_same_tensor_is_found_by_what_its_line_launches(
    its_ms: int, graphs: int, is_found: bool
) -> None:
    lines = [
        LineDefined(time_ns=0, process=1, line=n, path="/u/t.py", number=n + 4, function="step")
        for n in (3, 4)
    ]
    steps = replace(
        delta({Leaf.MATMUL: 0.9, Leaf.OTHER: 0.07, Leaf.DEPENDENCY: 0.03}),
        line_calls=(LineCalls(3, "again.torch.linalg.inv", 100, 1 << 30, ""),),
        line_launches=(
            LineLaunches(0, 3, 10, its_ms * 1_000_000),
            LineLaunches(0, 4, 30, (1000 - its_ms) * 1_000_000),
        ),
    )
    replays = [calls(cudaGraphLaunch=(graphs, 10))] if graphs else []
    outcome = concluded(*lines, steps, *replays)
    if not is_found:
        assert outcome.word == "HEALTHY"
        return
    [finding] = outcome.findings
    assert finding.cause == "computed_before"
    assert finding.sentence.startswith("torch.linalg.inv() is given the very same tensor each time")
    assert finding.evidence == ("At t.py:7 step, 30 % of the GPU's time",)
    assert finding.value == pytest.approx(30 * 0.97)


@pytest.mark.parametrize(("its_ms", "word"), [(300, "ONE-HOT ROWS"), (80, "HEALTHY")])
def test_one_hot_rows_are_a_fault_where_their_line_takes_long(its_ms: int, word: str) -> None:
    line = LineDefined(time_ns=0, process=1, line=3, path="/u/t.py", number=7, function="step")
    steps = replace(
        delta({Leaf.MATMUL: 0.9, Leaf.OTHER: 0.07, Leaf.DEPENDENCY: 0.03}),
        line_calls=(LineCalls(3, "torch.nn.functional.one_hot", 100, 1 << 30, ""),),
        line_launches=(
            LineLaunches(0, 3, 10, its_ms * 1_000_000),
            LineLaunches(0, 0, 30, (1000 - its_ms) * 1_000_000),
        ),
    )
    outcome = concluded(line, steps)
    assert outcome.word == word
    assert [found.place for found in outcome.findings] == (["t.py:7 step"] if its_ms > 100 else [])


@pytest.mark.parametrize(("mib", "share"), [(256, 0.3), (1, 0.3), (256, 0.05)])
def test_kernels_that_are_timed_in_the_loop_are_triton_s_tuning(mib: int, share: float) -> None:
    steps = delta({Leaf.OTHER: 0.97 - share, Leaf.COPY_DEVICE: share, Leaf.SYNC: 0.03})
    size = times(*[mib << 20] * 50)
    memsets = MemoryOperationDelta(
        process=1, range=0, operation=MEMSET, device=0, time=times(*[70_000] * 50), size=size
    )
    found = concluded(replace(steps, memory_operations=(memsets,))).findings
    is_tuned = mib == 256 and share == 0.3
    assert [each.cause for each in found if each.cause == "tunes_anew"] == is_tuned * ["tunes_anew"]
    if is_tuned:
        assert found[0].cause == "tunes_anew"
        assert "50 memsets of 256 MiB" in found[0].sentence


@pytest.mark.parametrize(("unused_mib", "is_found"), [(300, True), (10, False)])
def test_gradients_without_an_optimizer_are_found_where_they_are_many(
    unused_mib: int, is_found: bool
) -> None:
    line = LineDefined(time_ns=0, process=1, line=3, path="/u/t.py", number=7, function="train")
    steps = replace(
        delta({Leaf.MATMUL: 0.97, Leaf.DEPENDENCY: 0.03}),
        line_calls=(
            LineCalls(3, "gradients.used", 1, 100 << 20, ""),
            LineCalls(3, "gradients.unused", 1, unused_mib << 20, ""),
        ),
    )
    outcome = concluded(line, steps)
    if not is_found:
        assert outcome.word == "HEALTHY"
        return
    [finding] = outcome.findings
    assert finding.cause == "unused_gradients"
    assert finding.value == pytest.approx(75)
    assert "300 MiB of parameters that no optimizer updates" in finding.sentence
    assert finding.evidence == ("The model is called at t.py:7 train",)
    assert finding.modelled[0].high == pytest.approx(1 / (1 - 0.7 * 0.75))


@pytest.mark.parametrize(
    ("sorts", "name", "is_said"),
    [(40, "DeviceRadixSortOnesweepKernel", True), (10, "DeviceRadixSortOnesweepKernel", False),
     (40, "nvjet_gemm", False)],
)  # fmt: skip
def test_what_is_launched_again_and_again_is_named_beside_launching(
    sorts: int, name: str, is_said: bool
) -> None:
    steps = delta({Leaf.LAUNCH: 0.6, Leaf.MATMUL: 0.4})
    ran = kernels(**{name: (sorts * STEPS, 4000), "elementwise_kernel": (60 * STEPS, 4000)})
    [found] = concluded(steps, *ran).findings
    share = 100 * sorts / (sorts + 60)
    said = f"{name} takes {share:.0f} % of the kernels' time, {sorts} × a step"
    assert (said in found.evidence) is is_said


@pytest.mark.parametrize(("passes", "is_loop"), [(1, True), (8, False)])
def test_a_loop_over_tokens_is_no_recurrent_cell(passes: int, is_loop: bool) -> None:
    """400 products of one kernel a step, in one call of the model or in eight."""
    steps = delta({Leaf.LAUNCH: 0.6, Leaf.MATMUL: 0.4})
    marks = StepMarks(
        time_ns=STEP_NS, process=1, thread=7, source="module", site="Net", first=1,
        marks=passes * STEPS, span_ns=(passes * STEPS - 1) * STEP_NS // passes,
        lengths_ns=(STEP_NS // passes,) * 32,
    )  # fmt: skip
    ran = kernels(nvjet_tst_64x8=(400 * STEPS, 3000))
    [found] = concluded(steps, marks, *ran).findings
    assert any("cuDNN's RNN" in gain.cure for gain in found.gains) is is_loop


@pytest.mark.parametrize(("each_step", "is_batch"), [(40, True), (4, False)])
def test_matrices_that_are_factorized_one_by_one_are_to_be_a_batch(
    each_step: int, is_batch: bool
) -> None:
    """And the line that goes back through them is nobody's to change: the forward's stand by it."""
    lines = [
        LineDefined(time_ns=0, process=1, line=n, path="/u/gp.py", number=n, function=function)
        for n, function in ((7, "fit"), (8, "kernel"), (9, "kernel"))
    ]
    back = LineDefined(
        time_ns=0, process=1, line=4, path="/x/torch/autograd/graph.py", number=860,
        function="_engine_run_backward",
    )  # fmt: skip
    steps = replace(
        delta({Leaf.LAUNCH: 0.7, Leaf.OTHER: 0.3}),
        line_launches=tuple(
            LineLaunches(0, n, seen, 10) for n, seen in ((7, 60), (8, 21), (9, 19))
        ),
        line_samples=(LineSamples(1, 0, 0, 7, 20, int(Leaf.HOST), 4, 20),),
    )
    ran = kernels(getrf_wo_pivot=(each_step * STEPS, 100), gelu_backward=(40 * STEPS, 100))
    [found] = concluded(*lines, back, steps, *ran).findings
    assert found.advice.startswith("one batched call for the 40 matrices") is is_batch
    assert ("one batched call" in {gain.cure for gain in found.gains}) is is_batch
    assert found.place == "gp.py:8 kernel"
    forward = "; forward at gp.py:8 kernel and gp.py:9 kernel"
    assert any(text.endswith(forward) for text in found.evidence)


def test_attention_that_is_asked_for_its_weights_is_named_with_its_line() -> None:
    line = LineDefined(time_ns=0, process=1, line=3, path="/u/t.py", number=7, function="forward")
    steps = delta({Leaf.ATTENTION_UNFUSED: 0.6, Leaf.MATMUL: 0.4})
    asked = replace(steps, line_calls=(LineCalls(3, "attention.weights", 9, 0, ""),))
    [found] = concluded(line, asked).findings
    assert found.advice.startswith("need_weights=False for torch.nn.MultiheadAttention at t.py:7")
    assert found.evidence == ("It is called at t.py:7 forward",)
    [found] = concluded(line, steps).findings
    assert found.evidence == (UNSEEN,)
    assert found.advice == CAUSES[Leaf.ATTENTION_UNFUSED].advice


@pytest.mark.parametrize(
    ("call", "leaf", "kernel", "words"),
    [
        ("setting.profiler", Leaf.LAUNCH, "nvjet", "end torch.profiler's profile()"),
        ("setting.attention.written.out", Leaf.ATTENTION_UNFUSED, "nvjet",
         "torch.backends.cuda.enable_flash_sdp(True)"),
        ("setting.cudnn.off", Leaf.OTHER, "im2col_kernel<float>",
         "torch.backends.cudnn.enabled = True"),
        ("compiler.breaks", Leaf.LAUNCH, "triton_poi_fused_add_0", "one graph of what torch.comp"),
        ("setting.xla.platform", Leaf.HOST, "loop_add_fusion", "unset XLA_PYTHON_CLIENT_ALLOCATOR"),
        ("setting.xla.platform", Leaf.SYNC, "loop_add_fusion", "unset XLA_PYTHON_CLIENT_ALLOCATOR"),
        ("setting.jax.debug", Leaf.WAIT, "fusion", 'jax.config.update("jax_debug_nans", False)'),
        ("setting.jax.no.jit", Leaf.LAUNCH, "wrapped_add", 'jax.config.update("jax_disable_jit"'),
        ("setting.anomaly", Leaf.LAUNCH, "nvjet", ANOMALY),
    ],
)  # fmt: skip
@pytest.mark.parametrize("seen", [9, 2])
def test_what_torch_is_set_to_is_what_to_change_where_it_mostly_is(
    call: str, leaf: Leaf, kernel: str, words: str, seen: int
) -> None:
    looks = (LineCalls(0, "setting.looks", 10, 0, ""), LineCalls(0, call, seen, 0, ""))
    steps = replace(delta({leaf: 0.6, Leaf.MATMUL: 0.4}), line_calls=looks)
    [found] = concluded(steps, *kernels(**{kernel: (STEPS, 100)})).findings
    assert found.advice.startswith(words) is (seen > 5)


@pytest.mark.parametrize(("called", "first"), [(1, LOOP_INSIDE), (9, COMPILE_WHOLE)])
def test_where_one_jitted_call_launches_all_of_a_step_its_loops_are_the_matter(
    called: int, first: str
) -> None:
    marks = StepMarks(
        time_ns=at(1), process=1, thread=5, source="jax", site="jit_step", first=1,
        marks=called * STEPS, span_ns=STEPS * STEP_NS, lengths_ns=(STEP_NS // called,) * 9,
    )  # fmt: skip
    steps = delta({Leaf.LAUNCH: 0.6, Leaf.MATMUL: 0.4})
    [found] = concluded(steps, marks, *kernels(loop_add_fusion_2=(300 * STEPS, 10))).findings
    assert found.advice == first


@pytest.mark.parametrize(("waited", "is_in_steps"), [(1.0, True), (0.1, False), (None, True)])
def test_waits_of_a_set_up_are_none_among_a_step_s_launches(
    waited: float | None, is_in_steps: bool
) -> None:
    """By how long steady steps wait, of what all calls took: a first step tries algorithms."""
    each = calls(cudaStreamSynchronize=(20 * STEPS, 10_000))
    steps = delta({Leaf.LAUNCH: 0.6, Leaf.MATMUL: 0.4})
    waited_ns = None if waited is None else round(waited * 20 * STEPS * 10_000)
    steps = replace(steps, loops=(replace(steps.loops[0], waited_ns=waited_ns),))
    analysis = analysis_of(steps, each, *kernels(nvjet=(300 * STEPS, 10)))
    assert (launch_advice(analysis) or "").startswith("fewer waits") is is_in_steps


@pytest.mark.parametrize("kernel", ["gemm_kernel", "gelu_backward_kernel"])
def test_a_graph_for_a_backward_pass_that_never_comes_is_left_out_first(kernel: str) -> None:
    line = LineDefined(time_ns=0, process=1, line=3, path="/u/t.py", number=7, function="score")
    steps = replace(
        delta({Leaf.LAUNCH: 0.6, Leaf.MATMUL: 0.4}),
        line_calls=(LineCalls(3, "forward.graded", 9, 0, ""),),
    )
    [found] = concluded(line, steps, *kernels(**{kernel: (STEPS, 100)})).findings
    first = "torch.inference_mode() around t.py:7 score"
    assert found.advice.startswith(first) is (kernel == "gemm_kernel")


@pytest.mark.parametrize("number", [8, 2])
def test_micro_batches_are_made_larger_where_a_step_has_many(number: int) -> None:
    """A GAN's step has two losses."""
    steps = delta({Leaf.LAUNCH: 0.6, Leaf.MATMUL: 0.4})
    parts = replace(steps, loops=tuple(replace(each, micro_batches=number) for each in steps.loops))
    [found] = concluded(parts).findings
    advised = "larger micro-batches: a step accumulates 8 of them" in found.advice
    assert advised is (number == 8)


@pytest.mark.parametrize("source", ["trainer", "module"])
def test_micro_batches_of_a_trainer_gain_no_more_than_they_are(source: StepSource) -> None:
    """What calls a model several times a step, as in reinforcement learning, may be no batches."""
    steps = delta({Leaf.LAUNCH: 0.7, Leaf.MATMUL: 0.3})
    parts = replace(steps, loops=tuple(replace(each, micro_batches=8) for each in steps.loops))
    marks = StepMarks(
        time_ns=1, process=1, thread=1, source=source, site="training step", first=1, marks=STEPS,
        span_ns=STEPS * STEP_NS, lengths_ns=(STEP_NS,),
    )  # fmt: skip
    [found] = concluded(parts, marks).findings
    [gain] = found.gains
    assert (gain.high == pytest.approx(8)) is (source == "trainer")
    assert gain.low < 1 / (1 - 0.7 * 7 / 8)


@pytest.mark.parametrize(("tables", "are_many"), [(30, True), (6, False)])
def test_embeddings_one_by_one_are_told_to_be_one_table(tables: int, are_many: bool) -> None:
    steps = delta({Leaf.LAUNCH: 0.6, Leaf.MATMUL: 0.4})
    count = tables * STEPS
    sorts = {"DeviceRadixSortOnesweepKernel": (2 * count, 10), "compute_grad_weight": (count, 10)}
    [found] = concluded(steps, *kernels(nvjet=(4 * count, 10), **sorts)).findings
    assert found.advice.startswith("one nn.Embedding for all columns") is are_many
    assert ("some 30 tables" in found.advice) is are_many


@pytest.mark.parametrize("workers", [0, 4])
def test_where_the_samples_of_a_loader_are_made_is_named(workers: int) -> None:
    line = LineDefined(time_ns=0, process=1, line=3, path="/u/d.py", number=7,
                       function="__getitem__")  # fmt: skip
    steps = delta({Leaf.INPUT: 0.6, Leaf.MATMUL: 0.4})
    made = replace(
        steps,
        line_calls=(
            LineCalls(3, "loader.samples", 1, workers, ""),
            LineCalls(6, "torch.utils.data.DataLoader", 1, 0, ""),
        ),
    )
    loader = LineDefined(time_ns=0, process=1, line=6, path="/u/t.py", number=9, function="main")
    [found] = concluded(line, loader, made).findings
    where = f"{workers} workers" if workers else "the loop's own process: it has no workers"
    assert found.evidence == (f"Its samples are made in d.py:7 __getitem__, in {where}",)
    assert f"(num_workers, {workers} now, at t.py:9 main)" in found.advice
    # Of a loader that is seen starting its workers, they are kept first.
    start = LineDefined(time_ns=0, process=1, line=4, path="/usr/lib/python3.12/multiprocessing/"
                        "process.py", number=110, function="start")  # fmt: skip
    seen = LineSamples(1, 0, 1, 3, 20, int(Leaf.INPUT), 4, 20)
    [found] = concluded(line, start, replace(made, line_samples=(seen,))).findings
    assert found.advice.startswith("persistent_workers=True: the loader's workers are started")


def test_attention_is_likely_at_one_of_few_lines_of_layers_that_launch() -> None:
    lines = [
        LineDefined(time_ns=0, process=1, line=n, path="/u/t.py", number=n, function=function)
        for n, function in ((3, "train_step"), (7, "forward"), (9, "forward"))
    ]
    steps = delta({Leaf.ATTENTION_UNFUSED: 0.6, Leaf.MATMUL: 0.4})
    read = tuple(LineLaunches(0, line, n, 10) for line, n in ((3, 23), (7, 5), (9, 4)))
    [found] = concluded(*lines, replace(steps, line_launches=read)).findings
    assert found.evidence[0].startswith("Likely at t.py:7 forward or t.py:9 forward, ")
    # Samples that saw a softmax launched know better.
    near = (LineLaunches(0, 9, 4, 10, 1), LineLaunches(0, 7, 1, 10, 1), LineLaunches(0, 7, 5, 9, 2))
    ran = kernels(softmax_warp_forward=(9, 10), nvjet=(9, 10))
    [found] = concluded(*lines, *ran, replace(steps, line_launches=read + near)).findings
    assert found.evidence == ("Its kernels were seen launched at t.py:9 forward (4 of 5 samples)",)


@pytest.mark.parametrize(("mallocs", "is_off"), [(3, True), (1, False)])
def test_a_caching_allocator_that_is_off_is_told_from_one_that_is_emptied(
    mallocs: int, is_off: bool
) -> None:
    """Of four kernels a step."""
    steps = delta({Leaf.ALLOCATION: 0.5, Leaf.MATMUL: 0.5})
    each = calls(cudaMalloc=(mallocs * STEPS, STEP_NS // 40))
    name = "at::native::vectorized_elementwise_kernel"
    [found] = concluded(steps, each, *kernels(**{name: (4 * STEPS, 10)})).findings
    assert ("each tensor is a cudaMalloc, 3 a step" in found.advice) is is_off
    assert (found.advice == CAUSES[Leaf.ALLOCATION].advice) is not is_off


def test_allocating_in_launch_gaps_is_found_and_comes_before_graphs() -> None:
    """empty_cache() in each step: the calls lie among the launches, and count as these."""
    steps = delta({Leaf.LAUNCH: 0.4, Leaf.ALLOCATION: 0.02, Leaf.MATMUL: 0.58})
    emptied = calls(cudaMalloc=(4 * STEPS, STEP_NS // 40), cudaFree=(4 * STEPS, STEP_NS // 40))
    analysis = analysis_of(steps, emptied)
    found = finding_of(analysis, "allocator_thrash")
    assert found is not None
    assert "8.0 times, which takes 20 % of it" in found.sentence
    launch = finding_of(analysis, LEAVES[Leaf.LAUNCH].key)
    assert launch is not None
    assert launch.advice.startswith(KEEP_BLOCKS)
    at_first = calls(cudaMalloc=(12, STEP_NS), cudaFree=(2, STEP_NS))
    assert finding_of(analysis_of(steps, at_first), "allocator_thrash") is None


def test_a_data_loader_in_a_trace_of_the_profiler_is_input() -> None:
    """Kineto has no samples of lines, but a range around each batch."""
    steps = delta({Leaf.HOST: 0.8, Leaf.MATMUL: 0.2})
    ranges: list[AnyEvent] = [
        RangeDefined(time_ns=1, process=1, range=1, parent=0, thread=5, name="ProfilerStep"),
        RangeDefined(time_ns=1, process=1, range=2, parent=1, thread=5,
                     name="enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
        CaptureDelta(time_ns=2, process=1, range_leaves=(
            RangeLeaf(0, 1, Leaf.HOST, 10),
            RangeLeaf(0, 2, Leaf.HOST, 990),
        )),
    ]  # fmt: skip
    analysis = analysis_of(steps, *ranges)
    outcome = conclusion(analysis)
    assert outcome is not None
    assert outcome.word == "INPUT-BOUND"
    assert analysis.tree is not None
    assert analysis.tree.share(analysis.tree.leaves[Leaf.INPUT]) == pytest.approx(0.792)
    assert [move.why for move in analysis.tree.moves] == [
        "the program was in a data loader's range"
    ]


def test_a_little_idle_time_whose_launches_are_unknown_is_not_incomplete() -> None:
    """What unified memory moves has no launch: a GPU that works 93 % is not hidden by it."""
    assert concluded(delta({Leaf.UNKNOWN: 0.07, Leaf.MATMUL: 0.93})).word != "INCOMPLETE"
    assert concluded(delta({Leaf.UNKNOWN: 0.30, Leaf.MATMUL: 0.70})).word == "INCOMPLETE"


@pytest.mark.parametrize("name", ["_moe_matmul_kernel", "triton_moe_matmul", "_moe_kernel"])
def test_products_of_experts_written_in_triton_are_products(name: str) -> None:
    assert leaf_of_kernel(name) is Leaf.MATMUL
    assert leaf_of_kernel("moe_align_block_size_kernel") is not Leaf.MATMUL


def test_a_loop_over_gradients_that_takes_their_norms_is_named() -> None:
    steps = delta({Leaf.LAUNCH: 0.6, Leaf.MATMUL: 0.4})
    norms = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, NormTwoOps<float> >"
    trained = kernels(**{norms: (10 * STEPS, 5), "layer_norm_backward": (100 * STEPS, 5)})
    launch = finding_of(analysis_of(steps, *trained), LEAVES[Leaf.LAUNCH].key)
    assert launch is not None
    assert launch.advice.startswith("torch.nn.utils.clip_grad_norm_")
    once = kernels(**{norms: (STEPS, 5), "layer_norm_backward": (100 * STEPS, 5)})
    launch = finding_of(analysis_of(steps, *once), LEAVES[Leaf.LAUNCH].key)
    assert launch is not None
    assert "clip_grad_norm_" not in launch.advice


def test_pages_that_unified_memory_moves_are_a_finding() -> None:
    """A kernel that touches what the host wrote waits for its pages: the GPU looks busy."""
    moved = CaptureDelta(
        time_ns=1,
        process=1,
        memory_operations=(
            MemoryOperationDelta(
                process=1, range=0, device=0, operation="[CUDA memcpy Unified Host-to-Device]",
                time=times(*[STEP_NS // 100] * (30 * STEPS)), size=times(*[65_536] * (30 * STEPS)),
            ),
        ),
    )  # fmt: skip
    outcome = concluded(delta({Leaf.ELEMENTWISE: 0.95, Leaf.DEPENDENCY: 0.05}), moved)
    assert outcome.word == "UNIFIED MEMORY MOVES 30 % OF THE TIME"
    assert "188 MiB between host and GPU in 3,000 parts" in outcome.headline


def test_the_cpu_of_the_launching_thread_is_not_another_thread_s() -> None:
    """It sleeps a fifth of the time, and takes the process's one core in the rest of it."""
    steps = delta({Leaf.WAIT: 0.2, Leaf.HOST: 0.6, Leaf.MATMUL: 0.2})
    advice = {one.cause: one.advice for one in concluded(steps, *cpu(99.0)).findings}
    assert OF_OTHER_THREADS not in advice.values()


# --- What the program's own calls and collections say.

COPIES_IN = MemoryOperationDelta(
    process=1, range=0, device=0, operation="[CUDA memcpy Host-to-Device]",
    source_kind="pageable", destination_kind="device",
    time=times(*[STEP_NS * 6 // 10] * STEPS), size=times(*[38_535_168] * STEPS),
)  # fmt: skip
LINES = [
    LineDefined(time_ns=1, process=1, line=line, path="/m/train.py", number=line, function="train")
    for line in (7, 8, 9)
]


def test_the_line_that_copies_is_named_with_what_it_copies() -> None:
    """A tensor of 64 pictures a step; what is cast on the CPU or small is no reason."""
    seen = CaptureDelta(
        time_ns=1,
        process=1,
        memory_operations=(COPIES_IN,),
        line_calls=(
            LineCalls(7, "to", STEPS, STEPS * 38_535_168, "64x3x224x224:float32:cpu"),
            LineCalls(8, "to", STEPS, STEPS * 512, "64:int64:cpu"),
            LineCalls(9, "item", 10, 40, "1:float32:gpu"),
        ),
    )
    [found] = concluded(
        delta({Leaf.COPY_PAGEABLE: 0.6, Leaf.MATMUL: 0.4}), *LINES, seen
    ).findings  # fmt: skip
    assert found.evidence == (
        ".to() at train.py:7 train: 1.0 × a step, 64 × 3 × 224 × 224 float32, 36.8 MiB each "
        "to the GPU",
    )
    assert "keep on the GPU" not in found.advice


@pytest.mark.parametrize(("kib", "is_of_results"), [(256, True), (1, False)])
def test_what_the_cpu_computes_of_results_may_be_beside_the_gpu(
    kib: int, is_of_results: bool
) -> None:
    """Then the shorter of both goes: the CPU's work stays as long as it is."""
    back = MemoryOperationDelta(
        process=1, range=0, operation="[CUDA memcpy Device-to-Host]", device=0,
        time=times(*[1000] * STEPS), size=times(*[kib << 10] * STEPS),
    )  # fmt: skip
    steps = replace(delta({Leaf.HOST: 0.7, Leaf.MATMUL: 0.3}), memory_operations=(back,))
    [found] = concluded(steps).findings
    assert (found.advice == WORK_BESIDE) is is_of_results
    assert [gain.cure for gain in found.modelled] == ["", "beside the GPU"][: 1 + is_of_results]
    if is_of_results:
        assert found.modelled[1].high == pytest.approx(1 / (1 - 0.3))


@pytest.mark.parametrize(("function", "is_by_one"), [("fetch", True), ("resize", False)])
def test_samples_that_are_gone_through_one_by_one_are_to_be_one_index(
    function: str, is_by_one: bool
) -> None:
    """Rows that take less to make than to go through."""
    lines = [
        LineDefined(time_ns=0, process=1, line=3, path="/u/t.py", number=9, function="main"),
        LineDefined(
            time_ns=0,
            process=1,
            line=4,
            path="/x/site-packages/torch/utils/data/_utils/fetch.py",
            number=49,
            function=function,
        ),
    ]
    seen = LineSamples(1, 0, 0, 3, 40, int(Leaf.INPUT), 4, 40)
    steps = replace(delta({Leaf.INPUT: 0.7, Leaf.MATMUL: 0.3}), line_samples=(seen,))
    [found] = concluded(*lines, steps).findings
    assert found.advice.startswith("a whole batch by one index") is is_by_one


@pytest.mark.parametrize(("inside", "is_one"), [(0, True), (8, False)])
def test_what_is_gathered_and_copied_at_one_line_is_one_finding(inside: int, is_one: bool) -> None:
    """Rows of a table on the CPU, by an index: not what a function of Python makes there."""
    seen = CaptureDelta(
        time_ns=1,
        process=1,
        memory_operations=(COPIES_IN,),
        line_calls=(LineCalls(7, "to", STEPS, STEPS * 38_535_168, "64x3x224x224:float32:cpu"),),
        line_samples=(LineSamples(1, 0, 0, 7, 40, int(Leaf.HOST), inside, 40 if inside else 0),),
    )
    leaves = {Leaf.HOST: 0.45, Leaf.COPY_PAGEABLE: 0.35, Leaf.MATMUL: 0.2}
    found = concluded(delta(leaves), *LINES, seen).findings
    assert [one.advice == GATHER_THERE for one in found] == [True] if is_one else [False, False]
    if is_one:
        assert found[0].sentence.startswith("One line of the program takes 80 % of each step")
        assert found[0].modelled[0].high == pytest.approx(1 / (1 - 0.8))


@pytest.mark.parametrize("again", [STEPS - 1, STEPS // 4])
def test_a_tensor_that_is_copied_again_each_step_is_to_be_kept(again: int) -> None:
    seen = CaptureDelta(
        time_ns=1,
        process=1,
        memory_operations=(COPIES_IN,),
        line_calls=(
            LineCalls(7, "to", STEPS, STEPS * 38_535_168, "64x3x224x224:float32:cpu"),
            LineCalls(8, "copied.again", again, again * 38_535_168, "64x3x224x224:float32:cpu"),
        ),
    )
    leaves = {Leaf.COPY_PAGEABLE: 0.6, Leaf.MATMUL: 0.4}
    [found] = concluded(delta(leaves), *LINES, seen).findings
    assert ("keep on the GPU what train.py:8 train copies" in found.advice) is (again > STEPS // 2)
    if again > STEPS // 2:
        [gain] = found.gains
        assert gain.low < 1 / 0.4 < gain.high  # what is left are the products


def test_the_line_that_reads_values_is_named_with_how_often() -> None:
    seen = CaptureDelta(
        time_ns=1,
        process=1,
        line_calls=(
            LineCalls(9, "item", 12 * STEPS, 48 * STEPS, "1:float32:gpu"),
            LineCalls(8, "numpy", 20 * STEPS, 48 * STEPS, "1:float32:cpu"),
            LineCalls(7, "torch.cuda.synchronize", STEPS, 0, ""),
        ),
    )
    waits = calls(cudaStreamSynchronize=(13 * STEPS, 1000))
    [found, *_] = concluded(
        delta({Leaf.SYNC: 0.6, Leaf.MATMUL: 0.4}), *LINES, seen, waits
    ).findings  # fmt: skip
    assert found.evidence == (
        ".item() at train.py:9 train: 12.0 × a step, 1 float32, 4 B each",
        "torch.cuda.synchronize() at train.py:7 train: 1.0 × a step",
    )


@pytest.mark.parametrize(
    ("before", "operations", "said"),
    [
        (STEPS, 10, f"{12 * STEPS:,} ×"),
        (STEPS // 20, 10, "11.4 × a step"),
        (STEPS, 300, "6.0 × a step"),
    ],
)
def test_calls_are_so_many_a_step_only_where_nearly_all_steps_are_of_one_kind(
    before: int, operations: int, said: str
) -> None:
    """A learner's loop of as many small steps before, which read nothing, halved them."""
    seen = CaptureDelta(
        time_ns=1, process=1,
        line_calls=(LineCalls(9, "item", 12 * STEPS, 48 * STEPS, "1:float32:gpu"),),
    )  # fmt: skip
    waits = calls(cudaStreamSynchronize=(13 * STEPS, 1000))
    steps = delta({Leaf.SYNC: 0.6, Leaf.MATMUL: 0.4})
    filled = delta({Leaf.MATMUL: 1.0}, loop=1, count=before, length=0.1)
    filled = replace(filled, loops=(replace(filled.loops[0], operations=operations * before),))
    [first, *_] = concluded(steps, filled, *LINES, seen, waits).findings
    assert first.evidence == (f".item() at train.py:9 train: {said}, 1 float32, 4 B each",)


@pytest.mark.parametrize(("before", "tables", "are_many"), [(9, 25, True), (9, 10, False)])
def test_what_is_counted_is_so_much_a_step_by_the_operations_of_other_loops(
    before: int, tables: int, are_many: bool
) -> None:
    """Nine times as many small steps that fill a memory are two steps' operations of the main
    loop, which has 25 tables: 2.5 by the number of all steps."""
    steps = delta({Leaf.LAUNCH: 0.9, Leaf.MATMUL: 0.1})
    filled = delta({Leaf.MATMUL: 1.0}, loop=1, count=before * STEPS, length=0.01)
    operations = steps.loops[0].operations // 50
    filled = replace(filled, loops=(replace(filled.loops[0], operations=operations),))
    each = {"compute_grad_weight<float>": (tables * STEPS, 10), "DeviceRadixSort": (STEPS, 10)}
    analysis = analysis_of(steps, filled, *kernels(**each))
    assert not analysis.steps_of_one_kind
    assert analysis.all_steps == pytest.approx(STEPS * 51 / 50, abs=1)
    advice = launch_advice(analysis) or ""
    assert ("some 25 tables" in advice) is are_many


@pytest.mark.parametrize(
    ("name", "cause", "evidence"),
    [
        (
            "copied_by_line",
            "busy.copy_pageable",
            ".to() at copies.py:7 train: 1.0 × a step, 64 × 3 × 224 × 224 float32, 36.8 MiB each "
            "to the GPU",
        ),
        (
            "read_by_line",
            "idle.sync",
            ".item() at reads.py:9 run: 2.0 × a step, 1 float32, 4 B each",
        ),
        ("collected_each", "garbage_collection", "Most of them begin at garbage.py:6 step"),
    ],
)
def test_recorded_programs_name_the_lines_that_copy_read_and_collect(
    name: str, cause: str, evidence: str
) -> None:
    """Trainings and an inference with torch on an H200, Python 3.12: the first finding."""
    outcome = conclusion(Analysis(*fault(name)))
    assert outcome is not None
    assert outcome.findings[0].cause == cause
    assert outcome.findings[0].evidence[0] == evidence


def test_a_line_that_is_said_to_copy_has_no_more_bytes_than_were_copied() -> None:
    """`.to(torch.float32)` of tensors on the GPU copies nothing: it was a line of the copies up."""
    session, run = fault("copied_by_line")
    [copies] = [its for its in run.line_calls.values() if its.call == "to"]
    on_gpu = replace(copies, call="cpu", tensor="1:float32:gpu")
    run.line_calls[copies.process, copies.line, "cpu"] = on_gpu
    outcome = conclusion(Analysis(session, run))
    assert outcome is not None
    [its] = outcome.findings[0].evidence
    assert its.startswith(".to() at copies.py:7")


def test_a_function_that_the_compiler_gave_up_is_named_as_the_program_says() -> None:
    """A VAE on an H200 that counts its calls in an attribute."""
    outcome = conclusion(gains.analysis_of("cell_counts_vae"))
    assert outcome is not None
    [first, *_] = outcome.findings
    assert first.cause == "compiler_gave_up"
    assert "gave up forward at cell_counts_vae.py:57 after 8 compilations" in first.sentence
    assert first.evidence == ("Its last reason: self.seen == 7",)
    [gain] = first.gains
    assert gain.low < 1.36 < gain.high
    assert finding_of(gains.analysis_of("event_memory_triton"), first.cause) is None


@pytest.mark.parametrize(
    ("collections", "total_ms", "shares", "advice"),
    [
        (STEPS, 300, {Leaf.HOST: 0.4, Leaf.MATMUL: 0.6}, NO_COLLECT),
        (5, 300, {Leaf.HOST: 0.4, Leaf.MATMUL: 0.6}, FREEZE),
        (5, 40, {Leaf.HOST: 0.4, Leaf.MATMUL: 0.6}, None),
        # They began before the loop, in which the GPU waits for launches.
        (5, 300, {Leaf.LAUNCH: 0.4, Leaf.HOST: 0.02, Leaf.MATMUL: 0.58}, None),
        # The GPU has work meanwhile.
        (5, 300, {Leaf.SYNC: 0.04, Leaf.MATMUL: 0.96}, None),
    ],
)
def test_garbage_collections_are_found_where_the_gpu_waits_for_them(
    collections: int, total_ms: int, shares: dict[Leaf, float], advice: str | None
) -> None:
    """Of a loop of a second."""
    longest_ns = total_ms * 1_000_000 // collections
    seen = CaptureDelta(
        time_ns=1,
        process=1,
        garbage_collections=(
            GarbageCollections(2, 8, collections, total_ms * 1_000_000, longest_ns, 9),
            GarbageCollections(0, 0, 900, 100_000, 1000, 0),
        ),
    )
    outcome = concluded(delta(shares), *LINES, seen)
    found = finding_of(analysis_of(delta(shares), *LINES, seen), "garbage_collection")
    if advice is None:
        assert found is None
        return
    assert found is not None
    assert outcome.findings[0] == found
    assert found.advice == advice
    assert found.evidence == ("Most of them begin at train.py:8 train",)
    [gain] = found.gains
    assert gain.low < 1 / 0.7 < gain.high


@pytest.mark.parametrize(
    ("total_ms", "launch", "first"),
    [(410, 0.42, "garbage_collection"), (250, 0.42, "idle.launch"), (80, 0.05, None)],
)
def test_collections_come_before_what_takes_about_as_long_and_not_where_they_take_little(
    total_ms: int, launch: float, first: str | None
) -> None:
    """What calls of their own time is surer than what is read off gaps; 8 % lead nothing."""
    host = min(0.38, total_ms / 1000)
    shares = {Leaf.LAUNCH: launch, Leaf.HOST: host, Leaf.MATMUL: 1.0 - launch - host}
    seen = CaptureDelta(
        time_ns=1,
        process=1,
        garbage_collections=(GarbageCollections(2, 8, 5, total_ms * 1_000_000, 50_000_000, 9),),
    )
    outcome = conclusion(analysis_of(delta(shares), *LINES, seen))
    assert outcome is not None
    assert next((finding.cause for finding in outcome.findings), None) == first


@pytest.mark.parametrize(("grown", "is_found"), [(96, True), (49, False), (0, False)])
def test_a_text_gone_through_again_for_each_token_is_found_before_steps_grow(
    grown: int, is_found: bool
) -> None:
    """A prompt of a thousand tokens that takes one more a step: 0.1 % that no trend shows."""
    marked = StepMarks(
        time_ns=STEPS * STEP_NS, process=1, thread=5, source="module", site="GPT2LMHeadModel",
        first=1, marks=STEPS, span_ns=(STEPS - 1) * STEP_NS, lengths_ns=(STEP_NS,) * 20,
        items=STEPS * 1_048, unit="tokens", grown=grown,
    )  # fmt: skip
    analysis = analysis_of(delta({Leaf.MATMUL: 0.8, Leaf.LAUNCH: 0.05, Leaf.SYNC: 0.15}), marked)
    found = finding_of(analysis, "steps_grow")
    assert (found is not None) is is_found
    if found is not None:
        assert found.advice == KEEP_CACHE
        assert "96 of 100 calls have one more than the call before, 1,048 on average" in (
            found.sentence
        )
        # Launching what the GPU no longer computes long at may take as long, or next to nothing.
        [gain] = found.modelled
        assert 1.0 <= gain.low < gain.high
        assert "between nothing and" in found.gain_unknown


def test_evidence_is_printed_under_one_finding() -> None:
    outcome = conclusion(Analysis(*fault("crops")))
    assert outcome is not None
    lines = [line for one in outcome.findings for line in one.evidence]
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize("attention", [0.6, 0.15])
def test_a_causal_mask_as_a_tensor_is_found_with_its_line(attention: float) -> None:
    line = LineDefined(time_ns=0, process=1, line=3, path="/u/t.py", number=7, function="forward")
    steps = delta({Leaf.ATTENTION: attention, Leaf.MATMUL: 1.0 - attention})
    calls = (LineCalls(3, "attention.causal", 4, 4 << 26, "2x16x8192x64:bfloat16:gpu"),)
    outcome = concluded(line, replace(steps, line_calls=calls))
    if attention < 0.2:
        assert outcome.word == "HEALTHY"
        return
    [found] = outcome.findings
    assert found.cause == "causal_mask"
    assert "its causal mask as a tensor of 64.0 MiB" in found.sentence
    assert found.place == "t.py:7 forward"
    [modelled] = found.modelled
    assert modelled.low == pytest.approx(1 / (1 - 0.6 / 2)), "half of it is barred"


@pytest.mark.parametrize("new", [90, 3, None])
def test_what_cudnn_plans_for_new_sizes_is_a_cause_of_its_own(new: int | None) -> None:
    """Where attention had had its sizes before, or that was not looked at, it is other code."""
    line = LineDefined(time_ns=0, process=1, line=3, path="/u/t.py", number=7, function="forward")
    steps = delta({Leaf.HOST: 0.5, Leaf.ATTENTION: 0.05, Leaf.MATMUL: 0.45})
    looked = () if new is None else (LineCalls(3, "attention.lengths", 100, new, ""),)
    steps = replace(steps, line_calls=looked, line_samples=(LineSamples(1, 0, 0, 3, 40),))
    ran = kernels(cudnn_generated_fort_native_sdpa_sm90_flash_fprop=(STEPS, 3000))
    [found] = concluded(line, steps, *ran).findings
    assert (found.cause == "cudnn_plans") is (new == 90)
    assert found.advice.startswith("torch.backends.cuda.enable_cudnn_sdp(False)")
    if new == 90:
        assert "while cuDNN plans attention for sizes that it had not had" in found.sentence
        assert "Of 100 looks at attention 90 found new sizes" in found.evidence
        assert found.modelled[0].low < 2.0, "other kernels take longer than cuDNN's"


@pytest.mark.parametrize(
    ("launch_us", "kernel", "is_limited"),
    [(12, "at::native::gelu", True), (1, "at::native::gelu", False), (12, "loop_fusion", False)],
)
def test_a_step_that_no_longer_waits_takes_what_its_launches_take(
    launch_us: int, kernel: str, is_limited: bool
) -> None:
    """300 operations of 12 µs in a step of 10 ms; not where the GPU takes longer, nor of XLA."""
    threads = (ThreadLaunches(5, 300 * STEPS, times(*[launch_us * 1000] * 9)),)
    steps = replace(delta({Leaf.HOST: 0.7, Leaf.LAUNCH: 0.2, Leaf.MATMUL: 0.1}),
                    launching_threads=threads)  # fmt: skip
    found, *_ = concluded(steps, *kernels(**{kernel: (300 * STEPS, 100)})).findings
    assert found.cause == "idle.host"
    highest = STEP_NS / (300 * 0.9 * launch_us * 1000)
    assert (found.modelled[0].high == pytest.approx(highest, rel=0.02)) is is_limited


@pytest.mark.parametrize(
    ("waits", "own", "kernel", "is_one"),
    [
        (100, 80, "at::native::gelu", True),
        (5, 80, "at::native::gelu", False),  # a value or two: no loop
        (100, 20, "at::native::gelu", False),  # what it launches is little
        (100, 80, "ampere_gemm", False),  # layers of a model
    ],
)
def test_the_waits_and_launches_of_a_loop_over_values_are_one_finding(
    waits: int, own: int, kernel: str, is_one: bool
) -> None:
    """After it a step takes what the launches of other lines take: 60 of 300, of 12 µs each."""
    lines = [
        LineDefined(time_ns=0, process=1, line=n, path="/u/rl.py", number=n, function=function)
        for n, function in ((3, "reset"), (4, "train"))
    ]
    steps = replace(
        delta({Leaf.SYNC: 0.45, Leaf.LAUNCH: 0.45, Leaf.ELEMENTWISE: 0.1}),
        line_samples=(LineSamples(1, 0, 0, 3, 20, int(Leaf.SYNC)),),
        line_launches=(
            LineLaunches(0, 3, own, 10),
            LineLaunches(0, 3, 5, 10, 1),
            LineLaunches(0, 4, 100 - own, 10),
        ),
        launching_threads=(ThreadLaunches(5, 300 * STEPS, times(*[12_000] * 9)),),
    )
    each = kernels(**{kernel: (300 * STEPS, 2000)})
    called = calls(
        cudaStreamSynchronize=(waits * STEPS, 9), cudaLaunchKernel=(300 * STEPS, 9)
    )  # fmt: skip
    found = concluded(*lines, steps, called, *each).findings
    assert found[0].sentence.startswith("reset (rl.py) goes through values one by one") is is_one
    assert len(found) == (1 if is_one else 2)
    if is_one:
        assert found[0].modelled[0].low == pytest.approx(1 / 0.108, rel=0.02)


@pytest.mark.parametrize(
    ("shape", "path", "is_told"),
    [
        ("256x4x84x84:float32:cpu", "/u/t.py", True),
        ("256x4x84x84:uint8:cpu", "/u/t.py", False),
        ("256x4x84x84:float32:cpu", "/u/other.py", False),
    ],
)
def test_floats_that_the_cpu_makes_of_bytes_are_to_be_made_on_the_gpu(
    shape: str, path: str, is_told: bool
) -> None:
    lines = [
        LineDefined(time_ns=0, process=1, line=3, path=path, number=9, function="stack"),
        LineDefined(time_ns=0, process=1, line=4, path="/u/t.py", number=20, function="sample"),
    ]
    steps = replace(
        delta({Leaf.HOST: 0.7, Leaf.MATMUL: 0.3}),
        line_samples=(LineSamples(1, 0, 0, 3, 20, int(Leaf.HOST)),),
        line_calls=(LineCalls(4, "to", STEPS, STEPS * 28_901_376, shape),),
    )
    [found] = concluded(*lines, steps).findings
    assert (found.advice == AS_IT_IS) is is_told
