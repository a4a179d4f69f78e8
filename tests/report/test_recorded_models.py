"""Recordings of an H200, `generate` of transformers and `serve`, and a trace of torch.profiler of
an H100, each held against what else counted.

`h200-transformers.gputui.gz`: four answers of 32 tokens to 4 × 128 tokens by a Llama of 4 layers
with random weights, in bf16, with `--annotate modules`; `h200-transformers-kernels.json` is what
torch.profiler counted for three such answers in another process. `h200-serve.gputui.gz`: `serve`
with 64 requests. Both have their deltas added up, and none of the machine's processes.
`h100-training.json.gz`: four steps of four linear layers, with `profile_memory`;
`h100-training-kernels.json` has torch's own counts and sums (µs) of each kernel.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

import gputui
from gputui import Run
from tests.conftest import DATA

LAYERS, TOKENS, ANSWERS = 4, 32, 4


@pytest.fixture(scope="module")
def generate() -> Run:
    return gputui.read(DATA / "h200-transformers.gputui.gz").runs[0]


@pytest.fixture(scope="module")
def serve() -> Run:
    return gputui.read(DATA / "h200-serve.gputui.gz").runs[0]


def instances(run: Run) -> dict[str, tuple[int, int]]:
    """Instances and kernels of each phase."""
    return {row["path"]: (row["instances"], row["kernels"]) for row in run.rows("phases")}


def test_kernels_of_transformers_are_as_many_as_torch_profiler_counts(generate: Run) -> None:
    theirs = json.loads((DATA / "h200-transformers-kernels.json").read_text())
    mine: Counter[str] = Counter()
    for row in generate.rows("kernels"):
        mine[row["name"][:160]] += row["instances"]
    assert len(theirs) > 50
    # Three answers there, four here; what makes the weights comes before them.
    more = {name: (mine[name], n) for name, n in theirs.items() if 3 * mine[name] != 4 * n}
    assert not more


def test_modules_of_transformers_are_phases_with_the_products_of_their_layers(
    generate: Run,
) -> None:
    phases = instances(generate)
    passes = TOKENS * ANSWERS
    assert phases["LlamaForCausalLM"][0] == passes
    for layer in range(LAYERS):
        here = f"LlamaForCausalLM/model/model.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj"):
            name = f"model.layers.{layer}.self_attn"
            assert phases[f"{here}/{name}/{name}.{part}"] == (passes, passes)
    products = sum(
        row["instances"] for row in generate.rows("kernels") if row["name"].startswith("nvjet")
    )
    assert products == passes * (7 * LAYERS + 1)


def test_ranges_of_serve_are_the_steps_that_it_counted(serve: Run) -> None:
    phases = instances(serve)
    tables: dict[str, list[dict[str, Any]]] = {
        name: serve.rows(name) for name in ("serve_steps", "serve_requests")
    }
    kinds = {row["kind"]: row for row in tables["serve_steps"]}
    assert {kind: row["steps"] for kind, row in kinds.items()} == {
        kind: phases[f"step/{kind}"][0] for kind in ("prefill", "decode", "mixed")
    }
    assert phases["step"][0] == serve.metrics["steps"] == 360
    layers = 2
    for kind, row in kinds.items():
        assert phases[f"step/{kind}/attention"][0] == layers * row["steps"]
        assert phases[f"step/{kind}/norm"][0] == (2 * layers + 1) * row["steps"]
    # Every token of a prompt is read once, and every token written but the last.
    requests = tables["serve_requests"]
    written = sum(row["output"] for row in requests)
    read = sum(row["prompt"] for row in requests)
    assert sum(row["output_tokens"] for row in kinds.values()) == written
    assert sum(row["tokens"] for row in kinds.values()) == read + written - len(requests)


def test_energy_of_a_token_is_the_counters_over_the_tokens(serve: Run) -> None:
    [energy] = serve.rows("energy")
    assert energy["source"] == "the driver's counter"
    tokens_per_s = float(serve.metrics["tokens_per_s"])
    assert energy["token_joules"] == pytest.approx(
        energy["used_mean_watts"] / tokens_per_s, rel=0.1
    )
    assert energy["used_joules"] < energy["energy_joules"]


def test_a_trace_of_torch_profiler_has_torchs_counts_and_sums_of_each_kernel() -> None:
    theirs = json.loads((DATA / "h100-training-kernels.json").read_text())
    run = gputui.read(DATA / "h100-training.json.gz").runs[0]
    rows = run.rows("kernels")
    assert len(rows) == len(theirs) > 15
    # Names of more than 4,096 characters are cut, and end in their length.
    mine = {row["name"].rpartition("… [")[0] or row["name"]: row for row in rows}
    for name, (count, total_us) in theirs.items():
        row = next(row for known, row in mine.items() if name == known or (
            len(known) > 4000 and name.startswith(known)))  # fmt: skip
        assert (row["instances"], row["total_ns"] / 1e3) == (count, pytest.approx(total_us))
    assert {row["name"]: row["instances"] for row in run.rows("phases")}["ProfilerStep"] == 4
