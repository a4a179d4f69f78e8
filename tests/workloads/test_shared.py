"""What workloads share: peaks, formulas, clocks, rows."""

from __future__ import annotations

import io
import signal
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from workloads.attention.implementations import attention
from workloads.errors import CannotRun
from workloads.formulas import (
    attention_backward_flops,
    attention_bytes,
    attention_flops,
    gemm_bytes,
    gemm_flops,
)
from workloads.gemm import GEMM
from workloads.gemm.products import element_bytes
from workloads.ranges import Range
from workloads.report import Report
from workloads.rows import Rows, Unsupported, best
from workloads.runner import Runner
from workloads.timing import measure

CPU = torch.device("cpu")


def test_nothing_imported_torch_before_it_was_kept_to_one_thread() -> None:
    assert torch.get_num_threads() == 1


def test_products_and_attention_do_the_operations_that_torch_counts() -> None:
    a, b = torch.empty(48, 16, device="meta"), torch.empty(16, 32, device="meta")
    with FlopCounterMode(display=False) as counter:
        a @ b
    assert gemm_flops(48, 32, 16) == counter.get_total_flops()
    q, k, v = (torch.empty(2, 3, 64, 16, device="meta", requires_grad=True) for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        out = torch.softmax(q @ k.transpose(-2, -1), dim=-1) @ v
    forward = attention_flops(2, 3, 64, 64, 16)
    assert forward == counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        out.backward(torch.empty_like(out))
    assert attention_backward_flops(forward, recomputes=False) == counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        torch.ops.aten._scaled_dot_product_flash_attention_backward(
            out, q, k, v, out, torch.empty(2, 3, 64, device="meta"), None, None, 64, 64, 0.0, False,
            torch.empty(2, dtype=torch.int64, device="meta"), torch.empty(0, device="meta"),
        )  # fmt: skip
    assert attention_backward_flops(forward, recomputes=True) == counter.get_total_flops()
    assert attention_flops(2, 3, 64, 64, 16, causal=True) == forward / 2


class Traffic(TorchDispatchMode):
    """The bytes that every operation reads and writes, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        read, made = (
            [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor)]
            for tree in ((args, kwargs), found)
        )
        kept = {one.untyped_storage().data_ptr() for one in read}
        if any(one.untyped_storage().data_ptr() not in kept for one in made):
            self.bytes += sum(one.nbytes for one in (*read, *made))
        if function._schema.name == "aten::masked_fill":
            # It copies its input, then reads and fills the copy: two kernels on a GPU.
            self.bytes += 2 * found.nbytes
        if function._schema.name == "aten::_softmax_backward_data":
            # On a GPU it first multiplies the gradient and the probabilities into a third tensor.
            self.bytes += 3 * found.nbytes
        return found


@pytest.mark.parametrize("causal", [False, True])
def test_the_traffic_of_naive_attention_is_that_of_its_operations(causal: bool) -> None:
    batch, heads, length, width = 2, 3, 48, 8
    compute = attention("naive", causal=causal, length=length, device=CPU)
    q, k, v = (
        torch.randn(batch, heads, length, width).contiguous().requires_grad_() for _ in range(3)
    )
    said = attention_bytes(batch, heads, length, width, 4, implementation="naive", causal=causal)
    with Traffic() as forward:
        out = compute(q, k, v)
    upstream = torch.randn_like(out)
    with Traffic() as backward:
        torch.autograd.grad(out, (q, k, v), upstream)
    assert said == (forward.bytes, backward.bytes)


def test_bytes_are_counted_by_hand() -> None:
    assert gemm_bytes(2, 3, 4, 2, 2) == 2 * (8 + 12 + 6)
    # n³ products of fp8 read a byte for each factor and write two: 2 n³ / 4 n².
    assert (
        gemm_flops(8192, 8192, 8192) / gemm_bytes(8192, 8192, 8192, *element_bytes("fp8")) == 4096
    )
    # The shape of the catalogue's study: 16 sequences, 32 heads of 64, 1,024 tokens, fp16, causal.
    shape = (16, 32, 1024, 64, 2)
    naive, _ = attention_bytes(*shape, implementation="naive", causal=True)
    fused, fused_backward = attention_bytes(*shape, implementation="flash", causal=True)
    assert naive == pytest.approx(11.01e9, rel=1e-3)
    assert fused == 16 * 32 * 4 * 1024 * 64 * 2
    assert fused_backward == 2 * fused


def test_passes_are_timed_one_by_one_and_can_be_stopped() -> None:
    calls: list[int] = []
    times = measure(lambda: calls.append(1), CPU, 10)
    assert times.passes == len(calls) == len(times.pass_ms) == 10
    assert times.gpu_ms is None
    assert times.best_ms == times.wall_ms >= times.host_ms >= 0
    assert measure(lambda: calls.append(1), CPU, 10, lambda: len(calls) >= 13).passes == 3
    assert measure(lambda: None, CPU, 10, lambda: True).passes == 1


def test_a_signal_means_what_it_always_did_until_something_is_measured() -> None:
    before = signal.getsignal(signal.SIGTERM)
    report = Report(None, io.StringIO())
    handlers: list[object] = []
    with Runner(GEMM, {"device": "cpu", "products": 1, "warmup": 1}, report) as run:
        for _ in run.until_stopped(range(9)):
            if handlers:
                signal.raise_signal(signal.SIGTERM)
            else:
                run.timed(lambda: handlers.append(signal.getsignal(signal.SIGTERM)), "products")
    assert handlers[0] == before  # the pass that warms up
    assert handlers[1] != before
    assert (len(handlers), run.signal) == (2, signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("before", [False, True])
def test_a_signal_while_a_later_row_is_compiled_keeps_the_rows_before(before: bool) -> None:
    with Runner(GEMM, {"device": "cpu"}, Report(None, io.StringIO())) as run:
        rows = run.rows(9)
        for number in run.until_stopped(range(9)):
            with rows.row(str(number)) as cells:
                if number == 1:
                    if before:
                        signal.raise_signal(signal.SIGTERM)
                    with run.interruptible():
                        if not before:
                            signal.raise_signal(signal.SIGTERM)
                cells["ms"] = 1.0
    assert [(row["status"], row.get("ms")) for row in rows.rows] == [
        ("ok", 1.0),
        ("the run was stopped", None),
    ]
    assert run.signal == signal.SIGTERM


def test_a_range_counts_only_when_told() -> None:
    known = Range("x")
    with known:
        pass
    known.counting = False
    with known:
        pass
    assert known.count == 1
    assert known.total_ms >= 0
    known.reset()
    assert (known.count, known.total_ns) == (0, 0)


def test_a_row_that_fails_keeps_what_was_measured_and_the_next_one_runs() -> None:
    told = io.StringIO()
    rows = Rows(4, CPU, Report(None, told))
    with rows.row("one", n=1) as cells:
        cells["ms"] = 1.0
    with rows.row("two", n=2) as cells:
        cells["ms"] = 2.0
        torch.empty(1 << 60, dtype=torch.uint8)
    with rows.row("three", n=3):
        raise Unsupported("no such kernel")
    with rows.row("four", n=4):
        raise CannotRun("no such precision")
    assert [row["n"] for row in rows.rows] == [1, 2, 3, 4]
    assert rows.rows[1]["ms"] == 2.0
    assert str(rows.rows[1]["status"]).startswith("OOM: ")
    assert [row["status"] for row in rows.rows[2:]] == ["no such kernel", "no such precision"]
    assert rows.out_of_memory == 1
    assert rows.measured == [rows.rows[0]]
    assert best(rows.rows, "ms") == 2.0
    assert best(rows.rows, "ms", n=1) == 1.0
    assert best(rows.rows, "nothing") is None
    assert rows.why_none(n=2).startswith("two: OOM: ")
    assert rows.why_none(n=3) == "three: no such kernel"
    assert rows.why_none(n=9) == "the run was stopped earlier"
    assert "one: ms 1" in told.getvalue()


def test_a_mistake_of_the_workload_is_not_hidden_in_a_row() -> None:
    rows = Rows(1, CPU, Report(None, io.StringIO()))
    with pytest.raises(ZeroDivisionError), rows.row("one"):
        raise ZeroDivisionError
