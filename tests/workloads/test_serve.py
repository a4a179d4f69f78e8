"""Continuous batching: who computes what, the same text as one by one, figures of moments."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workloads.declaration import Outcome
from workloads.errors import CannotRun
from workloads.inference.generation import Generator
from workloads.inference.llama import LlamaModel
from workloads.inference.network import make_network
from workloads.inference.shapes import SHAPES, Shape
from workloads.report import Report
from workloads.serve import SERVE
from workloads.serve.engine import Engine
from workloads.serve.requests import Request, draw, read_trace
from workloads.serve.results import Step, latencies, step_rows, throughput, timeline_rows
from workloads.serve.run import run
from workloads.serve.scheduler import Piece, Scheduler, kind_of

CPU = torch.device("cpu")
MS = 1_000_000


def request(number: int, prompt: int, output: int, words: int = 100) -> Request:
    return Request(number, 0, prompt, output, [(7 * number + at) % words for at in range(prompt)])


def written(scheduler: Scheduler, pieces: list[Piece], word: int = 1) -> None:
    for piece in pieces:
        if piece.writes:
            piece.request.tokens.append(word)
            piece.request.written_ns.append(len(piece.request.written_ns))
    scheduler.done(pieces)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=12),
    st.integers(1, 5),
    st.integers(1, 24),
    st.integers(1, 6),
    st.integers(0, 30),
    st.booleans(),
)
def test_every_request_is_answered_within_budget_and_pages(
    lengths: list[tuple[int, int]], page: int, budget: int, sequences: int, more: int, chunked: bool
) -> None:
    requests = [request(n, prompt, output) for n, (prompt, output) in enumerate(lengths)]
    least = max(-(-one.most_positions // page) for one in requests)
    scheduler = Scheduler(least + more, page, sequences, budget, chunked=chunked)
    scheduler.add(requests)
    for _ in range(10_000):
        pieces = scheduler.plan()
        if not pieces:
            break
        held = [number for one in requests for number in one.pages]
        assert len(held) == len(set(held)) == scheduler.used_pages <= scheduler.pages
        assert len({id(piece.request) for piece in pieces}) == len(pieces) <= sequences
        assert len(scheduler.running) <= sequences
        whole = sum(piece.length for piece in pieces)
        assert whole <= budget or (not chunked and len(pieces) == 1)
        for one, first, count in pieces:
            assert (first, one in scheduler.running) == (one.computed, True)
            assert first + count <= min(len(one.tokens), len(one.pages) * page)
        written(scheduler, pieces)
    assert not scheduler.running
    assert not scheduler.waiting
    assert scheduler.used_pages == 0
    assert [len(one.written_ns) for one in requests] == [output for _, output in lengths]
    assert scheduler.preemptions == sum(one.preemptions for one in requests)


def test_a_step_is_named_after_what_it_computes() -> None:
    scheduler = Scheduler(100, 4, 4, 10, chunked=True)
    first, second = request(0, 7, 3), request(1, 12, 2)
    scheduler.add([first])
    kinds = []
    for turn in range(4):
        pieces = scheduler.plan()
        kinds.append((kind_of(pieces), [piece.length for piece in pieces]))
        written(scheduler, pieces)
        if not turn:
            scheduler.add([second])
    # The second prompt takes what one token leaves of the budget, and the rest in the next step.
    assert kinds == [
        ("prefill", [7]), ("mixed", [1, 9]), ("mixed", [1, 3]), ("decode", [1]),
    ]  # fmt: skip
    assert scheduler.plan() == []


def test_the_last_to_come_is_put_back_where_pages_are_missing() -> None:
    scheduler = Scheduler(4, 2, 4, 100, chunked=True)
    first, second = request(0, 4, 4), request(1, 4, 2)
    scheduler.add([first, second])
    written(scheduler, scheduler.plan())
    pieces = scheduler.plan()
    assert [piece.request for piece in pieces] == [first]
    assert (list(scheduler.waiting), second.preemptions, second.pages) == ([second], 1, [])
    # Its own token is read again with its prompt.
    assert (second.missing, second.is_prefill) == (5, True)


SIZES: dict[str, Shape] = {
    name: replace(SHAPES["llama-tiny"], **changes)  # type: ignore[arg-type]
    for name, changes in {
        "llama": {},
        "qwen2": {"qkv_bias": True},
        "qwen3": {"qk_norm": True, "kv_heads": 4},
        "mixture": {"experts": 4, "experts_per_token": 2, "inner": 64},
    }.items()
}


@pytest.mark.parametrize("size", SIZES)
def test_the_text_is_that_of_each_request_by_itself(size: str) -> None:
    shape = SIZES[size]
    with torch.inference_mode():
        model = make_network(
            shape, torch.float32, CPU, seed=3, positions=64, attention="auto", compiled=False
        )
        assert isinstance(model, LlamaModel)
        requests = [request(n, 3 + 5 * n, 6 - n, shape.vocabulary) for n in range(4)]
        prompts = [torch.tensor([one.tokens]) for one in requests]
        scheduler = Scheduler(11, 3, 3, 8, chunked=True)
        scheduler.add(requests)
        engine = Engine(model, 11, 3)
        while pieces := scheduler.plan():
            logits = engine.forward(engine.batch(pieces))[:, : shape.vocabulary]
            writing = [piece.request for piece in pieces if piece.writes]
            for one, word in zip(writing, logits.argmax(-1).tolist(), strict=True):
                one.tokens.append(word)
                one.written_ns.append(0)
            scheduler.done(pieces)
        assert scheduler.preemptions > 0
        for one, prompt in zip(requests, prompts, strict=True):
            alone = Generator(model, prompt, one.output)
            alone.prefill()
            for _ in range(one.output - 1):
                alone.decode_step()
            assert one.tokens[one.prompt :] == alone.text[0].tolist()


def test_arrivals_and_lengths_are_as_they_are_asked_for() -> None:
    drawn = draw(4000, "poisson", 20.0, 100, 50, "lognormal", 10_000, 1000, 5)
    gaps_s = [(b.arrival_ns - a.arrival_ns) / 1e9 for a, b in pairwise(drawn)]
    assert sum(gaps_s) / len(gaps_s) == pytest.approx(1 / 20, rel=0.1)
    assert sum(one.prompt for one in drawn) / 4000 == pytest.approx(100, rel=0.1)
    assert all(len(one.tokens) == one.prompt and one.output >= 1 for one in drawn)
    again = draw(4000, "poisson", 20.0, 100, 50, "lognormal", 10_000, 1000, 5)
    assert [one.tokens for one in again] == [one.tokens for one in drawn]
    assert {one.arrival_ns for one in draw(9, "burst", 1, 5, 5, "fixed", 99, 9, 0)} == {0}
    cut = draw(50, "constant", 1, 90, 90, "uniform", 100, 9, 0)
    assert max(one.prompt + one.output for one in cut) == 100
    assert [one.arrival_ns for one in cut[:3]] == [0, 10**9, 2 * 10**9]


def test_a_trace_is_read_and_what_is_wrong_in_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time,prompt,output\n5.5,30,4\n2.5,10,2\n\n3,20,3\n")
    found = read_trace(str(path), 10, 1000, 50, 0)
    assert [(one.arrival_ns, one.prompt, one.output) for one in found] == [
        (0, 10, 2), (500 * MS, 20, 3), (3000 * MS, 30, 4)
    ]  # fmt: skip
    assert len(read_trace(str(path), 2, 1000, 50, 0)) == 2
    for text, complaint in (
        ("1,2,3\n1,x,3\n", "trace: line 2: give seconds, prompt, output"),
        ("1,2,3\n-1,2,3\n", "trace: line 2: out of range"),
        ("", "has no requests"),
    ):
        path.write_text(text)
        with pytest.raises(CannotRun, match=complaint):
            read_trace(str(path), 10, 1000, 50, 0)
    with pytest.raises(CannotRun, match="cannot be read"):
        read_trace(str(tmp_path / "none"), 10, 1000, 50, 0)


def test_latencies_are_counted_from_the_arrival() -> None:
    one = Request(0, 100 * MS, 4, 3, written_ns=[150 * MS, 170 * MS, 200 * MS])
    two = Request(1, 300 * MS, 4, 1, written_ns=[500 * MS])
    figures = latencies([one, two])
    assert figures["ttft_mean_ms"] == (50 + 200) / 2
    assert (figures["tpot_mean_ms"], figures["tpot_p99_ms"]) == (25, 25)
    assert (figures["itl_p50_ms"], figures["e2e_mean_ms"]) == (25, (100 + 200) / 2)
    rates = throughput([one, two], 100, 30)
    assert (rates["completed"], rates["duration_s"]) == (2, 0.5)
    assert (rates["requests_per_s"], rates["tokens_per_s"]) == (4, 8)
    # The second came too late with its first token.
    assert (rates["goodput_per_s"], rates["goodput_percent"]) == (2, 50)
    assert latencies([])["ttft_p50_ms"] is None
    assert throughput([], 1, 1)["requests_per_s"] is None


def test_steps_add_up_over_kinds_and_time() -> None:
    steps = [
        Step("prefill", 0, 10 * MS, 64, 1, 1, 3, 10.0),
        Step("decode", 10 * MS, 12 * MS, 4, 4, 4, 0, 50.0),
        Step("decode", 12 * MS, 16 * MS, 4, 4, 4, 0, 50.0),
    ]
    rows = {row["kind"]: row for row in step_rows(steps)}
    assert (rows["decode"]["steps"], rows["decode"]["mean_ms"]) == (2, 3)
    assert rows["prefill"]["time_percent"] == pytest.approx(100 * 10 / 16)
    timeline = timeline_rows(steps)
    made = sum(float(row["tokens_per_s"] or 0) for row in timeline) * 16e-3 / 60
    assert made == pytest.approx(9, rel=0.01)
    assert timeline[-1]["kv_used_percent"] == 50


def served(**changes: Any) -> Outcome:
    given = {
        "device": "cpu", "requests": 6, "arrivals": "burst", "prompt": 12, "output": 5,
        "sequences": 3, "budget": 16, **changes,
    }  # fmt: skip
    return run(given, Report(None, io.StringIO()))


@pytest.mark.parametrize("chunked", [True, False])
def test_the_whole_workload(chunked: bool) -> None:
    outcome = served(chunked=chunked, page=4, pages=24)
    results = outcome.results
    assert set(results) == {figure.name for figure in SERVE.results}
    assert set(outcome.unavailable) == {name for name, value in results.items() if value is None}
    assert results["completed"] == 6
    kinds = {row["kind"]: row for row in outcome.tables["serve_steps"]}
    steps = sum(int(row["steps"] or 0) for row in kinds.values())
    assert steps == results["steps"]
    written = sum(int(row["output"] or 0) for row in outcome.tables["serve_requests"])
    assert written == sum(int(row["output_tokens"] or 0) for row in kinds.values())
    assert isinstance(results["duration_s"], float)
    assert isinstance(results["tokens_per_s"], float)
    assert results["tokens_per_s"] * results["duration_s"] == pytest.approx(written)


def test_what_cannot_be_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match=r"the longest request needs .* pages of 4, there are 2"):
        served(page=4, pages=2)
    with pytest.raises(CannotRun, match=r"KV cache .* use a smaller size, fewer pages"):
        served(pages=10_000_000, page=1024)
    with pytest.raises(CannotRun, match=r"trace: .* cannot be read"):
        served(arrivals="trace", trace=str(tmp_path / "none"))
