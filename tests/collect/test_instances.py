"""Instances against a model: when each is complete, and what it and those around it launched."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.attribute.arrays import LATEST_NS
from gputui.attribute.instances import (
    CLOSED_LIMIT,
    HORIZON_NS,
    HOST_SETTLE_NS,
    NO_INSTANCE,
    SETTLED_FLUSHES,
    Finalised,
    RangeInstances,
)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def opened(instances: RangeInstances, parent: int, start_ns: int, level: int, node: int) -> int:
    ids = instances.open(ints(start_ns), ints(level))
    instances.set_parents(ids, ints(parent))
    instances.node[instances.rows(ids)] = node
    return int(ids[0])


def one(start_ns: int = 10) -> tuple[RangeInstances, int]:
    instances = RangeInstances()
    return instances, opened(instances, NO_INSTANCE, start_ns, 1, 7)


def ids_of(finalised: Finalised) -> list[int]:
    return finalised.ids.tolist()


TREES = st.lists(st.integers(0, 30), max_size=30)
OPERATIONS = st.lists(
    st.tuples(st.integers(0, 29), st.integers(0, 1000), st.integers(0, 50), st.booleans()),
    max_size=40,
)


@given(TREES, OPERATIONS, st.integers(0, 3))
def test_what_an_instance_launched_counts_in_all_around_it(
    parents: list[int], operations: list[tuple[int, int, int, bool]], before: int
) -> None:
    """`parents[i]` % i is the parent of instance i, itself the outermost where that is i."""
    instances = RangeInstances()
    # Rows that were used before have nothing of their former selves.
    for _ in range(before):
        old = opened(instances, NO_INSTANCE, 1, 1, 1)
        instances.add_operations(ints(old), ints(1), ints(2), np.ones(1, np.bool_))
        instances.close(ints(old), ints(5), 0)
        instances.finalise(0, True, True)
    ids: list[int] = []
    up: list[int | None] = []
    levels: list[int] = []
    for at, choice in enumerate(parents):
        around = choice % (at + 1)
        up.append(None if around == at else around)
        levels.append(1 if around == at else levels[around] + 1)
        parent = NO_INSTANCE if around == at else ids[around]
        ids.append(opened(instances, parent, 100 + at, levels[-1], 50 + at))
    assert len(set(ids)) == len(ids)
    assert instances.alive(ints(*ids)).all()

    first = [LATEST_NS] * len(ids)
    last = [-1] * len(ids)
    count = [0] * len(ids)
    for where, start_ns, length_ns, is_first in operations:
        if where >= len(ids):
            continue
        end_ns = start_ns + length_ns
        instances.add_operations(
            ints(ids[where]), ints(start_ns), ints(end_ns), np.array([is_first])
        )
        inside: int | None = where
        while inside is not None:
            first[inside] = min(first[inside], start_ns)
            last[inside] = max(last[inside], end_ns)
            count[inside] += is_first
            inside = up[inside]
    busy = [sum(up[child] == at and last[child] >= 0 for child in range(len(ids)))
            for at in range(len(ids))]  # fmt: skip

    for at in reversed(range(len(ids))):
        instances.close(ints(ids[at]), ints(2000 + at), 0)
    done = instances.finalise(0, True, True)
    order = [ids.index(number) for number in ids_of(done)]
    assert sorted(order) == list(range(len(ids)))
    # What is inside goes first: it gives its work to what is around it.
    assert all(order.index(at) < order.index(parent) for at, parent in enumerate(up)
               if parent is not None)  # fmt: skip
    for place, at in enumerate(order):
        assert done.nodes[place] == 50 + at
        assert (done.starts_ns[place], done.ends_ns[place]) == (100 + at, 2000 + at)
        assert (done.first_ns[place], done.last_ns[place]) == (first[at], last[at])
        assert done.operations[place] == count[at]
        assert done.depths[place] == levels[at] - 1
        assert done.busy_children[place] == busy[at]
    assert not (done.start_end | done.elsewhere | done.unended).any()
    assert not done.end_threads.any()
    assert not instances.alive(ints(*ids)).any()
    assert ids_of(instances.finalise(0, True, True)) == []


def test_an_id_kept_too_long_finds_nothing() -> None:
    instances, old = one()
    instances.close(ints(old), ints(20), 0)
    assert ids_of(instances.finalise(0, False, True)) == [old]
    new = opened(instances, NO_INSTANCE, 30, 1, 8)
    assert instances.rows(ints(new)) == instances.rows(ints(old))  # the row is used again
    assert new != old
    assert instances.alive(ints(old, new, NO_INSTANCE, new + 1)).tolist() == [
        False, True, False, False,
    ]  # fmt: skip
    instances.add_operations(ints(old), ints(1), ints(2), np.ones(1, np.bool_))
    instances.await_operations(ints(old), 1)
    instances.close(ints(new), ints(40), 0)
    assert ids_of(instances.finalise(HOST_SETTLE_NS, False, False)) == [new]


def test_nothing_is_alive_before_the_first() -> None:
    assert RangeInstances().alive(ints(0, 5, NO_INSTANCE)).tolist() == [False] * 3


@pytest.mark.parametrize(
    ("wait_ns", "complete"), [(HOST_SETTLE_NS - 1, False), (HOST_SETTLE_NS, True)]
)
def test_without_a_sign_of_cuda_an_instance_is_complete_a_while_after_its_end(
    wait_ns: int, complete: bool
) -> None:
    instances, number = one()
    assert ids_of(instances.finalise(0, False, False)) == []  # still open
    instances.close(ints(number), ints(20), 1000)
    assert bool(ids_of(instances.finalise(1000 + wait_ns, False, False))) == complete


def test_with_cuda_it_is_complete_two_flushes_after_its_last_word() -> None:
    instances, number = one()
    instances.flushes = 10
    instances.close(ints(number), ints(20), 0)
    instances.flushes += SETTLED_FLUSHES - 1
    assert ids_of(instances.finalise(1, True, False)) == []
    instances.add_operations(ints(number), ints(11), ints(12), np.ones(1, np.bool_))
    instances.flushes += SETTLED_FLUSHES - 1
    assert ids_of(instances.finalise(2, True, False)) == []
    instances.flushes += 1
    assert ids_of(instances.finalise(3, True, False)) == [number]


@pytest.mark.parametrize(("wait_ns", "complete"), [(HORIZON_NS - 1, False), (HORIZON_NS, True)])
def test_announced_operations_are_waited_for_but_not_for_ever(wait_ns: int, complete: bool) -> None:
    instances, number = one()
    instances.await_operations(ints(number), 1)
    instances.await_operations(ints(number), 1)
    instances.await_operations(ints(number), -1)
    instances.close(ints(number), ints(20), 500)
    instances.flushes += 100
    assert bool(ids_of(instances.finalise(500 + wait_ns, True, False))) == complete
    if not complete:
        instances.await_operations(ints(number), -1)
        assert ids_of(instances.finalise(501, True, False)) == [number]


@pytest.mark.parametrize(
    ("wait_ns", "complete"), [(2 * HORIZON_NS - 1, False), (2 * HORIZON_NS, True)]
)
def test_one_whose_inside_never_closes_is_complete_in_the_end(wait_ns: int, complete: bool) -> None:
    instances, outer = one()
    inner = opened(instances, outer, 11, 2, 8)
    instances.close(ints(outer), ints(20), 100)
    found = ids_of(instances.finalise(100 + wait_ns, False, False))
    assert found == ([outer] if complete else [])
    assert instances.alive(ints(inner)).all()


def test_the_innermost_of_those_that_cannot_be_complete_goes_first() -> None:
    instances, outer = one()
    middle = opened(instances, outer, 11, 2, 8)
    opened(instances, middle, 12, 3, 9)
    instances.close(ints(outer), ints(30), 0)
    instances.close(ints(middle), ints(20), 0)
    assert ids_of(instances.finalise(2 * HORIZON_NS, False, False)) == [middle, outer]


def test_when_too_many_wait_none_wait_any_longer() -> None:
    for count, complete in ((CLOSED_LIMIT, 0), (CLOSED_LIMIT + 1, CLOSED_LIMIT + 1)):
        instances = RangeInstances()
        ids = instances.open(np.arange(count), np.ones(count, np.int64))
        instances.close(ids, np.arange(count) + 1, 0)
        assert len(instances.finalise(0, True, False).ids) == complete


def test_work_of_a_range_that_another_thread_ended_is_not_its_own() -> None:
    instances, number = one()
    row = instances.rows(ints(number))
    instances.elsewhere[row] = True
    instances.end_thread[row] = 42
    instances.add_operations(ints(number), ints(11), ints(12), np.ones(1, np.bool_))
    instances.close(ints(number), ints(20), 0)
    done = instances.finalise(0, True, True)
    assert done.first_ns[0] > done.last_ns[0]
    assert (done.elsewhere[0], done.end_threads[0]) == (True, 42)


def test_an_end_that_no_clock_tells_does_not_stand_for_open() -> None:
    instances, number = one()
    instances.close(ints(number), ints(LATEST_NS), 0)
    assert instances.finalise(0, False, True).ends_ns.tolist() == [LATEST_NS - 1]
