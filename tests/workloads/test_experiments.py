"""The smaller workloads, beyond what holds for every one: numerics, files, refusals, results."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.workloads.forked_python import ForkedPython
from tests.workloads.test_every_workload import check
from tests.workloads.workload_child import ROOT
from workloads.bandwidth.run import run as run_bandwidth
from workloads.checkpoint.files import flat, made_checkpoint, read_tensors
from workloads.checkpoint.run import run as run_checkpoint
from workloads.compile import COMPILE
from workloads.compile.generated import CountOperations, calls
from workloads.compile.run import run as run_compile
from workloads.errors import CannotRun, WrongUsage
from workloads.gemm.products import precisions, product
from workloads.gemm.run import run as run_gemm
from workloads.graphs.run import run as run_graphs
from workloads.memory.run import run as run_memory
from workloads.precision.experiments import accumulation_rows, autocast_rows, errors
from workloads.report import Report
from workloads.rows import Unsupported
from workloads.streams.run import run as run_streams
from workloads.train.shapes import SHAPES

CPU = torch.device("cpu")


def report() -> Report:
    return Report(None, io.StringIO())


def cpu(**values: Any) -> dict[str, Any]:
    return {"device": "cpu", **values}


# --- precision --------------------------------------------------------------------------------


def test_the_sums_are_those_of_the_seed() -> None:
    sums = {(row["addend"], row["accumulator"]): row["sum"] for row in accumulation_rows()}
    assert sums["fp32", "fp32"] == pytest.approx(10.0001, abs=5e-5)
    assert sums["fp16", "fp16"] == pytest.approx(9.9531, abs=5e-5)
    assert sums["fp16", "fp32"] == pytest.approx(10.0021, abs=5e-5)


def test_autocast_keeps_parameters_and_norms_and_shortens_products() -> None:
    types = {str(row["tensor"]): row["type"] for row in autocast_rows(CPU, (torch.bfloat16,))}
    assert types["parameters"] == types["gradients"] == "fp32"
    assert types["fc1's output"] == types["logits"] == "bf16"
    assert types["loss"] == "fp32"


def test_a_shorter_type_errs_more_and_the_error_is_against_fp64() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(128, 128, generator=generator) for _ in range(2))
    relative = {}
    for name in ("fp32", "bf16", "int8"):
        made = product(name, left, right)
        relative[name] = errors(made.multiply() * made.scale, left, right)[1]
        assert made.effective.startswith(name)
    assert relative["fp32"] < 1e-5
    assert 1e-3 < relative["bf16"] < relative["int8"] < 5e-2


def test_fp8_and_tf32_are_no_matter_of_the_cpu() -> None:
    square = torch.ones(16, 16)
    with pytest.raises(Unsupported, match="fp8 products need a GPU"):
        product("fp8", square, square)
    with pytest.raises(CannotRun, match="tf32 needs a GPU"):
        product("tf32", square, square)
    assert precisions("all", CPU) == ("fp32", "bf16", "int8")


# --- gemm, bandwidth, streams -----------------------------------------------------------------


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(WrongUsage, match="smallest is 512, which is more than largest, 128"):
        run_gemm(cpu(smallest="512", largest="128"), report())
    with pytest.raises(WrongUsage, match="smallest is 9 MiB, which is more than largest, 4 MiB"):
        run_bandwidth(cpu(smallest=9, largest=4), report())


@pytest.mark.parametrize(
    ("run", "values", "total"),
    [
        (run_gemm, {"largest": "32768"}, r"20\.0 GiB = 20 bytes × 32768²"),
        (run_bandwidth, {"largest": 65536}, r"192\.0 GiB = 3 arrays × 65536 MiB"),
        (run_streams, {"pieces": 1024, "size": 16384}, r"= 8 bytes × 1024 pieces × 16384²"),
        (run_memory, {"block": 16384, "blocks": 1024}, r"16384\.0 GiB = 1024 blocks × 16384 MiB"),
    ],
)
def test_what_cannot_fit_is_refused_at_once_with_the_sum(
    run: Any, values: dict[str, Any], total: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workloads.place.free_bytes", lambda _: 2**30)
    with pytest.raises(CannotRun, match=rf"needs .*{total}.*; cpu has 1\.0 GiB free; use"):
        run(cpu(**values), report())


def test_a_products_rate_is_its_operations_over_its_time() -> None:
    outcome = run_gemm(cpu(smallest="128", largest="128", products=2), report())
    (row,) = outcome.tables["gemm"]
    assert row["flops_per_s"] == pytest.approx(2 * 128**3 / (float(row["wall_ms"] or 0) / 1e3))
    assert row["intensity"] == pytest.approx(2 * 128**3 / (3 * 128**2 * 4))
    assert outcome.results["fp32_flops_per_s"] == row["flops_per_s"]
    assert outcome.results["bf16_flops_per_s"] is None


_OUT_OF_MEMORY = """
import io, json, resource
import psutil
from workloads.bandwidth.run import run
from workloads.report import Report
limit = psutil.Process().memory_info().vms + 64 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
given = {"device": "cpu", "smallest": 256, "largest": 256, "passes": 1}
outcome = run(given, Report(None, io.StringIO()))
print(json.dumps([outcome.results, outcome.unavailable]))
"""


def test_bandwidth_says_which_arrays_the_memory_was_too_small_for() -> None:
    child = ForkedPython(["-c", _OUT_OF_MEMORY], os.environ, ROOT)
    told, complaints = child.communicate()
    assert child.returncode == 0, complaints
    results, unavailable = json.loads(told)
    for operation in ("copy", "read", "write", "add"):
        assert results[f"{operation}_bytes_per_s"] is None
        reason = unavailable[f"{operation}_bytes_per_s"]
        assert reason.startswith(f"{operation} 256 MiB: OOM: ")


def test_bandwidth_counts_every_byte_read_and_written() -> None:
    rows = run_bandwidth(cpu(largest=1, passes=1), report()).tables["bandwidth"]
    moved = {row["operation"]: row["moved_bytes"] for row in rows}
    mebibyte = 2**20
    assert moved == {
        "copy": 2 * mebibyte, "read": mebibyte, "write": mebibyte, "add": 3 * mebibyte,
    }  # fmt: skip


def test_without_a_gpu_graphs_and_streams_say_so_in_their_rows() -> None:
    graphs = run_graphs(cpu(passes=1, kernels=3), report())
    status = {(row["work"], row["mode"]): row["status"] for row in graphs.tables["graphs"]}
    assert status["chain", "eager"] == status["decode", "eager"] == "ok"
    assert status["chain", "graph"] == "CUDA graphs need a GPU"
    streams = run_streams(cpu(pieces=2, size=16, passes=1), report())
    status = {row["way"]: row["status"] for row in streams.tables["streams"]}
    assert status["serial"] == "ok"
    assert status["pinned, overlapped"] == "streams need a GPU"
    assert streams.unavailable["overlap_percent"] == "streams need a GPU"


# --- memory -----------------------------------------------------------------------------------


def test_the_deliberate_lack_of_memory_is_explained_and_ends_nothing() -> None:
    outcome = run_memory(cpu(block=1, blocks=2, passes=1), report())
    explained = str(outcome.results["out_of_memory_explained"])
    assert explained.startswith("asked for 1,048,576.0 GiB where ")
    assert "ried to allocate" in explained
    steps = [row["step"] for row in outcome.tables["memory_lifecycle"]]
    assert steps[0] == "start"
    assert steps[-1] == "ask for more than there is"


# --- checkpoint -------------------------------------------------------------------------------


def test_the_file_that_is_made_holds_every_parameter_once_and_is_gone_afterwards() -> None:
    for size in ("cs336-tiny", "gpt2-tiny"):
        with made_checkpoint(SHAPES[size], seed=0) as path:
            tensors = read_tensors(path)
        assert not path.exists()
        assert sum(tensor.numel() for tensor in tensors.values()) == SHAPES[size].parameters
        assert flat(tensors).numel() == 4 * SHAPES[size].parameters


def test_a_file_of_the_users_is_read_and_one_that_is_none_is_told(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.safetensors", tmp_path / "bad.safetensors"
    save_file({"a": torch.ones(3, 5), "b": torch.ones(7, dtype=torch.int8)}, good)
    outcome = run_checkpoint(cpu(file=str(good), passes=1), report())
    assert outcome.results["file_bytes"] == 4 * 15 + 7
    assert outcome.results["tensors"] == 2
    status = {row["way"]: row["status"] for row in outcome.tables["checkpoint"]}
    assert status["read the file"] == "ok"
    assert status["pinned, one buffer"] == "pinned memory and copies to a device need a GPU"
    bad.write_bytes(b"\xff" * 100)
    with pytest.raises(CannotRun, match="cannot be read as safetensors"):
        run_checkpoint(cpu(file=str(bad)), report())
    with pytest.raises(CannotRun, match=r"is not a file; name a \.safetensors file"):
        run_checkpoint(cpu(file=str(tmp_path)), report())


def test_a_disk_too_small_is_told_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Usage:
        free = 100

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    with (
        pytest.raises(CannotRun, match=r"GiB of disk = 4 bytes × 787,072 parameters"),
        made_checkpoint(SHAPES["cs336-tiny"], seed=0),
    ):
        pass


# --- compile ----------------------------------------------------------------------------------

GENERATED = """
def call(self, args):
    buf0 = empty_strided_cuda((4, 4), (4, 1), torch.float32)
    triton_poi_fused_add_mul_0.run(arg0_1, buf0, 25, stream=stream0)
    extern_kernels.mm(buf0, arg1_1, out=buf1)
    triton_poi_fused_add_mul_0.run(buf1, buf2, 25, stream=stream0)
    cpp_fused_neg_0(arg0_1, buf3)
    buf5 = torch.ops.aten._scaled_dot_product_flash_attention.default(buf3)
triton_poi_fused_add_mul_0 = async_compile.triton('triton_', '''
"""


def test_calls_are_read_off_the_generated_code() -> None:
    assert calls([GENERATED, "nothing"]) == {
        "triton_poi_fused_add_mul_0": 2,
        "library: mm": 1,
        "cpp_fused_neg_0": 1,
        "library: _scaled_dot_product_flash_attention": 1,
    }


def test_views_and_empty_tensors_are_no_operations() -> None:
    x = torch.ones(4, 4)
    with CountOperations() as operations:
        y = (x.view(16).reshape(2, 8).t() * 2).sum()
        torch.empty(3).detach()
    assert operations.count == 2
    assert y == 32


def test_the_lectures_foo_is_fused_into_one_kernel() -> None:
    given = COMPILE.read(cpu(work="pointwise", elements=1000, passes=2))
    # Of six vector extensions a compiler would have to show that it knows them.
    quick = {"cpp.vec_isa_ok": False, "cpp_cache_precompile_headers": False}
    with torch._inductor.config.patch(quick):
        outcome = run_compile(given, report())
    check(COMPILE, outcome)
    (row,) = outcome.tables["compile"]
    if row["status"] != "ok":
        pytest.skip(f"no compiler here: {row['status']}")
    assert (row["eager_operations"], row["compiled_kernels"]) == (2, 1)
    (kernel,) = outcome.tables["fused_kernels"]
    assert kernel["kernel"] == "cpp_fused_add_mul_0"
    assert "cpp_fused_add_mul_0" in Path(str(kernel["source"])).read_text(encoding="utf-8")
    assert any("tmp0 * tmp1" in str(line["text"]) for line in outcome.tables["generated_code"])
    assert float(row["compile_s"] or 0) > 0


def test_the_algorithms_of_a_pass_are_told_by_its_kernels() -> None:
    """Names that cuDNN 9 launched on an H200."""
    from workloads.convolution.run import algorithm

    layout = "_ZN5cudnn19engines_precompiled16nchwToNhwcKernelI13__nv_bfloat16S2_fLb0E"
    of_library = {
        layout: 6,
        "_ZN17cutlass__5x_cudnn6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS1_": 1,
        "sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64": 2,
        "_ZN2at6native29vectorized_elementwise_kernelILi8ENS0_11FillFunctor": 1,
    }
    assert algorithm(of_library) == "layout 6, implicit GEMM 3"
    products = {"nvjet_sm90_tst_320x64_64x4_2x1_v_ssched_bz_NTT": 3}
    assert algorithm(products | {"_ZN5cudnn3cnn24reduce_wgrad_nchw_helper": 1}) == "sums 1, GEMM 3"
    assert algorithm({}) is None
