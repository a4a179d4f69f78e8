"""Every engine on two CPU ranks, in one launch: the same loss, as many collectives as planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workloads.test_every_workload import ran
from workloads.comm import COMM
from workloads.comm.run import bus_factor, link_bytes_per_s, sizes
from workloads.launching import RanksFailed, launch
from workloads.parallel import PARALLEL
from workloads.parallel.plans import ENGINES, bubble, chosen, state_of, too_old, why_not

LAYERS, GRADIENTS, MICROBATCHES = 4, 45, 4
PLAN = {
    "naive": GRADIENTS,
    "flat": 1,
    # A unit for each block and one for the rest: gathered, and again after it was given up.
    "zero2": 2 * (LAYERS + 1),
    "zero3": 3 * (LAYERS + 1),
    # Forward two a block; backward one for each of q, k and v, and one for the rest.
    "tp": 6 * LAYERS,
    # One of two stages: a send and a receive of each part.
    "gpipe": 2 * MICROBATCHES,
    "1f1b": 2 * MICROBATCHES,
    # q, k, v and the output, forward and backward, and one for the gradients.
    "ulysses": 8 * LAYERS + 1,
    # Counts, tokens there and back, both backward, and one for what all have.
    "ep": 6,
}
"""Collectives of a step on rank 0, as these versions of the engines make them."""

Row = dict[str, Any]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    outcome = ran(PARALLEL, tmp_path_factory.mktemp("parallel"))
    return {str(row["engine"]): dict(row) for row in outcome.tables["parallel"]}


def test_every_engine_that_this_torch_has_learns_the_same(rows: dict[str, Row]) -> None:
    assert list(rows) == list(ENGINES)
    able = {name for name in ENGINES if too_old(name, torch.__version__) is None}
    assert {name for name, row in rows.items() if row["status"] == "ok"} == able
    losses = {name: rows[name]["loss"] for name in able - {"ep"}}
    assert losses == pytest.approx(dict.fromkeys(losses, losses["single"]), rel=1e-4)


def test_collectives_are_those_planned(rows: dict[str, Row]) -> None:
    counted = {name: rows[name].get("collectives") for name in PLAN if rows[name]["status"] == "ok"}
    assert counted == {name: PLAN[name] for name in counted}
    for name in ("naive", "flat", "ddp"):
        # DDP agrees on its buckets once more in the second step.
        assert rows[name]["moved_bytes"] == pytest.approx(rows[name]["formula_bytes"], rel=0.01)


def test_what_zero_divides_is_divided(rows: dict[str, Row]) -> None:
    for name in ("single", "naive", "ddp", "zero1", "zero3"):
        if rows[name]["status"] == "ok":
            row = rows[name]
            assert row["state_bytes"] == pytest.approx(row["state_formula_bytes"], rel=0.02)


def test_comm_measures_every_operation_and_size(tmp_path: Path) -> None:
    outcome = ran(COMM, tmp_path)
    assert all(row["status"] == "ok" for row in outcome.tables["comm"])
    assert {row["size_bytes"] for row in outcome.tables["comm"]} == {1024, 16384}
    assert "not in the table" in outcome.unavailable["link_bytes_per_s"]


def test_formulas() -> None:
    assert bubble("gpipe", 4, 8) == pytest.approx(3 / 11)
    assert bubble("interleaved", 4, 8) == pytest.approx(3 / 19)
    assert bubble("ddp", 4, 8) is None
    assert state_of("zero3", 4, 100) == 400
    assert [bus_factor(name, 4) for name in ("all_reduce", "all_gather")] == [1.5, 0.75]
    assert link_bytes_per_s("NVIDIA H100 80GB HBM3") == 450e9
    assert link_bytes_per_s("NVIDIA H100 PCIe") is None
    assert sizes(1024, 70_000, 4) == [1024, 4096, 16384, 65536]


def test_what_cannot_be_is_refused_with_the_reason() -> None:
    assert chosen("pipeline") == ["single", "gpipe", "1f1b", "interleaved"]
    assert chosen("ddp") == ["single", "ddp"]
    small = {"layers": 4, "heads": 4, "ctx": 32, "batch": 4, "microbatches": 4}
    assert why_not("tp", 3, small) == "heads=4 is no multiple of 3"
    assert why_not("interleaved", 4, small) == "layers=4 is no multiple of 8"
    assert why_not("ddp", 3, small) is None
    assert "hangs before torch 2.13" in str(too_old("1f1b", "2.7.1+cpu"))
    assert too_old("1f1b", "2.13.0+cu130") is None


def test_a_launch_that_fails_says_so() -> None:
    lines = launch("workloads.no_such_rank", 1, {"device": "cpu"}, 30.0, lambda: False)
    with pytest.raises(RanksFailed, match="ended with status 1"):
        list(lines)
