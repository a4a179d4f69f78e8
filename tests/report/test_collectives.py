"""The table of collectives: bandwidths as nccl-tests has them, and why some are not known."""

from __future__ import annotations

import pytest

from gputui.model.events import CaptureDelta, CollectiveDelta
from gputui.model.kernel_categories import bus_factor, kind_of, kind_of_kernel, total_bytes
from gputui.report.tables import table
from gputui.state import Session
from tests.events_for_tests import attached, run_started


def rows(*parts: CollectiveDelta) -> tuple[list[dict[str, object]], str]:
    session = Session.from_events(
        [run_started(), *(attached(rank + 1, rank=rank) for rank in range(4))]
    )
    for rank in range(4):
        session.apply([CaptureDelta(time_ns=2, process=rank + 1, collectives=parts)])
    found = table(session, session.runs[1], "collectives")
    return found.records(), found.note


def test_bandwidths_are_of_the_transfer_without_waiting() -> None:
    """100 all-gathers of 1 MB a rank in 4 ranks: 4 MB each in 50 µs."""
    gathered = CollectiveDelta(
        communicator="abc",
        kind="all_gather",
        size_class=20,
        count=101,
        bytes=101_000_000,
        time_ns=30_000_000,
        ranks=4,
        compared=100,
        matched=100,
        matched_bytes=100_000_000,
        matched_ns=25_000_000,
        wait_ns=20_000_000,
    )
    found, note = rows(gathered)
    assert note == ""
    assert [row["rank"] for row in found] == [0, 1, 2, 3]
    assert found[0]["algorithm_bytes_per_s"] == pytest.approx(80e9)
    assert found[0]["bus_bytes_per_s"] == pytest.approx(60e9)
    assert (found[0]["wait_ns"], found[0]["matched_percent"]) == (20_000_000, 100.0)


def test_what_was_not_matched_has_no_bandwidth_and_says_why() -> None:
    seen = CollectiveDelta(communicator="a", kind="send_recv", size_class=9, count=5, time_ns=9)
    found, note = rows(seen)
    assert (found[0]["bus_bytes_per_s"], found[0]["wait_ns"]) == (None, None)
    assert note == "not matched among ranks: bandwidths and waits are not known"
    early = CollectiveDelta(communicator="a", kind="all_reduce", size_class=9, count=5, ranks=2)
    assert rows(early)[1].startswith("all collectives came in the first second")
    replayed = CollectiveDelta(communicator="", kind="all_reduce", size_class=0, count=5, time_ns=9)
    assert rows(replayed)[1].startswith("20 without a communicator: replayed from a CUDA graph")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)", "all_gather"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("ncclSymDevKernel_ReduceScatter_LL_sum(ncclSymDevArgs)", "reduce_scatter"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "other"),
        ("void all_reduce_one_shot<float>(float*)", None),
    ],
)
def test_kernels_of_nccl_are_known_by_name(name: str, kind: str | None) -> None:
    assert kind_of_kernel(name) == kind


def test_names_and_sizes() -> None:
    names = ("ncclAllReduce", "reduce_scatter", "gloo:all_to_all", "ncclCommInitRank", "step")
    assert [kind_of(name) for name in names] == [
        "all_reduce",
        "reduce_scatter",
        "all_to_all",
        "other",
        "other",
    ]
    assert total_bytes("reduce_scatter", 100, 4) == total_bytes("all_to_all", 100, 4) == 400
    assert total_bytes("all_reduce", 100, 4) == 100
    assert [bus_factor(kind, 4) for kind in ("all_reduce", "all_to_all", "send")] == [1.5, 0.75, 1]
    assert bus_factor("all_reduce", 1) == 0
