"""Every engine on two and on four CPU ranks: the same loss, as many collectives as planned."""

from __future__ import annotations

import io
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from gputui.model.kernel_categories import total_bytes
from tests.workloads import forked_ranks
from tests.workloads.test_every_workload import check
from workloads import launching
from workloads.collectives import Collectives, bus_factor, message_bytes, whole_bytes
from workloads.comm import COMM
from workloads.comm.rank import warm_up
from workloads.comm.run import sizes
from workloads.declaration import Outcome, Workload
from workloads.link import nvlink_bytes_per_s
from workloads.parallel import PARALLEL
from workloads.parallel.plans import ENGINES, bubble, chosen, layout, state_of, too_old, why_not
from workloads.report import Report

MICROBATCHES = 4
SMALL: dict[str, Any] = {
    "device": "cpu",
    "hidden": 32,
    "vocab": 128,
    "ctx": 16,
    "batch": 2,
    "microbatches": MICROBATCHES,
    "warmup": 0,
}


def plan(layers: int, steps: int) -> dict[str, int]:
    """Collectives of a step on rank 0, as these versions of the engines make them."""
    # An end of the pipeline sends and receives each part; in the first step also their shapes.
    ends = {} if steps == 1 else dict.fromkeys(("gpipe", "1f1b"), 2 * MICROBATCHES)
    return ends | {
        "naive": 10 * layers + 5,
        "flat": 1,
        # A unit for each block and one for the rest: gathered, and again after it was given up.
        "zero2": 2 * (layers + 1),
        "zero3": 3 * (layers + 1),
        # Forward two a block; backward one for each of q, k and v, and one for the rest.
        "tp": 6 * layers,
        # q, k, v and the output, forward and backward, and one for the gradients.
        "ulysses": 8 * layers + 1,
        # As tp and zero3 together; the last block is gathered once, for its backward comes next.
        "mesh": 9 * layers + 2,
        # Counts, tokens there and back, both backward, and one for what all have.
        "ep": 6,
    }


def run(workload: Workload, **given: Any) -> Outcome:
    return workload.implementation()(workload.read(given), Report(None, io.StringIO()))


def test_every_engine_learns_the_same_by_the_collectives_planned_and_comm_measures_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("parallel.rank", "parallel.pipeline", "parallel.mesh", "comm.rank")
    modules = (f"workloads.{name}" for name in names)
    with forked_ranks.imported(tmp_path, *modules) as command:
        monkeypatch.setattr(launching, "torchrun", command)
        # Whether gradients come together right shows in the second step; two ranks are quicker.
        for count, steps in ((2, 2), (4, 1)):
            every_engine(count, steps)
            # Two chunks a rank need twice the blocks, which would make all others slower.
            one_engine("interleaved", count, 2 * count)
        comm()


def every_engine(ranks: int, steps: int) -> None:
    layers = ranks
    outcome = run(PARALLEL, ranks=ranks, layers=layers, steps=steps, **SMALL)
    check(PARALLEL, outcome)
    rows = {str(row["engine"]): dict(row) for row in outcome.tables["parallel"]}
    assert list(rows) == list(ENGINES)
    sizes = {**SMALL, "layers": layers, "heads": 4}
    refused = {name for name in ENGINES if why_not(name, ranks, sizes)}
    assert refused == ({"interleaved", "mesh"} if ranks == 2 else {"interleaved"})
    able = {name for name in ENGINES if too_old(name, torch.__version__) is None} - refused
    assert {name: rows[name]["status"] for name in able} == dict.fromkeys(able, "ok")
    assert {name for name, row in rows.items() if row["status"] == "ok"} == able
    losses = {name: rows[name]["loss"] for name in able - {"ep"}}
    assert losses == pytest.approx(dict.fromkeys(losses, losses["single"]), rel=1e-4)

    planned = {name: count for name, count in plan(layers, steps).items() if name in able}
    assert {name: rows[name]["collectives"] for name in planned} == planned
    # DDP agrees on its buckets once more in the second step.
    of_formula = {name: rows[name]["formula_bytes"] for name in ("naive", "flat", "ddp")}
    assert {name: rows[name]["sent_bytes"] for name in of_formula} == pytest.approx(
        of_formula, rel=0.01
    )
    kept = {name: rows[name] for name in ("single", "naive", "ddp", "zero1", "zero3")}
    assert [row["state_bytes"] for row in kept.values() if row["status"] == "ok"] == pytest.approx(
        [row["state_formula_bytes"] for row in kept.values() if row["status"] == "ok"], rel=0.02
    )


def one_engine(name: str, ranks: int, layers: int) -> None:
    if too_old(name, torch.__version__) is not None:
        return
    outcome = run(PARALLEL, engine=name, ranks=ranks, layers=layers, steps=1, **SMALL)
    single, row = outcome.tables["parallel"]
    assert (row["engine"], row["status"]) == (name, "ok")
    assert row["loss"] == pytest.approx(single["loss"], rel=1e-4)


def comm() -> None:
    outcome = run(COMM, device="cpu", largest=16384, passes=1)
    check(COMM, outcome)
    assert all(row["status"] == "ok" for row in outcome.tables["comm"])
    assert {row["size_bytes"] for row in outcome.tables["comm"]} == {1024, 16384}
    assert "not in the table" in outcome.unavailable["link_bytes_per_s"]


def test_ranks_leave_the_warm_up_of_comm_together_whatever_their_clocks_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks, passes, together = [0.0, 0.7], [0, 0], threading.Barrier(2, timeout=10)
    mine = threading.local()

    class Rank:
        """A rank whose clock began at another moment; `everywhere` waits for the other."""

        def everywhere(self, value: float) -> list[float]:
            together.wait()
            clocks[mine.rank] = value
            together.wait()
            values = list(clocks)
            together.wait()
            return values

    def ticks() -> float:
        mine.now += 1.0
        return mine.now

    def run_one(rank: int) -> None:
        mine.rank, mine.now = rank, clocks[rank]
        warm_up(Rank())  # type: ignore[arg-type]

    def count() -> None:
        passes[mine.rank] += 1

    monkeypatch.setattr("workloads.comm.rank.WARM_S", 5.5)
    monkeypatch.setattr("workloads.comm.rank.operation", lambda *_: count)
    monkeypatch.setattr("workloads.comm.rank.time", SimpleNamespace(perf_counter=ticks))
    with ThreadPoolExecutor(2) as ranks:
        list(ranks.map(run_one, range(2)))
    assert passes[0] == passes[1] > 0


def test_collectives_of_a_part_of_the_ranks_are_of_a_communicator_of_their_own() -> None:
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        everyone, part = dist.group.WORLD, dist.new_group([0, 2])
        # Not entered: that would import the compiler, for seconds.
        labels = [Collectives(ranges=True).label(group) for group in (everyone, part)]
    finally:
        dist.destroy_process_group()
    assert labels == [None, "0,2"]
    own, whole = torch.ones(3), torch.ones(12)
    for func, args in (
        ("_c10d_functional.all_gather_into_tensor.default", (own, 4, "0")),
        ("_c10d_functional.reduce_scatter_tensor.default", (whole, "sum", 4, "0")),
        ("c10d._allgather_base_.default", (whole, own)),
    ):
        assert whole_bytes(func, args, 4) == 48


def test_formulas() -> None:
    assert bubble("gpipe", 4, 8) == pytest.approx(3 / 11)
    assert bubble("interleaved", 4, 8) == pytest.approx(3 / 19)
    assert bubble("ddp", 4, 8) is None
    assert state_of("zero3", 4, 100) == 400
    assert [bus_factor(name, 4) for name in ("all_reduce", "all_gather")] == [1.5, 0.75]
    assert [bus_factor(name, 4) for name in ("send", "recv", "send_recv")] == [1, 0, 1]
    # What gputui takes them for: it makes the whole of an all-gather of the ranks' shares.
    kinds = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send")
    assert [total_bytes(kind, message_bytes(kind, 48, 4), 4) for kind in kinds] == [48] * 5
    assert nvlink_bytes_per_s("NVIDIA H100 80GB HBM3") == 450e9
    assert nvlink_bytes_per_s("NVIDIA H100 PCIe") is None
    assert sizes(1024, 70_000, 4) == [1024, 4096, 16384, 65536]


def test_what_cannot_be_is_refused_with_the_reason() -> None:
    assert chosen("pipeline") == ["single", "gpipe", "1f1b", "interleaved"]
    assert chosen("ddp") == ["single", "ddp"]
    small = {"layers": 4, "heads": 4, "ctx": 32, "batch": 4, "microbatches": 4}
    assert why_not("tp", 3, small) == "heads=4 is not a multiple of 3"
    assert why_not("interleaved", 4, small) == "layers=4 is not a multiple of 8"
    assert why_not("ddp", 3, small) is None
    assert "hangs before torch 2.13" in str(too_old("1f1b", "2.7.1+cpu"))
    assert too_old("1f1b", "2.13.0+cu130") is None
    assert layout(4) == (1, 2, 2)
    assert layout(8) == (2, 2, 2)
    assert "do not divide" in str(why_not("mesh", 2, small))
    assert why_not("mesh", 8, small) is None
    assert why_not("single", 1, small) is None
    assert "ranks=4" in str(why_not("ddp", 1, small))


def test_a_launch_that_fails_or_hangs_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def programs(text: str) -> list[launching.Line]:
        monkeypatch.setattr(launching, "torchrun", lambda *_: [sys.executable, "-c", text])
        return list(launching.launch("no.module", 1, {"device": "cpu"}, 0.1, lambda: False))

    with pytest.raises(launching.RanksFailed, match="ended with status 3"):
        programs("raise SystemExit(3)")
    monkeypatch.setattr(launching, "START_S", 0.1)
    monkeypatch.setattr(launching, "GRACE_S", 0.1)
    with pytest.raises(launching.RanksFailed, match="nothing for 0 s: a rank hangs"):
        programs("import time; time.sleep(60)")
