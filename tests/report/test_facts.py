"""Facts beside the time tree: each just below and just above its threshold, one at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from gputui.model.events import (
    RECOMPUTING,
    AnyEvent,
    ApiDelta,
    CaptureDelta,
    DeviceDelta,
    GpuFacts,
    GpuSample,
    GpuStatus,
    HostSample,
    KernelDefined,
    KernelDelta,
    LineCalls,
    LineDefined,
    LineSamples,
    MachineSample,
)
from gputui.model.leaves import Leaf
from gputui.report.explain import Analysis, Finding, conclusion, findings
from gputui.state import Run, Session
from gputui.tui.widgets.run import evidence as where_shown
from gputui.tui.widgets.view import Lead
from tests.events_for_tests import gpu, header, times
from tests.report.test_verdict import STEP_NS, a_run, delta

USED = DeviceDelta(process=1, device=0, busy_ns=9, operations=1, first_start_ns=1, last_end_ns=2)
BUSY = {Leaf.MATMUL: 0.95, Leaf.DEPENDENCY: 0.05}
DEVICE = replace(
    gpu(), max_sm_clock_mhz=1980, pcie_width=16, pcie_generation=5, power_limit_default_watts=700.0
)


def found(*events: AnyEvent, facts: GpuFacts = DEVICE) -> dict[str, Finding]:
    """By cause."""
    session, run = a_run(header(facts), *events)
    return {one.cause: one for one in findings(Analysis(session, run))}


def steps_of(lengths: Sequence[float]) -> list[AnyEvent]:
    """Ten steps of each of the lengths, a delta each."""
    return [delta(BUSY, count=10, length=length) for length in lengths]


def samples(*readings: GpuSample) -> list[AnyEvent]:
    """Within the steps of `delta(...)`."""
    return [
        MachineSample(time_ns=(1 + second) * STEP_NS, host=HostSample(), gpus=(reading,))
        for second, reading in enumerate(readings)
    ]


# --- kernels whose names say it ----------------------------------------------------------------

LAYOUT = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>"
FOREACH = "multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpScalarFunctor<float, 2, 1, 1>>"
FUSED = "multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<4>>"


ATTENTION_FP32 = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)"
COPY = "elementwise_kernel<128, 4, gpu_kernel_impl_nocast<direct_copy_kernel_cuda(TensorIterator)>>"
SORT = "radixSortKVInPlace<2, -1, 128, 32, float, long, unsigned int>"
BLUESTEIN = "void regular_bluestein_fft<1063u, EPT<4u>, 256u>"
DOUBLE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<double>>"
POWER = "at::native::vectorized_elementwise_kernel<4, pow_tensor_scalar<float, double>>"
DEPTHWISE = "void at::native::conv_depthwise2d_forward_kernel_generic<float, int>"
DOUBLE_FFT = "void vector_fft<64u, EPT<8u>, 16u, 8u, (padding_t)0, unsigned int, double>"
FLOAT_FFT = "void vector_fft<64u, EPT<8u>, 16u, 8u, (padding_t)0, unsigned int, float>"
DOUBLE_CUPY = "cupy_multiply__float32_float64_float64"
CAST_BACK = "cupy_copy__float64_float32"
DOUBLE_NUMBA = "_ZN6cudapy8__main__4stepB3v1E5ArrayIdLi2E1C7mutable7alignedE"
UNFOLD = "void at::native::im2col_kernel<float>"
DEQUANTIZE = "kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>"


def conclusion_of(session: Session, run: Run) -> tuple[Finding, ...]:
    outcome = conclusion(Analysis(session, run))
    assert outcome is not None
    return tuple(one for one in outcome.findings if one.cause == "copies")


def with_kernel(name: str, share: float, leaves: dict[Leaf, float]) -> tuple[Session, Run]:
    """Two instantiations of a template that together have a share of 95 % of the time."""
    other = name.replace("<", "<char, ", 1)
    half = round(5e4 * share)
    return a_run(
        delta(leaves),
        *(
            KernelDefined(time_ns=1, kernel=number, name=text, mangled=text)
            for number, text in enumerate(("nvjet_gemm", name, other), 1)
        ),
        CaptureDelta(
            time_ns=2,
            process=1,
            kernels=tuple(
                KernelDelta(process=1, range=0, kernel=number, device=0, time=times(ns))
                for number, ns in ((1, 95_000 - 2 * half), (2, half), (3, half))
            ),
        ),
    )


@pytest.mark.parametrize(
    ("name", "share", "cause", "leaves"),
    [
        (LAYOUT, 0.12, "layout", BUSY),
        (LAYOUT, 0.09, None, BUSY),
        # Half of the kernels' time, but copying is what the program is for.
        (LAYOUT, 0.475, None, {Leaf.COPY_DEVICE: 0.95, Leaf.ELEMENTWISE: 0.05}),
        (FOREACH, 0.18, "unfused_optimizer", BUSY),
        (FOREACH, 0.14, None, BUSY),
        (FUSED, 0.30, None, BUSY),
        (FUSED, 0.40, "optimizer", BUSY),
        (ATTENTION_FP32, 0.15, "attention_fp32", BUSY),
        (ATTENTION_FP32, 0.10, None, BUSY),
        (COPY, 0.30, "copies", BUSY),
        (COPY, 0.20, None, BUSY),
        (SORT, 0.25, "sorting", BUSY),
        (SORT, 0.18, None, BUSY),
        (DEQUANTIZE, 0.20, "dequantization", BUSY),
        (DEQUANTIZE, 0.14, None, BUSY),
        (BLUESTEIN, 0.15, "prime_fft", BUSY),
        (BLUESTEIN, 0.12, None, BUSY),
        (DOUBLE, 0.25, "float64", BUSY),
        (DOUBLE, 0.15, None, BUSY),
        (POWER, 0.25, None, BUSY),
        (DEPTHWISE, 0.25, "depthwise", BUSY),
        (DEPTHWISE, 0.18, None, BUSY),
        (DOUBLE_FFT, 0.25, "float64", BUSY),
        (FLOAT_FFT, 0.25, None, BUSY),
        (DOUBLE_CUPY, 0.25, "float64", BUSY),
        (CAST_BACK, 0.25, None, BUSY),
        (DOUBLE_NUMBA, 0.25, "float64", BUSY),
        (UNFOLD, 0.15, "without_cudnn", BUSY),
    ],
)
def test_kernels_that_a_better_way_has_none_of(
    name: str, share: float, cause: str | None, leaves: dict[Leaf, float]
) -> None:
    session, run = with_kernel(name, share, leaves)
    answer = conclusion(Analysis(session, run))
    assert answer is not None
    assert [one.cause for one in answer.findings] == ([cause] if cause else [])
    if cause:
        assert f"{100 * share:.0f} % of each step: " in answer.headline
        [one] = answer.findings
        assert one.evidence[-1].endswith(f" 2 ×, {100 * share:.0f} %")
        assert where_shown(one) == Lead("kernels", name)


def test_what_is_in_fp64_is_told_with_the_line_that_copies_it() -> None:
    """A chain of kernels as long is the same time."""
    leaves = {Leaf.ELEMENTWISE_CHAIN: 0.5, Leaf.MATMUL: 0.45, Leaf.DEPENDENCY: 0.05}
    session, run = with_kernel(DOUBLE, 0.6, leaves)
    line = LineDefined(time_ns=0, process=1, line=3, path="/u/grid.py", number=37, function="put")
    copied = LineCalls(3, "to", 3, 1 << 20, "4x256x129:float64:cpu")
    session.apply([line, CaptureDelta(time_ns=2, process=1, line_calls=(copied,))])
    answer = conclusion(Analysis(session, run))
    assert answer is not None
    assert (answer.findings[0].cause, answer.findings[0].place) == ("float64", "grid.py:37 put")
    assert answer.findings[0].evidence[0] == "FP64 is copied to the GPU at grid.py:37 put"
    assert answer.findings[1].cause == "busy.elementwise_chain"
    assert answer.findings[1].sentence.endswith("Part of it is the same time.")


def test_copies_that_no_kernel_makes_are_called_so() -> None:
    """Of the driver, within the GPU's memory; a kernel's stay kernels."""
    session, run = with_kernel(COPY, 0.02, {Leaf.COPY_DEVICE: 0.40, Leaf.MATMUL: 0.57})
    [one] = conclusion_of(session, run)
    assert one.sentence.startswith("Copies within the GPU's memory take ")
    session, run = with_kernel(COPY, 0.30, BUSY)
    [one] = conclusion_of(session, run)
    assert one.sentence.startswith("Kernels that only copy tensors")


def test_embeddings_whose_rows_are_all_updated_are_named_with_the_line_that_makes_them() -> None:
    session, run = with_kernel(FUSED, 0.4, BUSY)
    gradient = "void compute_grad_weight<float>"
    line = LineDefined(time_ns=0, process=1, line=3, path="/u/t.py", number=7, function="build")
    ran = KernelDelta(process=1, range=0, kernel=9, device=0, time=times(100))
    made = LineCalls(3, "torch.nn.EmbeddingBag", 2, 0, "")
    session.apply([
        line, KernelDefined(time_ns=1, kernel=9, name=gradient, mangled=gradient),
        CaptureDelta(time_ns=2, process=1, kernels=(ran,), line_calls=(made,)),
    ])  # fmt: skip
    answer = conclusion(Analysis(session, run))
    assert answer is not None
    said = "sparse=True for large nn.Embedding tables, made at t.py:7 build, with SparseAdam"
    assert answer.findings[0].advice.startswith(said)


DIFFERENCE = "void at::native::elementwise_kernel<128, 2, gpu_kernel_impl<CUDAFunctor_add<>>>"
SQUARE = "void at::native::vectorized_elementwise_kernel<4, pow_tensor_scalar_kernel_impl<float>>"
SUM = "void at::native::reduce_kernel<512, 1, ReduceOp<float, func_wrapper_t<float, sum_functor>>>"


@pytest.mark.parametrize(
    ("shares", "is_said"),
    [
        ({DIFFERENCE: 0.3, SQUARE: 0.2, SUM: 0.12}, True),
        ({DIFFERENCE: 0.3, SQUARE: 0.2, SUM: 0.02}, False),
        ({DIFFERENCE: 0.15, SQUARE: 0.1, SUM: 0.15}, False),
        ({DIFFERENCE.replace("elementwise_k", "vectorized_elementwise_k"): 0.5, SUM: 0.2}, False),
    ],
)
def test_distances_that_are_written_out_are_told(shares: dict[str, float], is_said: bool) -> None:
    every = {**shares, "nvjet_gemm": 0.95 - sum(shares.values())}
    ran = tuple(
        KernelDelta(process=1, range=0, kernel=n, device=0, time=times(round(1e6 * share)))
        for n, share in enumerate(every.values(), 1)
    )
    analysis = Analysis(
        *a_run(
            delta(BUSY),
            *(KernelDefined(time_ns=1, kernel=n, name=name, mangled=name)
              for n, name in enumerate(every, 1)),
            CaptureDelta(time_ns=2, process=1, kernels=ran),
        )
    )  # fmt: skip
    answer = conclusion(analysis)
    assert answer is not None
    assert (answer.word == "DIFFERENCES OF ALL PAIRS") is is_said


@pytest.mark.parametrize(("name", "share", "is_said"), [(FUSED, 0.4, True), (SORT, 0.4, False)])
def test_an_optimizer_that_takes_long_is_told_with_its_line(
    name: str, share: float, is_said: bool
) -> None:
    session, run = with_kernel(name, share, BUSY)
    line = LineDefined(time_ns=0, process=1, line=3, path="/u/t.py", number=7, function="train")
    stepped = LineCalls(3, "optimizer.step", 1, 1000, "")
    session.apply([line, CaptureDelta(time_ns=2, process=1, line_calls=(stepped,))])
    answer = conclusion(Analysis(session, run))
    assert answer is not None
    said = "It is called at t.py:7 train" in answer.findings[0].evidence
    assert said is (answer.findings[0].place == "t.py:7 train") is is_said


TF32 = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32"
BF16 = "nvjet_sm90_tst_192x192_64x4_1x2_h_bz_coopB_bias_TNN"
MISALIGNED = "ampere_bf16_s1688gemm_bf16_128x128_ldg8_f2f_stages_32x1_tn"
OF_TORCH = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>"


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        ({TF32: 0.3, ATTENTION_FP32: 0.2, BF16: 0.3}, "part in full precision"),
        ({TF32: 0.3, ATTENTION_FP32: 0.2, BF16: 0.03}, "no half precision"),
        ({TF32: 0.35}, None),
        ({TF32: 0.15, BF16: 0.6}, None),
        ({MISALIGNED: 0.5, BF16: 0.3}, None),
    ],
)
def test_a_model_or_a_part_of_it_outside_autocast_is_told_once(
    parts: dict[str, float], word: str | None
) -> None:
    names = (*parts, OF_TORCH)
    shares = (*parts.values(), 0.95 - sum(parts.values()))
    session, run = a_run(
        delta({Leaf.MATMUL: 0.5, Leaf.ATTENTION: 0.3, Leaf.ELEMENTWISE: 0.15, Leaf.SYNC: 0.05}),
        *(
            KernelDefined(time_ns=1, kernel=number, name=name, mangled=name)
            for number, name in enumerate(names)
        ),
        CaptureDelta(
            time_ns=2,
            process=1,
            kernels=tuple(
                KernelDelta(
                    process=1, range=0, kernel=number, device=0, time=times(round(1e5 * share))
                )
                for number, share in enumerate(shares)
            ),
        ),
    )
    seen = {one.cause: one for one in findings(Analysis(session, run))}
    assert ("outside_autocast" in seen) is (word is not None)
    if word:
        assert seen["outside_autocast"].word == word
        assert "attention_fp32" not in seen
        assert "in FP32 or TF32 take 50 % of each step: " in seen["outside_autocast"].sentence


def test_a_model_in_full_precision_is_told_once() -> None:
    """Its matrix products take more than its attention: that is the cause of both."""
    leaves = {Leaf.MATMUL_SIMT: 0.6, Leaf.ATTENTION: 0.4}
    session, run = with_kernel(ATTENTION_FP32, 0.4, leaves)
    assert [one.cause for one in findings(Analysis(session, run))] == ["busy.matmul_simt"]


def with_counters(
    used: tuple[float, float, float] | None, leaves: dict[Leaf, float], name: str = "my_kernel"
) -> list[str]:
    """The causes of steps of which the GPU's counters say how active SMs and tensor cores were,
    and how much of its bandwidth memory moved."""
    active, tensor, memory = used or (None, None, None)
    reading = GpuSample(
        index=0,
        sm_active_percent=active,
        tensor_active_percent=tensor,
        memory_bandwidth_percent=memory,
    )
    ran = KernelDelta(process=1, range=0, kernel=1, device=0, time=times(100))
    session, run = a_run(
        header(DEVICE),
        KernelDefined(time_ns=1, kernel=1, name=name, mangled=name),
        replace(delta(leaves), devices=(USED,), kernels=(ran,)),
        *samples(*[reading] * 5),
    )
    found = conclusion(Analysis(session, run))
    assert found is not None
    return [one.cause for one in found.findings]


@pytest.mark.parametrize(
    ("used", "leaves", "causes"),
    [
        ((95.0, 5.0, 37.0), BUSY, ["slow_kernels"]),
        ((95.0, 7.0, 36.0), BUSY, []),
        # Kernels that are too small to fill the GPU are another matter.
        ((56.0, 1.0, 10.0), BUSY, []),
        ((47.0, 1.0, 10.0), BUSY, ["few_blocks"]),
        ((48.0, 1.0, 10.0), BUSY, []),
        (None, BUSY, []),
        # Another finding says what the kernels are at.
        ((95.0, 5.0, 3.0), {Leaf.MATMUL_SIMT: 0.3, Leaf.MATMUL: 0.7}, ["busy.matmul_simt"]),
        # They take less of the time than what it waits for.
        ((60.0, 5.0, 15.0), {Leaf.OTHER: 0.55, Leaf.ALLOCATION: 0.45}, ["idle.alloc"]),
        ((10.0, 0.0, 3.0), {Leaf.COPY_DEVICE: 0.95, Leaf.OTHER: 0.05}, []),
        ((10.0, 0.0, 3.0), {Leaf.COPY_DEVICE: 0.85, Leaf.OTHER: 0.15}, ["copies"]),
    ],
)
def test_kernels_that_use_little_of_the_gpu(
    used: tuple[float, float, float] | None, leaves: dict[Leaf, float], causes: list[str]
) -> None:
    assert with_counters(used, leaves) == causes


def test_kernels_whose_names_say_what_they_are_at_are_not_slow_besides() -> None:
    assert with_counters((95.0, 5.0, 30.0), BUSY, SORT) == ["sorting"]


@pytest.mark.parametrize(
    ("idle", "first"), [(0.22, "idle.alloc"), (0.18, "idle.alloc"), (0.16, "layout")]
)
def test_of_a_leaf_and_a_fact_that_save_as_much_the_leaf_leads(idle: float, first: str) -> None:
    """The tree shows it: a headline of 22 % in no table stood over another cause of 22 %."""
    leaves = {Leaf.MATMUL: 0.95 - idle, Leaf.ALLOCATION: idle, Leaf.DEPENDENCY: 0.05}
    session, run = with_kernel(LAYOUT, 0.22 * 0.95 / (0.95 - idle), leaves)
    answer = conclusion(Analysis(session, run))
    assert answer is not None
    assert answer.findings[0].cause == first
    assert {one.cause for one in findings(Analysis(session, run))} == {"idle.alloc", "layout"}


# --- forward passes that are computed again ----------------------------------------------------


@pytest.mark.parametrize(
    ("readings", "peak_gib", "shares", "is_found"),
    [
        (3, 20, BUSY, True),
        (2, 20, BUSY, False),
        (3, 21, BUSY, False),
        # Mostly an optimizer, which computes nothing again.
        (3, 20, {Leaf.MATMUL: 0.35, Leaf.OPTIMIZER: 0.65}, False),
    ],
)
def test_gradient_checkpointing_with_memory_to_spare(
    readings: int, peak_gib: int, shares: dict[Leaf, float], is_found: bool
) -> None:
    """A quarter of 80 GiB is in use."""
    line = LineDefined(time_ns=0, process=1, line=1, path="/m/t.py", number=7, function="forward")
    steps = replace(
        delta(shares),
        devices=(USED,),
        line_samples=(LineSamples(1, 0, 0, 1, readings, RECOMPUTING),),
    )
    reading = GpuSample(index=0, memory_used_bytes=peak_gib << 30)
    session, run = a_run(header(DEVICE), line, steps, *samples(*[reading] * 3))
    answer = conclusion(Analysis(session, run))
    assert answer is not None
    assert [one.cause for one in answer.findings] == ["recomputation"] * is_found
    if is_found:
        assert "20.0 GiB of 80.0 GiB" in answer.headline
        assert answer.findings[0].evidence == ("Computed again: t.py:7 forward",)
        assert answer.findings[0].share_percent == pytest.approx(25 * 0.95)


# --- steps that grow ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lengths",
    [
        [1 + 0.02 * block for block in range(30)],
        [1 + 0.1 * (block % 10) for block in range(40)],
        [(1 + 0.02 * block) * (1.03 if block % 2 else 0.97) for block in range(30)],
    ],
    ids=["a line", "a saw", "with noise"],
)
def test_steps_that_grow(lengths: list[float]) -> None:
    one = found(*steps_of(lengths))["steps_grow"]
    assert one.modelled[0].low > 1.1
    assert "longer than the one before" in one.sentence


@pytest.mark.parametrize(
    "lengths",
    [
        [1.0] * 30,
        [1 + 0.002 * block for block in range(30)],
        [1.0] * 15 + [1.5] * 15,
        [1.5 - 0.02 * block for block in range(20)],
        [1.3 if block % 3 else 0.8 for block in range(40)],
        [1 + 0.3 * block for block in range(5)],
        [1.3, *([1.0] * 30)],
    ],
    ids=["even", "by 6 %", "one jump", "falling", "uneven", "too few", "a slow start"],
)
def test_steps_that_do_not_grow(lengths: list[float]) -> None:
    assert "steps_grow" not in found(*steps_of(lengths))


@pytest.mark.parametrize("leaf", [Leaf.LAUNCH, Leaf.INPUT, Leaf.SYNC])
def test_steps_of_the_same_work_on_a_slower_cpu_do_not_grow(leaf: Leaf) -> None:
    """As of an LSTM, a data loader and a decode by graphs on a machine whose clocks fell."""
    lengths = [1 + 0.02 * block for block in range(30)]
    slower = [
        delta({leaf: 1 - 0.2 / length, Leaf.MATMUL: 0.2 / length}, count=10, length=length)
        for length in lengths
    ]
    assert "steps_grow" not in found(*slower)


def test_a_warm_up_of_few_steps_in_many_blocks_is_no_growth() -> None:
    """A decode by CUDA graphs: 73 of 921 steps warm up in a quarter of the blocks."""
    lengths = [0.33, 0.80, 0.81, 1.68, 2.11, 2.06, 2.08, 2.07, 2.11, 2.09, 2.08, 2.28, 2.33, 2.28,
               2.29, 2.35]  # fmt: skip
    blocks = [delta(BUSY, count=18, length=length) for length in lengths]
    later = [delta(BUSY, count=546, length=2.42), delta(BUSY, count=83, length=2.52)]
    assert "steps_grow" not in found(*blocks, *later)


def test_a_cache_is_advised_where_matrix_products_grow() -> None:
    lengths = [1 + 0.02 * block for block in range(30)]
    assert "KV cache" in found(*steps_of(lengths))["steps_grow"].advice
    of_list = [
        delta({Leaf.HOST: 1 - 0.2 / length, Leaf.MATMUL: 0.2 / length}, count=10, length=length)
        for length in lengths
    ]
    advice = found(*of_list)["steps_grow"].advice
    assert advice.startswith("look for a text, list or graph")


def test_growing_steps_are_the_answer_where_no_leaf_is() -> None:
    session, run = a_run(header(DEVICE), *steps_of([1 + 0.02 * block for block in range(30)]))
    answer = conclusion(Analysis(session, run))
    assert answer is not None
    assert answer.word == "STEPS GROW"
    slow = {Leaf.LAUNCH: 0.8, Leaf.MATMUL: 0.2}
    grows = [delta(slow, count=10, length=1 + 0.02 * block) for block in range(30)]
    session, run = a_run(header(DEVICE), *grows)
    answer = conclusion(Analysis(session, run))
    assert answer is not None
    assert answer.word == "LAUNCH-BOUND"
    assert "steps_grow" in {one.cause for one in findings(Analysis(session, run))}


def test_growth_is_seen_in_the_newest_steps_of_a_single_delta() -> None:
    newest = tuple(round(STEP_NS * (1 + 0.01 * step)) for step in range(64))
    one = delta(BUSY, count=64)
    [loop] = one.loops
    lengths = times(*newest)
    grown = replace(one, loops=(replace(loop, newest=newest, step_ns=lengths),))
    assert "steps_grow" in found(grown)


# --- memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "calls", "is_found"), [
    (0.06, 120, True), (0.04, 120, False), (0.06, 90, False), (0.3, 120, False),
])  # fmt: skip
def test_allocations_in_each_step(share: float, calls: int, is_found: bool) -> None:
    one = replace(
        delta({Leaf.ALLOCATION: share, Leaf.MATMUL: 1 - share}),
        api=(ApiDelta(process=1, range=0, name="cudaMalloc", time=times(*([9] * calls))),),
    )
    causes = found(one)
    assert ("allocator_thrash" in causes) is is_found
    # Where it is a leaf of its own, it is told once.
    assert ("idle.alloc" in causes) is (share > 0.2)


# --- clocks and links --------------------------------------------------------------------------

READING = GpuSample(index=0, sm_clock_mhz=1500, power_limit_watts=700.0, throttle_reasons=())


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        (READING, "nothing throttles it"),
        (replace(READING, throttle_reasons=("clocks set by the user",)), "its clocks are set"),
        (
            replace(READING, throttle_reasons=("power cap",), power_limit_watts=400.0),
            "its power limit is 400 W, by default 700",
        ),
        (replace(READING, throttle_reasons=("power cap",)), None),
        (replace(READING, sm_clock_mhz=1800), None),
        (replace(READING, throttle_reasons=("thermal slowdown (hardware)",)), None),
        # The driver does not give the reasons: that is not the same as that there are none.
        (replace(READING, throttle_reasons=None), None),
    ],
)
def test_a_clock_that_is_held_down(reading: GpuSample, words: str | None) -> None:
    one = found(delta(BUSY), *samples(*[reading] * 5), device_work()).get("held_clock")
    assert (one is None) is (words is None)
    assert one is None or (words or "") in one.sentence


def test_the_clock_of_an_idle_gpu_says_nothing() -> None:
    idle = delta({Leaf.WAIT: 0.6, Leaf.MATMUL: 0.4})
    assert "held_clock" not in found(idle, *samples(*[READING] * 5), device_work())


def device_work() -> AnyEvent:
    """The run used GPU 0."""
    return CaptureDelta(
        time_ns=2,
        process=1,
        devices=(
            DeviceDelta(
                process=1, device=0, busy_ns=9, operations=1, first_start_ns=1, last_end_ns=2
            ),
        ),
    )


@pytest.mark.parametrize(
    ("width", "generation", "time_ns", "copies", "words"),
    [
        (8, 5, 9 * STEP_NS, 0.1, "8 of 16 lanes"),
        (16, 3, 9 * STEP_NS, 0.1, "generation 3 of 5"),
        (16, 1, 10**15, 0.1, None),
        (8, 5, 9 * STEP_NS, 0.04, None),
        (16, 5, 9 * STEP_NS, 0.1, None),
    ],
)
def test_a_slow_link(
    width: int, generation: int, time_ns: int, copies: float, words: str | None
) -> None:
    status = GpuStatus(
        time_ns=time_ns, gpu=0, pcie_link_width=width, pcie_link_generation=generation
    )
    steps = delta({Leaf.COPY_PINNED: copies, Leaf.MATMUL: 1 - copies})
    one = found(steps, device_work(), status).get("slow_link")
    assert (one is None) is (words is None)
    assert one is None or (words or "") in one.sentence


@pytest.mark.parametrize(
    ("clock", "reason", "is_found"),
    [
        (1100, "thermal slowdown (software)", True),
        (1900, "thermal slowdown (software)", False),
        (1100, "power cap", False),
    ],
)
def test_throttling_is_found_where_it_lowers_the_clock(
    clock: int, reason: str, is_found: bool
) -> None:
    hot = replace(READING, sm_clock_mhz=clock, throttle_reasons=(reason,), temperature_celsius=88)
    one = found(delta(BUSY), *samples(*[hot] * 5), device_work()).get("throttled")
    assert (one is not None) is is_found
    if one is not None:
        assert "down to 56 % of the highest: thermal slowdown (software)" in one.sentence


def test_a_gpu_too_hot_is_told_once_and_is_the_answer_where_no_leaf_is() -> None:
    both = ("thermal slowdown (software)", "thermal slowdown (hardware)")
    hot = replace(READING, sm_clock_mhz=800, throttle_reasons=both, temperature_celsius=88)
    events = [header(DEVICE), delta(BUSY), *samples(*[hot] * 5), device_work()]
    session, run = a_run(*events)
    assert [one.cause for one in findings(Analysis(session, run))] == ["throttled"]
    answer = conclusion(Analysis(session, run))
    assert answer is not None
    assert answer.word == "GPU 0 THROTTLED"
