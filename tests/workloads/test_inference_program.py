"""`python -m workloads inference` from outside, on the CPU."""

from __future__ import annotations

import io
import signal

import pytest

from tests.workloads.workload_child import Child, Finished
from workloads.inference import INFERENCE
from workloads.inference.run import run
from workloads.report import Report


@pytest.fixture(scope="module")
def answered() -> Finished:
    return Child(
        "inference",
        "--device",
        "cpu",
        "--batch",
        "2",
        "--prompt",
        "8",
        "--tokens",
        "6",
        torch=True,
    ).finish()


def test_the_result_has_every_declared_figure(answered: Finished) -> None:
    assert answered.status == 0, answered.stderr
    document = answered.document()
    assert document["complete"] is True
    assert document["parameters"] == {
        "size": "gpt2-tiny", "model": "", "text": "", "batch": 2, "prompt": 8, "tokens": 6,
        "precision": "fp32", "attention": "auto", "compile": False, "graphs": False,
        "device": "cpu", "seed": 0, "warmup": 3, "snapshot": False,
    }  # fmt: skip
    results = document["results"]
    assert set(results) == {figure.name for figure in INFERENCE.results}
    assert results["effective_precision"] == "fp32 (ieee)"
    assert results["parameter_count"] == 658_944
    assert results["weight_bytes"] == 4 * 658_944
    assert results["kv_cache_bytes"] == 2 * 2 * 128 * (8 + 6) * 2 * 4
    assert results["output_tokens"] == 6
    assert 0 < results["ttft_ms"] < results["latency_ms"]
    missing = {name for name, value in results.items() if value is None}
    assert missing == {
        "peak_memory_allocated_bytes", "peak_memory_reserved_bytes", "mbu_percent",
        "prefill_mfu_percent", "output_text", "mbu_ceiling_percent", "prefill_ceiling_percent",
    }  # fmt: skip
    assert set(document["unavailable"]) == missing


def test_the_pipe_tells_every_stage_and_the_figures_as_they_are_known(answered: Finished) -> None:
    progress = answered.reported("progress")
    stages = list(dict.fromkeys(message["stage"] for message in progress))
    assert stages == ["load", "warmup", "prefill", "decode"]
    assert progress[-1] == {
        "type": "progress", "stage": "decode", "done": 6, "total": 6, "unit": "tokens",
    }  # fmt: skip
    first = answered.reported("metrics")[0]["metrics"]
    assert first["parameter_count"] == 658_944
    assert first["effective_precision"] == "fp32 (ieee)"
    assert answered.reports[-1] == {"type": "result", "result": answered.result()}


def test_narration_is_for_people_on_stderr(answered: Finished) -> None:
    assert "tiny (2 layers, 128 wide, 4 heads), 658,944 parameters" in answered.stderr


def test_one_token_has_no_pace_and_says_so() -> None:
    outcome = run({"device": "cpu", "prompt": 4, "tokens": 1}, Report(None, io.StringIO()))
    assert outcome.results["output_tokens"] == 1
    for name in ("tpot_ms", "itl_p50_ms", "itl_p99_ms", "model_bandwidth_bytes_per_s"):
        assert outcome.results[name] is None
        assert "only one token" in outcome.unavailable[name]


def test_a_whole_context_can_be_used() -> None:
    outcome = run(
        {"device": "cpu", "prompt": 1022, "tokens": 2, "warmup": 1}, Report(None, io.StringIO())
    )
    assert outcome.results["output_tokens"] == 2


def test_what_cannot_fit_is_refused_with_the_sum_before_anything_is_allocated() -> None:
    finished = Child(
        "inference",
        "--device=cpu",
        "--size=gpt2-xl",
        "--batch=65536",
        "--prompt=512",
        "--tokens=512",
        torch=True,
    ).finish()
    assert finished.status == 1
    (line,) = finished.stderr.splitlines()
    assert "inference: cannot run: needs 41018.1 GiB = weights 5.8 + KV cache 38400.0" in line
    assert finished.reported("progress") == []
    assert finished.reports[-1]["error"] == "cannot run"


def test_a_text_longer_than_the_context_is_refused() -> None:
    finished = Child(
        "inference", "--device=cpu", "--prompt=1000", "--tokens=25", torch=True
    ).finish()
    assert finished.status == 2
    (line,) = finished.stderr.splitlines()
    assert "prompt + tokens = 1000 + 25 = 1025 is more than the context of 1024" in line


def test_a_run_that_is_stopped_reports_the_tokens_it_wrote() -> None:
    child = Child(
        "inference", "--device=cpu", "--size=gpt2", "--tokens=900", "--warmup=0", torch=True
    )
    child.wait_for("progress", "decode")
    child.process.send_signal(signal.SIGTERM)
    finished = child.finish()
    assert finished.status == 128 + signal.SIGTERM, finished.stderr
    document = finished.document()
    assert document["complete"] is False
    assert 1 <= document["results"]["output_tokens"] < 900
    assert finished.reports[-1] == {"type": "result", "result": finished.result()}


def test_a_run_that_is_stopped_before_its_first_token_ends_at_once() -> None:
    # Its pipe has room for one line: until it is read, the model does not count as loaded.
    child = Child("inference", "--device=cpu", torch=True, room=100)
    child.wait_until_reported()
    child.process.send_signal(signal.SIGINT)
    finished = child.finish(unread=True)
    assert [(report["stage"], report["done"]) for report in finished.reports] == [("load", 0)]
    assert finished.status == -signal.SIGINT
    assert finished.stdout == ""
    assert "Traceback" not in finished.stderr
