"""NCCL's operations find their kernels, and a program's own ranges are collectives too."""

from __future__ import annotations

import numpy as np
import pytest

from gputui.attribute import Strings
from gputui.attribute.local_collectives import Collective, LocalCollectives
from gputui.attribute.matched_collectives import Matching
from gputui.model.events import PayloadType
from gputui.ring import FLAG_COMMUNICATOR, FLAG_PAYLOAD, SLOT, RecordKind
from tests.attribute.capture_program import MAIN, START_NS, Program, Traced

WORLD, PAIR = 0xABC, 0xDEF
NAMES = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_gather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "send_recv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}


class Nccl:
    """Writes what NCCL does as records."""

    def __init__(self) -> None:
        self.program = Program()
        self.records: list[np.void] = []
        self.correlation = 0

    def operation(
        self, at: int, name: str, communicator: int | None, size: int, partner: int | None = None
    ) -> None:
        slot = self.program.push(at, name, domain="NCCL")
        slot["sub"] = FLAG_PAYLOAD | (FLAG_COMMUNICATOR if communicator is not None else 0)
        slot["source_kind"], slot["end"] = PayloadType.BYTES, size
        slot["value"] = communicator or 0
        slot["correlation"] = 0 if partner is None else partner + 1
        self.records.append(slot)

    def end(self, at: int) -> None:
        self.records.append(self.program.pop(at, domain="NCCL"))

    def mark(self, at: int, name: str) -> None:
        self.records += [
            self.program.push(at, name, domain="NCCL"),
            self.program.pop(at + 1, domain="NCCL"),
        ]

    def communicator(self, communicator: int, ranks: int) -> None:
        self.records.append(self.program.push(1, "ncclCommInitRank", domain="NCCL"))
        slot = self.program.pop(2, domain="NCCL")
        slot["sub"] = FLAG_PAYLOAD | FLAG_COMMUNICATOR
        slot["source_kind"], slot["end"] = PayloadType.UINT64, ranks
        slot["value"], slot["correlation"] = communicator, 1
        self.records.append(slot)

    def kernel(self, called: int, start: int, end: int, kind: str) -> None:
        self.correlation += 1
        self.records += [
            self.program.call(called, called + 2, self.correlation),
            self.program.kernel(start, end, self.correlation, NAMES[kind]),
        ]

    def found(self) -> list[Collective]:
        traced = Traced(self.program)
        traced.feed(self.records)
        found = traced.process.accounting.collectives.take_report().collectives
        return [
            one._replace(start_ns=one.start_ns - START_NS, end_ns=one.end_ns - START_NS)
            for one in found
        ]


def test_an_operation_has_the_kernel_launched_in_its_range() -> None:
    nccl = Nccl()
    nccl.operation(10, "ncclAllReduce", WORLD, 4096)
    nccl.kernel(12, 100, 150, "all_reduce")
    nccl.end(20)
    nccl.operation(30, "ncclAllGather", PAIR, 64)
    nccl.kernel(32, 160, 200, "all_gather")
    nccl.end(40)
    assert nccl.found() == [
        Collective(f"{WORLD:016x}", "all_reduce", 4096, 100, 150, 0, 1),
        Collective(f"{PAIR:016x}", "all_gather", 64, 160, 200, 10, 1),
    ]


def test_a_kernel_that_ends_later_keeps_its_operation() -> None:
    nccl = Nccl()
    nccl.operation(10, "ncclAllReduce", WORLD, 1)
    nccl.end(20)
    nccl.operation(30, "ncclAllReduce", PAIR, 2)
    nccl.end(40)
    nccl.kernel(32, 50, 60, "all_reduce")
    nccl.kernel(12, 45, 90, "all_reduce")
    assert [(one.communicator[-3:], one.size_bytes) for one in nccl.found()] == [
        ("abc", 1),
        ("def", 2),
    ]


def test_a_group_is_launched_at_its_end_a_kernel_a_communicator() -> None:
    nccl = Nccl()
    nccl.mark(5, "ncclGroupStart")
    for at, communicator in ((10, WORLD), (20, WORLD), (30, PAIR)):
        nccl.operation(at, "ncclAllGather", communicator, 100)
        nccl.end(at + 5)
    nccl.records.append(nccl.program.push(40, "ncclGroupEnd", domain="NCCL"))
    nccl.kernel(42, 100, 200, "all_gather")
    nccl.kernel(44, 120, 220, "all_gather")
    nccl.end(50)
    assert [(one.communicator[-3:], one.size_bytes, one.operations) for one in nccl.found()] == [
        ("abc", 200, 2),
        ("def", 100, 1),
    ]


def test_nested_groups_are_one() -> None:
    nccl = Nccl()
    nccl.mark(5, "ncclGroupStart")
    nccl.mark(7, "ncclGroupStart")
    nccl.operation(10, "ncclAllReduce", WORLD, 100)
    nccl.end(15)
    nccl.mark(20, "ncclGroupEnd")
    nccl.records.append(nccl.program.push(40, "ncclGroupEnd", domain="NCCL"))
    nccl.kernel(42, 100, 200, "all_reduce")
    nccl.end(50)
    assert [(one.kind, one.operations) for one in nccl.found()] == [("all_reduce", 1)]


@pytest.mark.parametrize(("partners", "kind"), [((0, 1), "all_to_all"), ((1,), "send_recv")])
def test_sends_to_everyone_are_an_all_to_all(partners: tuple[int, ...], kind: str) -> None:
    nccl = Nccl()
    nccl.communicator(WORLD, 2)
    nccl.mark(5, "ncclGroupStart")
    for partner in partners:
        for name in ("ncclSend", "ncclRecv"):
            nccl.operation(10, name, WORLD, 100, partner)
            nccl.end(15)
    nccl.records.append(nccl.program.push(40, "ncclGroupEnd", domain="NCCL"))
    nccl.kernel(42, 100, 200, "send_recv")
    nccl.end(50)
    [one] = nccl.found()
    assert (one.kind, one.size_bytes) == (kind, 100)


def test_a_version_without_an_id_and_kernels_without_ranges_are_collectives_too() -> None:
    nccl = Nccl()
    nccl.kernel(2, 3, 4, "all_gather")
    nccl.operation(10, "ncclAllReduce", None, 4096)
    nccl.kernel(12, 100, 150, "all_reduce")
    nccl.end(20)
    assert [(one.communicator, one.kind, one.size_bytes) for one in nccl.found()] == [
        ("", "all_gather", 0),
        ("", "all_reduce", 4096),
    ]


def test_what_a_captured_graph_was_made_of_is_not_taken_for_a_later_launch() -> None:
    nccl = Nccl()
    nccl.operation(10, "ncclAllReduce", WORLD, 4096)
    nccl.end(20)
    nccl.kernel(50, 100, 150, "all_reduce")
    assert [(one.communicator, one.operations) for one in nccl.found()] == [("", 0)]


def test_ranges_of_the_domain_comm_are_collectives_by_category() -> None:
    program = Program()
    begun = program.push(10, "all_reduce", domain="comm", category="tp")
    begun["sub"], begun["source_kind"], begun["end"] = FLAG_PAYLOAD, PayloadType.INT64, 4096
    traced = Traced(program)
    traced.feed(
        [
            begun,
            program.push(12, "inner", domain="comm"),
            program.pop(13, domain="comm"),
            program.pop(20, domain="comm"),
            program.push(25, "all_gather", thread=MAIN + 1, domain="comm"),
            program.push(26, "step"),
        ]
    )
    found = traced.process.accounting.collectives.take_report()
    [one] = found.collectives
    assert one == Collective("tp", "all_reduce", 4096, START_NS + 10, START_NS + 20, 0, 1)
    assert [(begun.communicator, begun.kind) for begun in found.entered] == [
        ("tp", "all_reduce"),
        ("world", "all_gather"),
    ]
    matching = Matching()
    matching.add(1, found, None)
    assert {(row.kind, row.entered, row.left) for row in matching.take_collectives(1)} == {
        ("all_reduce", 1, 1),
        ("all_gather", 1, 0),
    }


def test_hostile_records_do_no_harm() -> None:
    generator = np.random.default_rng(1)
    raw = np.frombuffer(generator.bytes(SLOT.itemsize * 2000), SLOT).copy()
    raw["kind"] = generator.choice([RecordKind.RANGE_PUSH, RecordKind.RANGE_POP], 2000)
    raw["thread"] = generator.integers(0, 3, 2000)
    raw["d"] = generator.integers(0, 5, 2000)
    program = Program()
    raw["a"], raw["name"] = program.id("NCCL"), program.id("ncclAllReduce")
    strings = Strings()
    strings.add(program.strings)
    local = LocalCollectives()
    local.add_ranges(raw, strings)
    entered = local.take_report().entered
    assert len(entered) == int((raw["kind"] == RecordKind.RANGE_PUSH).sum())
    assert all(0 <= one.size_bytes < 1 << 62 for one in entered)
