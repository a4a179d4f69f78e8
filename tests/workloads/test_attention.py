"""`attention`: the grids people know, implementations that agree, rows that fail and stay."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

from workloads.attention.grids import GRIDS, IMPLEMENTATIONS
from workloads.attention.implementations import attention
from workloads.attention.run import run, tf32_rows
from workloads.declaration import FigureValue, Row
from workloads.report import Report
from workloads.rows import Unsupported
from workloads.timing import Times

CPU = torch.device("cpu")


def measured(**changes: Any) -> list[Row]:
    given = {"device": "cpu", "passes": 2, "warmup": 1, **changes}
    return list(run(given, Report(None, io.StringIO())).tables["attention"])


def test_the_grids_are_the_published_ones() -> None:
    sizes = {name: len(grid.shapes) for name, grid in GRIDS.items()}
    assert sizes["seed-004"] == 5 * 7
    assert sizes["handout"] == 4 * 5
    assert sizes["flash-paper"] == 2 * 2 * 6
    for shape in GRIDS["flash-paper"].shapes:
        assert shape.batch * shape.length == 16384
        assert shape.heads * shape.head_width == 2048
    assert max(shape.length for shape in GRIDS["flash-handout"].shapes) == 65536


@pytest.mark.parametrize(
    ("name", "causal"),
    [("compiled", True), ("math", False), ("math", True), ("flash", False), ("flash", True)],
)
def test_implementations_agree(name: str, causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, 16, 8, generator=generator) for _ in range(3))
    expected = attention("naive", causal=causal, length=16, device=CPU)(q, k, v)
    # What the compiler makes of it is PyTorch's to test, and takes seconds.
    with torch.compiler.set_stance("force_eager"):
        found = attention(name, causal=causal, length=16, device=CPU)(q, k, v)
    torch.testing.assert_close(found, expected)


def test_a_back_end_without_a_kernel_is_a_row_that_says_so() -> None:
    q = torch.randn(1, 1, 4, 8)
    cudnn = attention("cudnn", causal=True, length=4, device=CPU)
    with pytest.raises(Unsupported, match=r"no cudnn attention kernel for torch\.float32 heads of"):
        cudnn(q, q, q)
    rows = measured(implementations="efficient,naive", grid="tiny")
    status = [(row["implementation"], row["status"]) for row in rows]
    assert status[0] == ("naive", "ok")
    assert str(status[1][1]).startswith("no efficient attention kernel")


def test_rows_have_times_of_a_pass_and_of_all_and_their_speedup() -> None:
    naive, maths = measured(implementations="naive,math")[:2]
    for row in (naive, maths):
        assert row["passes"] in (1, 2)
        for direction in ("fwd", "bwd"):
            one, total = row[f"{direction}_ms"], row[f"{direction}_total_ms"]
            assert isinstance(one, float)
            assert isinstance(total, float)
            assert 0 < one <= total
    assert naive["fwd_speedup"] == 1
    speedup = maths["fwd_speedup"]
    assert isinstance(speedup, float)
    assert speedup == pytest.approx(float(naive["fwd_ms"] or 0) / float(maths["fwd_ms"] or 1))


def test_a_backward_pass_that_does_not_fit_keeps_the_forward_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.")

    monkeypatch.setattr(torch.autograd, "grad", fail)
    (row, _) = measured(implementations="naive")
    assert row["status"] == "OOM: Tried to allocate 8.00 GiB."
    assert row["fwd_ms"] is not None
    assert "bwd_ms" not in row


def test_every_implementation_is_described() -> None:
    assert list(IMPLEMENTATIONS) == ["naive", "compiled", "math", "flash", "efficient", "cudnn"]


def test_tf32_stands_beside_fp32_with_the_change_the_seed_misprints() -> None:
    def row(precision: str, length: int, fwd: float, bwd: float | None) -> Row:
        return {
            "implementation": "compiled", "precision": precision, "causal": False, "batch": 8,
            "heads": 1, "d_model": 32, "seq_len": length, "fwd_ms": fwd, "bwd_ms": bwd,
        }  # fmt: skip

    first, second = tf32_rows(
        [
            row("fp32 (ieee)", 64, 11.154, 57.279),
            row("fp32 (tf32)", 64, 11.482, 57.955),
            row("fp32 (ieee)", 128, 11.404, None),
            row("fp32 (tf32)", 128, 11.356, None),
            row("bf16", 64, 1.0, 1.0),
        ]
    )
    assert first["fwd_change_percent"] == pytest.approx(2.9, abs=0.05)
    assert first["bwd_change_percent"] == pytest.approx(1.2, abs=0.05)
    assert second["fwd_change_percent"] == pytest.approx(-0.4, abs=0.05)
    assert "bwd_change_percent" not in second


def test_tf32_is_compared_by_one_clock() -> None:
    """The GPU's time of one and the host's launches of the other had made a backward pass 89 %
    shorter."""

    def row(precision: str, gpu_ms: float | None) -> Row:
        return {
            "implementation": "compiled", "precision": precision, "d_model": 32, "causal": False,
            "batch": 8, "heads": 1, "seq_len": 1024, "bwd_ms": 0.6, "bwd_gpu_ms": gpu_ms,
        }  # fmt: skip

    def change(before: float | None, after: float | None) -> FigureValue:
        [cells] = tf32_rows([row("fp32 (ieee)", before), row("fp32 (tf32)", after)])
        return cells["bwd_change_percent"]

    assert change(0.2, 0.1) == pytest.approx(-50)
    assert change(None, 0.1) == change(0.2, None) == 0


def test_events_of_passes_that_the_host_launches_slower_are_not_the_gpus_time() -> None:
    def times(gpu_ms: float | None, host_ms: float, graph_ms: float | None = None) -> Times:
        return Times(3, 1.0, host_ms, gpu_ms, (), graph_ms)

    assert times(5.0, 0.1).gpu_only_ms == 5.0
    assert times(0.3, 0.01).gpu_only_ms is times(5.0, 4.9).gpu_only_ms is None
    assert times(0.3, 0.2, 0.05).gpu_only_ms == 0.05
    assert times(None, 0.2).gpu_only_ms is None
