"""Attribution against a slow and obvious account, on programs that hypothesis makes up."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.attribute.capture_program import MAIN, Program, Traced, reference

# The likeliest several times, so that ranges nest and close.
THREADS = (MAIN, MAIN, MAIN, 101, 101, 102)
DOMAINS = ("", "", "", "app", "NCCL")
NAMES = ("step", "layer", "mlp")
ACTIONS = ("push", "push", "pop", "pop", "call", "call", "start", "end")


@st.composite
def programs(draw: st.DrawFn) -> tuple[Program, list[np.void]]:
    """A program's records in an order in which a ring could hold them."""
    length = draw(st.integers(0, 120))
    correlation = draw(st.sampled_from((1, 2**32 - 10)))
    shuffle = random.Random(draw(st.integers(0, 2**32)))
    program = Program()
    ring: list[np.void] = []
    activity: list[tuple[int, np.void]] = []  # and how many ring records were there before it
    open_ids: list[int] = []
    started_on: dict[int, int] = {}
    clock = 1
    for _ in range(length):
        kind, thread = shuffle.choice(ACTIONS), shuffle.choice(THREADS)
        clock += shuffle.randrange(1, 4)  # no two ranges of a thread begin in one nanosecond
        if kind == "push":
            name = shuffle.choice(NAMES)
            ring.append(program.push(clock, name, thread, shuffle.choice(DOMAINS)))
        elif kind == "start":
            open_ids.append(len(ring) + 1)
            name, domain = shuffle.choice(NAMES), shuffle.choice(DOMAINS)
            ring.append(program.start(clock, name, open_ids[-1], thread, domain))
            started_on[open_ids[-1]] = thread
        elif kind == "end":
            if open_ids:
                number = open_ids.pop(shuffle.randrange(len(open_ids)))
                if shuffle.randrange(4):
                    thread = started_on[number]
                ring.append(program.end(clock, number, thread))
        elif kind == "pop":
            ring.append(program.pop(clock, thread, shuffle.choice(DOMAINS)))
        else:
            clock += 1
            count, takes = shuffle.randrange(5), shuffle.randrange(7)
            how = shuffle.choice(("runtime", "runtime", "driver", "both", "lost"))
            correlation = (correlation + 1) % 2**32
            records = []
            if how in {"runtime", "both"}:
                name = ("cudaLaunchKernel_v7000", "cudaGraphLaunch_v10000")[count > 1]
                records.append(program.call(clock, clock + takes + 2, correlation, thread, name))
            if how in {"driver", "both"}:
                name = ("cuLaunchKernel", "cuGraphLaunch")[count > 1]
                returned = clock + takes + 1
                records.append(program.call(clock + 1, returned, correlation, thread, name, True))
            for number in range(count):
                start = clock + shuffle.randrange(1, 40)
                end = start + shuffle.randrange(1, 20)
                if number == 3:
                    records.append(program.copy(start, end, correlation, shuffle.randrange(1, 99)))
                else:
                    name = shuffle.choice(("gemm", "softmax"))
                    device = shuffle.randrange(2)
                    records.append(program.kernel(start, end, correlation, name, device))
            activity += [(len(ring), record) for record in records]
            clock += takes + 3
    # What is open lasts until the last word, and nothing else ends with it.
    ring.append(program.push(clock + 1, "last", 103))
    ring.append(program.pop(clock + 2, 103))
    shuffle.shuffle(activity)
    placed = [(index, 0.0, record) for index, record in enumerate(ring)]
    placed += [(shuffle.randint(at, len(ring)) - 0.5, 1.0, record) for at, record in activity]
    return program, [record for _, _, record in sorted(placed, key=lambda item: item[:2])]


def cuts(records: list[np.void], seed: int, count: int) -> list[list[np.void]]:
    at = sorted(random.Random(seed).randint(0, len(records)) for _ in range(count))
    return [records[a:b] for a, b in zip([0, *at], [*at, len(records)], strict=True)]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(), st.integers(0, 1000), st.integers(0, 5))
def test_any_program_in_any_batches_is_accounted_for_as_the_reference_does(
    made: tuple[Program, list[np.void]], seed: int, count: int
) -> None:
    program, records = made
    traced = Traced(program)
    for batch in cuts(records, seed, count):
        traced.feed(batch)
    traced.collect(ended=True)
    assert traced.account() == reference(records, program.strings)


@settings(max_examples=75, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(), st.integers(0, 1000), st.integers(1, 8))
def test_collecting_after_each_batch_changes_no_total(
    made: tuple[Program, list[np.void]], seed: int, count: int
) -> None:
    program, records = made
    traced = Traced(program)
    for batch in cuts(records, seed, count):
        traced.feed(batch)
        traced.collect()
    traced.collect(ended=True)
    account, expected = traced.account(), reference(records, program.strings)
    # Across collections a union is exact only when operations arrive in order of time.
    for place, busy_ns in account.gpu_busy.items():
        assert 0 <= busy_ns <= expected.gpu_busy[place]
    account.gpu_busy, account.devices = expected.gpu_busy, expected.devices
    assert account == expected


@settings(max_examples=75, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(), st.integers(0, 1000), st.integers(1, 8))
def test_unions_are_exact_across_collections_when_operations_arrive_in_order_of_time(
    made: tuple[Program, list[np.void]], seed: int, count: int
) -> None:
    program, records = made
    records = [r for r in records if r["kind"] < 16] + sorted(
        (r for r in records if r["kind"] >= 16), key=lambda r: (r["kind"] != 19, int(r["start"]))
    )
    traced = Traced(program)
    for batch in cuts(records, seed, count):
        traced.feed(batch)
        traced.collect()
    traced.collect(ended=True)
    account = traced.account()
    expected = reference(records, program.strings)
    assert account.devices == expected.devices
    assert account.gpu_busy == expected.gpu_busy
