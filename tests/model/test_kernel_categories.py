"""Kernel names → categories: names from real traces, and the traps among them."""

from __future__ import annotations

import csv
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.cli.declaration import UsageError, kernel_category
from gputui.model.kernel_categories import OTHER, RULES, category, configure, short_names
from gputui.model.leaves import Leaf, leaf_of_kernel
from gputui.model.naming import short_name
from gputui.state import Session
from tests.conftest import DATA


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_bias_TNT", "matmul"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::Params)", "matmul"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize32x32x8", "matmul"),
        ("void gemv2T_kernel_val<int, int, float, float, float>(x)", "matmul"),
        ("triton_tem_fused_mm_0", "matmul"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)",
         "normalization"),
        ("void at::native::GammaBetaBackwardCUDAKernel<float, float>(long)", "normalization"),
        ("void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64, cutlass::x>>()",
         "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "attention"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>(float*)",
         "softmax"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMath>()",
         "optimizer"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         "communication"),
        ("triton_red_fused_native_layer_norm_1", "triton fused"),
        ("triton_poi_fused__scaled_dot_product_flash_attention_cat_2", "triton fused"),
        ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>(int)",
         "copy"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>(int)",
         "elementwise"),
        ("void at::native::elementwise_kernel<SubTensorOpWithScalar1d>(x)", "elementwise"),
        ("void at::native::reduce_kernel<512, 1, ArgMaxOps<float>>(x)", "reduction"),
        ("void at::native::(anonymous namespace)::indexSelectSmallIndex<float>(x)", "index"),
        ("void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel()",
         "random"),
        ("preatt_kernel(float*, float*, float*, int, int, int, int)", "attention"),
        ("Kernel2", "matmul"),
        ("void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const*)", "attention"),
        ("void at::native::(anonymous namespace)::compute_grad_weight<float, long>()", "index"),
        ("my_own_thing(float*)", "other"),
    ],
)  # fmt: skip
def test_categories(name: str, expected: str) -> None:
    assert category(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void at::native::elementwise_kernel<128, 2, F>(int, F)", "elementwise_kernel"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)",
         "vectorized_layer_norm_kernel"),
        ("preatt_kernel(float*, int)", "preatt_kernel"),
        ("nvjet_sm90_tst_64x8_TNT", "nvjet_sm90_tst_64x8_TNT"),
        ("[CUDA memcpy Host-to-Device]", "[CUDA memcpy Host-to-Device]"),
        ("void outer<int>::inner(float*)", "inner"),
        ("void outer<a<int>, b<int>>::inner<c<int>>(float*)", "inner"),
        ("void outer<(k)1>::kernel<(bool)0, 4>(int)", "kernel"),
        ("[CUDA memset] of x", "[CUDA memset] of x"),
        ("ns::kernel", "kernel"),
        ("int kernel", "kernel"),
        ("a > b::kernel<int>(x)", "kernel"),
    ],
)  # fmt: skip
def test_short_names(name: str, expected: str) -> None:
    assert short_name(name) == expected


def test_the_longest_kernels_of_every_workload_on_an_h200_are_labelled_right() -> None:
    """The fifty longest of the catalogue's runs, and the fifty with the largest shares of their
    runs, each label read by a person."""
    with (DATA / "h200_kernels.csv").open(newline="") as file:
        labelled = [(row["kernel"], row["category"]) for row in csv.DictReader(file)]
    assert len(labelled) >= 50
    assert [(name, category(name)) for name, _ in labelled] == labelled


def test_names_of_public_engines() -> None:
    """Names in public repositories and profiles, each label given by a person who read the name.
    The rules were extended by these names: of the last 72, drawn before that, 90 % were right."""
    with (DATA / "kernel_names.csv").open(newline="", encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) >= 400
    assert len({row["repository"] for row in rows}) >= 20
    truth = [row["category"] for row in rows]
    found = [category(row["kernel"]) for row in rows]
    assert found.count("other") < 0.03 * len(rows)
    both = Counter(one for one, other in zip(truth, found, strict=True) if one == other)
    of_truth, of_found = Counter(truth), Counter(found)
    figures = {
        name: (both[name] / max(1, of_found[name]), both[name] / count)
        for name, count in of_truth.items()
        if name != "other"
    }
    poor = {name: pair for name, pair in figures.items() if min(pair) < 0.9}
    assert not poor, f"precision and recall: {poor}"
    assert len(figures) >= 20


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<cutlass::X>>>",
         "attention"),
        ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0>(x)",
         "attention"),
        ("BatchPrefillWithPagedKVCacheKernel", "attention"),  # as nsys shortens it
        ("void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>(x)", "normalization"),
        ("void mul_mat_q<(ggml_type)8, 64, false>(char const*)", "matmul"),
        ("void mul_mat_vec_q<(ggml_type)2, 1, false>(void const*)", "matmul"),
        ("void marlin::Marlin<__nv_bfloat16, 1125899906909960l, 256>(int4 const*)", "matmul"),
        ("void dequantize_mul_mat_vec<1, 1>(x)", "matmul"),
        ("void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)", "communication"),
        ("fused_moe_kernel", "mixture of experts"),
        ("loop_add_fusion_3", "elementwise"),
        ("cupy_true_divide__float64_float64_float64", "elementwise"),
        ("gemm_fusion_dot_12", "matmul"),
        ("input_reduce_fusion", "reduction"),
    ],
)  # fmt: skip
def test_names_of_today_that_look_like_others(name: str, expected: str) -> None:
    assert category(name) == expected


def test_a_users_rules_come_first() -> None:
    kernel = "my_project::Thing_GEMM<int>(int)"
    assert category(kernel) == "matmul"
    try:
        configure([kernel_category("thing_gemm=attention", "--kernel-category")])
        assert (category(kernel), leaf_of_kernel(kernel)) == ("attention", Leaf.ATTENTION)
    finally:
        configure([])
    assert category(kernel) == "matmul"
    for wrong in ("x", "=a", "(=a", "a="):
        with pytest.raises(UsageError):
            kernel_category(wrong, "--kernel-category")


def test_experts_products_are_products() -> None:
    assert leaf_of_kernel("fused_moe_kernel") is Leaf.MATMUL
    assert leaf_of_kernel("vllm::moe::topkGatingSoftmax") is Leaf.OTHER


@pytest.mark.parametrize(
    ("name", "leaf"),
    [
        ("void DSE::regular_fft_pad<0, 1, 128, 16, 32, 1, float, float, float2>(float2*, float*)",
         Leaf.MATMUL_SIMT),
        ("void DSE::vector_fft<0, 1, 128, 8, 8, 1, float, float, float2>(float2*, float2*)",
         Leaf.MATMUL_SIMT),
        ("void pointwise_mult_and_sum_complex<float2, 8, 4>(float2*, float2*, float2*, int, int)",
         Leaf.MATMUL_SIMT),
        ("void fft2d_r2c_32x32<float, false, 0u, false>(float2*, float const*, int, int)",
         Leaf.MATMUL_SIMT),
        ("void cudnn::winograd_nonfused::winogradWgradDelta4x4<float, float>(int)",
         Leaf.MATMUL_SIMT),
        # The same for FP16, and a transform that the program asks for: cuFFT's.
        ("void fft2d_r2c_32x32<__half, false, 0u, false>(float2*, __half const*, int, int)",
         Leaf.MATMUL),
        ("void regular_fft<256u, EPT<16u>, 8u, 8u, (padding_t)1>(kernel_arguments_t<unsigned>)",
         Leaf.OTHER),
    ],
)  # fmt: skip
def test_convolutions_by_fft_are_products_without_tensor_cores(name: str, leaf: Leaf) -> None:
    """cuDNN's kernels of FP32 convolutions on an H200."""
    assert leaf_of_kernel(name) is leaf


@pytest.mark.parametrize(
    ("arguments", "leaf"),
    [
        ("float, float, float, 4, true, false", Leaf.OTHER),
        ("double, double, double, 9, false, false", Leaf.OTHER),
        ("c10::BFloat16, c10::BFloat16, float, 10, false, false", Leaf.SOFTMAX),
        ("float, float, float, 9, false, true", Leaf.SOFTMAX),
    ],
)
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_a_softmax_of_losses_or_doubles_is_none_of_attention(
    way: str, arguments: str, leaf: Leaf
) -> None:
    """Between the products of a classifier it was attention by hand."""
    name = f"void (anonymous namespace)::softmax_warp_{way}<{arguments}>(float*, float const*, int)"
    assert leaf_of_kernel(name) is leaf


@given(st.text(max_size=80))
def test_any_name_has_a_category_and_a_short_name(name: str) -> None:
    assert category(name) in {*dict(RULES), OTHER}
    assert bool(short_name(name)) == bool(name)


def test_nothing_is_left_over_in_a_run_on_an_h200(h200: Session) -> None:
    assert h200.run is not None
    totals: dict[str, int] = {}
    for kernels in h200.run.kernels.values():
        label = category(h200.kernel_names[kernels.kernel].name)
        totals[label] = totals.get(label, 0) + kernels.time.total
    assert totals.get("other", 0) <= 0.02 * sum(totals.values())


def test_of_long_names_the_beginning_is_looked_at() -> None:
    """All of it against each rule took 10 ms a name."""
    name = "k" + "x" * 3000 + "gemm"
    assert (category(name), category("gemm" + name)) == ("other", "matmul")
    assert len(short_name(name)) == len(name)


def test_a_product_goes_by_its_operation_formats_and_sizes() -> None:
    of = "_warpgroupsize2x1x1_execute_segment_k_off_kernel__5x_cublas"
    names = [
        f"sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize128x256x32{of}",
        "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_tn_align1>(Params)",
    ]
    assert short_names(names, 60) == [
        "gemm_f32f32_tf32f32_f32_nt_n_128x256x32",
        "cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_tn_align1",
    ]
