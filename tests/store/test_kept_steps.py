"""Packing the operations of a kept step: what comes out is what went in, whatever a file holds."""

from __future__ import annotations

import zlib

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gputui.model.events import ReferredTo, StepLanes, StepOperations
from gputui.store.trace import TRACE, KeptTrace, Slots, TraceKind, pack

START_NS = 1_700_000_000_000_000_000
STEP = StepLanes(time_ns=START_NS, process=3, device=0, start_ns=START_NS, duration_ns=10**6,
                 busy=())  # fmt: skip
KINDS = [TraceKind.RANGE, TraceKind.CALL, TraceKind.KERNEL, TraceKind.COPY, TraceKind.SET]


@st.composite
def some_records(draw: st.DrawFn) -> Slots:
    count = draw(st.integers(1, 40))
    records = np.zeros(count, TRACE)
    numbers = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    records["start"] = START_NS + numbers.integers(-(10**6), 10**6, count)
    records["end"] = records["start"] + numbers.integers(0, 10**5, count)
    records["kind"] = numbers.choice(KINDS, count)
    records["process"] = STEP.process
    for name in ("range", "name", "correlation", "stream"):
        records[name] = numbers.integers(0, 2**32, count) >> numbers.integers(0, 32)
    records["device"] = numbers.integers(0, 8, count)
    is_call = records["kind"] == TraceKind.CALL
    records["thread"][is_call] = 77
    records["name"][is_call] = 1 + records["name"][is_call] % 2
    records["name"][np.isin(records["kind"], (TraceKind.RANGE, TraceKind.COPY, TraceKind.SET))] = 0
    sizes = numbers.integers(0, 2**32, count)
    records["bytes"] = np.where(np.isin(records["kind"], KINDS[2:]), sizes, 0)
    return records


@given(some_records())
def test_what_is_packed_comes_out_as_it_was(records: Slots) -> None:
    event = pack(STEP, records, {1: "cuLaunchKernel", 2: "cuMemcpyAsync"}, 4)
    told = msgspec.json.decode(msgspec.json.encode(event), type=StepOperations)
    assert told == event
    assert told.left_out == 4
    kept = KeptTrace([told])
    [unpacked] = kept.portions()
    assert len(kept) == len(records)
    call_names = {1: "cuLaunchKernel", 2: "cuMemcpyAsync"}
    named = unpacked.copy()
    for place, number in enumerate(unpacked["name"].tolist()):
        if unpacked["kind"][place] == TraceKind.CALL:
            names = [key for key, name in call_names.items() if name == kept.call_names[number]]
            named["name"][place] = names[0]
    expected = records[np.argsort(records["start"], kind="stable")]
    assert (named == expected).all()


@given(
    st.binary(max_size=400),
    st.integers(0, 0xFFFF),
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), max_size=3),
    st.booleans(),
)
def test_a_hostile_step_is_read_as_far_as_it_is_one(
    data: bytes, records: int, numbers: list[int | None], whole: bool
) -> None:
    if whole:  # of the right size, whatever is in it
        records = 3
        data = (data * 200)[: 3 * 46].ljust(3 * 46, b"\xff")
    event = StepOperations(
        time_ns=0, process=1, start_ns=START_NS, duration_ns=2**63 - 1, records=records,
        refers=tuple(ReferredTo(range=each, kernel=each, shape=each) for each in numbers),
        packed=zlib.compress(data),
    )  # fmt: skip
    [unpacked] = KeptTrace([event, event]).portions()
    assert len(unpacked) <= 2 * records
    assert (unpacked["end"] >= unpacked["start"]).all()
    assert (unpacked["start"] > 0).all()


def test_a_bomb_is_not_unpacked() -> None:
    bomb = zlib.compress(bytes(100 << 20))
    event = StepOperations(time_ns=0, process=1, start_ns=1, duration_ns=1, records=2, packed=bomb)
    assert not len(KeptTrace([event]))
