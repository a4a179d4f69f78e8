"""`python -m workloads train` on the CPU: figures, tables, sweeps, refusals, signals."""

from __future__ import annotations

import io
import signal
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.workloads.workload_child import Child, Finished
from workloads.declaration import Outcome
from workloads.errors import CannotRun, WrongUsage
from workloads.peaks import find_peak
from workloads.place import Place
from workloads.report import Report
from workloads.train import TRAIN
from workloads.train.run import run
from workloads.train.shapes import SHAPES, StepFlops
from workloads.train.tables import step_figures

TINY: dict[str, Any] = {"device": "cpu", "size": "cs336-tiny", "ctx": 16, "batch": 2, "steps": 2}


def trained(**changes: Any) -> Outcome:
    return run({**TINY, **changes}, Report(None, io.StringIO()))


@pytest.fixture(scope="module")
def finished() -> Finished:
    return Child(
        "train", "--device=cpu", "--ctx=16", "--warmup=2", "--steps=3", torch=True
    ).finish()


def test_every_declared_figure_is_there_or_has_its_reason(finished: Finished) -> None:
    assert finished.status == 0, finished.stderr
    document = finished.document()
    results = document["results"]
    assert set(results) == {figure.name for figure in TRAIN.results}
    assert {name for name, value in results.items() if value is None} == set(
        document["unavailable"]
    )
    assert results["matrix_products_per_step"] == 3 * (9 * 2 + 1)
    assert results["final_loss"] < results["first_loss"]
    assert 0 < results["step_p50_ms"] <= results["step_p99_ms"]


def test_the_step_line_is_llm_cs(finished: Finished) -> None:
    (line,) = [line for line in finished.stderr.splitlines() if line.startswith("step    3/3")]
    assert [part.split()[-1] for part in line.split(" | ")] == [
        "3/3", line.split(" | ")[1].split()[-1], "1.00e-03", "ms", "n/a", "tok/s",
    ]  # fmt: skip


def test_the_headline_has_one_row_and_the_clocks_add_up(finished: Finished) -> None:
    (row,) = finished.table("headline")
    assert row["precision"] == "fp32 (ieee)"
    assert row["status"] == "ok"
    assert row["warmup"] == 2
    (clock,) = finished.table("train_clocks")
    assert clock["wall_ms"] == pytest.approx(clock["cpu_ms"] + clock["host_wait_ms"])
    assert clock["gpu_span_ms"] is None


def test_the_phase_table_has_the_seeds_rows_and_its_sums(finished: Finished) -> None:
    rows = {row["metric"]: row for row in finished.table("train_phases")}
    counts = {name: row["count"] for name, row in rows.items() if row["count"]}
    assert counts["FORWARD"] == counts["BACKWARD"] == counts["OPTIMIZER.step"] == 3
    assert counts["MHA (total)"] == counts["RoPE(Q)"] == counts["softmax"] == 3 * 2
    time = {name: row["cpu_total_ms"] for name, row in rows.items()}
    inside = [
        "QKV projections", "RoPE(Q)", "RoPE(K)", "attn_logits (QK^T) + mask", "softmax",
        "attn*V (context)", "output proj", "MHA residual",
    ]  # fmt: skip
    assert sum(time[name] for name in inside) == pytest.approx(time["MHA (total)"])
    assert time["MHA (total)"] + time["non-attention FORWARD"] == pytest.approx(time["FORWARD"])
    linear = time["QKV projections"] + time["output proj"]
    assert time["MHA linear (QKV + output)"] == pytest.approx(linear)
    assert rows["MHA (total)"]["parent"] == "FORWARD"
    assert rows["OPTIMIZER (exclusive)"]["cpu_total_ms"] >= 0


def test_memory_stands_beside_its_formula(finished: Finished) -> None:
    rows = {row["what"]: row for row in finished.table("train_memory")}
    parameters = SHAPES["cs336-tiny"].parameters
    assert rows["model"]["expected_bytes"] == 4 * parameters
    assert rows["optimizer"]["expected_bytes"] == 8 * parameters
    assert rows["activations"]["measured_bytes"] is None


def test_a_sweep_is_a_row_each() -> None:
    rows = trained(sweep="mode", steps=1).tables["headline"]
    assert [row["mode"] for row in rows] == ["fwd", "fwd_bwd", "full"]
    rows = trained(sweep="precision", ctx=8, steps=1).tables["headline"]
    assert [row["precision"] for row in rows] == ["fp32 (ieee)", "bf16 autocast"]
    rows = trained(sweep="warmup", steps=1).tables["headline"]
    assert [row["warmup"] for row in rows] == [0, 1, 2, 5]


def test_a_configuration_that_cannot_fit_ends_its_row_and_not_the_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workloads.train.run.free_bytes", lambda _: 16 * 2**20)
    outcome = trained(sweep="ctx", batch=1, steps=1, warmup=0)
    status = {row["ctx"]: str(row["status"]) for row in outcome.tables["headline"]}
    assert [text.split()[0] for text in status.values()] == ["ok", "ok", "OOM:", "OOM:"]
    assert "needs at least" in status[512]
    assert outcome.results["out_of_memory_rows"] == 2
    with pytest.raises(CannotRun, match="no configuration ran: OOM: needs at least"):
        trained(sweep="seed-004", batch=65536)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention": "sdpa", "mode": "fwd_bwd"},
        {"checkpoint": 1, "optimizer": "foreach"},
        {"size": "gpt2-tiny", "optimizer": "loop", "warmup": 0},
        {"precision": "fp16", "mode": "fwd"},
    ],
)
def test_every_way_to_train_runs(changes: dict[str, Any]) -> None:
    outcome = trained(**changes)
    assert outcome.results["avg_ms"] is not None
    assert outcome.tables["headline"][0]["status"] == "ok"


def test_a_single_step_has_no_deviation_and_says_so() -> None:
    outcome = trained(steps=1, warmup=0)
    assert outcome.results["std_ms"] is None
    assert outcome.unavailable["std_ms"] == "one step has no deviation"
    assert outcome.results["first_step_ms"] == outcome.results["avg_ms"]


def test_what_cannot_be_is_refused_at_once() -> None:
    with pytest.raises(WrongUsage, match="ctx 2000 is more than gpt2-tiny's context of 1024"):
        trained(size="gpt2-tiny", ctx=2000)
    with pytest.raises(CannotRun, match=r"needs at least .* = model 47\.8 \+ optimizer 95\.6"):
        trained(size="cs336-10B")
    with pytest.raises(CannotRun, match="tf32 needs a GPU"):
        trained(precision="tf32")


def test_shares_of_the_peak_are_of_the_precision_computed_in() -> None:
    place = Place(torch.device("cuda"), "H200", find_peak("NVIDIA H200"), {"bf16": 7.9152e14})
    flops = StepFlops(model=989.4e9, hardware=2 * 989.4e9)
    figures = step_figures([10_000_000, 10_000_000], 2048, flops, place, "bf16")
    assert figures["mfu_percent"] == pytest.approx(10)
    assert figures["hfu_percent"] == pytest.approx(20)
    assert figures["ceiling_percent"] == pytest.approx(25)
    assert figures["tokens_per_s"] == pytest.approx(204_800)
    unknown = replace(place, peak=None, ceilings={})
    missing = step_figures([1], 1, flops, unknown, "bf16")
    assert (missing["mfu_percent"], missing["ceiling_percent"]) == (None, None)


def test_while_the_model_is_loaded_a_signal_ends_the_run_at_once() -> None:
    child = Child("train", "--device=cpu", "--steps=100000", "--ctx=16", torch=True)
    child.wait_for("progress", "load")
    child.process.send_signal(signal.SIGTERM)
    assert child.finish().status == -signal.SIGTERM


def test_a_run_that_is_stopped_reports_the_steps_it_did() -> None:
    child = Child("train", "--device=cpu", "--steps=100000", "--ctx=16", torch=True)
    child.wait_for("progress", "measure")
    child.process.send_signal(signal.SIGTERM)
    finished = child.finish()
    assert finished.status == 128 + signal.SIGTERM, finished.stderr
    assert finished.document()["complete"] is False
    assert finished.table("headline")[0]["status"] == "stopped"
